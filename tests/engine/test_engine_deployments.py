"""What becomes of instances when their Worker's Deployment changes or goes, and when nobody runs them meanwhile."""

from __future__ import annotations

import asyncio

import pytest
from engine_fakes import CrashError, Hold, Host, holds, returns_nothing, sleeps

from saisei_runtime.isolates.port import Lost, RetryPolicy


async def test_a_context_lost_before_the_deployment_goes_leaves_a_queued_instance(host: Host) -> None:
    """W-087: nothing runs of it and nothing can: queued, not running, also while the pause after its loss lasts."""
    host.define(holds)
    await host.engine.create_batch("wf", [("once", None), ("twice", None)])
    await host.eventually(lambda: len(host.pool.running) == 2)
    # Twice in a row: its replacement has to wait.
    by_id = {context.start.instance_id: context for context in host.pool.running.values()}
    by_id["twice"].finish(Lost("killed"))
    await host.eventually(lambda: len(host.pool.started) == 3 and len(host.pool.running) == 2)
    # No claim comes between the losses and the removal: all of it happens in one turn of the loop.
    host.pool.kill_all()
    host.deploy("worker", None)
    for instance_id in ("once", "twice"):
        await host.until(instance_id, "queued")
    assert not host.pool.running
    host.pool.programs["wf"] = returns_nothing
    host.deploy("worker", "v2")
    for instance_id in ("once", "twice"):
        await host.until(instance_id, "complete")


async def test_a_loss_heard_of_after_the_deployment_went_is_queued(host: Host) -> None:
    """W-087, W-071: a context that could not be stopped and then dies: queued once its end is proven."""
    host.define(holds)
    await host.engine.create("wf", "i", None)
    await host.eventually(lambda: bool(host.pool.running))
    host.pool.unstoppable = True
    host.deploy("worker", None)
    await host.eventually(lambda: bool(host.pool.stops))
    assert (await host.engine.get("wf", "i")).status == "running"
    host.pool.kill_all()
    await host.until("i", "queued")


async def test_a_runtime_that_starts_without_a_deployment_queues(host: Host) -> None:
    """W-087, W-155: its former life ran it and the Deployment went meanwhile: queued as soon as that is certain."""
    host.define(holds)
    await host.engine.create("wf", "i", None)
    await host.eventually(lambda: bool(host.pool.running))
    host.fall_silent()
    reborn = host.reborn()
    reborn.deployments.complete = False
    reborn.deployments.versions.clear()
    await reborn.start()
    try:
        # What is not known yet may exist: the status stays.
        assert (await reborn.engine.get("wf", "i")).status == "running"
        reborn.deployments.complete = True
        reborn.engine.assignments_complete()
        await reborn.until("i", "queued")
    finally:
        await reborn.stop()


async def test_a_dead_runtimes_instance_is_queued_after_its_lease(host: Host) -> None:
    """W-087, W-150: not before the lease is over: until then the dead one's code might run."""
    dead = host.reborn(runtime_id="dead", lease_ms=1_500)
    dead.define(holds)
    await dead.start()
    await dead.engine.create("wf", "i", None)
    await dead.eventually(lambda: bool(dead.pool.running))
    dead.fall_silent()
    other = dead.reborn(runtime_id="other")
    other.deployments.versions.clear()
    await other.start()
    try:
        await other.until("i", "queued")
    finally:
        await other.stop()
        await dead.stop()


async def test_termination_goes_before_the_queue(host: Host) -> None:
    """W-073, W-087: terminated while its context could not be stopped, lost, and without a Deployment: terminated."""
    host.define(holds)
    await host.engine.create("wf", "i", None)
    await host.eventually(lambda: bool(host.pool.running))
    host.pool.unstoppable = True
    asked = asyncio.create_task(host.engine.terminate("wf", "i"))
    await host.eventually(lambda: bool(host.pool.stops))
    host.deploy("worker", None)
    host.pool.kill_all()
    assert (await asked).status == "terminated"


async def test_a_claim_that_the_allocation_outran_starts_nothing(host: Host) -> None:
    """W-084, WD-04, WD-08: the Version was chosen, then dropped before the claim was written: the new one runs."""
    host.define(returns_nothing)
    pick = host.deployments.pick
    picked: list[str | None] = []

    def outrun(worker_uid: str) -> str | None:
        version = pick(worker_uid)
        picked.append(version)
        if len(picked) == 2:  # the first is asked for by the create
            host.deployments.versions[worker_uid] = "v2"
        return version

    host.deployments.pick = outrun
    await host.engine.create("wf", "i", None)
    await host.until("i", "complete")
    assert picked[1] == "worker-v1"
    assert [start.code.version_uid for start in host.pool.started] == ["v2"]


async def test_a_retired_version_costs_no_attempt(host: Host) -> None:
    """W-088: contexts of one Version are stopped with proof; their instances go on, with the attempt that they had."""
    hold = [True]

    def program(event, step):
        yield step.do("a", lambda: Hold() if hold[0] else b"{}", RetryPolicy(1))

    host.define(program)
    host.define(sleeps, "sleepers")
    await host.engine.create("wf", "i", None)
    await host.engine.create("sleepers", "s", None)
    await host.until("s", "sleeping", workflow="sleepers")
    await host.eventually(lambda: len(host.pool.running) == 1)
    host.deploy("worker", "v2")
    assert host.engine.contexts_of("worker", "worker-v1") == 1
    assert (await host.engine.get("wf", "i")).status == "running"
    hold[0] = False
    assert await host.engine.drain("worker", "worker-v1") == 1
    assert host.engine.contexts_of("worker", "worker-v1") == 0
    await host.until("i", "complete")
    assert host.pool.started[-1].code.version_uid == "v2"
    assert (await host.types("i")).count("attempt_started") == 1
    assert await host.engine.drain("worker", "worker-v1") == 0


async def test_a_drain_without_proof_is_no_success(host: Host) -> None:
    """WD-09, W-071: backend_unavailable while a context is not proven to have stopped; asked again, it succeeds."""
    slow = host.reborn(runtime_id="slow", stop_seconds=0.2)
    slow.define(holds)
    await slow.start()
    try:
        await slow.engine.create("wf", "i", None)
        await slow.eventually(lambda: bool(slow.pool.running))
        slow.pool.unstoppable = True
        slow.deploy("worker", None)
        refusal = await asyncio.gather(slow.engine.drain("worker", None), return_exceptions=True)
        assert getattr(refusal[0], "reason", "") == "backend_unavailable"
        slow.pool.kill_all()
        await slow.engine.drain("worker", None)
        # The end is written when the drain has answered: nobody sees `running` after it.
        assert (await slow.engine.get("wf", "i")).status == "queued"
    finally:
        await slow.stop()


async def test_a_context_that_keeps_dying_is_kept_apart(host: Host, caplog: pytest.LogCaptureFixture) -> None:
    """W-154, Issue 5: lost twice in a row, the next context asks for a process to itself; a step that ends forgives.

    The Worker's log tells it.
    """
    caplog.set_level("WARNING", "saisei_runtime.worker")
    deaths = [2, 1]

    def program(event, step):
        if deaths[0]:
            deaths[0] -= 1
            raise CrashError
        yield step.do("a", lambda: b"{}")
        if deaths[1]:
            deaths[1] -= 1
            raise CrashError
        yield step.do("b", lambda: b"{}")

    host.define(program)
    await host.engine.create("wf", "i", None)
    await host.until("i", "complete")
    assert [start.alone for start in host.pool.started] == [False, False, True, False]
    told = [record for record in caplog.records if "lost 2 times in a row" in record.getMessage()]
    assert [record.__dict__["instance"] for record in told] == ["i"]
