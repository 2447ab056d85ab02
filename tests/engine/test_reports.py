"""What users of comparable systems report, and what must not happen here: each test is one such report."""

from __future__ import annotations

import asyncio
import logging
import sqlite3

import psycopg
import pytest
from engine_fakes import YEAR, Hold, Host, StepError, VirtualHost, refused

from saisei_runtime.isolates.port import DoSucceeded, RetryPolicy
from saisei_runtime.workflow.engine import EngineSettings
from saisei_service.database import Database

LOCKED_SECONDS = 3.0


def waits(event, step):
    return (yield step.wait("w", "go", 3600))


async def die_and_live_on(host: Host) -> Host:
    """The runtime is killed; another process of it starts on the same database. Nobody else does anything."""
    host.fall_silent()
    reborn = host.reborn()
    await reborn.start()
    return reborn


async def test_an_event_right_after_create_is_kept(host: Host) -> None:
    """W-060, W-064, Issue 5: sent while the instance is queued and nothing of it has run, it feeds the first wait."""
    host.define(waits)
    host.engine._scheduler._max_contexts = 0
    await host.engine.create("wf", "i", None)
    await host.engine.send_event("wf", "i", "go", b'{"n":1}')
    assert (await host.engine.get("wf", "i")).status == "queued"
    host.engine._scheduler._max_contexts = 4
    host.engine._scheduler.pump()
    assert (await host.until("i", "complete")).output == b'{"n":1}'


async def test_an_unrelated_event_runs_no_step_again(host: Host) -> None:
    """W-064, W-107, Issue 5: a step runs; events that nobody waits for neither stop it nor start a context."""
    effects: list[int] = []

    def program(event, step):
        yield step.do("a", lambda: effects.append(1) or Hold())

    host.define(program)
    await host.engine.create("wf", "i", None)
    await host.eventually(lambda: bool(effects))
    for number in range(20):
        await host.engine.send_event("wf", "i", f"type {number}", b"{}")
    await host.idle_writes()
    assert len(effects) == len(host.pool.started) == 1
    assert (await host.engine.get("wf", "i")).status == "running"


@pytest.mark.parametrize("where", ["in a step", "in a sleep", "in a wait", "between steps"])
async def test_a_kill_anywhere_needs_no_poke(host: Host, where: str) -> None:
    """W-155, W-107, Issue 5: whatever it was doing when its runtime was killed, it goes on by itself."""
    first = [True]

    def program(event, step):
        yield step.do("before", lambda: b"{}")
        if where == "in a sleep":
            yield step.sleep("s", 3600)
        elif where == "in a wait":
            yield step.wait("w", "go", 3600)
        elif where == "in a step":
            yield step.do("d", lambda: Hold() if first[0] else b"{}")
        elif first[0]:
            yield Hold()
        yield step.do("after", lambda: b"{}")
        return b'{"whole":true}'

    host.define(program)
    await host.engine.create("wf", "i", None)
    await host.until("i", {"in a sleep": "sleeping", "in a wait": "waiting"}.get(where, "running"))
    if where in ("in a step", "between steps"):
        await host.until_steps("i", 2 if where == "in a step" else 1)
    first[0] = False
    reborn = await die_and_live_on(host)
    try:
        if where == "in a sleep":
            reborn.clock.advance(3600)
        elif where == "in a wait":
            await reborn.engine.send_event("wf", "i", "go", None)
        assert (await reborn.until("i", "complete")).output == b'{"whole":true}'
        types = await reborn.types("i")
        assert types.count("workflow_started") == 1
        assert types.count("step_completed") == (3 if where == "in a step" else 2)
    finally:
        await reborn.stop()


async def test_a_kill_amid_retries_goes_on_at_the_right_attempt(host: Host) -> None:
    """W-104, W-107, Issue 5: killed in the third attempt: the third is made again, and the last one is the fifth."""
    calls: list[str] = []
    held = [True]

    def program(event, step):
        def effect():
            calls.append("called")
            if len(calls) == 3 and held[0]:
                return Hold()
            raise ValueError("no")

        try:
            yield step.do("a", effect, RetryPolicy(5, 1))
        except StepError as error:
            return b'{"ended":"%s"}' % error.code.encode()

    host.define(program)
    await host.engine.create("wf", "i", None)
    while len(calls) < 3:
        await host.idle_writes()
        host.clock.advance(1)
    held[0] = False
    reborn = await die_and_live_on(host)
    try:
        while (view := await reborn.engine.get("wf", "i")).status != "complete":
            await reborn.idle_writes()
            reborn.clock.advance(1)
        assert view.output == b'{"ended":"step_failed"}'
        assert len(calls) == 6  # the third one twice
        types = await reborn.types("i")
        assert types.count("attempt_started") == types.count("attempt_errored") == 5
    finally:
        await reborn.stop()


@pytest.mark.parametrize("where", ["step", "sleep", "wait", "retry delay"])
async def test_nothing_follows_a_terminate(host: Host, where: str) -> None:
    """W-070, W-073, S-30, Issue 5: it returns in a step, a sleep, a wait, a retry delay; what was due never comes."""

    def fails():
        raise ValueError("no")

    def program(event, step):
        match where:
            case "step":
                yield step.do("a", Hold)
            case "sleep":
                yield step.sleep("a", 60)
            case "wait":
                yield step.wait("a", "go", 60)
            case _:
                yield step.do("a", fails, RetryPolicy(3, 60))

    host.define(program)
    await host.engine.create("wf", "i", None)
    await host.until("i", {"step": "running", "wait": "waiting"}.get(where, "sleeping"))
    await host.until_steps("i", 1)
    assert (await host.engine.terminate("wf", "i")).status == "terminated"
    before = await host.events("i")
    assert before[-1].type == "workflow_terminated"
    host.clock.advance(3600)
    assert await refused(host.engine.send_event("wf", "i", "go", None)) == "instance_terminal"
    await host.engine.settle_due()
    assert await host.events("i") == before
    assert len(host.pool.started) == 1


async def test_thousands_of_overdue_timers_fire_at_once(database: Database) -> None:
    """W-114, W-155, Issue 5: the Host was away for a month while 1,500 sleeps came due: all end by themselves."""
    count = 1_500

    def program(event, step):
        yield step.sleep("rest", 3600)

    host = VirtualHost(database, settings=EngineSettings("runtime-1", max_contexts=64, max_contexts_per_worker=64))
    host.define(program)
    await host.start()
    for first in range(0, count, 100):
        await host.engine.create_batch("wf", [(f"i{first + number}", None) for number in range(100)])
    await host.until_counted("sleeping", count)
    await host.stop()
    later = host.reborn()
    later.clock.advance(30 * 86_400)
    await later.start()
    try:
        await later.until_counted("complete", count)
        assert len(later.pool.started) == count
    finally:
        await later.stop()


async def test_a_locked_database_ends_no_workflow(host: Host, database: Database) -> None:
    """W-089, W-005, Issue 5: somebody holds the database for 3 s while steps are to be written: they are."""

    def program(event, step):
        for number in range(3):
            yield step.do(f"s{number}", lambda: b"{}")

    host.define(program)
    await host.engine.create_batch("wf", [(f"i{number}", None) for number in range(20)])
    unlock = lock(database)
    try:
        await asyncio.sleep(LOCKED_SECONDS)  # the report itself: so long it was locked
    finally:
        unlock()
    for number in range(20):
        await host.eventually_complete(f"i{number}")
        assert (await host.types(f"i{number}")).count("step_completed") == 3


def lock(database: Database):
    """Holds all writers off until the returned function is called."""
    url = database.writer.url
    if database.is_postgresql:
        plain = url.render_as_string(hide_password=False).replace("postgresql+psycopg://", "postgresql://")
        connection = psycopg.connect(plain)
        connection.execute("LOCK TABLE workflow_instances IN EXCLUSIVE MODE")
        return connection.close
    file = sqlite3.connect(str(url.database), isolation_level=None, check_same_thread=False)
    file.execute("BEGIN IMMEDIATE")
    return file.close


async def test_an_effect_may_take_nearly_a_year(host: Host) -> None:
    """W-108, W-153: no timeout but the lifetime: after 364 days a result is committed, at the deadline none."""

    def program(event, step):
        yield step.do("a", Hold)

    host.define(program)
    await host.engine.create_batch("wf", [("in time", None), ("too late", None)])
    await host.eventually(lambda: len(host.pool.running) == 2)
    await host.until_steps("in time", 1)
    await host.until_steps("too late", 1)
    contexts = {context.start.instance_id: context for context in host.pool.running.values()}
    host.clock.advance(364 * 86_400)
    finish(contexts["in time"])
    await host.until("in time", "complete")
    host.clock.advance(YEAR - 364 * 86_400)
    finish(contexts["too late"])
    assert (await host.until("too late", "errored")).error_reason == "lifetime_exceeded"


def finish(context) -> None:
    """The effect that holds gives its result."""
    context._listener.on_step(context.context_id, context._calls, DoSucceeded("a", 1, b"{}"))


async def test_run_that_does_nothing_completes_once(host: Host) -> None:
    """W-085, S-30, Issue 5: no step, no output: one context, four events."""

    def program(event, step):
        return None
        yield

    host.define(program)
    await host.engine.create("wf", "i", None)
    view = await host.until("i", "complete")
    assert view.output is None
    expected = ["workflow_queued", "workflow_started", "workflow_running", "workflow_completed"]
    assert await host.types("i") == expected
    assert len(host.pool.started) == 1


async def test_an_end_by_lifetime_is_logged(host: Host, caplog: pytest.LogCaptureFixture) -> None:
    """W-012, W-016, Design 6: nobody's code ran when it ended, so the Host says it where the Worker's lines are."""

    def program(event, step):
        yield step.wait("never", "go", 31_536_000)

    host.define(program)
    await host.engine.create("wf", "i", None)
    await host.until("i", "waiting")
    host.clock.advance(31_536_000)
    with caplog.at_level(logging.INFO, logger="saisei_runtime.worker"):
        await host.until("i", "errored")
        await host.engine.get("wf", "i")
    (line,) = [record for record in caplog.records if "lifetime_exceeded" in record.getMessage()]
    assert (line.levelno, line.worker, line.instance, line.workflow) == (logging.ERROR, "worker", "i", "wf")


async def test_a_lost_context_is_logged(host: Host, caplog: pytest.LogCaptureFixture) -> None:
    """W-107, S-14, Design 6: history and attempts know nothing of it, so the app's author finds it in the log."""
    died = []

    def program(event, step):
        def effect() -> bytes | Hold:
            died.append(1)
            return Hold() if len(died) == 1 else b"{}"

        yield step.do("a", effect, RetryPolicy(1))

    host.define(program)
    await host.engine.create("wf", "i", None)
    await host.until("i", "running")
    async with asyncio.timeout(30):
        while not died:
            await asyncio.sleep(0.005)
    with caplog.at_level(logging.INFO, logger="saisei_runtime.worker"):
        host.pool.kill_all("it used too much memory")
        await host.until("i", "complete")
    (line,) = [record for record in caplog.records if "was lost" in record.getMessage()]
    assert (line.levelno, line.worker, line.instance) == (logging.WARNING, "worker", "i")
    assert "it used too much memory" in line.getMessage()
    assert (await host.types("i")).count("attempt_started") == 1
