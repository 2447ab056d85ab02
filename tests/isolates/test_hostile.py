"""Code that tries to live on, to reach the host or to leave messages for later contexts."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from saisei_runtime.isolates.port import Completed, ContextEnd, Failed, Lost, ProofKind

pytestmark = pytest.mark.asyncio(loop_scope="session")

BEFORE = """
const symbol = (object, name) => { for (let at = object; at; at = Object.getPrototypeOf(at))
  for (const key of Object.getOwnPropertySymbols(at)) if (key.description === name) return key; };
const told = (make) => { const keys = {};
  const spy = new Proxy({}, {get(t, key) { if (typeof key === "symbol") keys[key.description] = key; }});
  try { make(spy); } catch {} return keys; };
const later = (ms) => new Promise((r) => setTimeout(r, ms));
"""


async def _output(lab: Any, make_workflow: Any, statements: str) -> tuple[Any, ContextEnd]:
    end, _ = await lab.run(make_workflow(statements, before=BEFORE))
    assert isinstance(end.outcome, Completed), end.outcome
    return json.loads(end.outcome.output or b"null"), end


OUT_OF_REACH = {
    "port of a ReadableStream": """const rs = new ReadableStream();
        return {got: typeof rs[symbol(rs, "messaging_transfer_symbol")]};""",
    "port of a WritableStream": """const ws = new WritableStream();
        return {got: typeof ws[symbol(ws, "messaging_transfer_list_symbol")]};""",
    "port of a TransformStream": """const ts = new TransformStream();
        return {got: typeof ts[symbol(ts, "messaging_transfer_symbol")]};""",
    "port of an AbortSignal": """const s = new AbortController().signal;
        return {got: typeof s[symbol(s, "messaging_transfer_list_symbol")]};""",
    "a stream that takes a port": """const rs = new ReadableStream();
        return {got: typeof rs[symbol(rs, "messaging_deserialize_symbol")]};""",
    "Node's inspect": """const u = new URL("http://a/");
        return {got: typeof u[symbol(u, "nodejs.util.inspect.custom")]};""",
    "Buffer": """const get = Object.getOwnPropertyDescriptor(Object.getPrototypeOf(globalThis), "Buffer").get;
        const made = new CustomEvent("x", Object.defineProperty({}, "detail", {get, enumerable: true}));
        return {got: typeof (made.detail ?? undefined)};""",
    "Buffer while a Request is made": """const found = []; const look = () => { const B = globalThis.Buffer;
          if (B !== undefined) for (let at = B; at; at = Object.getPrototypeOf(at)) {
            for (const key of Reflect.ownKeys(at)) { const v = at[key];
              if (typeof v !== "function" || !Object.isFrozen(v)) found.push(key); }
            if (!Object.isFrozen(at)) found.push("not frozen"); } };
        new Request("http://a/", {method: "POST", get body() { look(); return {toString() { look(); return "x"; }}; }});
        new Response({toString() { look(); return "x"; }});
        return {got: found.length === 0 ? "undefined" : String(found)};""",
    "weak listeners": """const keys = told((spy) => new EventTarget().addEventListener("x", () => {}, spy));
        const signal = new AbortController().signal; const seen = [];
        signal.addEventListener = (type, listener, options) => seen.push(...Object.getOwnPropertySymbols(options));
        new EventTarget().addEventListener("x", () => {}, {signal});
        return {got: [...Object.keys(keys), ...seen.map(String)].join() || "undefined"};""",
}


@pytest.mark.parametrize("kind", OUT_OF_REACH)
async def test_internals_are_out_of_reach(lab: Any, make_workflow: Any, kind: str) -> None:
    """Design 3, W-083: no symbol, getter or option of Node's leads to ports, Buffer or weak listeners."""
    got, end = await _output(lab, make_workflow, OUT_OF_REACH[kind])
    assert got == {"got": "undefined"}
    assert end.proof.kind is ProofKind.QUIESCENT


UNCOUNTED = {
    "handle of a Blob": """const b = new Blob(["x"]); b[symbol(b, "kHandle")].getReader();""",
    "Blob.text": "new Blob(['x']).text();",
    "Blob as a body": "new Response(new Blob(['x'])).text();",
    "stream of a Blob": "new Blob(['x']).stream().getReader().read();",
    "FinalizationRegistry": "new FinalizationRegistry(() => {}).register({}, 1);",
    "its constructor": "new (FinalizationRegistry.prototype.constructor)(() => {});",
    "subclass of it": "new (class extends FinalizationRegistry {})(() => {});",
    "DecompressionStream": "new DecompressionStream('gzip');",
}


@pytest.mark.parametrize("kind", UNCOUNTED)
async def test_natives_that_nobody_counts_cost_the_thread(lab: Any, make_workflow: Any, kind: str) -> None:
    """W-014, Design 3: what may call tenant code later is either counted or ends with the thread's join."""
    _, end = await _output(lab, make_workflow, UNCOUNTED[kind] + " return {};")
    assert end.proof.kind is ProofKind.JOINED


GHOSTS = {
    "signal of a Request": """for (let i = 0; i < 50; i++) { const {signal} = new AbortController();
          signal.removeEventListener = haunt; new Request("http://a/", {signal}); }""",
    "clone of a Request": """for (let i = 0; i < 50; i++) { const {signal} = new AbortController();
          signal.removeEventListener = haunt; new Request("http://a/", {signal}).clone(); }""",
    "weak listener": """for (let i = 0; i < 50; i++) { const {signal} = new AbortController();
          const key = symbol(signal, "kRemoveWeakListenerHelper"); if (key) signal[key] = haunt;
          new EventTarget().addEventListener("x", () => {}, {signal}); }""",
    "composite signal": """const keys = told((spy) => Reflect.get(AbortSignal.prototype, "aborted", spy));
        for (let i = 0; i < 50; i++) { const signal = AbortSignal.any([new AbortController().signal]);
          for (const name of ["kSourceSignals", "kDependantSignals"]) if (keys[name]) signal[keys[name]] = {
            size: 1, delete: haunt, add() {}, *[Symbol.iterator]() { yield {deref: haunt}; }};
          if (keys.kComposite) signal[keys.kComposite] = true;
          signal.addEventListener("abort", () => {}); }""",
    "cancelled Response": """for (let i = 0; i < 50; i++) new Response(new ReadableStream({cancel: haunt}));""",
    "locked reader": """const pull = () => new Promise(() => {});
        for (let i = 0; i < 50; i++) new ReadableStream({cancel: haunt, pull}).getReader();""",
}

HAUNT = "const haunt = () => { step.do('ghost', () => {}); globalThis.ghost = 1; };"
LITTER = "const junk = []; for (let i = 0; i < 3e5; i++) junk.push({i}); await later(20);"


@pytest.mark.parametrize("kind", GHOSTS)
async def test_the_collector_calls_nobody(own_lab: Any, make_workflow: Any, kind: str) -> None:
    """W-014, W-083: no finalizer of Node's calls the code of a context that has ended."""
    lab = own_lab(max_threads=1)
    plant = make_workflow(f"{HAUNT}\n{GHOSTS[kind]}\nreturn {{}};", before=BEFORE)
    look = make_workflow(f"{LITTER} return {{ghost: 'ghost' in globalThis}};", before=BEFORE)
    for _ in range(2):
        await lab.run(plant)
        for _ in range(4):
            end, run = await lab.run(look)
            assert json.loads(end.outcome.output) == {"ghost": False}
            assert run.calls == []
            assert end.proof.kind is ProofKind.QUIESCENT


CHANNELS = {
    "crypto.subtle": "crypto.subtle",
    "its methods": "crypto.subtle.digest",
    "size of CountQueuingStrategy": "new CountQueuingStrategy({highWaterMark: 1}).size",
    "size of ByteLengthQueuingStrategy": "new ByteLengthQueuingStrategy({highWaterMark: 1}).size",
    "getter of isTrusted": "descriptor(new Event('x'), 'isTrusted').get",
    "getter of stack": "Object.getOwnPropertyDescriptor(new Error('x'), 'stack').get",
    "setter of stack": "Object.getOwnPropertyDescriptor(new Error('x'), 'stack').set",
    "handle of a Blob": "Object.getPrototypeOf(new Blob(['x'])[symbol(new Blob(['x']), 'kHandle')])",
    "an error of Node's": "Object.getPrototypeOf((() => { try { new URL('x'); } catch (e) { return e; } })())",
    "an error of a rare kind": """Object.getPrototypeOf((() => { try {
        ReadableStream.prototype.getReader.call(new ReadableStream(), {mode: 'x'}); } catch (e) { return e; } })())""",
    "a stream's algorithm": "state(state(new ReadableStream()).controller).pullAlgorithm",
    "what a stream has instead of a request": "state(new WritableStream()).closeRequest",
    "a read request": """(() => { const r = new ReadableStream().getReader(); r.read();
        return Object.getPrototypeOf(state(r).readRequests[0]); })()""",
    "a CryptoKey": """Object.getPrototypeOf(
        await crypto.subtle.importKey('raw', new Uint8Array(16), 'AES-GCM', true, ['encrypt']))""",
    "a restored BlockList": """await restored("internal/blocklist:BlockList")""",
    "iterator of Headers": "Object.getPrototypeOf(new Headers().entries())",
    "prototype of the global object": "Object.getPrototypeOf(globalThis)",
    "events of a target": """(() => { const t = new EventTarget(); t.addEventListener("x", () => {});
        return Object.getPrototypeOf(t[symbol(t, "kEvents")]); })()""",
    "a listener": """(() => { const t = new EventTarget(); t.addEventListener("x", () => {});
        let at; Map.prototype.forEach.call(t[symbol(t, 'kEvents')], (root) => { at = root.next; });
        return Object.getPrototypeOf(at); })()""",
}
STATE = (
    BEFORE
    + """
const descriptor = (object, key) => { for (let at = object; ; at = Object.getPrototypeOf(at)) {
  const found = Object.getOwnPropertyDescriptor(at, key); if (found) return found; } };
const state = (object) => object[symbol(object, "kState")];
const restored = async (what) => { const b = new Blob(["x"]); const key = symbol(b, "messaging_clone_symbol");
  b[key] = () => ({data: {}, deserializeInfo: what});
  try { return Object.getPrototypeOf(structuredClone(b)); } catch { return {}; } };
"""
)


@pytest.mark.parametrize("kind", CHANNELS)
async def test_nothing_is_left_in_hidden_objects(own_lab: Any, make_workflow: Any, kind: str) -> None:
    """W-083: objects behind getters, symbols and instances hold nothing for the next context."""
    lab = own_lab(max_threads=1)
    plant = f"""const it = {CHANNELS[kind]}; try {{ it.left = 1; }} catch {{}}
        try {{ it[symbol(it, "x") ?? "left2"] = 1; }} catch {{}}
        try {{ Object.setPrototypeOf(it, {{left: 2}}); }} catch {{}}
        for (const key of Reflect.ownKeys(it)) try {{ const f = it[key]; f.left = 1; }} catch {{}}
        for (const key of Reflect.ownKeys(it)) try {{ it[key] = 7; }} catch {{}} return {{}};"""
    look = f"""const it = {CHANNELS[kind]}; let left = it.left !== undefined || it.left2 !== undefined;
        for (const k of Reflect.ownKeys(it)) try {{ left ||= it[k] === 7 || it[k].left !== undefined; }} catch {{}}
        return {{left}};"""
    for _ in range(2):
        await lab.run(make_workflow(plant, before=STATE))
        got, _ = await _output_with(lab, make_workflow(look, before=STATE))
        assert got == {"left": False}


async def _output_with(lab: Any, source: str) -> tuple[Any, ContextEnd]:
    end, _ = await lab.run(source)
    assert isinstance(end.outcome, Completed), end.outcome
    return json.loads(end.outcome.output or b"null"), end


POISON = {
    "index setter": "Object.defineProperty(Object.prototype, '0', {set() { throw 1; }, configurable: true});",
    "index setter of arrays": "Object.defineProperty(Array.prototype, '0', {set() { throw 1; }, configurable: true});",
    "index getter": "Object.defineProperty(Object.prototype, '0', {get() { throw 1; }, set() {}});",
    "species": """try { Object.defineProperty(Promise, Symbol.species,
        {get() { throw 1; }, configurable: true}); } catch {}""",
    "constructor of Promise": """try { Object.defineProperty(Promise.prototype, 'constructor',
        {get() { throw 1; }, configurable: true}); } catch {}""",
    "then": "Promise.prototype.then = function () { return new Promise(() => {}); };",
    "length": "Object.defineProperty(Object.prototype, 'length', {get() { throw 1; }, configurable: true});",
    "length of typed arrays": """const p = Object.getPrototypeOf(Uint8Array.prototype);
        for (const k of ['length', 'byteLength', 'byteOffset', 'buffer'])
          Object.defineProperty(p, k, {get() { return 3; }});
        p.set = p.subarray = p.slice = p.copyWithin = () => 1;""",
    "species of typed arrays": """Object.defineProperty(Object.getPrototypeOf(Uint8Array), Symbol.species,
        {get() { throw 1; }});""",
    "options": """for (const k of ['highWaterMark',
        'size', 'objectMode', 'encoding', 'context', 'cachedData', 'timeout',
        'signal', 'initializeImportMeta', 'lineOffset', 'type', 'handle', 'destroyed', 'writable', 'errno', 'error',
        'code', 'message', 'callback', 'chunk', 'buffer', 'position']) Object.prototype[k] = 5;""",
    "what a system call tells": """for (const k of ['errno', 'error', 'code', 'syscall', 'path', 'dest'])
        Object.defineProperty(Object.prototype, k, {get() { throw 1; }, set() {}});""",
    "iteration": "Array.prototype[Symbol.iterator] = function () { throw 1; };",
    "calling": "Function.prototype.call = Function.prototype.apply = Function.prototype.bind = () => 1;",
    "Atomics": "Atomics.wait = () => { throw 1; };",
    "stack traces": "Error.prepareStackTrace = () => { throw 1; }; Error.stackTraceLimit = 'x';",
}  # fmt: skip


HEALTHY = """const {readable, writable} = new TransformStream();
        const writer = writable.getWriter();
        void writer.write(new TextEncoder().encode("some")).then(() => writer.close());
        const text = await new Response(readable).text();
        const request = new Request("http://a/?b=c", {method: "POST", body: new FormData(), headers: {d: "e"}});
        const late = await new Promise((done) => setTimeout(done, 1, "late"));
        const hash = new Uint8Array(await crypto.subtle.digest("SHA-256", new Uint8Array(3)));
        const copy = structuredClone({a: [new Map([[1, 2]])]});
        const stepped = await step.do("one", async () => ({list: [3, 1, 2].toSorted().concat([..."xy"])}));
        let thrown = ""; try { null.x; } catch (error) { thrown = `${error.stack}`.split("\\n")[0]; }
        const ok = text === "some" && late === "late" && hash.length === 32 && copy.a[0].get(1) === 2
          && stepped.list.join("") === "123xy" && request.headers.get("d") === "e" && /TypeError/.test(thrown);
        return {ok};"""


@pytest.mark.parametrize("kind", POISON)
async def test_poison_reaches_no_host_code(lab: Any, make_workflow: Any, kind: str) -> None:
    """W-051, W-085: steps, logs and outcomes go on as if the builtins were whole; nothing hangs."""
    source = make_workflow(
        f"""{POISON[kind]}
        const plain = (n) => {{ const o = Object.create(null); o.n = n; return o; }};
        const one = await step.do("one", () => plain(1));
        const list = Object.create(null); list.list = JSON.parse('[1,[2,{{"b":3,"a":4}}]]');
        await step.do("two", () => list); console.log("x", list);
        try {{ await step.do("three", () => {{ throw new Error("no"); }}); }} catch {{}}
        const out = Object.create(null); out.n = one.n; return out;"""
    )
    end, run = await lab.run(source)
    assert end.outcome == Completed(b'{"n":1}')
    assert [call.name for call in run.calls] == ["one", "one", "two", "two", "three", "three"]
    # Whether the poison could be taken back or cost the thread: what comes after finds everything in order.
    end, _ = await lab.run(make_workflow(HEALTHY))
    assert end.outcome == Completed(b'{"ok":true}'), end
    assert end.proof.kind is ProofKind.QUIESCENT


BROKEN = {
    "steps that fail": "try { step.do('x', () => 1); } catch {}",
    "frozen Object.prototype": "Object.freeze(Object.prototype);",
    "reentrant sending": "Object.defineProperty(Object.prototype, 'path', {get() { step.do('again', () => 1); }});",
}


@pytest.mark.parametrize("size", [10, 1_000_000])
@pytest.mark.parametrize("after", ["", "for (;;) {}", "const f = () => Promise.resolve().then(f); f();"])
async def test_an_outcome_is_out_before_anything_else_runs(lab: Any, make_workflow: Any, size: int, after: str) -> None:
    """W-014, W-085: also an output larger than the line's buffer reaches the runtime before the code that goes on."""
    source = make_workflow(
        f"const go = (n) => queueMicrotask(() => {{ if (n > 0) go(n - 1); else {{ {after} }} }}); go(2);"
        f"return {{a: 'x'.repeat({size})}};"
    )
    end, run = await lab.run(source)
    assert isinstance(end.outcome, Completed)
    assert end.outcome.output is not None
    assert len(end.outcome.output) == size + 8
    assert run.took < 4


async def test_many_large_frames(lab: Any, make_workflow: Any) -> None:
    """W-014: a thread whose runtime is slow to read waits for it and loses nothing."""
    end, run = await lab.run(
        make_workflow(
            "for (let i = 0; i < 12; i++) await step.do(`s${i}`, () => ({t: 'x'.repeat(1000000)})); return {};"
        )
    )
    assert isinstance(end.outcome, Completed)
    assert len(run.calls) == 24


TEXTS = {
    "log": r"console.log('\ud800', {a: '\udc00'}, new Error('\ud800')); return {};",
    "thrown": r"const e = new Error('\ud800'); e.name = '\udc00'; throw e;",
    "thrown string": r"throw '\ud800';",
    "failed attempt": r"await step.do('x', () => { const e = new Error('\ud800'); e.name = '\udc00'; throw e; });",
    "unhandled": r"Promise.reject(new Error('\ud800')); await new Promise((r) => setTimeout(r, 5)); return {};",
    "step name": r"await step.do('\ud800', () => {});",
    "import": r"await import('./\ud800.mjs');",
    "options": r"await step.waitForEvent('w', {type: '\ud800', timeoutSeconds: 1});",
    "option key": r"await step.waitForEvent('w', {'\ud800': 1});",
    "fetch": r"await fetch('http://127.0.0.1/\ud800');",
    "class name": r"await step.do('x', () => ({a: new (class { static name = '\ud800'; })()}));",
}


@pytest.mark.parametrize("kind", TEXTS)
async def test_lone_surrogates_break_no_frame(lab: Any, make_workflow: Any, kind: str) -> None:
    """W-013, S-22: every text that leaves a thread is well-formed."""
    end, _ = await asyncio.wait_for(lab.run(make_workflow(TEXTS[kind])), 60)
    assert isinstance(end.outcome, Completed | Failed), end.outcome
    if isinstance(end.outcome, Failed) and end.outcome.message is not None:
        end.outcome.message.encode()


async def test_lone_surrogates_in_an_inspection(lab: Any) -> None:
    """MW-12: a specifier that is no text is a problem of the bundle, told as such."""
    found = await lab.pool.inspect(lab.code('import "./\\ud800.mjs"; export default {};'))
    assert not found.loads
    assert "module_not_found" in str(found.problems)


async def test_poison_that_costs_the_context_does_not_hang(lab: Any, make_workflow: Any) -> None:
    """W-085: whatever is done to the realm, the context ends."""
    for poison in BROKEN.values():
        end, _ = await asyncio.wait_for(lab.run(make_workflow(f"{poison} return {{}};")), 60)
        assert isinstance(end.outcome, Completed | Failed | Lost)
