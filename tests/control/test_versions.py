"""WorkerVersions: what the inspection finds decides; secrets stay secret."""

from __future__ import annotations

import asyncio
import json

import grpc
import pytest
from sqlalchemy import select
from tests.control.kit import Builder, Client, Kit, Refused, deployment_spec, eventually, ref, refused

from saisei.control.v1 import assignments_pb2
from saisei.control.v1 import resources_pb2 as pb
from saisei.runtime.v1 import admin_pb2
from saisei_contract.errors import SaiseiError
from saisei_contract.forms import urls
from saisei_control.store.schema import sealed_secrets
from saisei_service.credentials import service_metadata

VERSION = urls.WORKER_VERSION


async def failure(client: Client, spec: object) -> pb.OperationError:
    operation = await client.settled(await client.create(VERSION, "version", spec))
    assert (operation.status, operation.effect) == (pb.OPERATION_STATUS_FAILED, pb.EFFECT_NONE)
    return operation.error


async def test_a_code_problem_is_the_operations_error(kit: Kit, client: Client, build: Builder) -> None:
    """MW-14, H-113: the problem's own code, with module and line; the Version is never ready."""
    worker, bundle = await build.worker(), await build.bundle()
    kit.runtime.problems = [
        admin_pb2.CodeProblem(code="syntax_error", message="Unexpected token", module="lib/a.js", line=3),
        admin_pb2.CodeProblem(code="module_not_found", message="./b.js", module="main.js"),
    ]
    error = await failure(client, {"worker": ref(worker), "bundle": ref(bundle), "handlers": []})
    assert error.code == "syntax_error"
    assert error.message == "module lib/a.js line 3: Unexpected token (and 1 more problem)"
    assert kit.runtime.hosted == {}


@pytest.mark.parametrize(("declared", "exported"), [(["fetch"], []), ([], ["fetch"]), (["queue"], ["fetch"])])
async def test_handlers_are_compared_exactly(
    client: Client, build: Builder, declared: list[str], exported: list[str]
) -> None:
    """MW-10: the declared set equals the exported one."""
    worker, bundle = await build.worker(), await build.bundle(exported)
    error = await failure(client, {"worker": ref(worker), "bundle": ref(bundle), "handlers": declared})
    assert error.code == "handlers_mismatch"
    assert (declared or exported)[0] in error.message


async def test_the_assignment_says_everything(kit: Kit, client: Client, build: Builder) -> None:
    """WV-06, F-02: files by digest, variables, secrets' names and Bindings pinned to UIDs; nothing to resolve again."""
    worker = await build.worker()
    bundle = await build.bundle(["fetch"])
    flow = await client.made(urls.DURABLE_WORKFLOW, "flow", {"worker": ref(worker), "className": "Flow"})
    spec = {
        "worker": ref(worker),
        "bundle": ref(bundle),
        "handlers": ["fetch"],
        "vars": {"b": 1, "a": [True, None]},
        "requiredSensitiveVars": ["TOKEN"],
        "workflowBindings": [{"name": "FLOW", "resource": ref(flow)}],
    }
    uid = await client.made(VERSION, "version", spec, secrets={"TOKEN": "hush"})
    hosted = await kit.runtime.hosts(uid)
    assert (hosted.generation, hosted.space, hosted.name) == (1, "main", "version")
    body = hosted.version
    assert (body.worker_uid, body.entrypoint, list(body.handlers)) == (worker, "main.js", ["fetch"])
    assert body.vars_json == '{"a":[true,null],"b":1}'
    assert list(body.secret_names) == ["TOKEN"]
    assert [(item.name, item.kind, item.resource_uid) for item in body.bindings] == [
        ("FLOW", assignments_pb2.BINDING_KIND_WORKFLOW, flow)
    ]
    assert json.loads(await kit.runtime.fetch(body.files[0].sha256, uid)) == {"handlers": ["fetch"], "classes": []}


async def test_bytes_are_fetched_for_their_version_only(kit: Kit, build: Builder) -> None:
    """AR-11: a digest of another bundle is not_found for this Version."""
    worker = await build.worker()
    one = await build.version(worker, ["fetch"])
    two = await build.version(worker, ["queue"])
    digest = (await kit.runtime.hosts(two)).version.files[0].sha256
    for sha256, uid in ((digest, one), (digest, worker), (digest, "r-unknown"), ("x", two)):
        with pytest.raises(grpc.aio.AioRpcError) as refusal:
            await kit.runtime.fetch(sha256, uid)
        assert Refused.of(refusal.value).reason == "not_found"


async def test_secrets_are_complete_and_exact(client: Client, build: Builder) -> None:
    """WV-07, H-152: every name, non-empty, nothing extra, before effects."""
    worker, bundle = await build.worker(), await build.bundle()
    spec = {"worker": ref(worker), "bundle": ref(bundle), "handlers": [], "requiredSensitiveVars": ["A", "B"]}
    for secrets in (None, {}, {"A": "1"}, {"A": "1", "B": ""}, {"A": "1", "B": "2", "C": "3"}):
        assert (await refused(client.create(VERSION, "version", spec, secrets=secrets))).reason == "invalid_spec"
    assert await client.made(VERSION, "version", spec, secrets={"A": "1", "B": "2"})
    plain = {"worker": ref(worker), "bundle": ref(bundle), "handlers": []}
    assert await client.made(VERSION, "plain", plain, secrets={})


async def test_secrets_never_change_on_update(client: Client, build: Builder) -> None:
    """WV-07, H-101: omitted keeps, equal is taken, other or partial maps are invalid_spec."""
    worker, bundle = await build.worker(), await build.bundle()
    spec = {"worker": ref(worker), "bundle": ref(bundle), "handlers": [], "requiredSensitiveVars": ["A", "B"]}
    uid = await client.made(VERSION, "version", spec, secrets={"A": "1", "B": "2"})
    for secrets in ({"A": "1"}, {"A": "1", "B": "3"}, {}):
        assert (await refused(client.update(uid, 1, spec, secrets=secrets))).reason == "invalid_spec"
    await client.settled(await client.update(uid, 1, spec))
    await client.settled(await client.update(uid, 2, spec, secrets={"B": "2", "A": "1"}))
    assert (await client.get(uid)).generation == 3


async def test_secrets_take_part_in_equality(client: Client, build: Builder) -> None:
    """H-141: the same key with other secrets is idempotency_conflict."""
    worker, bundle = await build.worker(), await build.bundle()
    spec = {"worker": ref(worker), "bundle": ref(bundle), "handlers": [], "requiredSensitiveVars": ["A"]}
    key = client.key()
    first = await client.create(VERSION, "version", spec, key=key, secrets={"A": "1"})
    assert (await client.create(VERSION, "version", spec, key=key, secrets={"A": "1"})).id == first.id
    other = await refused(client.create(VERSION, "version", spec, key=key, secrets={"A": "2"}))
    assert other.reason == "idempotency_conflict"


async def test_secrets_are_sealed_and_opened_for_the_runtime(kit: Kit, client: Client, build: Builder) -> None:
    """H-153, WV-11: sealed at rest, opened for the runtime alone, also after a restart; a delete forgets them."""
    worker, bundle = await build.worker(), await build.bundle()
    spec = {"worker": ref(worker), "bundle": ref(bundle), "handlers": [], "requiredSensitiveVars": ["A"]}
    uid = await client.made(VERSION, "version", spec, secrets={"A": "correct horse"})

    async def rows() -> list[object]:
        assert kit.app is not None
        return await kit.app.store.read(lambda connection: list(connection.execute(select(sealed_secrets))))

    assert b"correct horse" not in str(await rows()).encode()
    await kit.restart()
    opened = await kit.runtime.assignments.OpenSecrets(
        assignments_pb2.OpenSecretsRequest(version_uid=uid),
        metadata=service_metadata(kit.credential),
        wait_for_ready=True,
    )
    assert dict(opened.values) == {"A": "correct horse"}
    shown = str(await client.get(uid)) + str(await client.list())
    assert "correct horse" not in shown
    await client.deleted(uid)
    assert await rows() == []


async def test_features_that_are_not_hosted_are_refused(client: Client, build: Builder) -> None:
    """H-053: what this Host does not carry out is refused before effects, by name."""
    worker, bundle = await build.worker(), await build.bundle()
    spec = {
        "worker": ref(worker),
        "bundle": ref(bundle),
        "handlers": [],
        "kvBindings": [{"name": "KV", "resource": ref("r-kv")}],
    }
    refusal = await refused(client.create(VERSION, "version", spec))
    assert refusal.reason == "capability_required"
    assert "kvBindings" in refusal.message


async def test_a_version_waits_for_its_bundle(kit: Kit, client: Client, build: Builder) -> None:
    """F-02: a target that is still pending may be named; a bundle that failed fails the Version."""
    worker = await build.worker()
    missing = await client.settled(
        await client.create(
            urls.WORKER_BUNDLE, "missing", {"artifact": {"url": "https://x.test/a", "sha256": "0" * 64}}
        )
    )
    spec = {"worker": ref(worker), "bundle": ref(missing.resource_uid), "handlers": []}
    assert (await failure(client, spec)).code == "artifact_unavailable"
    assert kit.runtime.called("InspectVersion") == []


async def test_a_version_is_not_deleted_while_code_may_run(kit: Kit, client: Client, build: Builder) -> None:
    """WV-13, H-112: an unproven stop keeps the delete reconciling, and the proof ends it."""
    uid = await build.version(await build.worker())
    kit.runtime.fails["Drain"] = SaiseiError("backend_unavailable", "a context still runs")
    operation = await client.delete(uid, 1)

    async def reconciling() -> bool:
        found = await client.operation(operation.id)
        return found.status == pb.OPERATION_STATUS_RECONCILING

    await eventually(reconciling)
    found = await client.operation(operation.id)
    assert (found.effect, found.error.code) == (pb.EFFECT_UNKNOWN, "backend_unavailable")
    assert (await client.get(uid)).phase == pb.PHASE_DELETING
    del kit.runtime.fails["Drain"]
    assert (await client.settled(operation)).status == pb.OPERATION_STATUS_SUCCEEDED


async def test_lost_secrets_are_never_replaced_silently(kit: Kit, client: Client, build: Builder) -> None:
    """WV-08, H-155: without the sealing key nothing is comparable, new values are refused and readiness is dropped."""
    worker, bundle = await build.worker(), await build.bundle()
    spec = {"worker": ref(worker), "bundle": ref(bundle), "handlers": [], "requiredSensitiveVars": ["A"]}
    key = client.key()
    first = await client.settled(await client.create(VERSION, "version", spec, key=key, secrets={"A": "1"}))
    uid = first.resource_uid
    (kit.folder / "seal.key").unlink()
    await kit.restart()
    replay = await refused(client.create(VERSION, "version", spec, key=key, secrets={"A": "1"}))
    assert replay.reason == "private_inputs_unverifiable"
    given = await refused(client.update(uid, 1, spec, secrets={"A": "1"}))
    assert given.reason == "private_inputs_unverifiable"
    kept = await client.settled(await client.update(uid, 1, spec))
    assert (kept.status, kept.error.code) == (pb.OPERATION_STATUS_FAILED, "secrets_unavailable")
    assert (await client.get(uid)).observed_json == "{}"
    deployment = client.create(urls.WORKER_DEPLOYMENT, "live", deployment_spec(worker, uid))
    assert (await refused(deployment)).reason == "dependency_conflict"


async def test_a_selected_version_that_loses_its_readiness_is_shown(kit: Kit, client: Client, build: Builder) -> None:
    """WD-11, WV-08: Deployment and Worker show it; new attachments are refused; a fit Version heals it."""
    worker, bundle = await build.worker(), await build.bundle(["fetch"])
    spec = {"worker": ref(worker), "bundle": ref(bundle), "handlers": ["fetch"], "requiredSensitiveVars": ["A"]}
    uid = await client.made(VERSION, "version", spec, secrets={"A": "1"})
    deployment = await build.deployment(worker, uid)
    assert json.loads((await client.get(worker)).observed_json)["ready"] is True
    (kit.folder / "seal.key").unlink()
    await kit.restart()
    await client.settled(await client.update(uid, 1, spec))
    shown = json.loads((await client.get(deployment)).observed_json)
    assert (shown["ready"], shown["active"]) == (False, True)
    assert json.loads((await client.get(worker)).observed_json) == {"activeDeploymentUid": deployment, "ready": False}
    door = client.create(urls.WORKER_ENDPOINT, "door", {"worker": ref(worker)})
    assert (await refused(door)).reason == "dependency_conflict"
    other = await build.version(worker, ["fetch"])
    await client.settled(await client.update(deployment, 1, deployment_spec(worker, other)))
    assert json.loads((await client.get(deployment)).observed_json)["ready"] is True
    assert json.loads((await client.get(worker)).observed_json)["ready"] is True
    assert await client.made(urls.WORKER_ENDPOINT, "door", {"worker": ref(worker)})


async def test_a_version_is_reconciled_by_an_equal_put(client: Client, build: Builder) -> None:
    """WV-09, WV-10: a new key makes a new Operation and generation of the same thing, which stays as it is."""
    worker, bundle = await build.worker(), await build.bundle(["fetch"])
    spec = {"worker": ref(worker), "bundle": ref(bundle), "handlers": ["fetch"]}
    uid = await client.made(VERSION, "version", spec)
    observed = {"ready": True, "resolvedBindings": True, "bundleVerified": True}
    found = await client.get(uid)
    assert (json.loads(found.observed_json), json.loads(found.output_json)) == (observed, {})
    again = await client.settled(await client.update(uid, 1, spec))
    assert (again.status, again.generation) == (pb.OPERATION_STATUS_SUCCEEDED, 2)
    found = await client.get(uid)
    assert (found.generation, found.observed_generation, json.loads(found.observed_json)) == (2, 2, observed)


async def test_a_version_is_not_ready_before_it_was_looked_at(kit: Kit, client: Client, build: Builder) -> None:
    """WV-10, F-11: what is not known yet is not shown."""
    worker, bundle = await build.worker(), await build.bundle()
    kit.runtime.holds["InspectVersion"] = asyncio.Event()
    spec = {"worker": ref(worker), "bundle": ref(bundle), "handlers": []}
    operation = await client.create(VERSION, "version", spec)
    assert (await client.get(operation.resource_uid)).observed_json == "{}"
    kit.runtime.holds["InspectVersion"].set()
    await client.settled(operation)
    assert json.loads((await client.get(operation.resource_uid)).observed_json)["ready"] is True


async def test_a_version_needs_no_namespace(client: Client, build: Builder) -> None:
    """WV-12: its Worker has a workflow of another class, or none: that is looked at when a Deployment selects it."""
    worker = await build.worker()
    await client.made(urls.DURABLE_WORKFLOW, "flow", {"worker": ref(worker), "className": "Flow"})
    without = await build.version(worker, ["fetch"], [])
    assert json.loads((await client.get(without)).observed_json)["ready"] is True
    deployment = client.create(urls.WORKER_DEPLOYMENT, "live", deployment_spec(worker, without))
    assert (await refused(deployment)).reason == "dependency_conflict"


async def test_private_inputs_may_be_given_again(kit: Kit, client: Client, build: Builder) -> None:
    """H-154, H-045: the original map changes nothing, another conflicts, and after the end it is operation_terminal."""
    worker, bundle = await build.worker(), await build.bundle()
    spec = {"worker": ref(worker), "bundle": ref(bundle), "handlers": [], "requiredSensitiveVars": ["A", "B"]}
    kit.runtime.holds["InspectVersion"] = asyncio.Event()
    operation = await client.create(VERSION, "version", spec, secrets={"A": "1", "B": "2"})

    async def supply(by: Client, **values: str) -> pb.Operation:
        request = pb.SupplyPrivateInputsRequest(id=operation.id, private_inputs=pb.PrivateInputs(values=values))
        found: pb.Operation = await by.call(by.operations.SupplyPrivateInputs, request)
        return found

    assert (await supply(client, B="2", A="1")).id == operation.id
    for values in ({"A": "1"}, {"A": "1", "B": "3"}, {}):
        assert (await refused(supply(client, **values))).reason == "private_inputs_conflict"
    assert (await refused(supply(await kit.client("reader", main="read"), A="1"))).reason == "forbidden"
    assert (await refused(supply(await kit.client("bob", other="read,write"), A="1"))).reason == "not_found"
    kit.runtime.holds["InspectVersion"].set()
    await client.settled(operation)
    assert (await refused(supply(client, A="1", B="2"))).reason == "operation_terminal"
