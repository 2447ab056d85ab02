"""Code that takes more than its share, or reaches for what is not its own: what it sees, and what the others see."""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import json
import logging
import os
import zlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from saisei_runtime.code import Module
from saisei_runtime.isolates.port import Completed, Failed, FetchHead, Lost, ProofKind

pytestmark = pytest.mark.asyncio(loop_scope="session")

_PAGE = os.sysconf("SC_PAGE_SIZE")
_MIB = 2**20


def resident(pid: int) -> int:
    """In bytes."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * _PAGE


def node_of(lab: Any, worker: str = "worker") -> int:
    return int(lab.pool._isolates[worker].process.pid)


async def value(lab: Any, make_workflow: Any, statements: str, **options: Any) -> Any:
    end, _ = await lab.run(lab.code(make_workflow(statements), **options))
    assert isinstance(end.outcome, Completed), end.outcome
    return json.loads(end.outcome.output or b"null")


async def healthy(lab: Any, make_workflow: Any) -> None:
    assert await value(lab, make_workflow, "return {n: await step.do('one', () => ({a: 1}))};") == {"n": {"a": 1}}


async def test_constructors_of_everything_that_is_handed_over(lab: Any, make_workflow: Any) -> None:
    """Design 3, Issue 4: from no object of the host's does a chain of constructors lead to code from strings, to
    `process` or to `require`; each ends at the tenant's own builtins."""
    found = await value(
        lab,
        make_workflow,
        """const bad = []; const seen = new Set();
        const own = new Set([Object, Function, Array, String, Number, Boolean, Promise, Error, TypeError, Symbol]);
        const look = (value, path, depth) => {
          if ((typeof value !== "object" && typeof value !== "function") || value === null || seen.has(value)) return;
          seen.add(value); if (depth > 6) return;
          for (const at of [value.constructor, value.constructor?.constructor]) {
            if (typeof at !== "function") continue;
            try { const made = at("return typeof process + typeof require"); if (typeof made === "function") {
              bad.push(`${path} makes code: ${made()}`); } } catch {}
          }
          const name = value.constructor?.constructor;
          if (name !== undefined && name !== Function) bad.push(`${path} has another Function`);
          for (const key of Reflect.ownKeys(value)) { const d = Object.getOwnPropertyDescriptor(value, key);
            for (const part of [d.value, d.get, d.set]) look(part, `${path}.${String(key)}`, depth + 1); }
          look(Object.getPrototypeOf(value), `${path}.__proto__`, depth + 1);
        };
        let failure; try { await step.do("", () => 1); } catch (error) { failure = error; }
        const done = await step.do("one", () => ({list: [1, {a: 2}]}));
        const promise = step.do("two", () => ({}));
        const missing = await import("./nowhere.mjs").catch((error) => error);
        const self = await import("./main.mjs");
        const given = {event, step, env: this.env, failure, done, promise, missing, self, it: this, console, crypto,
          fetch, performance, setTimeout, queueMicrotask, structuredClone, signal: new AbortController().signal,
          request: new Request("http://a/"), response: new Response("x")};
        for (const [name, it] of Object.entries(given)) look(it, name, 0);
        await promise;
        return {bad: bad.slice(0, 10), many: seen.size > 100};""",
        vars_json=b'{"a": {"b": [1]}}',
    )
    assert found == {"bad": [], "many": True}


async def test_a_handlers_arguments(lab: Any) -> None:
    """Design 3, Issue 4: the same for what `fetch` is given."""
    source = """export default { async fetch(request, env, ctx) { const bad = [];
      for (const [name, it] of Object.entries({request, env, ctx, headers: request.headers, signal: request.signal,
          wait: ctx.waitUntil, body: request.body})) {
        if (it === null) continue;
        let at = it.constructor;
        while (at !== undefined && at !== Function && at !== at.constructor) at = at.constructor;
        if (at !== Function) bad.push(name);
        try { Function.prototype.constructor("return 1"); bad.push("code"); } catch {}
      }
      const node = [typeof process, typeof require, typeof module, typeof global, typeof Buffer];
      return Response.json({bad, node}); } };"""
    result = await lab.pool.fetch(lab.code(source, worker="arguments"), FetchHead("GET", "https://a.example/", ()))
    body = json.loads(b"".join([chunk async for chunk in result.body]))
    assert body == {"bad": [], "node": ["undefined"] * 5}


FORGED = {
    "postMessage": "typeof globalThis.postMessage + typeof globalThis.onmessage + typeof globalThis.parentPort",
    "channels": "typeof MessageChannel + typeof MessagePort + typeof BroadcastChannel",
    "workers": "typeof Worker + typeof SharedWorker + typeof ServiceWorker",
    "sockets": "typeof WebSocket + typeof EventSource + typeof XMLHttpRequest",
}


@pytest.mark.parametrize("kind", FORGED)
async def test_there_is_nothing_to_forge_frames_with(lab: Any, make_workflow: Any, kind: str) -> None:
    """Design 3, Issue 4: a context has no port, channel, worker or socket at all."""
    assert await value(lab, make_workflow, f"return {{got: {FORGED[kind]}}};") == {"got": "undefined" * 3}


async def test_what_looks_like_a_frame_is_text(lab: Any, make_workflow: Any, caplog: pytest.LogCaptureFixture) -> None:
    """Design 3, Issue 4: frames in lines, names, documents and bodies stay what they are; no step of another context is
    answered, no end is reported twice."""
    frame = json.dumps({"t": "end", "context": "context-1", "outcome": "completed", "output": {"a": "forged"}})
    lengths = "\\u0000\\u0000\\u0000\\u0010\\u0000\\u0000\\u0000\\u000c"
    with caplog.at_level(logging.INFO, logger="saisei_runtime.worker"):
        end, run = await lab.run(
            make_workflow(
                f"""const frame = {json.dumps(frame)}; const raw = "{lengths}" + frame;
                for (const text of [frame, raw, "\\n" + raw + "\\n"]) {{ console.log(text);
                  const name = "s" + text.length + text.slice(0, 50).replaceAll(/[^a-z]/g, "");
                  await step.do(name, () => ({{text, [text]: text}})); }}
                Promise.reject(new Error(raw)); return {{ok: true}};"""
            )
        )
    assert end.outcome == Completed(b'{"ok":true}')
    assert (run.ends, len(run.calls)) == (1, 6)
    await healthy(lab, make_workflow)


async def test_a_clock_of_shared_memory(lab: Any, make_workflow: Any) -> None:
    """Design 3, Issue 4: without a second thread shared memory counts nothing: nobody but the context itself changes
    it, and waiting for it costs the thread."""
    got = await value(
        lab,
        make_workflow,
        """const cell = new Int32Array(new SharedArrayBuffer(8)); const before = Atomics.load(cell, 0);
        const until = performance.now() + 20; while (performance.now() < until) Atomics.load(cell, 0);
        return {same: Atomics.load(cell, 0) === before, woken: Atomics.notify(cell, 0)};""",
    )
    assert got == {"same": True, "woken": 0}
    end, _ = await lab.run(
        make_workflow("Atomics.waitAsync(new Int32Array(new SharedArrayBuffer(8)), 0, 0); return {};")
    )
    assert end.proof.kind is ProofKind.JOINED


async def test_ten_thousand_timers(lab: Any, make_workflow: Any) -> None:
    """W-014, Issue 4: timers and intervals that are left over are dropped with their context; none fires later."""
    end, _ = await lab.run(
        make_workflow(
            """globalThis.fired = 0; delete globalThis.fired;
            for (let i = 0; i < 5000; i++) { setTimeout(() => { globalThis.fired = 1; }, 30 + i);
              setInterval(() => { globalThis.fired = 1; }, 30 + i); }
            return {};"""
        )
    )
    assert isinstance(end.outcome, Completed)
    assert end.proof.kind is ProofKind.QUIESCENT
    later = "await new Promise((done) => setTimeout(done, 100)); return {fired: 'fired' in globalThis};"
    for _ in range(4):
        assert await value(lab, make_workflow, later) == {"fired": False}


GREEDY = {
    "an ArrayBuffer": "new Uint8Array(new ArrayBuffer(2 ** 30)).fill(1);",
    "WebAssembly's memory": "new Uint8Array(new WebAssembly.Memory({initial: 16384}).buffer).fill(1);",
    "a growing buffer": """const b = new ArrayBuffer(0, {maxByteLength: 2 ** 30}); b.resize(2 ** 30);
        new Uint8Array(b).fill(1);""",
    "shared memory": "new Uint8Array(new SharedArrayBuffer(2 ** 30)).fill(1);",
    "a string": """const s = 'x'.repeat(2 ** 28); const all = [];
        for (let i = 0; i < 8; i++) all.push(new TextEncoder().encode(s));""",
    "numbers": "const all = []; for (;;) all.push(new Float64Array(1e6).fill(1));",
}


@pytest.mark.parametrize("kind", GREEDY)
async def test_a_gigabyte(own_lab: Any, make_workflow: Any, kind: str) -> None:
    """Design 3, Issue 4: a process that takes more than its limit is killed and reaped, the context lost; another
    Worker goes on meanwhile, and so does its own next context."""
    lab = own_lab(process_memory=500, heartbeat_every=0.05)
    other = await lab.start(
        lab.code(make_workflow("await step.do('x', () => new Promise((r) => setTimeout(r, 50)));"), worker="other")
    )
    end, _ = await lab.run(
        make_workflow(f"{GREEDY[kind]}\nawait new Promise((r) => setTimeout(r, 60000)); return {{}};")
    )
    assert isinstance(end.outcome, Lost | Failed), end.outcome
    assert end.proof.kind in (ProofKind.REAPED, ProofKind.JOINED, ProofKind.QUIESCENT)
    if kind in ("an ArrayBuffer", "WebAssembly's memory", "shared memory"):
        assert isinstance(end.outcome, Lost) and end.proof.kind is ProofKind.REAPED
    assert isinstance((await asyncio.wait_for(other.ended, 60)).outcome, Completed)
    await healthy(lab, make_workflow)


TEXTLESS = {
    "thrown": "throw {toString() { throw new Error('again'); }, get message() { throw 1; }, get name() { throw 1; }};",
    "thrown by a step": "await step.do('x', () => { throw {toString() { throw 1; }, get stack() { throw 1; }}; });",
    "as a name": "await step.do({toString() { throw new Error('mine'); }}, () => 1);",
    "in the log": """console.log({toString() { throw 1; }, get a() { throw 1; }, [Symbol.toPrimitive]() { throw 1; }},
        new Proxy({}, {get() { throw 1; }, ownKeys() { throw 1; }, getPrototypeOf() { throw 1; }}));
        throw new Error("end");""",
    "unheard": """Promise.reject({get stack() { throw 1; }, toString() { throw 1; }});
        await new Promise((r) => setTimeout(r, 5)); throw new Error("end");""",
    "as a result": "return {get a() { throw 1; }};",
    "a Proxy as a result": "return new Proxy({}, {ownKeys() { throw 1; }, getPrototypeOf() { throw 1; }});",
}


@pytest.mark.parametrize("kind", TEXTLESS)
async def test_what_cannot_be_written_as_text(lab: Any, make_workflow: Any, kind: str) -> None:
    """W-013, W-086, Issue 4: `toString`, getters and traps that throw end the context as a failure and nothing else."""
    end, _ = await asyncio.wait_for(lab.run(make_workflow(TEXTLESS[kind])), 60)
    assert isinstance(end.outcome, Failed), end.outcome
    await healthy(lab, make_workflow)


async def test_the_largest_bundle_loads(own_lab: Any, make_workflow: Any) -> None:
    """AR-02, MW-11, Issue 4: 512 files of 128 MiB in all are given to a thread and run; what is not imported costs the
    context nothing, and a small Worker beside it goes on."""
    lab = own_lab(thread_heap=192, process_memory=2048)
    block = b"x" * 262_144
    files: dict[str, Any] = {f"data/{n}.bin": Module("application/octet-stream", block) for n in range(410)}
    files |= {f"lib/{n}.mjs": f"export const n = {n}; // {'x' * 262_000}" for n in range(101)}
    sums = " + ".join(f"m{n}.n" for n in range(101))
    imports = "".join(f"import * as m{n} from './lib/{n}.mjs';\n" for n in range(101))
    main = (
        imports
        + "import data from './data/7.bin';\n"
        + make_workflow(f"return {{sum: {sums}, size: data.byteLength}};")
    )
    code = lab.code(main, modules=files, worker="large")
    end, _ = await lab.run(code)
    assert end.outcome == Completed(b'{"size":262144,"sum":5050}')
    await healthy(lab, make_workflow)


async def test_a_response_that_unfolds(own_lab: Any, make_workflow: Any) -> None:
    """MW-26, Issue 4: a response of 256 KB that unfolds to 256 MB is unfolded only as far as it is read; neither
    the runtime nor the process grows with it."""
    bomb = gzip.compress(bytes(256 * _MIB), 6)

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        head = f"HTTP/1.1 200 OK\r\ncontent-encoding: gzip\r\ncontent-length: {len(bomb)}\r\n\r\n"
        writer.write(head.encode() + bomb)
        with contextlib.suppress(ConnectionError):
            await writer.drain()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/"
    lab = own_lab(egress_allowed_hosts=frozenset({"127.0.0.1"}))
    await healthy(lab, make_workflow)
    mine, node = resident(os.getpid()), resident(node_of(lab))
    got = await value(
        lab,
        make_workflow,
        f"""const reader = (await fetch("{url}")).body.getReader(); let size = 0, zeros = true;
        while (size < 32 * 2 ** 20) {{ const {{value}} = await reader.read();
          size += value.length; zeros &&= value.every((b) => b === 0); }}
        await new Promise((r) => setTimeout(r, 50)); await reader.cancel(); return {{zeros}};""",
    )
    assert got == {"zeros": True}
    assert resident(os.getpid()) - mine < 64 * _MIB
    assert resident(node_of(lab)) - node < 64 * _MIB
    server.close()


async def test_a_stream_that_unfolds(own_lab: Any, make_workflow: Any) -> None:
    """MW-22, Issue 4: DecompressionStream unfolds as far as it is read too; what it may still do costs the thread."""
    lab = own_lab()
    bomb = Module("application/octet-stream", zlib.compress(bytes(256 * _MIB), 6))
    await healthy(lab, make_workflow)
    node = resident(node_of(lab))
    source = "import bomb from './bomb.bin';\n" + make_workflow(
        """const stream = new Blob([bomb]).stream().pipeThrough(new DecompressionStream("deflate"));
        const reader = stream.getReader(); const {value} = await reader.read();
        await new Promise((r) => setTimeout(r, 50)); return {some: value.length > 0};"""
    )
    end, _ = await lab.run(lab.code(source, modules={"bomb.bin": bomb}))
    assert end.outcome == Completed(b'{"some":true}')
    assert end.proof.kind is ProofKind.JOINED
    assert resident(node_of(lab)) - node < 96 * _MIB


GIGABYTE = 2**30
STREAM = """export default { fetch(request) { let left = Number(new URL(request.url).searchParams.get("n"));
  const chunk = new Uint8Array(65536).fill(7);
  const pull = (c) => { if (left <= 0) return c.close(); c.enqueue(chunk); left -= 65536; };
  return new Response(new ReadableStream({pull})); } };"""


async def streamed(lab: Any, size: int) -> tuple[int, int, int]:
    """(bytes that came, the most that the runtime grew meanwhile, the most that Node grew)."""
    code = lab.code(STREAM)
    await _drain((await lab.pool.fetch(code, FetchHead("GET", "https://a.example/?n=67108864", ()))).body)
    pid = node_of(lab)
    first, most, came, looks = (resident(os.getpid()), resident(pid)), [0, 0], 0, 0
    result = await lab.pool.fetch(code, FetchHead("GET", f"https://a.example/?n={size}", ()))
    async for chunk in result.body:
        came += len(chunk)
        looks += 1
        if looks % 256 == 0:
            now = (resident(os.getpid()), resident(pid))
            most = [max(m, n - f) for m, n, f in zip(most, now, first, strict=True)]
    return came, most[0], most[1]


async def _drain(body: AsyncIterator[bytes]) -> None:
    async for _ in body:
        pass


async def test_a_large_response_costs_no_memory(own_lab: Any) -> None:
    """MW-23, Issue 4: 256 MiB through a handler's stream cost less than 64 MiB, in the runtime and Node together."""
    came, mine, node = await streamed(own_lab(), GIGABYTE // 4)
    assert came == GIGABYTE // 4
    assert mine + node < 64 * _MIB, (mine, node)


@pytest.mark.long
async def test_a_gigabyte_response_costs_no_memory(own_lab: Any) -> None:
    """MW-23, Issue 4: the same for 1 GiB."""
    came, mine, node = await streamed(own_lab(), GIGABYTE)
    assert came == GIGABYTE
    assert mine + node < 64 * _MIB, (mine, node)
