"""The engine on both databases: ends, losses, restarts, Deployments."""

from __future__ import annotations

import asyncio

from engine_fakes import YEAR, Completed, CrashError, End, Hold, Host, holds, refused, returns_nothing, sleeps

from saisei_runtime.isolates.port import RetryPolicy
from saisei_service.clock import wall_ms

# --- ends -------------------------------------------------------------------------------------------------------------


async def test_an_unproven_stop_is_no_termination(host: Host) -> None:
    """W-071, W-073: backend_unavailable, still running and fenced; the proof, when it comes, ends it."""
    host = host.reborn(runtime_id="slow", stop_seconds=0.2)
    await host.start()
    try:
        host.define(holds)
        await host.engine.create("wf", "i", None)
        await host.until("i", "running")
        await host.eventually(lambda: bool(host.pool.running))
        host.pool.unstoppable = True
        assert await refused(host.engine.terminate("wf", "i")) == "backend_unavailable"
        assert (await host.engine.get("wf", "i")).status == "running"
        host.pool.unstoppable = False
        await host.until("i", "terminated")
    finally:
        await host.stop()


async def test_terminating_twice_and_at_once(host: Host) -> None:
    """W-029, W-072: idempotent, also concurrently; a complete instance stays complete."""
    host.define(holds)
    await host.engine.create("wf", "i", None)
    await host.until("i", "running")
    views = await asyncio.gather(*(host.engine.terminate("wf", "i") for _ in range(5)))
    assert {view.status for view in views} == {"terminated"}
    host.define(returns_nothing)
    await host.engine.create("wf", "done", None)
    await host.until("done", "complete")
    assert (await host.engine.terminate("wf", "done")).status == "complete"


async def test_uncatchable_ends(host: Host) -> None:
    """W-096, W-121, W-012: the step limit and a mismatch as the shim reports them."""
    for reason in ("step_definition_mismatch", "step_limit_exceeded"):

        def program(event, step, reason=reason):
            yield End(reason)

        host.define(program)
        await host.engine.create("wf", reason, None)
        view = await host.until(reason, "errored")
        assert (view.error_reason, bool(view.error_message), view.output) == (reason, True, None)


async def test_the_lifetime_shows_in_every_read(host: Host) -> None:
    """W-016, W-153: a context at the deadline is stopped; get, list and sendEvent observe lifetime_exceeded."""
    host.define(holds)
    await host.engine.create("wf", "runs", None)
    await host.until("runs", "running")
    host.define(lambda event, step: (yield step.wait("w", "go", YEAR)), "parked")
    await host.engine.create("parked", "waits", None)
    await host.until("waits", "waiting", workflow="parked")
    created = (await host.engine.get("wf", "runs")).created_at_ms
    host.clock.advance(YEAR)
    view = await host.engine.get("wf", "runs")
    assert (view.status, view.error_reason) == ("errored", "lifetime_exceeded")
    assert view.ended_at_ms == created + YEAR * 1000
    assert await refused(host.engine.send_event("parked", "waits", "go", None)) == "instance_terminal"
    page, _ = await host.engine.list("parked", None, 10, None)
    assert page[0].error_reason == "lifetime_exceeded"


# --- losses and restarts ----------------------------------------------------------------------------------------------


async def test_a_crash_repeats_the_step_not_the_journal(host: Host) -> None:
    """W-107, S-14, W-150: the process dies in the effect; a new context runs it again; one fact each."""
    runs = []

    def effect():
        runs.append(1)
        if len(runs) == 1:
            raise CrashError
        return b"{}"

    def program(event, step):
        yield step.do("before", lambda: b"{}")
        yield step.do("a", effect)

    host.define(program)
    await host.engine.create("wf", "i", None)
    await host.until("i", "complete")
    assert len(runs) == 2
    types = await host.types("i")
    assert types.count("attempt_started") == 2 and types.count("workflow_running") == 2


async def test_a_crash_loop_is_slowed_down(host: Host) -> None:
    """W-107: one replacement at once; the next one a second of real time later, on whatever clock."""

    begun = []

    def program(event, step):
        begun.append(wall_ms())
        raise CrashError
        yield

    host.define(program)
    await host.engine.create("wf", "i", None)
    await host.eventually(lambda: len(begun) >= 3)
    assert begun[2] - begun[1] > 900
    assert (await host.engine.get("wf", "i")).status == "running"


async def test_shutdown_requeues_and_the_next_life_goes_on(host: Host) -> None:
    """W-089, W-155: stopping the runtime loses nothing; the next one continues without any client."""
    hold = [True]

    def program(event, step):
        yield step.do("a", lambda: b"{}")
        if hold[0]:
            yield Hold()
        return b'{"ok":true}'

    first = host.reborn(runtime_id="r")
    first.define(program)
    await first.start()
    for number in range(10):
        await first.engine.create("wf", f"i{number}", None)
    await first.eventually(lambda: len(first.pool.running) == 10)
    await first.stop()
    hold[0] = False
    second = first.reborn()
    second.define(program)
    await second.start()
    try:
        for number in range(10):
            await second.until(f"i{number}", "complete")
    finally:
        await second.stop()


async def test_a_killed_runtime_takes_its_instances_back(host: Host) -> None:
    """W-155, W-151: no shutdown at all: at boot its running rows are claimed again under a new epoch."""
    dead = host.reborn(runtime_id="r")
    dead.define(holds)
    await dead.start()
    await dead.engine.create("wf", "i", None)
    await dead.eventually(lambda: bool(dead.pool.running))
    # Killed: nobody hears of anything any more.
    dead.fall_silent()
    alive = dead.reborn()
    alive.define(returns_nothing)
    await alive.start()
    try:
        await alive.until("i", "complete")
        # The dead one's context wakes up once more: it is fenced.
        context = next(iter(dead.pool.running.values()))
        context.finish(Completed(b'{"late":true}'))
        await dead.eventually(lambda: not dead.engine._contexts.runs)
        await dead.engine._journal.transact(lambda connection: None)  # after everything that was submitted before
        view = await alive.engine.get("wf", "i")
        assert (view.status, view.output) == ("complete", None)
    finally:
        await alive.stop()
        await dead.stop()


async def test_another_runtime_takes_over_after_the_lease(host: Host) -> None:
    """W-150, W-155: a runtime that died is replaced by another one within a lease, not before it."""
    dead = host.reborn(runtime_id="dead", lease_ms=400)
    dead.define(holds)
    await dead.start()
    await dead.engine.create("wf", "i", None)
    await dead.eventually(lambda: bool(dead.pool.running))
    dead.fall_silent()
    lease_until_ms, begun = host.lease_until_ms(), []

    def program(event, step):
        begun.append(wall_ms())
        yield step.do("only", lambda: b"{}")

    other = dead.reborn(runtime_id="other")
    other.define(program)
    await other.start()
    try:
        await other.until("i", "complete")
        assert begun[0] >= lease_until_ms
    finally:
        await other.stop()
        await dead.stop()


async def test_leases_are_renewed_while_code_runs(host: Host) -> None:
    """W-151: a context that runs longer than its lease keeps it."""
    short = host.reborn(runtime_id="short", lease_ms=1_500)
    short.define(holds)
    await short.start()
    try:
        await short.engine.create("wf", "i", None)
        await short.eventually(lambda: bool(short.pool.running))
        first = host.lease_until_ms()
        await short.eventually(lambda: wall_ms() > first)
        assert len(short.pool.started) == 1 and short.pool.running
        assert host.lease_until_ms() > first
    finally:
        await short.stop()


async def test_no_thread_means_later(host: Host) -> None:
    """W-089, W-026: the pool has none: the instance stays queued and is tried again."""
    host.define(returns_nothing)
    host.pool.unavailable = True
    await host.engine.create("wf", "i", None)
    await host.until("i", "queued")
    host.pool.unavailable = False
    await host.until("i", "complete")


async def test_an_advance_answers_when_all_that_is_due_has_started(host: Host) -> None:
    """Design 6: 200 sleepers of 4 places become due: each was started once settle_due returns."""
    small = host.reborn(runtime_id="small", max_contexts=4)
    small.define(sleeps)
    await small.start()
    try:
        await small.engine.create_batch("wf", [(f"i{number}", None) for number in range(200)])
        await small.until_counted("sleeping", 200)
        small.clock.advance(3600)
        assert await small.engine.settle_due(60) == 200
        assert len(small.pool.started) == 400
    finally:
        await small.stop()


# --- deployments ------------------------------------------------------------------------------------------------------


async def test_without_a_deployment_contexts_stop_and_wait(host: Host) -> None:
    """W-087: stopped without losing an attempt, shown as queued; a due wake is delivered once there is one again."""
    hold = [True]

    def program(event, step):
        yield step.do("a", lambda: Hold() if hold[0] else b"{}", RetryPolicy(1))

    host.define(program)
    host.define(sleeps, "sleepers")
    await host.engine.create("wf", "i", None)
    await host.engine.create("sleepers", "s", None)
    await host.until("i", "running")
    await host.until("s", "sleeping", workflow="sleepers")
    await host.eventually(lambda: len(host.pool.running) == 1)
    host.deploy("worker", None)
    await host.until("i", "queued")
    host.clock.advance(3600)
    await host.idle()
    assert (await host.engine.get("sleepers", "s")).status == "sleeping"
    hold[0] = False
    host.deploy("worker", "v2")
    await host.until("i", "complete")
    await host.until("s", "complete", workflow="sleepers")
    assert (await host.types("i")).count("attempt_started") == 1
    assert host.pool.started[-1].code.version_uid == "v2"


async def test_a_context_keeps_its_version(host: Host) -> None:
    """W-084: the next context takes the allocation of its own start."""
    host.define(sleeps)
    await host.engine.create("wf", "i", None)
    await host.until("i", "sleeping")
    host.deploy("worker", "v2")
    host.clock.advance(3600)
    await host.until("i", "complete")
    assert [start.code.version_uid for start in host.pool.started] == ["worker-v1", "v2"]


async def test_a_hot_worker_does_not_starve_another(host: Host) -> None:
    """W-154: with 200 instances queued before it, another Worker's instance starts within a few contexts."""
    small = host.reborn(runtime_id="small", max_contexts=4, max_contexts_per_worker=3)
    small.define(returns_nothing, "hot", "hot-worker")
    small.define(returns_nothing, "wf", "cold-worker")
    await small.start()
    try:
        asked = [("hot", [(None, None)] * 200), ("wf", [("cold", None)])]
        await asyncio.gather(*(small.engine.create_batch(workflow, items) for workflow, items in asked))
        await small.until("cold", "complete")
        place = [start.instance_id for start in small.pool.started].index("cold")
        assert place < 150
        assert small.pool.peak <= 4
    finally:
        await small.stop()


async def test_a_held_worker_leaves_room(host: Host) -> None:
    """W-154: a Worker whose contexts never end takes its own share only."""
    small = host.reborn(runtime_id="small", max_contexts=4, max_contexts_per_worker=3)
    small.define(holds, "hot", "hot-worker")
    small.define(returns_nothing, "wf", "cold-worker")
    await small.start()
    try:
        await small.engine.create_batch("hot", [(None, None)] * 50)
        await small.eventually(lambda: len(small.pool.running) == 3)
        for number in range(10):
            await small.engine.create("wf", f"i{number}", None)
            await small.until(f"i{number}", "complete")
        assert await small.engine.counts("hot") == {**await small.engine.counts("none"), "running": 3, "queued": 47}
    finally:
        await small.stop()
