"""Nothing says that an instance has stopped before its stop is proven, whoever asks and however."""

from __future__ import annotations

import asyncio

import pytest
from engine_fakes import Hold, Host

from saisei_runtime.isolates.port import RetryPolicy


def fails():
    raise ValueError("no")


def completes(event, step):
    yield step.do("a", lambda: b"{}")
    return b'{"done":true}'


def throws(event, step):
    yield step.do("a", lambda: b"{}")
    raise ValueError("no")


def sleeps(event, step):
    yield step.sleep("a", 60)


def retries(event, step):
    yield step.do("a", fails, RetryPolicy(2, 60))


def waits(event, step):
    yield step.wait("a", "go", 60)


def holds(event, step):
    yield step.do("a", Hold)


@pytest.mark.parametrize(
    ("program", "status", "event"),
    [
        (completes, "complete", "workflow_completed"),
        (throws, "errored", "workflow_errored"),
        (sleeps, "sleeping", "workflow_waiting"),
        (retries, "sleeping", "workflow_waiting"),
        (waits, "waiting", "workflow_waiting"),
        (holds, "terminated", "workflow_terminated"),
    ],
)
async def test_no_reader_sees_an_end_before_its_proof(host: Host, program, status: str, event: str) -> None:
    """W-014, W-070, W-071, S-30: get, list, counts, steps, subscribers and watchers show it running until the proof."""
    host.define(program)
    host.pool.unproven = True
    await host.engine.create("wf", "i", None)
    await host.until("i", "running")
    await host.eventually(lambda: bool(host.pool.running))
    subscription = await host.engine.subscribe("wf", "i", 0)
    watch = host.engine.watch("wf")
    ending = None
    if program is holds:
        await host.until_steps("i", 1)
        ending = asyncio.create_task(host.engine.terminate("wf", "i"))
    await host.eventually(lambda: all(context.proof is not None for context in host.pool.running.values()))
    await host.idle_writes()
    seen = []
    while not seen or seen[-1] not in (
        "step_completed",
        "sleep_started",
        "attempt_errored",
        "wait_started",
        "attempt_started",
    ):
        record = await asyncio.wait_for(subscription.next(), 30)
        assert record is not None
        seen.append(record.type)
    unseen = asyncio.create_task(subscription.next())
    for _ in range(20):
        assert (await host.engine.get("wf", "i")).status == "running"
        assert [view.id for view in (await host.engine.list("wf", "running", 10, None))[0]] == ["i"]
        assert (await host.engine.list("wf", status, 10, None))[0] == []
        counts = await host.engine.counts("wf")
        assert (counts["running"], counts[status]) == (1, 0)
        if ending is not None:
            assert not ending.done()
    if program is holds:
        # Only the intent is written.
        assert not unseen.done()
    host.pool.prove_all()
    await host.until("i", status)
    record = await asyncio.wait_for(unseen, 30)
    while record is not None and record.type != event:
        record = await asyncio.wait_for(subscription.next(), 30)
    assert record is not None
    changed: list[tuple[str, str]] = []
    while ("i", status) not in changed:
        changed += [(change[0], change[1]) for change in await asyncio.wait_for(anext(watch), 30)]
    if ending is not None:
        assert (await ending).status == "terminated"
    with host.database.reader.connect() as connection:
        proof = connection.exec_driver_sql("SELECT stop_proof FROM workflow_instances").scalar()
    assert proof == f"quiescent:{host.pool.started[0].context_id}"
    watch.close()
