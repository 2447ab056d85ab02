"""One life of an instance after the other, through the whole engine."""

from __future__ import annotations

import json

from engine_fakes import Hold, Host, StepError

from saisei_runtime.isolates.port import RetryPolicy


async def test_one_step_completes_and_every_event_is_there(host: Host) -> None:
    """W-022, W-098, S-30: queued, claimed, one step, complete; the reference sequence of contract 4.3."""

    def program(event, step):
        result = yield step.do("greet", lambda: b'{"a":1}')
        return b'{"got":' + result + b"}"

    host.define(program)
    assert await host.engine.create("wf", "one", b'{"p":1}') == "one"
    view = await host.until("one", "complete")
    assert view.output == b'{"got":{"a":1}}'
    records = await host.events("one")
    assert [record.type for record in records] == [
        "workflow_queued",
        "workflow_started",
        "workflow_running",
        "step_started",
        "attempt_started",
        "attempt_completed",
        "step_completed",
        "workflow_completed",
    ]
    assert [record.event_id for record in records] == list(range(1, 9))
    first, second, last = (json.loads(records[n].json) for n in (0, 1, -1))
    assert first == {"instanceId": "one", "eventId": 1, "timestamp": host.clock.now_ms(), "type": "workflow_queued"}
    assert second["params"] == {"p": 1}
    assert last["output"] == {"got": {"a": 1}}


async def test_a_sleep_parks_and_goes_on_when_due(host: Host) -> None:
    """W-111, W-114, W-083: sleeping holds no context; at the due time a fresh one replays and goes on."""

    def program(event, step):
        yield step.do("before", lambda: b"{}")
        yield step.sleep("rest", 3600)
        return b'{"rested":true}'

    host.define(program)
    await host.engine.create("wf", "s", None)
    await host.until("s", "sleeping")
    assert host.pool.running == {}
    host.clock.advance(3599)
    await host.idle()
    assert (await host.engine.get("wf", "s")).status == "sleeping"
    host.clock.advance(1)
    assert (await host.until("s", "complete")).output == b'{"rested":true}'
    assert len(host.pool.started) == 2
    assert (await host.types("s"))[7:] == [
        "sleep_started",
        "workflow_waiting",
        "workflow_running",
        "sleep_completed",
        "workflow_completed",
    ]


async def test_an_event_wakes_a_parked_wait(host: Host) -> None:
    """W-061, W-117, S-24: direct delivery into the parked wait; wait_completed follows workflow_running."""

    def program(event, step):
        return (yield step.wait("approval", "approved", 60))

    host.define(program)
    await host.engine.create("wf", "w", None)
    await host.until("w", "waiting")
    await host.engine.send_event("wf", "w", "approved", b'{"by":"me"}')
    assert (await host.until("w", "complete")).output == b'{"by":"me"}'
    assert (await host.types("w"))[3:] == [
        "wait_started",
        "workflow_waiting",
        "workflow_running",
        "wait_completed",
        "workflow_completed",
    ]


async def test_a_wait_times_out_strictly_after_its_last_instant(host: Host) -> None:
    """W-118, W-119: at the timeout instant an event still wins; one ms later the wait has timed out."""

    def program(event, step):
        try:
            yield step.wait("approval", "approved", 60)
        except StepError as error:
            return b'{"code":"%b"}' % error.code.encode()

    host.define(program)
    await host.engine.create("wf", "w", None)
    await host.until("w", "waiting")
    host.clock.advance(60)
    await host.idle()
    assert (await host.engine.get("wf", "w")).status == "waiting"
    host.clock.advance(0.001)
    assert (await host.until("w", "complete")).output == b'{"code":"wait_timeout"}'
    assert "wait_timed_out" in await host.types("w")


async def test_retries_run_in_fresh_contexts_after_their_delay(host: Host) -> None:
    """W-102, W-104, S-23: 10 s then 20 s, each attempt in a context of its own."""
    attempts = []

    def effect():
        attempts.append(host.clock.now_ms())
        if len(attempts) < 3:
            raise ValueError("not yet")
        return b'{"ok":true}'

    def program(event, step):
        return (yield step.do("try", effect, RetryPolicy(3, 10, "exponential", 60)))

    host.define(program)
    await host.engine.create("wf", "r", None)
    await host.until("r", "sleeping")
    host.clock.advance(10)
    await host.eventually(lambda: len(attempts) == 2)
    await host.until("r", "sleeping")
    host.clock.advance(20)
    assert (await host.until("r", "complete")).output == b'{"ok":true}'
    assert [at - attempts[0] for at in attempts] == [0, 10_000, 30_000]
    assert len(host.pool.started) == 3
    errored = [json.loads(record.json) for record in await host.events("r") if record.type == "attempt_errored"]
    assert [event["retryDelayMs"] for event in errored] == [10_000, 20_000]
    assert errored[0]["error"] == {"name": "ValueError", "message": "not yet"}


async def test_terminate_stops_the_code_first(host: Host) -> None:
    """W-070, W-014: a context that never yields is stopped, and only then is the instance terminated."""

    def program(event, step):
        yield Hold()

    host.define(program)
    await host.engine.create("wf", "t", None)
    await host.until("t", "running")
    view = await host.engine.terminate("wf", "t")
    assert view.status == "terminated"
    assert host.pool.running == {}
    assert (await host.types("t"))[-1] == "workflow_terminated"
