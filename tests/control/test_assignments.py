"""The log of assignments, and the replicas that follow it."""

from __future__ import annotations

from collections.abc import AsyncIterator

from sqlalchemy import delete, insert
from tests.control.kit import Builder, Client, Kit, eventually, ref

from saisei.control.v1 import assignments_pb2 as pb
from saisei.control.v1 import resources_pb2
from saisei_contract.forms import urls
from saisei_control.store.schema import runtimes
from saisei_service.credentials import service_metadata


def watch(kit: Kit, after: int, runtime_id: str = "runtime-1") -> AsyncIterator[pb.Assignment]:
    return kit.runtime.assignments.WatchAssignments(
        pb.WatchAssignmentsRequest(runtime_id=runtime_id, after_revision=after),
        metadata=service_metadata(kit.credential),
        wait_for_ready=True,
    )


async def history(kit: Kit, after: int) -> list[pb.Assignment]:
    """What is sent until the first caught_up."""
    found = []
    async for message in watch(kit, after):
        if message.caught_up:
            break
        found.append(message)
    return found


async def test_history_is_the_newest_of_each(kit: Kit, client: Client, build: Builder) -> None:
    """Design 4: from 0 comes the present state, one record for each Resource; from later only what is newer."""
    worker = await build.worker()
    one, two = [await build.version(worker, [], ["Flow"]) for _ in range(2)]
    uid = await build.deployment(worker, one)
    flow = await client.made(urls.DURABLE_WORKFLOW, "flow", {"worker": ref(worker), "className": "Flow"})
    spec = {"worker": ref(worker), "versions": [{"workerVersion": ref(two), "weight": 10_000}]}
    assert [item.resource_uid for item in await history(kit, 0)] == [one, two, uid, flow]
    last = (await history(kit, 0))[-1].revision
    await client.deleted(flow)
    await client.settled(await client.update(uid, 1, spec))
    found = await history(kit, 0)
    assert [(item.resource_uid, item.removed) for item in found] == [
        (one, False),
        (two, False),
        (flow, True),
        (uid, False),
    ]
    assert [item.revision for item in found] == sorted({item.revision for item in found})
    assert [item.resource_uid for item in await history(kit, last)] == [flow, uid]


async def test_a_deployment_waits_for_each_live_replica(kit: Kit, client: Client, build: Builder) -> None:
    """Design 4: a change completes when every live replica has acknowledged it; a late one holds it back."""
    worker = await build.worker()
    version = await build.version(worker)
    second = watch(kit, 0, "runtime-2")
    async for message in second:
        if message.caught_up:
            break
    operation = await client.create(
        urls.WORKER_DEPLOYMENT,
        "live",
        {"worker": ref(worker), "versions": [{"workerVersion": ref(version), "weight": 10_000}]},
    )
    async for message in second:
        if message.resource_uid == operation.resource_uid:
            break

    async def first_is_there() -> bool:
        return operation.resource_uid in kit.runtime.hosted

    await eventually(first_is_there)
    assert (await client.get(operation.resource_uid)).phase == resources_pb2.PHASE_PENDING
    await kit.runtime.assignments.AckAssignment(
        pb.AckAssignmentRequest(runtime_id="runtime-2", revision=message.revision),
        metadata=service_metadata(kit.credential),
    )
    assert (await client.settled(operation)).status == resources_pb2.OPERATION_STATUS_SUCCEEDED


async def test_a_replica_that_lost_its_lease_is_not_waited_for(kit: Kit, client: Client, build: Builder) -> None:
    """Design 4: the lease of a dead replica ends and the change completes without it."""
    assert kit.app is not None
    await kit.app.store.write(
        lambda connection: connection.execute(
            insert(runtimes).values(runtime_id="dead", acked_revision=0, lease_until=1)
        )
    )
    worker = await build.worker()
    assert await build.deployment(worker, await build.version(worker))


async def test_nothing_is_effective_without_a_runtime(kit: Kit, client: Client, build: Builder) -> None:
    """WD-07: with no replica at all nothing becomes ready; it does once one comes."""
    worker = await build.worker()
    await kit.runtime.stop()
    assert kit.app is not None
    await kit.app.store.write(lambda connection: connection.execute(delete(runtimes)))
    operation = await client.create(urls.DURABLE_WORKFLOW, "flow", {"worker": ref(worker), "className": "Flow"})
    assert (await client.operation(operation.id)).status != resources_pb2.OPERATION_STATUS_SUCCEEDED
    await kit.runtime.start(kit.runtime_address)
    assert (await client.settled(operation)).status == resources_pb2.OPERATION_STATUS_SUCCEEDED


async def test_a_replica_that_forgot_is_not_trusted(kit: Kit, client: Client, build: Builder) -> None:
    """Design 4: a replica that asks from 0 again has nothing effective, whatever it acknowledged before."""
    worker = await build.worker()
    await build.version(worker)
    assert kit.app is not None
    replicas = kit.app.replicas
    revision = kit.runtime.revision
    assert await replicas.wait_effective(revision, 5)
    await kit.runtime.stop()
    stream = watch(kit, 0)
    async for message in stream:
        assert message.revision <= revision
        break
    assert not await replicas.wait_effective(revision, 0)
