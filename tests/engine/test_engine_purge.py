"""The engine on both databases: what leaves, and how much it carries."""

from __future__ import annotations

import asyncio

from engine_fakes import MONTH, YEAR, Host, ScriptedPool, holds, refused, returns_nothing, sleeps

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
