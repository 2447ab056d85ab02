"""Operations over restarts and outages."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from sqlalchemy import select, update
from tests.control.kit import TERMINAL, Builder, Client, Kit, eventually, ref

from saisei.control.v1 import resources_pb2 as pb
from saisei_contract.forms import urls
from saisei_control import runtime_client
from saisei_control.operations import executor, retention, work
from saisei_control.operations.executor import MAX_BACKOFF_MS, backoff_ms
from saisei_control.store.schema import idempotency, operations, resources
from saisei_control.store.store import Change


async def settled_in(kit: Kit, operation_id: str) -> pb.OperationStatus:
    """What the database says, without any client asking."""
    assert kit.app is not None

    async def look() -> str | None:
        assert kit.app is not None
        status: str = await kit.app.store.read(
            lambda connection: connection.execute(
                select(operations.c.status).where(operations.c.id == operation_id)
            ).scalar_one()
        )
        return status if status in ("succeeded", "failed") else None

    return await eventually(look)


async def test_an_operation_goes_on_after_a_restart(kit: Kit, client: Client, build: Builder) -> None:
    """H-119, H-193: cut off before the inspection answered, the same Operation succeeds in the next process."""
    worker, bundle = await build.worker(), await build.bundle()
    kit.runtime.holds["InspectVersion"] = asyncio.Event()
    spec = {"worker": ref(worker), "bundle": ref(bundle), "handlers": []}
    operation = await client.create(urls.WORKER_VERSION, "version", spec)

    async def inspected() -> bool:
        return bool(kit.runtime.called("InspectVersion"))

    await eventually(inspected)
    await kit.stop()
    kit.runtime.holds["InspectVersion"].set()
    await kit.start()
    assert await settled_in(kit, operation.id) == "succeeded"
    found = await client.operation(operation.id)
    assert (found.created_at, found.generation) == (operation.created_at, 1)


async def test_a_dead_predecessors_lease_is_taken_over(kit: Kit, client: Client) -> None:
    """H-119: a process that was killed leaves its leases behind; its successor takes them up at once."""
    operation = await client.settled(await client.create(urls.MODULE_WORKER, "one", {}))
    assert kit.app is not None
    await kit.app.store.write(
        lambda connection: connection.execute(
            update(operations)
            .where(operations.c.id == operation.id)
            .values(status="running", effect="none", lease_owner="control-1/dead", lease_until=2**60)
        )
    )
    await kit.restart()
    assert await settled_in(kit, operation.id) == "succeeded"


async def test_a_foreign_lease_is_respected_until_it_ends(kit: Kit, client: Client) -> None:
    """H-119: another replica's Operation is left alone while its lease holds, and taken up after."""
    operation = await client.settled(await client.create(urls.MODULE_WORKER, "one", {}))
    other = await client.settled(await client.create(urls.MODULE_WORKER, "two", {}))
    assert kit.app is not None
    for operation_id, until in ((operation.id, 2**60), (other.id, 1)):
        await kit.app.store.write(
            lambda connection, operation_id=operation_id, until=until: connection.execute(
                update(operations)
                .where(operations.c.id == operation_id)
                .values(status="running", effect="none", lease_owner="control-2/x", lease_until=until)
            )
        )
    assert await settled_in(kit, other.id) == "succeeded"
    assert (await client.operation(operation.id)).status == pb.OPERATION_STATUS_RUNNING


async def test_an_outage_of_the_runtime_is_waited_out(kit: Kit, client: Client, build: Builder) -> None:
    """H-112, H-116: before a dispatch it stays running, after one it reconciles; both end by themselves."""
    worker = await build.worker()
    flow = await client.made(urls.DURABLE_WORKFLOW, "flow", {"worker": ref(worker), "className": "Flow"})
    bundle = await build.bundle()
    # The replica's lease is alive, its server is not.
    assert kit.runtime._server is not None
    await kit.runtime._server.stop(0)
    version = await client.create(
        urls.WORKER_VERSION, "version", {"worker": ref(worker), "bundle": ref(bundle), "handlers": []}
    )
    purge = await client.delete(flow, 1)

    async def reconciling() -> bool:
        return (await client.operation(purge.id)).status == pb.OPERATION_STATUS_RECONCILING

    await eventually(reconciling)
    found = await client.operation(purge.id)
    assert found.effect == pb.EFFECT_UNKNOWN
    assert found.error.code == "backend_unavailable"
    running = await client.operation(version.id)
    assert (running.status, running.effect) == (pb.OPERATION_STATUS_RUNNING, pb.EFFECT_NONE)
    assert not running.HasField("error")
    assert kit.runtime._watching is not None
    kit.runtime._watching.cancel()
    await kit.runtime.start(kit.runtime_address)
    for operation in (version, purge):
        assert (await client.settled(operation)).status == pb.OPERATION_STATUS_SUCCEEDED


async def test_a_stop_that_meets_a_change_is_no_less_a_stop(kit: Kit) -> None:
    """Design 6, H-119: whatever the moment at which a change and the end of the service come together."""
    assert kit.app is not None
    changes = kit.app.store.changes
    for turns in range(6):
        waiting = asyncio.create_task(changes.wait(changes.next(Change.DUE), 60))
        await asyncio.sleep(0.001)
        changes.notify()
        for _ in range(turns):
            await asyncio.sleep(0)
        if waiting.cancel():
            await asyncio.wait([waiting])
            assert waiting.cancelled(), turns


async def test_a_later_attempt_does_not_unmake_an_earlier_one(
    kit: Kit, client: Client, build: Builder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """H-112, H-116, H-108: runtimes were told of an Endpoint before its Worker lost its Deployment: it failed with a
    part of its effect, not with none; a delete of the same UID clears that away.
    """
    worker = await build.worker()
    live = await build.deployment(worker, await build.version(worker, ["fetch"]))
    monkeypatch.setattr(work, "PATIENCE_SECONDS", 0.05)
    kit.runtime.acknowledges = False
    operation = await client.create(urls.WORKER_ENDPOINT, "door", {"worker": ref(worker)})

    async def reconciling() -> bool:
        return (await client.operation(operation.id)).status == pb.OPERATION_STATUS_RECONCILING

    await eventually(reconciling)
    await client.delete(live, 1)
    failed = await client.settled(operation)
    assert (failed.status, failed.effect) == (pb.OPERATION_STATUS_FAILED, pb.EFFECT_PARTIAL)
    assert failed.error.code == "dependency_conflict"
    assert (await client.get(operation.resource_uid)).phase == pb.PHASE_ERROR
    kit.runtime.acknowledges = True
    await client.deleted(operation.resource_uid)
    assert operation.resource_uid not in kit.runtime.hosted


class Slow(asyncio.Event):
    """Holds each call for as long as a slow machine would work on it."""

    async def wait(self) -> bool:
        await asyncio.sleep(1)
        return True


async def test_work_that_takes_longer_than_its_deadline(
    kit: Kit, client: Client, build: Builder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """H-119: each attempt at an inspection and at a replay begins anew; a deadline that is too short for the machine
    does not cut all of them for ever.
    """
    monkeypatch.setattr(runtime_client, "INSPECT_SECONDS", 0.2)
    monkeypatch.setattr(runtime_client, "REPLAY_SECONDS", 0.2)
    worker = await build.worker()
    for name in ("InspectVersion", "CheckReplay"):
        kit.runtime.holds[name] = Slow()
    assert await build.deployment(worker, await build.version(worker))
    for name in ("InspectVersion", "CheckReplay"):
        assert len(kit.runtime.called(name)) > 1


async def test_what_is_accepted_during_a_look_is_seen(
    kit: Kit, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """H-119: nothing that falls due while others are being claimed waits for the next look of the idle."""
    assert kit.app is not None
    monkeypatch.setattr(executor, "IDLE_SECONDS", 600.0)
    # From here on nothing but these two writes, which would wake the claim loop by accident.
    kit.runtime.acknowledges = False
    write, attempt, hold = kit.app.store.write, executor.Executor._attempt, asyncio.Event()
    late: list[pb.Operation] = []

    async def accepts_another(job: Any, tells: Change = Change.ANYTHING) -> Any:
        answer = await write(job, tells)
        if tells is Change.NOTHING:
            monkeypatch.setattr(kit.app.store, "write", write)
            late.append(await client.create(urls.MODULE_WORKER, "late", {}))
        return answer

    async def held(self: Any, claim: Any) -> None:
        if claim.resource.record.name == "early":
            await hold.wait()
        await attempt(self, claim)

    monkeypatch.setattr(executor.Executor, "_attempt", held)
    monkeypatch.setattr(kit.app.store, "write", accepts_another)
    early = await client.create(urls.MODULE_WORKER, "early", {})

    async def came() -> bool:
        return bool(late)

    await eventually(came)
    assert (await client.settled(late[0])).status == pb.OPERATION_STATUS_SUCCEEDED
    hold.set()
    await client.settled(early)
    kit.runtime.acknowledges = True


async def test_many_operations_at_once(client: Client) -> None:
    """H-119: a burst is worked off without anyone waiting for another."""
    created = await asyncio.gather(*(client.create(urls.MODULE_WORKER, f"n{number}", {}) for number in range(100)))
    settled = await asyncio.gather(*(client.settled(operation) for operation in created))
    assert {operation.status for operation in settled} <= set(TERMINAL)
    assert {operation.effect for operation in settled} == {pb.EFFECT_COMPLETE}


async def test_what_is_past_its_retention_is_forgotten(kit: Kit, client: Client) -> None:
    """H-147, H-148, H-075: terminal Operations with their keys and tombstones go after their time; Resources stay."""
    kept = await client.made(urls.MODULE_WORKER, "kept", {})
    gone = await client.made(urls.MODULE_WORKER, "gone", {})
    await client.deleted(gone)
    assert kit.app is not None
    store, now = kit.app.store, kit.app.clock.now_ms()
    assert await store.write(lambda connection: retention.sweep(connection, now + 86_000_000)) == 0
    assert await store.write(lambda connection: retention.sweep(connection, now + 87_000_000)) == 3

    def left(connection: object) -> tuple[list[str], list[str], list[str]]:
        return tuple(
            list(connection.execute(select(column)).scalars())
            for column in (resources.c.uid, operations.c.id, idempotency.c.key)
        )

    assert await store.read(left) == ([kept], [], [])
    assert (await client.get(kept)).phase == pb.PHASE_IDLE


async def test_an_unfinished_operation_is_never_forgotten(kit: Kit, client: Client, build: Builder) -> None:
    """H-147: however old, what is unfinished stays with its key."""
    worker = await build.worker()
    kit.runtime.acknowledges = False
    operation = await client.create(urls.DURABLE_WORKFLOW, "flow", {"worker": ref(worker), "className": "Flow"})
    assert kit.app is not None
    later = kit.app.clock.now_ms() + 10**12
    await kit.app.store.write(lambda connection: retention.sweep(connection, later))
    assert (await client.operation(operation.id)).id == operation.id
    kit.runtime.acknowledges = True


def test_back_off_doubles_and_is_capped() -> None:
    """H-119: a part of the installation that is away is asked again soon, and not for ever faster."""
    waits = [backoff_ms(attempts) for attempts in range(40)]
    assert waits[:5] == [100, 200, 400, 800, 1_600]
    assert set(waits[5:]) == {MAX_BACKOFF_MS}
