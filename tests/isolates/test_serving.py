"""Serving: `fetch` with streams both ways, failures without details, `waitUntil`, clients that leave."""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from saisei_contract.errors import SaiseiError
from saisei_runtime.code import Binding, BindingKind
from saisei_runtime.isolates.port import BindingResult, Completed, FetchHead, FetchResult

pytestmark = pytest.mark.asyncio(loop_scope="session")


async def until(condition: Callable[[], bool], seconds: float = 30.0) -> None:
    limit = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < limit, "the condition did not become true"
        await asyncio.sleep(0.005)


def handler(statements: str, before: str = "") -> str:
    return f"{before}\nexport default {{ async fetch(request, env, ctx) {{ {statements} }} }};"


async def fetch(
    lab: Any,
    source: str,
    *,
    method: str = "GET",
    url: str = "https://app.example/path?q=1",
    headers: tuple[tuple[str, str], ...] = (),
    body: AsyncIterator[bytes] | None = None,
    **options: Any,
) -> FetchResult:
    result: FetchResult = await lab.pool.fetch(lab.code(source, **options), FetchHead(method, url, headers, body))
    return result


async def read(result: FetchResult) -> bytes:
    return b"".join([chunk async for chunk in result.body])


async def chunks(*parts: bytes) -> AsyncIterator[bytes]:
    for part in parts:
        yield part


async def test_request_and_response(lab: Any) -> None:
    """MW-20, MW-22: method, URL, headers and body reach the handler; status, headers and body come back."""
    result = await fetch(
        lab,
        handler(
            """const h = new Headers([["x-one", "1"], ["set-cookie", "a=1"], ["set-cookie", "b=2"]]);
            const seen = {m: request.method, u: request.url, a: request.headers.get("x-a"),
              b: await request.text(), real: request instanceof Request, own: Object.keys(env)};
            return Response.json(seen, {status: 201, headers: h});"""
        ),
        method="POST",
        headers=(("X-A", "v"), ("x-b", "1"), ("x-b", "2")),
        body=chunks("grü".encode(), b"ss", b""),
    )
    assert result.status == 201
    assert [value for name, value in result.headers if name == "set-cookie"] == ["a=1", "b=2"]
    assert json.loads(await read(result)) == {
        "m": "POST",
        "u": "https://app.example/path?q=1",
        "a": "v",
        "b": "grüss",
        "real": True,
        "own": [],
    }


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ("new Response('text')", (200, b"text")),
        ("new Response(null, {status: 204})", (204, b"")),
        ("new Response(new Uint8Array([1, 2]))", (200, b"\x01\x02")),
        ("new Response(new URLSearchParams({a: 'b'}))", (200, b"a=b")),
        ("new Response(new Blob(['blob']))", (200, b"blob")),
        ("Response.redirect('https://x.example/', 302)", (302, b"")),
        ("Promise.resolve(new Response('later'))", (200, b"later")),
        ("new Response(new Response('x').body)", (200, b"x")),
        ("new Response('x').clone()", (200, b"x")),
    ],
)
async def test_kinds_of_responses(lab: Any, expression: str, expected: tuple[int, bytes]) -> None:
    """MW-22, MW-23: every body that the Web API allows."""
    result = await fetch(lab, handler(f"return {expression};"))
    assert (result.status, await read(result)) == expected


async def test_body_methods(lab: Any) -> None:
    """MW-22: text, json, bytes, arrayBuffer, blob and formData of requests and responses."""
    source = handler(
        """const multi = new FormData(); multi.append("f", "v"); multi.append("file", new File(["data"], "n.txt"));
        const form = await new Response(multi).formData();
        const url = await new Request("http://a/", {method: "POST", body: new URLSearchParams({a: "b c"})}).formData();
        const type = {"content-type": "application/json"};
        return Response.json({json: await new Response('{"j":1}', {headers: type}).json(),
          bytes: [...await new Response("ab").bytes()], buffer: (await new Response("abc").arrayBuffer()).byteLength,
          blob: await (await new Response("blob").blob()).text(), field: form.get("f"),
          file: await form.get("file").text(),
          name: form.get("file").name, url: url.get("a"), sent: (await request.formData()).get("x"),
          plain: (await new Response("ab").bytes()).constructor === Uint8Array});"""
    )
    headers = (("content-type", "application/x-www-form-urlencoded"),)
    result = await fetch(lab, source, method="POST", headers=headers, body=chunks(b"x=", b"y"))
    assert json.loads(await read(result)) == {
        "json": {"j": 1},
        "bytes": [97, 98],
        "buffer": 3,
        "blob": "blob",
        "field": "v",
        "file": "data",
        "name": "n.txt",
        "url": "b c",
        "sent": "y",
        "plain": True,
    }


@pytest.mark.parametrize(
    "statements",
    [
        "throw new Error('secret detail');",
        "return Promise.reject('secret detail');",
        "return undefined;",
        "return 'secret detail';",
        "return {status: 200, headers: new Headers(), body: null};",
        "return Object.create(Response.prototype);",
        "return Response.error();",
        "const r = new Response('secret detail'); await r.text(); return r;",
        "const r = new Response('secret detail'); r.body.getReader(); return r;",
    ],
)
async def test_failures_are_a_plain_500(lab: Any, statements: str) -> None:
    """MW-23: a throw or a non-Response is a Host-made 500 that tells nothing."""
    result = await fetch(lab, handler(statements))
    assert result.status == 500
    assert await read(result) == b"Internal Server Error"
    assert dict(result.headers) == {"content-type": "text/plain;charset=UTF-8"}


@pytest.mark.parametrize(
    "source",
    [
        "export default {};",
        "export default { get fetch() { return () => new Response('x'); } };",
        "import './none.mjs';",
    ],
)
async def test_no_handler_or_no_code(lab: Any, source: str) -> None:
    """MW-10, MW-23: without a callable own `fetch`, or with code that does not load, the answer is 500."""
    assert (await fetch(lab, source)).status == 500


async def test_response_streams(lab: Any) -> None:
    """MW-23: the first chunk arrives while the handler still produces."""
    source = handler(
        """const body = request.body.getReader();
        return new Response(new ReadableStream({async pull(c) {
          const {done, value} = await body.read(); if (done) c.close(); else c.enqueue(value); }}));"""
    )
    gates = [asyncio.Event() for _ in range(3)]

    async def slow() -> AsyncIterator[bytes]:
        for number, gate in enumerate(gates):
            await gate.wait()
            yield b"part %d" % number

    result = await fetch(lab, source, method="POST", body=slow())
    body = aiter(result.body)
    for number, gate in enumerate(gates):
        gate.set()
        assert await asyncio.wait_for(anext(body), 30) == b"part %d" % number
    with pytest.raises(StopAsyncIteration):
        await anext(body)


async def test_large_bodies_flow_under_credit(lab: Any) -> None:
    """MW-23: megabytes pass through both ways without being gathered anywhere."""
    taken = 0

    async def source() -> AsyncIterator[bytes]:
        nonlocal taken
        for _ in range(256):
            taken += 1
            yield b"x" * 65536

    result = await fetch(lab, handler("return new Response(request.body);"), method="PUT", body=source())
    body = aiter(result.body)
    await anext(body)
    await asyncio.sleep(0.1)  # time in which everything would come if nothing held it back
    assert taken < 64
    total = 65536
    async for chunk in body:
        total += len(chunk)
    assert total == 256 * 65536


async def test_endless_response_waits_for_its_reader(lab: Any) -> None:
    """MW-23: an endless body is produced only as far as it is taken, and ends when the client leaves."""
    source = handler(
        """let n = 0; const left = new Promise((r) => request.signal.addEventListener("abort", r));
        ctx.waitUntil(left.then(() => { log.n = n; }));
        return new Response(new ReadableStream({pull(c) { n++; c.enqueue(new Uint8Array(65536)); }}));""",
        "const log = {n: 0};",
    )
    result = await fetch(lab, source)
    await anext(aiter(result.body))
    await result.body.aclose()
    isolate = lab.pool._isolates["worker"]
    serving = isolate.serving[lab.code(source).version_uid]
    await until(lambda: not serving.invocations)


async def test_broken_response_is_not_complete(lab: Any) -> None:
    """MW-23: a body that fails midway breaks off instead of looking whole."""
    source = handler(
        """let n = 0; return new Response(new ReadableStream({pull(c) {
          if (n++) throw new Error("midway"); c.enqueue(new Uint8Array(3)); }}));"""
    )
    result = await fetch(lab, source)
    got = b""
    with pytest.raises(SaiseiError, match="broke off"):
        async for chunk in result.body:
            got += chunk
    assert got == b"\0\0\0"


async def test_cut_request_body(lab: Any) -> None:
    """MW-23: a request body that breaks off is an error for the handler, not an end."""

    async def breaking() -> AsyncIterator[bytes]:
        yield b"begin"
        raise OSError("the client is gone")

    result = await fetch(
        lab,
        handler("try { await request.text(); return new Response('whole'); } catch { return new Response('cut'); }"),
        method="POST",
        body=breaking(),
    )
    assert await read(result) == b"cut"


async def test_unread_request_body(lab: Any) -> None:
    """MW-23: a handler that ignores the body answers all the same."""

    async def endless() -> AsyncIterator[bytes]:
        while True:
            yield b"x" * 65536

    result = await fetch(lab, handler("return new Response('done');"), method="POST", body=endless())
    assert await read(result) == b"done"


async def test_many_at_once_share_one_graph(lab: Any) -> None:
    """MW-20: invocations of a Version run concurrently over one module graph; vars are fresh for each."""
    source = handler(
        """if (++active === 20) all(); await together;
        const n = env.V.n; env.V.n = 2; return Response.json({active, n});""",
        "let active = 0, all; const together = new Promise((r) => { all = r; });",
    )
    asked = (fetch(lab, source, vars_json=b'{"V":{"n":1}}') for _ in range(20))
    results = await asyncio.wait_for(asyncio.gather(*asked), 30)
    bodies = [json.loads(await read(result)) for result in results]
    assert {(body["active"], body["n"]) for body in bodies} == {(20, 1)}


async def test_wait_until_outlives_the_response(lab: Any) -> None:
    """MW-25: the response is complete at once; the invocation ends when the promise settles; the ctx then expires."""
    source = handler(
        """if (request.url.endsWith("result")) return Response.json(seen);
        if (request.url.endsWith("go")) { release(); return new Response("gone"); }
        ctx.waitUntil(new Promise((r) => release = r).then(() => { seen.late = true; }));
        const timer = setInterval(() => { if (seen.late) try { ctx.waitUntil(1); } catch (e) {
          seen.expired = e.name; clearInterval(timer); } }, 5);
        return new Response("now");""",
        "let release; const seen = {late: false, expired: ''};",
    )

    async def ask(path: str) -> bytes:
        return await read(await fetch(lab, source, url=f"https://a.example/{path}"))

    assert await ask("") == b"now"
    assert json.loads(await ask("result")) == {"late": False, "expired": ""}
    await ask("go")
    limit = time.monotonic() + 30
    while json.loads(await ask("result")) != {"late": True, "expired": "context_expired"}:
        assert time.monotonic() < limit


async def test_wait_until_rejection_is_a_diagnostic(lab: Any, caplog: pytest.LogCaptureFixture) -> None:
    """MW-25: a rejected `waitUntil` promise is logged and changes no response."""
    with caplog.at_level(logging.INFO, logger="saisei_runtime.worker"):
        result = await fetch(
            lab, handler("ctx.waitUntil(Promise.reject(new Error('late'))); return new Response('ok');")
        )
        assert await read(result) == b"ok"
        await until(lambda: "late" in caplog.text)


async def test_client_that_leaves_early(lab: Any) -> None:
    """MW-23: a request that is cancelled before the head aborts `request.signal`."""
    source = handler(
        """if (request.url.endsWith("result")) return Response.json({aborted});
        await new Promise((r) => request.signal.addEventListener("abort", r)); aborted++; return new Response("x");""",
        "let aborted = 0;",
    )
    task = asyncio.create_task(fetch(lab, source))
    assert json.loads(await read(await fetch(lab, source, url="https://a.example/result"))) == {"aborted": 0}
    task.cancel()
    limit = time.monotonic() + 30
    while json.loads(await read(await fetch(lab, source, url="https://a.example/result"))) != {"aborted": 1}:
        assert time.monotonic() < limit


async def test_blocked_thread_is_ended(own_lab: Any) -> None:
    """Design 3: a handler that blocks its thread is terminated; its callers get 503 and the next request works."""
    lab = own_lab(serve_stalled_after=1.5)
    source = handler("if (request.url.endsWith('loop')) for (;;) {} return new Response('fine');")
    with pytest.raises(SaiseiError, match="backend_unavailable"):
        await asyncio.wait_for(fetch(lab, source, url="https://a.example/loop"), 30)
    assert await read(await fetch(lab, source)) == b"fine"


async def test_drain_of_a_serving_version(own_lab: Any) -> None:
    """W-087, WV-13: draining ends a Version's invocations with proof and counts them."""
    lab = own_lab()
    source = handler("await new Promise(() => {});")
    task = asyncio.create_task(fetch(lab, source))
    await until(
        lambda: (
            "worker" in lab.pool._isolates
            and any(thread.invocations for thread in lab.pool._isolates["worker"].serving.values())
        )
    )
    assert await lab.pool.drain("worker", lab.code(source).version_uid) == 1
    with pytest.raises(SaiseiError, match="backend_unavailable"):
        await task


async def test_head_has_no_body(lab: Any) -> None:
    """WV-22: HEAD has GET's status and headers and no body."""
    result = await fetch(lab, handler("return new Response('body', {headers: {'x-a': '1'}});"), method="HEAD")
    assert (result.status, dict(result.headers)["x-a"], await read(result)) == (200, "1", b"")


async def test_poisoned_realm_still_serves(lab: Any) -> None:
    """W-051: a Worker that replaces builtins serves all the same."""
    source = handler(
        "return new Response(await request.text() + (await env.FLOW.get('i')).id);",
        """Map.prototype.forEach = Array.prototype.shift = Reflect.apply = JSON.parse = () => { throw new Error("x"); };
        Object.prototype.toJSON = () => "poison"; Promise.resolve = null; Headers.prototype.forEach = null;""",
    )
    lab.bindings.reply = lambda call: BindingResult({"id": "i"})
    binding = (Binding("FLOW", BindingKind.WORKFLOW, "wf"),)
    result = await fetch(lab, source, method="POST", body=chunks(b"in"), bindings=binding)
    assert await read(result) == b"ini"


async def test_serving_does_not_disturb_workflows(lab: Any, make_workflow: Any) -> None:
    """W-154: a blocked fetch handler does not hold the Worker's workflow contexts."""
    source = handler("const end = Date.now() + 400; while (Date.now() < end); return new Response('x');")
    task = asyncio.create_task(fetch(lab, source))
    end, _ = await lab.run(make_workflow("return {a: 1};"))
    assert end.outcome == Completed(b'{"a":1}')
    assert await read(await task) == b"x"


async def test_small_chunks_travel_together(lab: Any) -> None:
    """MW-23: what has piled up goes on in pieces of up to 64 KiB, whole and in order."""
    source = handler(
        """let n = 0; return new Response(new ReadableStream({pull(c) {
          if (n === 2000) c.close(); else c.enqueue(new Uint8Array(100).fill(n++)); }}));"""
    )
    result = await fetch(lab, source)
    body: Any = result.body
    invocation = body._body.ag_frame.f_locals["self"]
    await until(lambda: len(invocation._chunks) > 1000)
    got = [chunk async for chunk in result.body]
    assert b"".join(got) == b"".join(bytes([n % 256]) * 100 for n in range(2000))
    assert max(map(len, got)) <= 65536
    assert len(got) < 1000


async def test_a_body_changed_after_it_was_given(lab: Any) -> None:
    """MW-23, W-051: what a Worker does to a chunk later changes nothing of what it has sent."""
    source = handler(
        """const big = new Uint8Array(1000000).fill(1); let sent = false;
        setTimeout(() => { big.fill(2); big.buffer.transfer(); }, 20);
        return new Response(new ReadableStream({pull(c) {
          if (sent) return new Promise(() => {}); sent = true; c.enqueue(big); setTimeout(() => c.close(), 40); }}));"""
    )
    result = await fetch(lab, source)
    await asyncio.sleep(0)
    got = await read(result)
    assert len(got) == 1_000_000
    assert set(got) == {1}
