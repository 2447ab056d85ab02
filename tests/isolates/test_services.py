"""`env.NAME.fetch` of a service Binding: from one Worker's code to another's, over real Node on both sides."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from saisei_contract.errors import SaiseiError
from saisei_runtime.code import Binding, BindingKind, WorkerCode
from saisei_runtime.isolates.lineage import MAX_DEPTH
from saisei_runtime.isolates.port import (
    BindingError,
    Completed,
    FetchHead,
    FetchResult,
    Park,
    ProofKind,
    ServiceCall,
    SleepCalled,
    Unanswered,
)
from saisei_runtime.isolates.runs import ScheduledEvent
from saisei_runtime.isolates.serving import ServingLimits

pytestmark = pytest.mark.asyncio(loop_scope="session")

BINDINGS = (Binding("SVC", BindingKind.SERVICE, "callee"), Binding("SELF", BindingKind.SERVICE, "caller"))
URL = "https://app.example/path?q=1"


async def until(condition: Callable[[], bool]) -> None:
    limit = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < limit, "the condition did not become true"
        await asyncio.sleep(0.005)


def handler(statements: str, before: str = "") -> str:
    return f"{before}\nexport default {{ async fetch(request, env, ctx) {{ {statements} }} }};"


class Pair:
    """Two Workers, `caller` and `callee`, each with one Version; calls are delivered as the runtime would."""

    def __init__(self, lab: Any) -> None:
        self.lab = lab
        self.codes: dict[str, WorkerCode] = {}
        self.calls: list[ServiceCall] = []
        lab.bindings.service = self.deliver

    def have(self, worker: str, source: str) -> WorkerCode:
        self.codes[worker] = self.lab.code(source, worker=worker, bindings=BINDINGS)
        return self.codes[worker]

    async def deliver(self, call: ServiceCall) -> FetchResult:
        self.calls.append(call)
        code = self.codes.get(call.binding.resource_uid)
        if code is None:
            raise BindingError("backend_unavailable", "no Deployment")
        try:
            result: FetchResult = await self.lab.pool.fetch(code, call.request)
        except Unanswered:
            return FetchResult(500, [], _nothing())
        return result

    async def fetch(self, worker: str = "caller", body: AsyncIterator[bytes] | None = None, **more: Any) -> FetchResult:
        method = "GET" if body is None else "POST"
        head = FetchHead(more.get("method", method), more.get("url", URL), more.get("headers", ()), body)
        result: FetchResult = await self.lab.pool.fetch(self.codes[worker], head)
        return result

    async def say(self, caller: str, callee: str | None = None) -> Any:
        """The JSON that `caller`, the body of its handler, answers with."""
        self.have("caller", handler(caller))
        if callee is not None:
            self.have("callee", handler(callee))
        result = await self.fetch()
        text = await read(result)
        assert result.status == 200, text
        return json.loads(text)

    def under_way(self, worker: str) -> int:
        isolate = self.lab.pool._isolates.get(worker)
        return 0 if isolate is None else sum(threads.invocations for threads in isolate.serving.values())


async def _nothing() -> AsyncIterator[bytes]:
    return
    yield b""


async def read(result: FetchResult) -> bytes:
    return b"".join([chunk async for chunk in result.body])


@pytest.fixture
def pair(lab: Any) -> Pair:
    return Pair(lab)


async def test_a_request_and_its_response(pair: Pair) -> None:
    """MW-40: both forms of the call; method, URL, headers and body arrive, and status, headers and body come back."""
    got = await pair.say(
        """const show = async (r) => ({status: r.status, headers: [...r.headers], url: r.url, body: await r.json(),
            own: r instanceof Response && (await Promise.resolve(r)) === r});
          const sent = new Request("https://nowhere.invalid/a?b=c#d",
            {method: "PUT", headers: {"x-one": "1", host: "other"}, body: "hi"});
          return Response.json([await show(await env.SVC.fetch(sent)),
            await show(await env.SVC.fetch("http://x.y:81/z", {method: "DELETE", redirect: "manual"}))]);""",
        """const headers = new Headers([["x-two", "2"], ["set-cookie", "a=1"], ["set-cookie", "b=2"]]);
          headers.set("connection", "x");
          const body = JSON.stringify([request.method, request.url, [...request.headers], await request.text()]);
          return new Response(body, {status: 201, headers});""",
    )
    headers = [["content-type", "text/plain;charset=UTF-8"], ["set-cookie", "a=1"], ["set-cookie", "b=2"]]
    told = {"status": 201, "headers": [*headers, ["x-two", "2"]], "own": True}
    first = ["content-type", "text/plain;charset=UTF-8"]
    assert got == [
        told
        | {
            "url": "https://nowhere.invalid/a?b=c",
            "body": [
                "PUT",
                "https://nowhere.invalid/a?b=c",
                [first, ["host", "nowhere.invalid"], ["x-one", "1"]],
                "hi",
            ],
        },
        told | {"url": "http://x.y:81/z", "body": ["DELETE", "http://x.y:81/z", [["host", "x.y:81"]], ""]},
    ]


async def test_the_shape_of_the_binding(pair: Pair) -> None:
    """MW-40, MW-42, F-12: one method and nothing else; wrong arguments reject with a TypeError, never throw."""
    got = await pair.say(
        """const names = [];
          for (const args of [[], ["/relative"], ["ftp://a/"], ["https://u:p@a/"], [Symbol()],
              ["https://a/", {method: "GET", body: "x"}],
              ["https://a/", {method: "CONNECT"}], [{get toString() { throw new RangeError("mine"); }}]]) {
            let promise; try { promise = env.SVC.fetch(...args); } catch { names.push("threw"); continue; }
            names.push(await promise.then(() => "resolved", (error) => error.name)); }
          return Response.json({keys: Reflect.ownKeys(env.SVC), frozen: Object.isFrozen(env.SVC), names,
            same: (await env.SVC.fetch(new URL("https://a/"))).status});""",
        "return new Response();",
    )
    assert got == {"keys": ["fetch"], "frozen": True, "names": ["TypeError"] * 7 + ["RangeError"], "same": 200}
    assert len(pair.calls) == 1


async def test_failures_of_the_callee_are_its_500(pair: Pair) -> None:
    """MW-41, MW-23: a throw, a non-Response and a Worker that is stopped before it answers are a Response; without
    details."""
    pair.have(
        "caller", handler("const r = await env.SVC.fetch(request); return Response.json([r.status, await r.text()]);")
    )
    for statements in ("throw new Error('secret');", "return 'no response';"):
        pair.have("callee", handler(statements))
        assert json.loads(await read(await pair.fetch())) == [500, "Internal Server Error"]
    callee = pair.have("callee", handler("await new Promise(() => {});"))
    # The thread may not have said yet that the answered ones are over: what is counted below is the new one.
    await until(lambda: pair.under_way("callee") == 0)
    answer = asyncio.create_task(pair.fetch())
    await until(lambda: pair.under_way("callee") == 1)
    await pair.lab.pool.drain("callee", callee.version_uid)
    assert json.loads(await read(await answer)) == [500, ""]


async def test_only_what_cannot_start_rejects(pair: Pair) -> None:
    """MW-41: an Error of the name backend_unavailable, of the caller's own realm."""
    got = await pair.say(
        """return env.SVC.fetch(request).then(() => null, (error) => Response.json([error.name, error instanceof Error,
            error.message]));"""
    )
    assert got == ["backend_unavailable", True, "no Deployment"]


async def test_redirects_and_bodiless_responses(pair: Pair) -> None:
    """MW-40, MW-41: what the Worker answers is what the caller gets: a redirect is not followed, 204 and HEAD have no
    body."""
    got = await pair.say(
        """const seen = [];
          for (const [path, method] of [["302", "GET"], ["204", "GET"], ["304", "GET"], ["200", "HEAD"]]) {
            const r = await env.SVC.fetch("https://a/" + path, {method});
            seen.push([r.status, r.body === null, r.headers.get("location"), r.redirected]); }
          return Response.json(seen);""",
        """const status = Number(request.url.split("/").at(-1));
          return new Response(status === 200 ? "x" : null, {status, headers: {location: "/there"}});""",
    )
    assert got == [[302, False, "/there", False], *([status, True, "/there", False] for status in (204, 304, 200))]


async def test_bodies_stream_both_ways(pair: Pair) -> None:
    """MW-41: each side sees a part before the next one is made, through both Workers at once."""
    pair.have("caller", handler("return env.SVC.fetch(request);"))
    pair.have("callee", handler("return new Response(request.body);"))
    told = asyncio.Queue[bytes]()

    async def source() -> AsyncIterator[bytes]:
        while part := await told.get():
            yield part

    result = await pair.fetch(body=source())
    for part in (b"one", b"two", b"three"):
        told.put_nowait(part)
        assert await anext(result.body) == part
    told.put_nowait(b"")
    assert await read(result) == b""
    await until(lambda: pair.under_way("caller") == pair.under_way("callee") == 0)


async def test_a_slow_reader_holds_the_callee_back(pair: Pair) -> None:
    """MW-41, MW-23: what nobody takes is not made, on the way there and on the way back."""
    made = 0

    async def endless() -> AsyncIterator[bytes]:
        nonlocal made
        while True:
            made += 1
            yield bytes(65536)

    pair.have("caller", handler("return env.SVC.fetch(request);"))
    pair.have("callee", handler("return new Response(request.body);"))
    result = await pair.fetch(body=endless())
    before = -1
    while made != before:
        before = made
        await asyncio.sleep(0.3)
    # Six windows of 256 KiB lie on the way, and what the streams themselves hold.
    assert made * 65536 < 4_000_000
    for _ in range(40):
        await anext(result.body)
    await until(lambda: made > before)
    await result.body.aclose()  # type: ignore[attr-defined]
    await until(lambda: pair.under_way("caller") == pair.under_way("callee") == 0)


async def test_a_large_body_arrives_whole(pair: Pair) -> None:
    """MW-41: 8 MB there and back, byte for byte."""
    pair.have(
        "caller", handler("return env.SVC.fetch('https://a/', {method: 'POST', body: request.body, duplex: 'half'});")
    )
    pair.have("callee", handler("return new Response(request.body);"))
    parts = [bytes([number % 251]) * 100_003 for number in range(80)]

    async def source() -> AsyncIterator[bytes]:
        for part in parts:
            yield part

    assert await read(await pair.fetch(body=source())) == b"".join(parts)


async def test_an_abort_reaches_the_callee(pair: Pair) -> None:
    """MW-40, MW-25: the caller's signal rejects its call with the reason and fires the callee's own signal."""
    pair.have(
        "caller",
        handler(
            """const controller = new AbortController();
              const call = env.SVC.fetch("https://a/", {signal: controller.signal});
              while (!(await (await env.SVC.fetch("https://a/state")).text()).includes("begun"));
              controller.abort(new RangeError("enough"));
              const name = await call.catch((error) => error.name);
              const state = async () => (await env.SVC.fetch("https://a/state")).text();
              while (!(await state()).includes("aborted"));
              const late = await env.SVC.fetch("https://a/", {signal: AbortSignal.abort()}).catch((e) => e.name);
              return Response.json([name, late]);"""
        ),
    )
    pair.have(
        "callee",
        handler(
            """if (request.url.endsWith("state")) return new Response(state.join());
              state.push("begun"); request.signal.onabort = () => state.push("aborted");
              await new Promise(() => {});""",
            "const state = [];",
        ),
    )
    assert json.loads(await read(await pair.fetch())) == ["RangeError", "AbortError"]


async def test_a_caller_that_goes_takes_its_call_along(pair: Pair) -> None:
    """MW-40: a client that leaves, a scope that ends and a response body that is dropped end the callee's work."""
    pair.have(
        "callee", handler("return new Response(new ReadableStream({pull(c) { c.enqueue(new Uint8Array(9999)); }}));")
    )
    for statements in (
        "return env.SVC.fetch(request);",  # the client below closes the body
        "await env.SVC.fetch('https://a/'); return new Response('done');",
        "await (await env.SVC.fetch('https://a/')).body.cancel(); return new Response('done');",
        "const r = await env.SVC.fetch('https://a/'); await r.body.getReader().read(); return new Response('done');",
    ):
        pair.have("caller", handler(statements))
        result = await pair.fetch()
        await anext(result.body)
        await result.body.aclose()  # type: ignore[attr-defined]
        await until(lambda: pair.under_way("caller") == pair.under_way("callee") == 0)


async def test_a_response_that_breaks_off(pair: Pair) -> None:
    """MW-41: after its head a failure of the callee breaks the body, which the caller can tell from its end."""
    got = await pair.say(
        """const r = await env.SVC.fetch("https://a/");
          return Response.json([r.status, await r.text().catch((error) => error.name)]);""",
        "return new Response(new ReadableStream({pull(c) { c.enqueue(new Uint8Array(9)); c.error(Error('x')); }}));",
    )
    assert got == [200, "AbortError"]


async def test_a_callee_that_does_not_read_the_request(pair: Pair) -> None:
    """MW-41: its answer comes all the same, and the caller's source is told to stop."""
    got = await pair.say(
        """let cancelled; const told = new Promise((resolve) => cancelled = resolve);
          const body = new ReadableStream({pull(c) { c.enqueue(new Uint8Array(65536)); },
            cancel: () => cancelled("cancelled")});
          const r = await env.SVC.fetch("https://a/", {method: "POST", body, duplex: "half"});
          return Response.json([await r.text(), await told]);""",
        "return new Response('early');",
    )
    assert got == ["early", "cancelled"]


async def test_workers_that_call_themselves_end(pair: Pair) -> None:
    """MW-40: a loop of calls ends at its depth with backend_unavailable."""
    loop = "return env.SELF.fetch(request).catch((error) => new Response(error.name + ': ' + error.message));"
    pair.have("caller", handler(loop))
    assert (await read(await pair.fetch())).startswith(b"backend_unavailable: Workers call each other 16 levels deep")
    assert len(pair.calls) == MAX_DEPTH
    await until(lambda: pair.under_way("caller") == 0)


async def test_a_loop_that_hides_its_depth_ends_too(own_lab: Any) -> None:
    """MW-40: calls that all go through the env of the first one wait for each other, and end with that one."""
    pair = Pair(own_lab(serving=ServingLimits(answer_within=2.0)))
    stash = "saved ??= env; return saved.SELF.fetch(request).catch((error) => new Response(error.name));"
    pair.have("caller", handler(stash, "let saved;"))
    assert (await pair.fetch()).status == 504
    assert len(pair.calls) <= 64
    await until(lambda: pair.under_way("caller") == 0)


async def test_a_flood_of_calls_waits_its_turn(pair: Pair) -> None:
    """MW-40: 300 calls at once from one invocation all come to their end, at most 64 at a time."""
    most = 0
    deliver = pair.deliver

    async def counted(call: ServiceCall) -> FetchResult:
        nonlocal most
        assert call.request.lineage is not None
        most = max(most, call.request.lineage.tree.under_way)
        return await deliver(call)

    pair.lab.bindings.service = counted
    got = await pair.say(
        """const some = new AbortController(); let gone = 0;
          const calls = Array.from({length: 300}, (_, i) => env.SVC.fetch("https://a/" + i).then((r) => r.text()));
          const { signal } = some;
          const more = Array.from({length: 300}, () => env.SVC.fetch("https://a/", {signal}).catch(() => gone++));
          some.abort(); await Promise.all(more);
          return Response.json([(await Promise.all(calls)).every((text, i) => text.endsWith("/" + i)), gone]);""",
        "return new Response(request.url);",
    )
    assert got == [True, 300]
    assert 1 < most <= 64


async def test_too_many_calls_below_one_request(pair: Pair) -> None:
    """MW-40: however they fan out, a bounded number is under way below one request; the rest rejects by name."""
    pair.have(
        "caller",
        handler(
            """const depth = Number(new URL(request.url).pathname.slice(1));
              if (depth === 3) { await new Promise((resolve) => setTimeout(resolve, 100)); return new Response("1,"); }
              const call = () => env.SELF.fetch("https://a/" + (depth + 1)).then((r) => r.text(), (e) => e.name + ",");
              const calls = Array.from({length: 20}, call);
              return new Response((await Promise.all(calls)).join(""));"""
        ),
    )
    answer = (await read(await pair.fetch(url="https://a/0"))).decode().strip(",").split(",")
    assert set(answer) == {"1", "backend_unavailable"}
    await until(lambda: pair.under_way("caller") == 0)
    assert all(call.request.lineage.tree.under_way == 0 for call in pair.calls if call.request.lineage)


async def test_an_env_of_another_time(pair: Pair) -> None:
    """MW-25, MW-40: the env of an invocation that has ended calls nobody and says why."""
    pair.have("callee", handler("return new Response('x');"))
    pair.have(
        "caller",
        handler(
            """saved ??= env; const call = saved.SVC.fetch("https://a/");
            return new Response(await call.then((r) => r.text(), (e) => e.message));""",
            "let saved;",
        ),
    )
    assert await read(await pair.fetch()) == b"x"
    assert b"has ended" in await read(await pair.fetch())


async def test_the_step_of_a_workflow_calls(pair: Pair) -> None:
    """MW-40, W-087: workflow contexts call too, and one that is idle afterwards proves that it is quiescent."""
    pair.have(
        "callee", handler("return Response.json({path: new URL(request.url).pathname, is: await request.text()});")
    )
    code = pair.lab.code(
        """export class W { constructor(env) { this.env = env; } async run(event, step) {
          const call = () => this.env.SVC.fetch("https://a/b", {method: "POST", body: "c"});
          return step.do("call", async () => (await call()).json()); } }
        export default {};""",
        bindings=BINDINGS,
        worker="caller",
    )
    end, _ = await pair.lab.run(code)
    assert end.outcome == Completed(b'{"is":"c","path":"/b"}')
    assert end.proof.kind is ProofKind.QUIESCENT


async def test_a_call_does_not_outlive_its_context(pair: Pair) -> None:
    """W-014, MW-40: a context that parks with a call under way stops at once; the callee is told."""
    waits = """if (request.url.endsWith("state")) return new Response(begun);
      begun = "begun"; await new Promise((resolve) => request.signal.onabort = resolve); return new Response();"""
    pair.have("callee", handler(waits, "let begun = '';"))
    code = pair.lab.code(
        """export class W { constructor(env) { this.env = env; } async run(event, step) {
          this.env.SVC.fetch("https://a/").then(() => console.log("never"), () => console.log("never"));
          while (!(await (await this.env.SVC.fetch("https://a/state")).text()));
          await step.sleep("s", 60); } }
        export default {};""",
        bindings=BINDINGS,
        worker="caller",
    )

    run = await pair.lab.start(code, reply=lambda _call: None)
    await until(lambda: [type(call) for call in run.calls] == [SleepCalled])
    # The one that waits; those that were answered are over soon.
    await until(lambda: pair.under_way("callee") == 1)
    assert run.handle is not None
    run.handle.reply(1, Park())
    assert (await asyncio.wait_for(run.ended, 60)).proof.kind is ProofKind.QUIESCENT
    await until(lambda: pair.under_way("callee") == 0)


async def test_a_scheduled_run_calls(pair: Pair) -> None:
    """MW-40, MW-24: also from `scheduled`, and its waitUntil keeps the call going."""
    pair.have(
        "callee",
        handler("await new Promise((r) => setTimeout(r, 50)); seen++; return new Response();", "let seen = 0;"),
    )
    source = """export default { async scheduled(event, env, ctx) {
      if ((await env.SVC.fetch("https://a/")).status !== 200) throw new Error("no");
      ctx.waitUntil(env.SVC.fetch("https://a/")); } };"""
    code = pair.lab.code(source, bindings=BINDINGS, worker="caller")
    assert (await pair.lab.pool.scheduled(code, ScheduledEvent(0, "* * * * *"))).ok
    await until(lambda: len(pair.calls) == 2 and pair.under_way("caller") == pair.under_way("callee") == 0)


async def test_nothing_crosses_but_the_request(pair: Pair) -> None:
    """MW-42, W-051: a caller that has replaced every builtin on the way gets the same, and reaches nothing more."""
    source = handler(
        "const r = await env.SVC.fetch(request); return new Response(await r.text());",
        """const mine = () => { throw new Error("mine"); };
        Map.prototype.forEach = Promise.prototype.finally = mine;
        Array.prototype.shift = Reflect.apply = JSON.parse = mine;
        Headers.prototype.forEach = Headers.prototype.append = mine;
        Object.prototype.toJSON = () => "poison";
        Object.prototype.then = undefined;
        Object.defineProperty(Object.prototype, "scope", {get() { throw 1; }, configurable: true});""",
    )
    pair.have("caller", source)
    pair.have("callee", handler("return new Response(JSON.stringify([Object.keys(env), [...request.headers]]));"))
    result = await pair.fetch(headers=(("authorization", "mine"),))
    assert json.loads(await read(result)) == [["SVC", "SELF"], [["authorization", "mine"], ["host", "app.example"]]]


async def test_a_stopped_host_says_so(pair: Pair) -> None:
    """MW-41: a delivery that fails inside the Host rejects, and tells nothing of how."""

    async def fails(call: ServiceCall) -> FetchResult:
        raise SaiseiError("internal_error", "/var/lib/secret")

    pair.lab.bindings.service = fails
    pair.have("caller", handler("return new Response(await env.SVC.fetch(request).catch((e) => e.name + e.message));"))
    assert b"secret" not in await read(await pair.fetch())
