"""More than one serving thread: a busy invocation holds nobody up; for one that never answers the Host does."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest

from saisei_contract.errors import SaiseiError
from saisei_runtime.isolates.port import FetchHead, FetchResult
from saisei_runtime.isolates.serving import ServingLimits
from saisei_runtime.isolates.serving_threads import ThreadLimits

pytestmark = pytest.mark.asyncio(loop_scope="session")

SOURCE = """
let count = 0;
export default { async fetch(request, env, ctx) {
  const path = new URL(request.url).pathname;
  if (path === "/busy") for (;;) ;
  if (path === "/never") return new Promise(() => request.signal.addEventListener("abort", () => { aborted++; }));
  if (path === "/slow") await new Promise((resolve) => setTimeout(resolve, 20));
  if (path === "/later") {
    ctx.waitUntil(new Promise((resolve) => { release = resolve; }));
    return new Response("answered");
  }
  if (path === "/release") { release(); return new Response("released"); }
  if (path === "/aborted") return new Response(String(aborted));
  return new Response(String(++count));
} };
let aborted = 0, release;
"""


async def fetch(lab: Any, path: str = "/") -> FetchResult:
    result: FetchResult = await lab.pool.fetch(lab.code(SOURCE), FetchHead("GET", f"https://a.example{path}", ()))
    return result


async def text(result: FetchResult) -> str:
    return b"".join([chunk async for chunk in result.body]).decode()


def threads_of(lab: Any) -> Any:
    return next(iter(lab.pool._isolates["worker"].serving.values()))


def under_way(lab: Any) -> int:
    """Invocations in the Worker's threads, also before there are any."""
    isolate = lab.pool._isolates.get("worker")
    return 0 if isolate is None else sum(threads.invocations for threads in isolate.serving.values())


async def eventually(condition: Any) -> None:
    async with asyncio.timeout(30):
        while not condition():
            await asyncio.sleep(0.005)


async def one_blocked_thread(lab: Any) -> asyncio.Task[FetchResult]:
    """A thread that is certainly in an endless loop, with nothing else under way: its earlier invocation is over in
    the thread too, and whatever asks the thread now asks it after the loop has begun."""
    assert await text(await fetch(lab)) == "1"
    await eventually(lambda: threads_of(lab).invocations == 0)
    busy = asyncio.create_task(fetch(lab, "/busy"))
    await eventually(lambda: threads_of(lab).invocations == 1)
    return busy


async def test_a_busy_invocation_stops_nobody(own_lab: Any) -> None:
    """W-154, MW-20, Issue 4: the next invocations are answered by another thread while one is busy for long."""
    lab = own_lab(serve_stalled_after=600.0, threads=ThreadLimits(most=2, patience=0.05))
    busy = await one_blocked_thread(lab)
    assert await text(await fetch(lab)) == "1"
    assert not busy.done()
    await lab.pool.drain("worker", lab.code(SOURCE).version_uid)
    with pytest.raises(SaiseiError, match="backend_unavailable"):
        await busy
    assert (await fetch(lab)).status == 200


async def test_threads_are_bounded(own_lab: Any) -> None:
    """Design 3, Issue 4: no more threads than allowed; what finds all of them busy waits until one is ended."""
    lab = own_lab(serve_stalled_after=2.0, threads=ThreadLimits(most=2, patience=0.02))
    busy = [asyncio.create_task(fetch(lab, "/busy")) for _ in range(2)]
    await eventually(lambda: under_way(lab) == 2)
    late = asyncio.create_task(fetch(lab))
    await eventually(lambda: late.done() or threads_of(lab).size > 1)
    assert threads_of(lab).size <= 2
    results = await asyncio.gather(*busy, late, return_exceptions=True)
    assert [isinstance(result, SaiseiError) for result in results[:2]] == [True, True]
    # It waited with one that was ended, or found the next one.
    assert isinstance(results[2], SaiseiError) or await text(results[2]) == "1"
    assert await text(await fetch(lab)) in ("1", "2")


async def test_what_runs_of_a_version_is_counted_to_its_end(own_lab: Any) -> None:
    """WV-13, WD-08, MW-25: a Version is in use until `waitUntil` is over too, and until a stop is proven."""
    lab = own_lab(serving=ServingLimits(wait_until_within=600.0))
    version = lab.code(SOURCE).version_uid
    assert lab.pool.running("worker", version) == 0
    assert await text(await fetch(lab, "/later")) == "answered"
    # The answer is out, to its last byte; the Version is held all the same.
    assert lab.pool.running("worker", version) == 1
    assert lab.pool.running("worker", "another") == lab.pool.running("another", version) == 0
    assert await text(await fetch(lab, "/release")) == "released"
    await eventually(lambda: lab.pool.running("worker", version) == 0)
    await fetch(lab, "/later")
    assert lab.pool.running("worker", version) == 1
    assert await lab.pool.drain("worker", version) == 1
    assert lab.pool.running("worker", version) == 0


async def test_an_unproven_stop_is_no_stop(own_lab: Any) -> None:
    """WV-13, WD-09: what was ordered to end counts until it is joined, also when others have taken its place."""
    lab = own_lab()
    version = lab.code(SOURCE).version_uid
    busy = await one_blocked_thread(lab)
    (thread,) = threads_of(lab)._threads
    thread._thread.killing = True
    # Another thread, and with the next line another process, takes its place before anything is proven.
    assert await text(await fetch(lab)) == "1"
    assert lab.pool.running("worker", version) >= 1
    isolate = lab.pool._isolates["worker"]
    held, isolate.process._child = isolate.process._child, None
    isolate.process.kill("test")
    isolate.process._child = held
    assert await text(await fetch(lab)) == "1"
    assert lab.pool._isolates["worker"] is not isolate
    assert lab.pool.running("worker", version) >= 1
    stopping = asyncio.create_task(lab.pool.drain("worker"))
    await eventually(lambda: "worker" in lab.pool._isolates)
    assert not stopping.done()
    held.kill()
    assert await stopping >= 1
    assert lab.pool.running("worker", version) == 0
    with pytest.raises(SaiseiError, match="backend_unavailable"):
        await busy


async def test_waiting_invocations_share_a_thread(own_lab: Any) -> None:
    """MW-20, Issue 4: invocations that only wait need no second thread."""
    lab = own_lab(threads=ThreadLimits(most=4, patience=30.0))
    results = await asyncio.gather(*(fetch(lab, "/slow") for _ in range(30)))
    assert sorted([int(await text(result)) for result in results]) == list(range(1, 31))
    assert threads_of(lab).size == 1


async def test_idle_threads_shrink_away(own_lab: Any) -> None:
    """Design 3: threads that were needed once are ended when nobody uses them."""
    limits = ThreadLimits(most=3, patience=0.05, idle_after=0.2)
    lab = own_lab(serve_stalled_after=2.0, process_idle_after=60.0, threads=limits)
    busy = await one_blocked_thread(lab)
    await text(await fetch(lab))
    with pytest.raises(SaiseiError):
        await busy
    await fetch(lab)

    def look() -> bool:
        threads_of(lab).retire_idle(asyncio.get_running_loop().time())
        return bool(threads_of(lab).size == 1)

    await eventually(look)


async def test_a_handler_that_never_answers(own_lab: Any, caplog: pytest.LogCaptureFixture) -> None:
    """MW-23, Issue 4: the Host answers 504 without details, aborts the request's signal and says so in the log."""
    lab = own_lab(serving=ServingLimits(answer_within=0.5))
    with caplog.at_level(logging.INFO, logger="saisei_runtime.worker"):
        result = await fetch(lab, "/never")
    assert (result.status, await text(result)) == (504, "The Worker did not answer in time.")
    assert "gave no Response" in caplog.text
    # The limit holds for this answer as well, and a busy machine may miss it.
    while (told := await fetch(lab, "/aborted")).status == 504:
        await text(told)
    assert await text(told) == "1"
