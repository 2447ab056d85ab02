"""What operators do: settle what the Host cannot, read the audit log, change the sealing key."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from sqlalchemy import select, update
from tests.control.kit import Builder, Client, Kit, deployment_spec, eventually, ref, refused

from saisei.control.v1 import admin_pb2 as pb
from saisei.control.v1 import assignments_pb2
from saisei.control.v1 import resources_pb2 as resources
from saisei_contract.errors import SaiseiError
from saisei_contract.forms import urls
from saisei_control.operations import work
from saisei_control.store.schema import sealed_secrets

AWAY = SaiseiError("backend_unavailable", "the proof is missing")


async def stuck_delete(kit: Kit, client: Client, build: Builder) -> resources.Operation:
    """The delete of a workflow whose stop is never proven: it reconciles, and the Host alone cannot end it."""
    worker = await build.worker()
    flow = await client.made(urls.DURABLE_WORKFLOW, "flow", {"worker": ref(worker), "className": "Flow"})
    kit.runtime.fails["Purge"] = AWAY
    operation = await client.delete(flow, 1)

    async def reconciling() -> bool:
        return (await client.operation(operation.id)).status == resources.OPERATION_STATUS_RECONCILING

    await eventually(reconciling)
    return operation


def resolve(kit: Kit, operation: resources.Operation, outcome: Any, reason: str = "looked at the machine") -> Any:
    request = pb.ResolveOperationRequest(id=operation.id, outcome=outcome, reason=reason)
    return kit.operate(kit.admin.ResolveOperation, request)


async def audit(kit: Kit, **filters: Any) -> list[pb.AuditEntry]:
    return list((await kit.operate(kit.admin.ListAudit, pb.ListAuditRequest(**filters))).entries)


async def test_an_unknown_effect_waits_for_a_word(kit: Kit, client: Client, build: Builder) -> None:
    """H-112, H-113, H-117, H-118: reconciling says why, refuses other mutations, and ends as the operator says."""
    operation = await stuck_delete(kit, client, build)
    found = await client.operation(operation.id)
    assert (found.effect, found.error.code) == (resources.EFFECT_UNKNOWN, "backend_unavailable")
    assert (await refused(client.delete(operation.resource_uid, 2))).reason == "resource_busy"
    settled = await resolve(kit, operation, pb.RESOLUTION_SUCCEEDED)
    assert (settled.status, settled.effect) == (resources.OPERATION_STATUS_SUCCEEDED, resources.EFFECT_COMPLETE)
    assert not settled.HasField("error")
    assert (await client.operation(operation.id)) == settled
    assert (await refused(client.get(operation.resource_uid))).reason == "gone"
    assert await client.made(urls.DURABLE_WORKFLOW, "flow", {"worker": ref(await build.worker()), "className": "Flow"})
    kit.runtime.fails.clear()
    assert (await refused(resolve(kit, operation, pb.RESOLUTION_FAILED_NONE))).reason == "operation_terminal"


async def test_a_failure_is_repairable(kit: Kit, client: Client, build: Builder) -> None:
    """H-108, H-112, H-118: failed with the effect that the operator saw; the same UID is deleted anew."""
    operation = await stuck_delete(kit, client, build)
    settled = await resolve(kit, operation, pb.RESOLUTION_FAILED_PARTIAL, "half of it is there")
    assert (settled.status, settled.effect) == (resources.OPERATION_STATUS_FAILED, resources.EFFECT_PARTIAL)
    assert settled.error.code == "settled_by_operator"
    assert "half of it is there" in settled.error.message
    assert (await client.get(operation.resource_uid)).phase == resources.PHASE_ERROR
    kit.runtime.fails.clear()
    await client.deleted(operation.resource_uid)


async def test_nothing_proven_is_nothing_left(kit: Kit, client: Client, build: Builder) -> None:
    """H-112, H-116: only a word may prove that nothing of the effect exists; the attempt under way ends with it."""
    operation = await stuck_delete(kit, client, build)
    kit.runtime.fails.clear()
    hold = kit.runtime.holds["Purge"] = asyncio.Event()
    before = len(kit.runtime.called("Purge"))

    async def held() -> bool:
        return len(kit.runtime.called("Purge")) > before

    await eventually(held)
    settled = await resolve(kit, operation, pb.RESOLUTION_FAILED_NONE)
    hold.set()
    assert (settled.status, settled.effect) == (resources.OPERATION_STATUS_FAILED, resources.EFFECT_NONE)
    await kit.restart()
    assert await client.operation(operation.id) == settled


async def reconciling(client: Client, operation: resources.Operation) -> resources.Operation:
    async def look() -> bool:
        return (await client.operation(operation.id)).status == resources.OPERATION_STATUS_RECONCILING

    await eventually(look)
    return operation


async def stuck_create(kit: Kit, client: Client, build: Builder) -> resources.Operation:
    """The create of a workflow that a runtime hosts, and then says nothing more of."""
    worker = await build.worker()
    kit.runtime.fails["Observe"] = AWAY
    spec = {"worker": ref(worker), "className": "Flow"}
    return await reconciling(client, await client.create(urls.DURABLE_WORKFLOW, "flow", spec))


async def stuck_update(kit: Kit, client: Client, build: Builder) -> resources.Operation:
    spec = {"worker": ref(await build.worker()), "className": "Flow"}
    flow = await client.made(urls.DURABLE_WORKFLOW, "flow", spec)
    kit.runtime.fails["Observe"] = AWAY
    return await reconciling(client, await client.update(flow, 1, spec))


async def hosted(kit: Kit, uid: str, expected: bool) -> None:
    async def look() -> bool:
        return (uid in kit.runtime.hosted) is expected

    await eventually(look)


async def test_a_create_that_succeeded_by_word(kit: Kit, client: Client, build: Builder) -> None:
    """H-073, H-112, H-118: the Resource is idle, its generation realised; nothing that nobody saw is shown of it."""
    operation = await stuck_create(kit, client, build)
    settled = await resolve(kit, operation, pb.RESOLUTION_SUCCEEDED)
    assert (settled.status, settled.effect) == (resources.OPERATION_STATUS_SUCCEEDED, resources.EFFECT_COMPLETE)
    found = await client.get(operation.resource_uid)
    assert (found.phase, found.generation, found.observed_generation) == (resources.PHASE_IDLE, 1, 1)
    assert found.observed_json == "{}"
    await hosted(kit, operation.resource_uid, True)
    kit.runtime.fails.clear()
    await client.deleted(operation.resource_uid)


async def test_a_create_of_which_nothing_exists(kit: Kit, client: Client, build: Builder) -> None:
    """H-108, H-112, H-118: what the operator says does not exist is not hosted later either; a PUT makes it anew."""
    operation = await stuck_create(kit, client, build)
    await hosted(kit, operation.resource_uid, True)
    settled = await resolve(kit, operation, pb.RESOLUTION_FAILED_NONE)
    assert (settled.status, settled.effect) == (resources.OPERATION_STATUS_FAILED, resources.EFFECT_NONE)
    found = await client.get(operation.resource_uid)
    assert (found.phase, found.observed_generation) == (resources.PHASE_ERROR, 0)
    await hosted(kit, operation.resource_uid, False)
    await kit.restart()
    await hosted(kit, operation.resource_uid, False)
    kit.runtime.fails.clear()
    repaired = await client.settled(await client.update(operation.resource_uid, 1, json.loads(found.spec_json)))
    assert repaired.status == resources.OPERATION_STATUS_SUCCEEDED
    await hosted(kit, operation.resource_uid, True)
    await client.deleted(operation.resource_uid)


async def test_a_deployment_of_which_nothing_exists(
    kit: Kit, client: Client, build: Builder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """WD-05, H-112, H-118: its Worker has no allocation then, and another Deployment may be made."""
    worker = await build.worker()
    spec = deployment_spec(worker, await build.version(worker))
    monkeypatch.setattr(work, "PATIENCE_SECONDS", 0.1)
    kit.runtime.acknowledges = False
    operation = await client.create(urls.WORKER_DEPLOYMENT, "live", spec)
    await reconciling(client, operation)
    assert json.loads((await client.get(worker)).observed_json)["ready"]
    await resolve(kit, operation, pb.RESOLUTION_FAILED_NONE)
    kit.runtime.acknowledges = True
    assert json.loads((await client.get(worker)).observed_json) == {"activeDeploymentUid": None, "ready": False}
    await hosted(kit, operation.resource_uid, False)
    await client.deleted(operation.resource_uid)
    await client.made(urls.WORKER_DEPLOYMENT, "live", spec)


async def test_an_update_by_word(kit: Kit, client: Client, build: Builder) -> None:
    """H-112, H-116, H-118: an update is settled as complete or as partial, and never as if nothing of it were there: by
    then runtimes were told of it.
    """
    operation = await stuck_update(kit, client, build)
    assert (await refused(resolve(kit, operation, pb.RESOLUTION_FAILED_NONE))).reason == "invalid_request"
    assert (await client.operation(operation.id)).status == resources.OPERATION_STATUS_RECONCILING
    settled = await resolve(kit, operation, pb.RESOLUTION_FAILED_PARTIAL, "the new one is there, half")
    assert (settled.status, settled.effect) == (resources.OPERATION_STATUS_FAILED, resources.EFFECT_PARTIAL)
    found = await client.get(operation.resource_uid)
    assert (found.phase, found.generation, found.observed_generation) == (resources.PHASE_ERROR, 2, 1)
    again = await client.update(operation.resource_uid, 2, json.loads(found.spec_json))
    await reconciling(client, again)
    settled = await resolve(kit, again, pb.RESOLUTION_SUCCEEDED)
    assert (settled.status, settled.generation) == (resources.OPERATION_STATUS_SUCCEEDED, 3)
    found = await client.get(operation.resource_uid)
    assert (found.phase, found.generation, found.observed_generation) == (resources.PHASE_IDLE, 3, 3)
    kit.runtime.fails.clear()
    await client.deleted(operation.resource_uid)


async def test_only_a_reconciling_one_is_settled_by_hand(kit: Kit, client: Client, build: Builder) -> None:
    """H-111, H-118: while the Host itself may find the outcome, nobody decides it; a word needs its reason."""
    worker = await build.worker()
    kit.runtime.acknowledges = False
    spec = {"worker": ref(worker), "className": "Flow"}
    running = await client.create(urls.DURABLE_WORKFLOW, "flow", spec)
    assert (await refused(resolve(kit, running, pb.RESOLUTION_SUCCEEDED))).reason == "resource_busy"
    assert (await refused(resolve(kit, running, pb.RESOLUTION_UNSPECIFIED))).reason == "invalid_request"
    for reason in ("", " ", "x" * 1001, "two\nlines"):
        assert (await refused(resolve(kit, running, pb.RESOLUTION_SUCCEEDED, reason))).reason == "invalid_request"
    nothing = resources.Operation(id="op-none")
    assert (await refused(resolve(kit, nothing, pb.RESOLUTION_SUCCEEDED))).reason == "not_found"
    kit.runtime.acknowledges = True


async def test_who_may_settle(kit: Kit, client: Client, build: Builder) -> None:
    """H-044, H-046, H-118: the operator, and who has the right admin in the Space; a stranger learns nothing."""
    operation = await stuck_delete(kit, client, build)
    request = pb.ResolveOperationRequest(id=operation.id, outcome=pb.RESOLUTION_SUCCEEDED, reason="seen")
    stranger, admin = await kit.client("bob", other="admin"), await kit.client("carol", main="admin")
    assert (await refused(client.call(kit.admin.ResolveOperation, request))).reason == "forbidden"
    assert (await refused(stranger.call(kit.admin.ResolveOperation, request))).reason == "not_found"
    settled = await admin.call(kit.admin.ResolveOperation, request)
    assert settled.status == resources.OPERATION_STATUS_SUCCEEDED
    (entry,) = await audit(kit, operation_id=operation.id, principal="carol")
    assert (entry.action, entry.space, entry.detail) == ("operation.resolve", "main", "succeeded: seen")


async def test_each_mutation_is_written_down(kit: Kit, client: Client) -> None:
    """Issue 3, H-144: who, what, when and which Operation, once for each acceptance and for nothing else."""
    operation = await client.settled(await client.create(urls.MODULE_WORKER, "one", {}, key="0123456789abcdef"))
    await client.create(urls.MODULE_WORKER, "one", {}, key="0123456789abcdef")
    await refused(client.create(urls.MODULE_WORKER, "one", {}))
    updated = await client.settled(await client.update(operation.resource_uid, 1, {}))
    deleted = await client.deleted(operation.resource_uid)
    entries = await audit(kit, space="main")
    assert [(entry.action, entry.operation_id) for entry in entries] == [
        ("delete", deleted.id),
        ("update", updated.id),
        ("create", operation.id),
    ]
    assert {(entry.principal, entry.resource_uid) for entry in entries} == {("alice", operation.resource_uid)}
    assert entries[-1].at == operation.created_at
    assert [entry.id for entry in await audit(kit, space="main", limit=1, before_id=entries[0].id)] == [entries[1].id]
    assert not await audit(kit, principal="nobody")
    tokens = [entry for entry in await audit(kit) if entry.action == "token.create"]
    assert (tokens[0].principal, tokens[0].detail) == ("operator", "for alice: main:read,write,use")


async def test_who_may_read_the_audit_log(kit: Kit, client: Client) -> None:
    """H-044, H-046: a user reads the log of a Space where the right admin was given, and no other."""
    await client.made(urls.MODULE_WORKER, "one", {})
    admin = await kit.client("carol", main="admin")
    answer = await admin.call(kit.admin.ListAudit, pb.ListAuditRequest(space="main"))
    assert [entry.action for entry in answer.entries] == ["create"]
    for caller, request, reason in (
        (admin, pb.ListAuditRequest(), "invalid_request"),
        (admin, pb.ListAuditRequest(space="other"), "forbidden"),
        (client, pb.ListAuditRequest(space="main"), "forbidden"),
        (admin, pb.ListAuditRequest(space="main", limit=0), "invalid_request"),
        (admin, pb.ListAuditRequest(space="main", limit=1001), "invalid_request"),
    ):
        assert (await refused(caller.call(kit.admin.ListAudit, request))).reason == reason
    rotate = client.call(kit.admin.RotateSealingKey, pb.RotateSealingKeyRequest())
    assert (await refused(rotate)).reason == "unauthenticated"


async def secret_version(build: Builder, client: Client, key: str) -> tuple[resources.Operation, dict[str, Any]]:
    worker, bundle = await build.worker(), await build.bundle()
    spec = {"worker": ref(worker), "bundle": ref(bundle), "handlers": [], "requiredSensitiveVars": ["KEY"]}
    operation = await client.create(urls.WORKER_VERSION, build.name(), spec, key=key, secrets={"KEY": "hush"})
    return await client.settled(operation), spec


async def opened(kit: Kit, uid: str) -> dict[str, str]:
    request = assignments_pb2.OpenSecretsRequest(version_uid=uid)
    return dict((await kit.operate(kit.runtime.assignments.OpenSecrets, request)).values)


async def rows(kit: Kit) -> list[Any]:
    assert kit.app is not None
    return await kit.app.store.read(lambda connection: list(connection.execute(select(sealed_secrets))))


async def test_the_sealing_key_changes(kit: Kit, client: Client, build: Builder) -> None:
    """H-141, H-148, H-155: values are sealed anew and open as before; older comparisons still hold, over a restart."""
    first, spec = await secret_version(build, client, "0123456789abcdef")
    before = await rows(kit)
    done = await kit.operate(kit.admin.RotateSealingKey, pb.RotateSealingKeyRequest())
    assert (done.resealed, done.keys) == (1, 2)
    (after,) = await rows(kit)
    assert after.key_id == done.key_id != before[0].key_id
    assert after.sealed != before[0].sealed
    await kit.restart()
    assert await opened(kit, first.resource_uid) == {"KEY": "hush"}
    name = (await client.get(first.resource_uid)).name
    again = await client.create(urls.WORKER_VERSION, name, spec, key="0123456789abcdef", secrets={"KEY": "hush"})
    assert again.id == first.id
    other = client.create(urls.WORKER_VERSION, name, spec, key="0123456789abcdef", secrets={"KEY": "loud"})
    assert (await refused(other)).reason == "idempotency_conflict"
    second, _ = await secret_version(build, client, "0123456789abcdeg")
    assert {row.key_id for row in await rows(kit)} == {done.key_id}
    assert await opened(kit, second.resource_uid) == {"KEY": "hush"}
    again = await kit.operate(kit.admin.RotateSealingKey, pb.RotateSealingKeyRequest())
    assert (again.resealed, again.keys) == (2, 3)


async def test_values_from_before_keys_had_names_open(kit: Kit, client: Client, build: Builder) -> None:
    """WV-08, H-155: a value without a key's name is tried with each key, and is sealed anew at the next change."""
    operation, _ = await secret_version(build, client, "0123456789abcdef")
    assert kit.app is not None
    await kit.app.store.write(lambda connection: connection.execute(update(sealed_secrets).values(key_id=None)))
    assert await opened(kit, operation.resource_uid) == {"KEY": "hush"}
    await kit.operate(kit.admin.RotateSealingKey, pb.RotateSealingKeyRequest())
    assert await opened(kit, operation.resource_uid) == {"KEY": "hush"}
