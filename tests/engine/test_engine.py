"""The engine on both databases: callers, termination, restarts, deployments, retention, purge."""

from __future__ import annotations

import asyncio
import contextlib

import pytest
from engine_fakes import Completed, CrashError, End, Hold, Host, ScriptedPool, StepError

from saisei_contract.errors import SaiseiError
from saisei_runtime.isolates.port import RetryPolicy

YEAR = 31_536_000
MONTH = 2_592_000


def returns_nothing(event, step):
    yield step.do("only", lambda: b"{}")


def holds(event, step):
    yield Hold()


def sleeps(event, step):
    yield step.sleep("rest", 3600)
    return b'{"rested":true}'


async def refused(call) -> str:
    with pytest.raises(SaiseiError) as caught:
        await call
    return caught.value.reason


# --- callers ----------------------------------------------------------------------------------------------------------


async def test_ids_are_issued_checked_and_taken(host: Host) -> None:
    """W-020, W-021, W-024: 1-256 scalars, also 256 emoji or U+0000; none given: a unique one; taken: refused."""
    host.define(returns_nothing)
    for good in ("x", "😀" * 256, "a\0b\\0c", "é/ ?"):
        assert await host.engine.create("wf", good, None) == good
        assert (await host.until(good, "complete")).id == good
        assert (await host.events(good))[0].instance_id == good
    issued = {await host.engine.create("wf", None, None) for _ in range(3)}
    assert len(issued) == 3
    for bad in ("", "x" * 257, "\ud800"):
        assert await refused(host.engine.create("wf", bad, None)) == "invalid_request"
    assert await refused(host.engine.create("wf", "x", b'{"other":1}')) == "instance_exists"


async def test_of_concurrent_creates_of_one_id_one_wins(host: Host) -> None:
    """W-021: exactly one of twenty."""
    host.define(returns_nothing)
    outcomes = await host.engine.create_batch("wf", [("same", None)] * 20)
    assert outcomes.count("same") == 1
    assert {one.reason for one in outcomes if isinstance(one, SaiseiError)} == {"instance_exists"}


async def test_a_batch_has_an_outcome_for_each_item(host: Host) -> None:
    """W-020, W-021: in input order; a bad item takes no other down."""
    host.define(returns_nothing)
    outcomes = await host.engine.create_batch("wf", [("a", None), ("", None), ("a", None), ("b", b"{}")])
    assert [one if isinstance(one, str) else one.reason for one in outcomes] == [
        "a",
        "invalid_request",
        "instance_exists",
        "b",
    ]


async def test_without_a_deployment_nothing_is_created(host: Host) -> None:
    """W-026: backend_unavailable, and the id is free afterwards."""
    host.define(returns_nothing)
    host.deploy("worker", None)
    assert await refused(host.engine.create("wf", "i", None)) == "backend_unavailable"
    assert await refused(host.engine.create("unheard-of", "i", None)) == "backend_unavailable"
    host.deploy("worker", "v1")
    await host.engine.create("wf", "i", None)


async def test_unknown_instances(host: Host) -> None:
    """W-027, W-028: every call on an id that is not there."""
    host.define(returns_nothing)
    engine = host.engine
    for call in (
        engine.get("wf", "no"),
        engine.steps("wf", "no"),
        engine.send_event("wf", "no", "t", None),
        engine.terminate("wf", "no"),
        engine.subscribe("wf", "no"),
        engine.get("wf", "x" * 300),
    ):
        assert await refused(call) == "unknown_instance"
    await engine.create("wf", "i", None)
    assert await refused(engine.send_event("wf", "i", "", None)) == "invalid_request"
    assert await refused(engine.send_event("wf", "i", "t" * 257, None)) == "invalid_request"


async def test_workflows_have_separate_id_spaces(host: Host) -> None:
    """DW-02: the same id in two workflows of one Worker are two instances."""
    host.define(returns_nothing, "wf")
    host.define(sleeps, "other")
    await host.engine.create("wf", "i", None)
    await host.engine.create("other", "i", None)
    await host.until("i", "complete")
    await host.until("i", "sleeping", workflow="other")


async def test_reads_follow_writes(host: Host) -> None:
    """W-015: after create resolves get sees it; after terminate resolves the status is terminal."""
    host.define(holds)
    for number in range(20):
        await host.engine.create("wf", f"i{number}", None)
        assert (await host.engine.get("wf", f"i{number}")).status in ("queued", "running")
        await host.engine.terminate("wf", f"i{number}")
        assert (await host.engine.get("wf", f"i{number}")).status == "terminated"


async def test_lists_pages_and_counts(host: Host) -> None:
    """DW-05, W-015: ascending by creation, filtered by status, continued by cursor; all seven counts."""
    host.define(sleeps)
    for number in range(5):
        await host.engine.create("wf", f"i{number}", None)
        await host.until(f"i{number}", "sleeping")
    await host.engine.terminate("wf", "i2")
    page, cursor = await host.engine.list("wf", None, 3, None)
    assert [view.id for view in page] == ["i0", "i1", "i2"] and cursor is not None
    page, cursor = await host.engine.list("wf", None, 3, cursor)
    assert [view.id for view in page] == ["i3", "i4"] and cursor is None
    page, _ = await host.engine.list("wf", "terminated", 10, None)
    assert [view.id for view in page] == ["i2"]
    assert await host.engine.counts("wf") == {
        "queued": 0,
        "running": 0,
        "sleeping": 4,
        "waiting": 0,
        "complete": 0,
        "errored": 0,
        "terminated": 1,
    }
    assert await refused(host.engine.list("wf", "done", 10, None)) == "invalid_request"
    assert await refused(host.engine.list("wf", None, 10, "x")) == "invalid_request"


async def test_the_step_journal_is_readable(host: Host) -> None:
    """W-002: kinds, states, attempts, results, due times, in order of first registration."""

    def program(event, step):
        yield step.do("z\0first", lambda: b'{"r":1}')
        with contextlib.suppress(StepError):
            yield step.do("bad", lambda: 1 / 0)
        yield step.wait("w", "go", 60)

    host.define(program)
    await host.engine.create("wf", "i", None)
    await host.until("i", "waiting")
    first, bad, wait = await host.engine.steps("wf", "i")
    assert (first.name, first.kind, first.state, first.result) == ("z\0first", "do", "complete", b'{"r":1}')
    assert (bad.state, bad.failed_attempts, bad.error) == ("errored", 1, "step_failed")
    assert (wait.kind, wait.state, wait.due_at_ms) == ("wait", "waiting", host.clock.now_ms() + 60_000)


async def test_large_documents_come_back_unchanged(host: Host) -> None:
    """W-041, W-048: a megabyte of params, result and output, byte for byte."""
    big = b'{"x":"' + b"y" * 1_048_568 + b'"}'
    seen = []

    def program(event, step):
        seen.append(event.params)
        yield step.do("big", lambda: big)
        yield step.sleep("rest", 1)
        seen.append((yield step.do("big", lambda: b"{}")))
        return big

    host.define(program)
    await host.engine.create("wf", "i", big)
    await host.until("i", "sleeping")
    host.clock.advance(1)
    assert (await host.until("i", "complete")).output == big
    assert seen == [big, big, big]


# --- events -----------------------------------------------------------------------------------------------------------


async def test_events_before_the_wait_are_kept_in_order(host: Host) -> None:
    """W-060, W-064, W-116: sent while sleeping, consumed oldest first, the other type left alone."""

    def program(event, step):
        yield step.sleep("rest", 10)
        first = yield step.wait("one", "go", 60)
        second = yield step.wait("two", "go", 60)
        return b"[%b,%b]" % (first, second)

    host.define(program)
    await host.engine.create("wf", "i", None)
    await host.until("i", "sleeping")
    for kind, n in (("go", 1), ("no", 2), ("go", 3)):
        await host.engine.send_event("wf", "i", kind, b'{"n":%d}' % n)
    host.clock.advance(10)
    assert (await host.until("i", "complete")).output == b'[{"n":1},{"n":3}]'
    assert await refused(host.engine.send_event("wf", "i", "go", None)) == "instance_terminal"


async def test_a_storm_of_events_feeds_each_wait_once(host: Host) -> None:
    """W-064, W-066: events race with parking; every one is consumed exactly once and in order."""
    total = 40

    def program(event, step):
        got = []
        for number in range(total):
            got.append((yield step.wait(f"w{number}", "tick", 600)))
        return b"[" + b",".join(got) + b"]"

    host.define(program)
    await host.engine.create("wf", "i", None)
    for number in range(total):
        await host.engine.send_event("wf", "i", "tick", b'{"n":%d}' % number)
        if number % 7 == 0:
            await asyncio.sleep(0.005)
    view = await host.until("i", "complete")
    assert view.output == b"[" + b",".join(b'{"n":%d}' % number for number in range(total)) + b"]"


async def test_a_full_queue_refuses(host: Host) -> None:
    """W-062: the 1,025th unconsumed event."""
    host.define(holds)
    await host.engine.create("wf", "i", None)
    for _ in range(1024):
        await host.engine.send_event("wf", "i", "e", None)
    assert await refused(host.engine.send_event("wf", "i", "e", None)) == "event_queue_full"
    await host.engine.terminate("wf", "i")
    assert await refused(host.engine.send_event("wf", "i", "e", None)) == "instance_terminal"


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
        assert (view.error_reason, view.error_message, view.output) == (reason, None, None)


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

    def program(event, step):
        raise CrashError
        yield

    host.define(program)
    await host.engine.create("wf", "i", None)
    await host.eventually(lambda: len(host.pool.started) == 2)
    await host.idle()
    assert len(host.pool.started) == 2
    began = asyncio.get_running_loop().time()
    await host.eventually(lambda: len(host.pool.started) == 3)
    assert asyncio.get_running_loop().time() - began > 0.5
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
    dead.engine._scheduler.close()
    dead.engine._contexts.check = lambda: None
    alive = dead.reborn()
    alive.define(returns_nothing)
    await alive.start()
    try:
        await alive.until("i", "complete")
        # The dead one's context wakes up once more: it is fenced.
        context = next(iter(dead.pool.running.values()))
        context.finish(Completed(b'{"late":true}'))
        await asyncio.sleep(0.05)
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
    dead.engine._scheduler.close()
    dead.engine._contexts.check = lambda: None
    other = dead.reborn(runtime_id="other")
    other.define(returns_nothing)
    await other.start()
    try:
        assert not other.pool.started
        await other.until("i", "complete")
    finally:
        await other.stop()
        await dead.stop()


async def test_leases_are_renewed_while_code_runs(host: Host) -> None:
    """W-151: a context that runs longer than its lease keeps it."""
    short = host.reborn(runtime_id="short", lease_ms=200)
    short.define(holds)
    await short.start()
    try:
        await short.engine.create("wf", "i", None)
        await short.eventually(lambda: bool(short.pool.running))
        loop = asyncio.get_running_loop()
        until = loop.time() + 0.8
        while loop.time() < until:
            await asyncio.sleep(0.05)
            assert len(short.pool.started) == 1 and short.pool.running
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
        await small.engine.settle_due()
        await small.idle()
        assert (await small.engine.counts("wf"))["sleeping"] == 200
        small.clock.advance(3600)
        assert await small.engine.settle_due() == 200
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


# --- what leaves ------------------------------------------------------------------------------------------------------


async def test_retention_keeps_a_month_and_then_frees_the_id(host: Host) -> None:
    """W-160, W-162: terminal records stay 2,592,000 s; live ones for as long as they live."""
    host.define(returns_nothing)
    host.define(lambda event, step: (yield step.wait("w", "go", YEAR)), "parked")
    await host.engine.create("wf", "i", None)
    await host.engine.create("parked", "p", None)
    await host.until("i", "complete")
    await host.until("p", "waiting", workflow="parked")
    host.clock.advance(MONTH - 1)
    assert await host.engine.sweep() == 0
    assert (await host.types("i"))[-1] == "workflow_completed"
    host.clock.advance(1)
    assert await host.engine.sweep() == 1
    assert await refused(host.engine.get("wf", "i")) == "unknown_instance"
    assert (await host.engine.get("parked", "p")).status == "waiting"
    await host.engine.create("wf", "i", None)


async def test_the_lifetime_holds_without_a_deployment(host: Host) -> None:
    """W-016, W-087: deadlines do not move while there is no Deployment."""
    host.define(sleeps)
    await host.engine.create("wf", "i", None)
    await host.until("i", "sleeping")
    host.deploy("worker", None)
    host.clock.advance(YEAR)
    await host.engine.sweep()
    subscription = await host.engine.subscribe("wf", "i", types=frozenset({"workflow_errored"}))
    assert (await asyncio.wait_for(subscription.next(), 5)).type == "workflow_errored"


async def test_purge_removes_everything_of_one_workflow(host: Host) -> None:
    """DW-08, DW-09, W-161, S-13: parked, queued, running and terminal instances; others stay; nothing comes back."""
    host.define(holds)
    host.define(returns_nothing, "other")
    await host.engine.create_batch("wf", [(f"i{number}", b"{}") for number in range(300)])
    await host.engine.create("other", "i", None)
    await host.eventually(lambda: len(host.pool.running) >= 30)
    subscription = await host.engine.subscribe("wf", "i0", cursor=100)
    pending = asyncio.create_task(subscription.next())
    assert await host.engine.purge("wf") == 300
    assert await asyncio.wait_for(pending, 5) is None
    assert not host.pool.running
    assert await refused(host.engine.get("wf", "i0")) == "unknown_instance"
    assert await refused(host.engine.create("wf", "new", None)) == "backend_unavailable"
    assert await host.engine.purge("wf") == 0
    await host.until("i", "complete", workflow="other")
    with host.database.reader.connect() as connection:
        for table in ("instances", "params", "steps", "queued_events", "event_log"):
            rows = connection.exec_driver_sql(f"SELECT count(*) FROM workflow_{table}").scalar()
            assert rows <= 8, table


async def test_purge_without_a_stop_proof_is_no_success(host: Host) -> None:
    """DW-08: unproven: backend_unavailable, nothing admitted, nothing removed; the next try succeeds."""
    slow = host.reborn(runtime_id="slow", stop_seconds=0.2)
    slow.define(holds)
    await slow.start()
    try:
        await slow.engine.create("wf", "i", None)
        await slow.eventually(lambda: bool(slow.pool.running))
        slow.pool.unstoppable = True
        assert await refused(slow.engine.purge("wf")) == "backend_unavailable"
        assert await refused(slow.engine.create("wf", "j", None)) == "backend_unavailable"
        slow.pool.unstoppable = False
        assert await slow.engine.purge("wf") == 1
    finally:
        await slow.stop()


async def test_a_purged_workflow_stays_closed_after_a_restart(host: Host) -> None:
    """DW-08, DW-09: a UID is never reused; its marker outlives the process."""
    host.define(returns_nothing)
    await host.engine.purge("wf")
    other = host.reborn(runtime_id="other")
    await other.start()
    try:
        assert await refused(other.engine.create("wf", "i", None)) == "backend_unavailable"
    finally:
        await other.stop()


async def test_hundreds_of_instances_at_once(host: Host) -> None:
    """W-154, W-098: 300 instances of three steps, each complete with its own result and a whole log."""

    def program(event, step):
        got = []
        for number in range(3):
            got.append((yield step.do(f"s{number}", lambda number=number: b"%d" % number)))
        return b"[%b]" % b",".join(got)

    host.define(program)
    assert isinstance(host.pool, ScriptedPool)
    await host.engine.create_batch("wf", [(f"i{number}", None) for number in range(300)])
    for number in range(300):
        assert (await host.until(f"i{number}", "complete")).output == b"[0,1,2]"
    for number in range(0, 300, 50):
        assert len(await host.events(f"i{number}")) == 3 + 3 * 4 + 1
