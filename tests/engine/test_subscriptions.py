"""Subscriptions and watches over the whole engine (contract 4.1)."""

from __future__ import annotations

import asyncio
import json

import pytest
from engine_fakes import Hold, Host

from saisei_contract.errors import SaiseiError
from saisei_runtime.workflow.log import EVENT_TYPES
from saisei_runtime.workflow.subscriptions import BUFFER_MAX, PAGE_BYTES


def waits(event, step):
    yield step.do("a", lambda: b"{}")
    yield step.wait("w", "go", 600)


async def take(subscription):
    return await asyncio.wait_for(subscription.next(), 30)


async def rest(subscription):
    found = []
    while (record := await take(subscription)) is not None:
        found.append(record)
    return found


async def test_history_then_live_without_a_seam(host: Host) -> None:
    """S-01, S-02, S-04, S-07: recorded events first, then new ones, dense; after the last one None for ever."""
    host.define(waits)
    await host.engine.create("wf", "i", None)
    await host.until("i", "waiting")
    subscription = await host.engine.subscribe("wf", "i")
    first = [await take(subscription) for _ in range(9)]
    assert first[-1].type == "workflow_waiting"
    later = asyncio.create_task(rest(subscription))
    await host.engine.send_event("wf", "i", "go", None)
    found = first + await later
    assert [record.event_id for record in found] == list(range(1, len(found) + 1))
    assert found[-1].type == "workflow_completed"
    assert await take(subscription) is None


async def test_the_seam_holds_under_load(host: Host) -> None:
    """S-02, S-12: many subscribers join while events are written; each sees every event once, in order."""

    def program(event, step):
        for number in range(60):
            yield step.do(f"s{number}", lambda: b"{}")

    host.define(program)
    await host.engine.create("wf", "i", None)
    readers = []
    for _ in range(20):
        readers.append(asyncio.create_task(rest(await host.engine.subscribe("wf", "i"))))
        await asyncio.sleep(0.002)
    total = 3 + 60 * 4 + 1
    for reader in readers:
        assert [record.event_id for record in await reader] == list(range(1, total + 1))


async def test_a_slow_reader_loses_nothing(host: Host) -> None:
    """S-02, design 4: more live events than a buffer holds; the reader goes on from the table."""
    steps = BUFFER_MAX // 2

    def program(event, step):
        yield step.wait("w", "go", 600)
        for number in range(steps):
            yield step.do(f"s{number}", lambda: b"{}")

    host.define(program)
    await host.engine.create("wf", "i", None)
    await host.until("i", "waiting")
    subscription = await host.engine.subscribe("wf", "i")
    first = await take(subscription)
    await host.engine.send_event("wf", "i", "go", None)
    await host.until("i", "complete")
    found = [first, *await rest(subscription)]
    assert [record.event_id for record in found] == list(range(1, 3 + 4 + steps * 4 + 2))


async def test_cursor_and_filter(host: Host) -> None:
    """S-05, S-06, S-08: the cursor is exclusive; a filter renumbers nothing; past the end of a dead one: done."""
    host.define(waits)
    await host.engine.create("wf", "i", None)
    await host.until("i", "waiting")
    await host.engine.send_event("wf", "i", "go", None)
    await host.until("i", "complete")
    every = await host.events("i")
    assert [record.event_id for record in await host.events("i", cursor=5)] == [r.event_id for r in every[5:]]
    assert await host.events("i", cursor=len(every)) == await host.events("i", cursor=9999) == []
    engine = host.engine
    some = await rest(await engine.subscribe("wf", "i", 0, frozenset({"attempt_started", "workflow_completed"})))
    assert [(record.event_id, record.type) for record in some] == [(5, "attempt_started"), (12, "workflow_completed")]
    assert await rest(await engine.subscribe("wf", "i", 0, frozenset())) == []
    assert await rest(await engine.subscribe("wf", "i", 0, frozenset({"step_started"})))
    assert len(await rest(await engine.subscribe("wf", "i", 0, EVENT_TYPES))) == len(every)


async def test_a_cursor_beyond_the_end_ends_with_the_instance(host: Host) -> None:
    """S-05, S-08: whoever waits beyond what will ever be written is told of the end when it comes."""
    host.define(waits)
    await host.engine.create("wf", "i", None)
    await host.until("i", "waiting")
    subscription = await host.engine.subscribe("wf", "i", cursor=10_000)
    pending = asyncio.create_task(subscription.next())
    await asyncio.sleep(0.02)
    assert not pending.done()
    await host.engine.send_event("wf", "i", "go", None)
    assert await asyncio.wait_for(pending, 30) is None


async def test_large_documents_are_read_a_few_at_a_time(host: Host) -> None:
    """Issue 6: a page ends with the event that goes beyond its bytes, so that a reader holds little of a large log."""
    document = b'{"x":"' + b"x" * 400_000 + b'"}'

    def program(event, step):
        for number in range(8):
            yield step.do(f"s{number}", lambda: document)

    host.define(program)
    await host.engine.create("wf", "i", None)
    await host.until("i", "complete")
    incarnation = (await host.engine.subscribe("wf", "i")).incarnation
    reads = host.engine._reads
    page = await reads.log_after(incarnation, 0, 256, PAGE_BYTES)
    assert page.more and not page.ended
    assert PAGE_BYTES < sum(len(entry.body) for entry in page.entries) < PAGE_BYTES + 500_000
    assert [record.event_id for record in await host.events("i")] == list(range(1, 3 + 8 * 4 + 2))


async def test_all_names_of_the_guide_are_filters() -> None:
    """S-06, S-20: 29 names, also those that never happen here."""
    assert len(EVENT_TYPES) == 29
    assert {"workflow_paused", "rollback_errored", "rollback_started", "wait_timed_out"} <= EVENT_TYPES


async def test_bad_options_are_refused(host: Host) -> None:
    """S-09: before anything is subscribed."""
    host.define(waits)
    await host.engine.create("wf", "i", None)
    for cursor, types in ((-1, None), (0, frozenset({"workflow_finished"}))):
        with pytest.raises(SaiseiError) as caught:
            await host.engine.subscribe("wf", "i", cursor, types)
        assert caught.value.reason == "invalid_request"


async def test_a_hidden_ending_still_ends(host: Host) -> None:
    """S-07: the filter hides the terminal event: done without it, also while waiting live."""
    host.define(waits)
    await host.engine.create("wf", "i", None)
    await host.until("i", "waiting")
    subscription = await host.engine.subscribe("wf", "i", 0, frozenset({"sleep_started"}))
    pending = asyncio.create_task(subscription.next())
    await asyncio.sleep(0)
    await host.engine.terminate("wf", "i")
    assert await asyncio.wait_for(pending, 30) is None


async def test_concurrent_nexts_are_served_in_call_order(host: Host) -> None:
    """S-10: one event each, in the order of the calls."""
    host.define(waits)
    await host.engine.create("wf", "i", None)
    subscription = await host.engine.subscribe("wf", "i")
    pending = [asyncio.create_task(subscription.next()) for _ in range(14)]
    await host.until("i", "waiting")
    await host.engine.send_event("wf", "i", "go", None)
    records = await asyncio.wait_for(asyncio.gather(*pending), 30)
    assert [record and record.event_id for record in records] == [*range(1, 13), None, None]


async def test_close_ends_pending_and_later_calls(host: Host) -> None:
    """S-11, S-12: idempotent and synchronous; another subscription and the instance notice nothing."""
    host.define(waits)
    await host.engine.create("wf", "i", None)
    await host.until("i", "waiting")
    one, other = await host.engine.subscribe("wf", "i", 9), await host.engine.subscribe("wf", "i", 9)
    pending = [asyncio.create_task(one.next()) for _ in range(2)]
    waiting = asyncio.create_task(other.next())
    await asyncio.sleep(0.02)
    one.close()
    one.close()
    assert await asyncio.wait_for(asyncio.gather(*pending), 30) == [None, None]
    assert await take(one) is None
    await host.engine.send_event("wf", "i", "go", None)
    assert (await asyncio.wait_for(waiting, 30)).type == "workflow_running"


async def test_a_given_up_next_takes_no_event_with_it(host: Host) -> None:
    """S-10, S-11: a cancelled call leaves the subscription usable and loses nothing."""
    host.define(waits)
    await host.engine.create("wf", "i", None)
    await host.until("i", "waiting")
    subscription = await host.engine.subscribe("wf", "i", 9)
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(subscription.next(), 0.05)
    await host.engine.send_event("wf", "i", "go", None)
    assert [record.event_id for record in await rest(subscription)] == [10, 11, 12]


async def test_events_survive_a_restart(host: Host) -> None:
    """S-04, S-15, S-01: the same ids and bytes from another process, also long after the end."""
    host.define(waits)
    await host.engine.create("wf", "i\0/", b'{"p":"\\u0000"}')
    await host.until("i\0/", "waiting")
    await host.engine.send_event("wf", "i\0/", "go", None)
    await host.until("i\0/", "complete")
    before = await host.events("i\0/")
    other = host.reborn(runtime_id="other")
    await other.start()
    try:
        assert await other.events("i\0/") == before
    finally:
        await other.stop()
    assert json.loads(before[1].json) == {
        "instanceId": "i\0/",
        "eventId": 2,
        "timestamp": before[1].timestamp_ms,
        "type": "workflow_started",
        "params": {"p": "\0"},
    }


async def test_a_watch_tells_statuses_as_they_are_committed(host: Host) -> None:
    """W-014, W-015: created, running, waiting, running, complete; one instance's latest only for a slow reader."""
    host.define(waits)
    watch = host.engine.watch("wf")
    seen = []

    async def follow() -> None:
        async for changes in watch:
            for instance_id, status, at_ms in changes:
                seen.append((instance_id, status))
                assert at_ms == host.clock.now_ms()

    follower = asyncio.create_task(follow())
    await host.engine.create("wf", "i", None)
    await host.until("i", "waiting")
    await host.engine.send_event("wf", "i", "go", None)
    await host.until("i", "complete")
    await host.eventually(lambda: ("i", "complete") in seen)
    statuses = [status for _, status in seen]
    assert statuses[0] == "queued" and statuses[-1] == "complete" and "waiting" in statuses
    slow = host.engine.watch("wf")
    host.define(lambda event, step: (yield Hold()))
    await host.engine.create("wf", "late", None)
    await host.engine.terminate("wf", "late")
    assert [change[:2] for change in await anext(slow)] == [("late", "terminated")]
    slow.close()
    watch.close()
    with pytest.raises(StopAsyncIteration):
        await anext(slow)
    await asyncio.wait_for(follower, 30)
