"""Recycling: a thread runs another context only when its realm is as new and nothing of the last one can run."""

from __future__ import annotations

import json
from typing import Any

import pytest

from saisei_runtime.isolates.port import Completed, ProofKind

pytestmark = pytest.mark.asyncio(loop_scope="session")

POLLUTIONS = {
    "new global": "globalThis.leak = 1;",
    "new global by var-like define": "Object.defineProperty(globalThis, 'leak', {value: 1});",
    "symbol global": "globalThis[Symbol('leak')] = 1;",
    "replaced global": "globalThis.URL = class {};",
    "deleted global": "delete globalThis.escape;",
    "patched prototype": "Array.prototype.map = () => 1;",
    "extended prototype": "Array.prototype.last = function () { return this.at(-1); };",
    "extended Object.prototype": "Object.prototype.leak = 1;",
    "extended constructor": "Promise.leak = 1;",
    "getter instead of value": "Object.defineProperty(Math, 'PI2', {get: () => 1, configurable: true});",
    "value to getter": "const m = Array.prototype.map; Object.defineProperty(Array.prototype, 'map', {get: () => m});",
    "getter swap": "Object.defineProperty(Map.prototype, 'size', {get: () => 1});",
    "setter added": """const d = Object.getOwnPropertyDescriptor(Map.prototype, 'size');
        Object.defineProperty(Map.prototype, 'size', {...d, set(v) {}});""",
    "symbol key": "Array.prototype[Symbol('x')] = 1;",
    "well-known symbol": "String.prototype[Symbol.iterator] = Array.prototype[Symbol.iterator];",
    "changed __proto__": "Object.setPrototypeOf(Map.prototype, Set.prototype);",
    "changed __proto__ of a class": "Object.setPrototypeOf(RangeError, Object);",
    "frozen builtin": "Object.freeze(Array.prototype);",
    "sealed builtin": "Object.seal(JSON);",
    "not extensible": "Object.preventExtensions(Math);",
    "enumerability": "Object.defineProperty(Array.prototype, 'map', {enumerable: true});",
    "writability": "Object.defineProperty(Array.prototype, 'map', {writable: false});",
    "order of keys": "const p = Math.max; delete Math.max; Math.max = p;",
    "Error.prepareStackTrace": "Error.prepareStackTrace = () => 'leak';",
    "Error.stackTraceLimit": "Error.stackTraceLimit = 1;",
    "generator prototype": "Object.getPrototypeOf(function* () {}).prototype.next = () => 1;",
    "async generator prototype": "Object.getPrototypeOf(async function* () {}).prototype.next = () => 1;",
    "iterator prototype": "Object.getPrototypeOf([][Symbol.iterator]()).next = () => ({done: true});",
    "map iterator": "Object.getPrototypeOf(new Map().keys()).next = () => ({done: true});",
    "regexp iterator": "Object.getPrototypeOf('a'.matchAll(/a/g)).next = () => ({done: true});",
    "iterator helper": "Object.getPrototypeOf([].values().map((x) => x)).next = () => ({done: true});",
    "async iterator": "Object.getPrototypeOf(Object.getPrototypeOf((async function* () {}).prototype)).x = 1;",
    "typed array": "Object.getPrototypeOf(Uint8Array).prototype.fill = () => 1;",
    "web class": "Response.prototype.json = () => 1;",
    "web class static": "Response.leak = 1;",
    "stream reader": "ReadableStreamDefaultReader.prototype.read = () => 1;",
    "headers iterator": "Object.getPrototypeOf(new Headers().entries()).next = () => ({done: true});",
    "crypto": "crypto.leak = 1;",
    "console": "console.log = () => {};",
    "Intl class": "Intl.NumberFormat.prototype.formatToParts = 1;",
    "Intl namespace": "Intl.leak = 1;",
    "WebAssembly": "WebAssembly.Module.customSections = 1;",
    "setTimeout": "globalThis.setTimeout = () => 0;",
    "Reflect": "Reflect.leak = 1;",
    "Symbol": "Symbol.leak = Symbol('x');",
    "Function.prototype": "Function.prototype.leak = 1;",
}


# What nobody can take back, or what could be told from the original afterwards.
FOR_GOOD = {
    "new global by var-like define",
    "deleted global",
    "changed __proto__",
    "changed __proto__ of a class",
    "frozen builtin",
    "sealed builtin",
    "not extensible",
    "order of keys",
}


@pytest.mark.parametrize("kind", POLLUTIONS)
async def test_nothing_of_a_pollution_is_left(own_lab_shared: Any, kind: str) -> None:
    """Design 3, W-083: a context that changed the realm completes, the next one sees nothing of it: the change is taken
    back, or the thread is joined."""
    lab = own_lab_shared
    end, _ = await lab.body(f"{POLLUTIONS[kind]} return {{a: 1}};")
    assert end.outcome == Completed(b'{"a":1}')
    assert end.proof.kind is (ProofKind.JOINED if kind in FOR_GOOD else ProofKind.QUIESCENT)
    end, _ = await lab.body("return {leak: 'leak' in globalThis || 'leak' in {}, n: [1, 2].map((x) => x).length};")
    assert end.outcome == Completed(b'{"leak":false,"n":2}')
    assert end.proof.kind is ProofKind.QUIESCENT


async def test_a_restored_realm_is_whole(own_lab: Any, make_workflow: Any) -> None:
    """Design 3, W-083: what any kind of pollution touched is as it was, on the thread that saw them all."""
    lab = own_lab(max_threads=1, warm_threads=1)
    everything = "".join(f"{{ {code} }}" for kind, code in POLLUTIONS.items() if kind not in FOR_GOOD)
    look = """const isObject = (x) => typeof x === "function" || (typeof x === "object" && x !== null);
        const seen = [];
        const visited = new Set();
        const queue = [[globalThis, "globalThis"]];
        for (const [value, path] of queue) {
          if (!isObject(value) || visited.has(value)) continue;
          visited.add(value);
          for (const key of Reflect.ownKeys(value)) {
            const name = `${path}.${String(key)}`;
            const d = Reflect.getOwnPropertyDescriptor(value, key);
            const data = Reflect.has(d, "value");
            const what = data ? (isObject(d.value) ? typeof d.value : String(d.value)) : "accessor";
            const flags = [d.writable ?? null, d.enumerable, d.configurable];
            if (!name.includes("timeOrigin")) seen.push([name, what, ...flags].join());
            for (const next of data ? [d.value] : [d.get, d.set]) queue.push([next, name]);
          }
        }
        return {count: seen.length, seen: seen.join("\\n")};"""
    before, _ = await lab.run(make_workflow(look))
    assert json.loads(before.outcome.output)["count"] > 2_000
    for _ in range(3):
        end, _ = await lab.run(make_workflow(f"{everything} return {{}};"))
        assert isinstance(end.outcome, Completed), end
        assert end.proof.kind is ProofKind.QUIESCENT
    after, _ = await lab.run(make_workflow(look))
    assert after.outcome == before.outcome
    assert lab.pool._isolates["worker"].process._count == 1


SPOILERS = {
    "a getter that descriptors inherit": """const define = Object.defineProperty;
        const getter = () => ({__proto__: null, get() { go(); return undefined; }, configurable: true});
        define(Object.prototype, "constructor", getter());
        for (const field of ["value", "get", "set", "writable", "enumerable", "configurable"]) {
          define(Object.prototype, field, getter());
        }""",
    "a setter for what is taken back": """const spoiled = {get: () => 1, set() { go(); }, configurable: true};
        Object.defineProperty(globalThis, "URL", spoiled); Object.defineProperty(Array.prototype, "map", spoiled);""",
    "setters of indexes": """for (const key of ["0", "1", "length"]) {
          const spoiled = {set() { go(); }, get() { go(); return undefined; }, configurable: true};
          Object.defineProperty(Object.prototype, key, spoiled);
        }""",
    "iteration and species": """const iterator = {next: () => ({done: true})};
        Array.prototype[Symbol.iterator] = function () { go(); return iterator; };
        Object.defineProperty(Array, Symbol.species, {get() { go(); return Array; }, configurable: true});
        Function.prototype.call = Function.prototype.apply = function () { go(); };
        RegExp.prototype.exec = function () { go(); return null; };
        Reflect.ownKeys = () => { go(); return []; };""",
}


@pytest.mark.parametrize("kind", SPOILERS)
async def test_taking_back_runs_nothing_of_the_tenants(lab: Any, make_workflow: Any, kind: str) -> None:
    """W-014, design 3: no code of a context runs while its realm is put right: its stop is as proven as any."""
    source = make_workflow(
        f"""const random = Math.random;
        const go = () => {{ globalThis[`late-${{random()}}`] = 1; }};
        {SPOILERS[kind]}
        return undefined;"""
    )
    for _ in range(3):
        end, run = await lab.run(source)
        assert end.outcome == Completed(None)
        # What ran after the additions were taken away would have added one: the realm would have been given up.
        assert end.proof.kind is ProofKind.QUIESCENT, end
        assert run.ends == 1


@pytest.fixture
def own_lab_shared(lab: Any) -> Any:
    return lab


ORDINARY = {
    "nothing": "",
    "classes and subclasses": "class A extends Array { x = 1; } class E extends Error { name = 'E'; } new A(); new E()",
    "web API": """new Request("http://a/", {method: "POST", body: "x"}); await new Response("x").text();
        const h = new Headers({a: "b"}); [...h]; new URL("http://a/?b=c").searchParams.get("b");
        const stream = new ReadableStream({start(c) { c.enqueue(new Uint8Array(1)); c.close(); }});
        await new Response(stream).arrayBuffer();""",
    "crypto": "await crypto.subtle.digest('SHA-256', new Uint8Array(8)); crypto.randomUUID();",
    "timers": "await new Promise((r) => setTimeout(r, 1)); setInterval(() => {}, 5); setTimeout(() => {}, 1e6);",
    "wasm": "await WebAssembly.compile(new Uint8Array([0, 97, 115, 109, 1, 0, 0, 0]));",
    "abort timeout": "AbortSignal.timeout(5000).onabort = () => {};",
    "unhandled rejection": "Promise.reject(new Error('x'));",
    "text": "'a'.localeCompare('b'); new Intl.NumberFormat('de').format(1); new Date().toLocaleString(); /a/.test('a')",
    "generators": "for await (const x of (async function* () { yield* [1]; })()) ; [...function* () { yield 1; }()];",
    "structuredClone": "structuredClone({a: [new Map()]});",
    "using": "{ using x = {[Symbol.dispose]() {}}; await using y = {async [Symbol.asyncDispose]() {}}; }",
    "private state on objects": "const w = new WeakMap(); w.set(Array.prototype, 1); new WeakRef({});",
}


@pytest.mark.parametrize("kind", ORDINARY)
async def test_ordinary_code_leaves_the_realm_pristine(lab: Any, kind: str) -> None:
    """Design 3: what normal applications do costs no thread, so recycling is the rule."""
    end, _ = await lab.body(f"{ORDINARY[kind]}\nreturn {{}};")
    assert end.outcome == Completed(b"{}")
    assert end.proof.kind is ProofKind.QUIESCENT


UNCOUNTABLE = {
    "FinalizationRegistry": "new FinalizationRegistry(() => {}).register({}, 1);",
    "Atomics.waitAsync": "Atomics.waitAsync(new Int32Array(new SharedArrayBuffer(4)), 0, 0);",
    "compression": "new CompressionStream('gzip');",
    "blob": "new Blob(['x']).text();",
    "transfer": "structuredClone({}, {transfer: []});",
    "uncaught error": "queueMicrotask(() => { throw new Error('x'); }); await null; await null;",
}


@pytest.mark.parametrize("kind", UNCOUNTABLE)
async def test_what_cannot_be_counted_costs_the_thread(lab: Any, kind: str) -> None:
    """Design 3: after asynchronous work that cannot be counted only a join proves the stop."""
    end, _ = await lab.body(f"{UNCOUNTABLE[kind]} return {{}};")
    assert end.outcome == Completed(b"{}")
    assert end.proof.kind is ProofKind.JOINED


async def test_long_native_work_is_not_waited_for(own_lab: Any) -> None:
    """Design 3: native work that outlasts the grace is ended with its thread, or with the process if it cannot be."""
    lab = own_lab(quiet_within=0.75, join_within=1.5)
    end, run = await lab.body(
        """crypto.subtle.deriveBits({name: "PBKDF2", hash: "SHA-512", salt: new Uint8Array(8), iterations: 3e6},
          await crypto.subtle.importKey("raw", new Uint8Array(8), "PBKDF2", false, ["deriveBits"]), 512)
          .then(() => { for (;;) {} });
        return {};"""
    )
    assert end.outcome == Completed(b"{}")
    assert end.proof.kind in (ProofKind.JOINED, ProofKind.REAPED)
    assert run.took < 4


async def test_nothing_survives_into_the_next_context(lab: Any, make_workflow: Any) -> None:
    """W-083: module state, timers, pending Promises and the engine's own leftovers are gone."""
    source = make_workflow(
        """const seen = {count, input: RegExp.$_, last: RegExp.lastMatch};
        count++; /secret/.exec("a secret text"); setTimeout(() => { count = 99; }, 0);
        (async () => { await new Promise((r) => setTimeout(r, 1)); count = 98; })();
        return seen;""",
        before="let count = 0;",
    )
    for _ in range(6):
        end, _ = await lab.run(source)
        assert isinstance(end.outcome, Completed)
        assert json.loads(end.outcome.output) == {"count": 0, "input": "", "last": ""}
        assert end.proof.kind is ProofKind.QUIESCENT


async def test_worn_out_threads_are_replaced(own_lab: Any) -> None:
    """Design 3: a thread runs a bounded number of contexts; the change is not felt."""
    lab = own_lab(contexts_per_thread=3, max_threads=1)
    kinds = []
    for _ in range(10):
        end, _ = await lab.body("return {};")
        kinds.append(end.proof.kind)
    assert kinds == [ProofKind.QUIESCENT] * 10
    process = lab.pool._isolates["worker"].process
    assert process._count >= 4


async def test_a_thread_keeps_nothing_of_ended_contexts(own_lab: Any, make_workflow: Any) -> None:
    """Design 3: the modules of a context are freed after it, so a thread's memory does not grow with its contexts."""
    lab = own_lab(max_threads=1, warm_threads=1, thread_heap=64, thread_recycle_heap=1_000)
    functions = "\n".join(
        f"export function part{number}(a) {{ return [a, {number}].map((v) => v + {number}); }}"
        for number in range(1500)
    )
    source = make_workflow("return {};", before=functions)
    # One graph takes about 600 KB of heap once it is evaluated: those of 300 contexts would be three times the heap.
    for _ in range(300):
        end, _ = await lab.run(source)
        assert isinstance(end.outcome, Completed)
        assert end.proof.kind is ProofKind.QUIESCENT
    assert lab.pool._isolates["worker"].process._count <= 2


async def test_polyfills_work(lab: Any) -> None:
    """Design 3: applications that polyfill builtins are correct, only slower."""
    end, _ = await lab.body(
        """Array.prototype.sum = function () { return this.reduce((a, b) => a + b, 0); };
        Object.defineProperty(String.prototype, "shout", {value() { return this.toUpperCase() + "!"; }, writable: true,
          configurable: true});
        Uint8Array.prototype.toBase64x = () => "x"; Iterator.prototype.count = function () { return [...this].length; };
        Promise.later = () => Promise.resolve(1); Error.captured = 1;
        const count = [1, 2, 3].values().count();
        return {sum: [1, 2].sum(), shout: "a".shout(), count, later: await Promise.later()};"""
    )
    assert json.loads(end.outcome.output) == {"sum": 3, "shout": "A!", "count": 3, "later": 1}
