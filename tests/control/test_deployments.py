"""Deployments, workflows and endpoints: what fits each other, checked from both sides."""

from __future__ import annotations

import asyncio
import json

from tests.control.kit import Builder, Client, Kit, artifact, deployment_spec, eventually, manifest_of, ref, refused

from saisei.control.v1 import resources_pb2 as pb
from saisei.runtime.v1 import admin_pb2
from saisei_contract.errors import SaiseiError
from saisei_contract.forms import urls

FLOW, DEPLOYMENT, ENDPOINT, VERSION = (
    urls.DURABLE_WORKFLOW,
    urls.WORKER_DEPLOYMENT,
    urls.WORKER_ENDPOINT,
    urls.WORKER_VERSION,
)


def flow(worker: str, name: str = "Flow") -> dict[str, object]:
    return {"worker": ref(worker), "className": name}


async def held_version(kit: Kit, client: Client, build: Builder, worker: str, classes: list[str]) -> pb.Operation:
    """A Version whose inspection waits until the test sets `kit.runtime.holds["InspectVersion"]`."""
    bundle = await build.bundle(["fetch"], classes)
    kit.runtime.holds["InspectVersion"] = asyncio.Event()
    spec = {"worker": ref(worker), "bundle": ref(bundle), "handlers": ["fetch"]}
    return await client.create(VERSION, "held", spec)


async def test_one_deployment_for_each_worker(client: Client, build: Builder) -> None:
    """WD-03, F-05: a second create is dependency_conflict; after the first's delete it is taken."""
    worker = await build.worker()
    version = await build.version(worker)
    first = await build.deployment(worker, version)
    second = client.create(DEPLOYMENT, "second", deployment_spec(worker, version))
    assert (await refused(second)).reason == "dependency_conflict"
    await client.deleted(first)
    assert await build.deployment(worker, version)


async def test_versions_belong_to_the_worker(client: Client, build: Builder) -> None:
    """WD-02: a Version of another Worker is refused before effects."""
    worker, other = await build.worker(), await build.worker()
    version = await build.version(other)
    call = client.create(DEPLOYMENT, "live", deployment_spec(worker, version))
    assert (await refused(call)).reason == "dependency_conflict"


async def test_a_switch_replaces_the_whole_allocation(kit: Kit, client: Client, build: Builder) -> None:
    """WD-08, WD-01: weights and Versions change at once, under one revision."""
    worker = await build.worker()
    one, two = await build.version(worker), await build.version(worker)
    uid = await build.deployment(worker, one)
    await client.settled(await client.update(uid, 1, deployment_spec(worker, one, two)))
    body = (await kit.runtime.hosts(uid)).deployment
    assert {(item.version_uid, item.weight) for item in body.versions} == {(one, 5_000), (two, 5_000)}
    refusal = await refused(client.update(uid, 2, deployment_spec(await build.worker(), one)))
    assert refusal.reason == "invalid_spec"


async def test_a_preparing_version_is_waited_for(kit: Kit, client: Client, build: Builder) -> None:
    """WD-07: the Deployment becomes effective once its Version is verified, and not before."""
    worker = await build.worker()
    version = await held_version(kit, client, build, worker, [])
    operation = await client.create(DEPLOYMENT, "live", deployment_spec(worker, version.resource_uid))

    async def inspected() -> bool:
        return bool(kit.runtime.called("InspectVersion"))

    await eventually(inspected)
    assert (await client.get(operation.resource_uid)).phase == pb.PHASE_PENDING
    assert operation.resource_uid not in kit.runtime.hosted
    kit.runtime.holds["InspectVersion"].set()
    assert (await client.settled(operation)).status == pb.OPERATION_STATUS_SUCCEEDED


async def test_a_version_that_fails_fails_its_deployment(kit: Kit, client: Client, build: Builder) -> None:
    """WD-05, WD-06: what is found out after acceptance is the Operation's failure; nothing becomes active."""
    worker = await build.worker()
    version = await held_version(kit, client, build, worker, [])
    operation = await client.create(DEPLOYMENT, "live", deployment_spec(worker, version.resource_uid))
    kit.runtime.fails["InspectVersion"] = SaiseiError("backend_unavailable", "restarting")
    kit.runtime.holds["InspectVersion"].set()

    # Unavailable is no verdict (H-116): both go on.
    async def tried_again() -> bool:
        return len(kit.runtime.called("InspectVersion")) > 1

    await eventually(tried_again)
    assert (await client.operation(operation.id)).status == pb.OPERATION_STATUS_RUNNING
    kit.runtime.problems = [admin_pb2.CodeProblem(code="syntax_error", message="no")]
    del kit.runtime.fails["InspectVersion"]
    failed = await client.settled(operation)
    assert (failed.status, failed.effect) == (pb.OPERATION_STATUS_FAILED, pb.EFFECT_NONE)
    assert failed.error.code == "dependency_conflict"
    assert json.loads((await client.get(worker)).observed_json)["activeDeploymentUid"] is None


async def test_a_failed_switch_keeps_the_old_allocation(kit: Kit, client: Client, build: Builder) -> None:
    """WD-06, WD-08, DW-04, F-04, H-194: traffic stays on the old Versions, which are kept, until a PUT succeeds."""
    worker = await build.worker()
    old = await build.version(worker, ["fetch"], ["Flow"])
    uid = await build.deployment(worker, old)
    await client.made(FLOW, "flow", flow(worker))
    held = await held_version(kit, client, build, worker, [])
    # Accepted while nothing is known of the Version; then the class turns out to be missing.
    switch = await client.update(uid, 1, deployment_spec(worker, held.resource_uid))
    kit.runtime.holds["InspectVersion"].set()
    failed = await client.settled(switch)
    assert (failed.status, failed.error.code) == (pb.OPERATION_STATUS_FAILED, "dependency_conflict")
    assert "Flow" in failed.error.message
    found = await client.get(uid)
    assert (found.phase, found.generation, found.observed_generation) == (pb.PHASE_ERROR, 2, 1)
    assert (await kit.runtime.hosts(uid)).deployment.versions[0].version_uid == old
    assert (await refused(client.delete(old, 1))).reason == "dependency_conflict"
    # What is known now is refused before it is accepted.
    again = await refused(client.update(uid, 2, deployment_spec(worker, held.resource_uid)))
    assert again.reason == "dependency_conflict"
    back = await client.settled(await client.update(uid, 2, deployment_spec(worker, old)))
    assert back.status == pb.OPERATION_STATUS_SUCCEEDED
    await client.deleted(held.resource_uid)


async def test_a_workflow_without_a_deployment_is_taken(kit: Kit, client: Client, build: Builder) -> None:
    """DW-02, DW-03: neither an allocation nor one on its way: accepted; two may name one class."""
    worker = await build.worker()
    one = await client.made(FLOW, "one", flow(worker))
    two = await client.made(FLOW, "two", flow(worker))
    assert {(await kit.runtime.hosts(uid)).workflow.class_name for uid in (one, two)} == {"Flow"}


async def test_an_accepted_workflow_binds_later_deployments(client: Client, build: Builder) -> None:
    """WD-05, WD-06: a Deployment whose Versions lack the class of an accepted workflow is refused."""
    worker = await build.worker()
    await client.made(FLOW, "flow", flow(worker))
    without = await build.version(worker, ["fetch"], [])
    call = client.create(DEPLOYMENT, "live", deployment_spec(worker, without))
    assert (await refused(call)).reason == "dependency_conflict"
    fitting = await build.version(worker, ["fetch"], ["Flow", "Other"])
    assert await build.deployment(worker, fitting)
    assert (await refused(client.create(FLOW, "missing", flow(worker, "Missing")))).reason == "dependency_conflict"
    assert await client.made(FLOW, "other", flow(worker, "Other"))


async def test_an_unverified_version_makes_a_workflow_wait(kit: Kit, client: Client, build: Builder) -> None:
    """DW-03: unknown is not unfit: resource_busy while a coming allocation's Version is being verified."""
    worker = await build.worker()
    version = await held_version(kit, client, build, worker, ["Flow"])
    deployment = await client.create(DEPLOYMENT, "live", deployment_spec(worker, version.resource_uid))
    assert (await refused(client.create(FLOW, "flow", flow(worker)))).reason == "resource_busy"
    kit.runtime.holds["InspectVersion"].set()
    await client.settled(deployment)
    assert await client.made(FLOW, "flow", flow(worker))


async def test_two_sides_never_both_become_effective(client: Client, build: Builder) -> None:
    """WD-06, DW-04: a Deployment without the class and a workflow that needs it, at once: at most one succeeds.

    What was accepted before the conflict was known tells it through its Operation only.
    """
    for number in range(5):
        worker = await build.worker()
        version = await build.version(worker, ["fetch"], [])
        answers = await asyncio.gather(
            client.create(DEPLOYMENT, f"live-{number}", deployment_spec(worker, version)),
            client.create(FLOW, f"flow-{number}", flow(worker)),
            return_exceptions=True,
        )
        accepted = [await client.settled(answer) for answer in answers if not isinstance(answer, Exception)]
        succeeded = [item for item in accepted if item.status == pb.OPERATION_STATUS_SUCCEEDED]
        assert len(succeeded) == 1
        others = {item.error.code for item in accepted if item.status == pb.OPERATION_STATUS_FAILED}
        assert others <= {"dependency_conflict"}


async def test_a_workflow_is_immutable(client: Client, build: Builder) -> None:
    """DW-06, H-103: another class is invalid_spec, the same spec a new generation."""
    worker = await build.worker()
    uid = await client.made(FLOW, "flow", flow(worker))
    assert (await refused(client.update(uid, 1, flow(worker, "Other")))).reason == "invalid_spec"
    assert (await client.settled(await client.update(uid, 1, flow(worker)))).generation == 2


async def test_a_workflow_shows_its_instances(kit: Kit, client: Client, build: Builder) -> None:
    """DW-05, H-090: all seven counts; a read may refresh them, and never fails for a runtime that is away."""
    worker = await build.worker()
    uid = await client.made(FLOW, "flow", flow(worker))
    kit.runtime.counts = {"sleeping": 3}

    async def refreshed() -> bool:
        counts = json.loads((await client.get(uid)).observed_json)["instanceCounts"]
        assert set(counts) == {"queued", "running", "sleeping", "waiting", "complete", "errored", "terminated"}
        return counts["sleeping"] == 3 and counts["queued"] == 0

    await eventually(refreshed)
    kit.runtime.holds["Observe"] = asyncio.Event()
    for _ in range(3):
        assert json.loads((await client.get(uid)).observed_json)["instanceCounts"]["sleeping"] == 3
    kit.runtime.holds["Observe"].set()


async def test_a_deleted_workflow_is_purged_once_stopped(kit: Kit, client: Client, build: Builder) -> None:
    """DW-08: admission ends first; without the proof the same Operation stays reconciling; then it succeeds."""
    worker = await build.worker()
    uid = await client.made(FLOW, "flow", flow(worker))
    kit.runtime.fails["Purge"] = SaiseiError("backend_unavailable", "a stop is unproven")
    operation = await client.delete(uid, 1)

    async def reconciling() -> bool:
        return (await client.operation(operation.id)).status == pb.OPERATION_STATUS_RECONCILING

    await eventually(reconciling)
    assert uid not in kit.runtime.hosted
    assert (await refused(client.delete(uid, 2))).reason == "resource_busy"
    del kit.runtime.fails["Purge"]
    assert (await client.settled(operation)).status == pb.OPERATION_STATUS_SUCCEEDED
    assert {(item.workflow_uid, item.operation_id) for item in kit.runtime.called("Purge")} == {(uid, operation.id)}


async def test_an_endpoint_needs_an_allocation_that_answers(client: Client, build: Builder) -> None:
    """EP-01, EP-02: no Deployment, or Versions without fetch: dependency_conflict; one Endpoint for each Worker."""
    worker = await build.worker()
    spec = {"worker": ref(worker)}
    assert (await refused(client.create(ENDPOINT, "door", spec))).reason == "dependency_conflict"
    silent, speaking = await build.version(worker, ["queue"]), await build.version(worker, ["fetch"])
    deployment = await build.deployment(worker, silent)
    assert (await refused(client.create(ENDPOINT, "door", spec))).reason == "dependency_conflict"
    await client.settled(await client.update(deployment, 1, deployment_spec(worker, speaking)))
    await client.made(ENDPOINT, "door", spec)
    assert (await refused(client.create(ENDPOINT, "second", spec))).reason == "dependency_conflict"
    back = await refused(client.update(deployment, 2, deployment_spec(worker, silent)))
    assert back.reason == "dependency_conflict"


async def test_an_endpoints_address_is_fixed(kit: Kit, client: Client, build: Builder) -> None:
    """EP-03, EP-04: output from acceptance on, also while pending, and the same after PUT and restart."""
    worker = await build.worker()
    await build.deployment(worker, await build.version(worker, ["fetch"]))
    kit.runtime.acknowledges = False
    operation = await client.create(ENDPOINT, "door", {"worker": ref(worker)})
    uid = operation.resource_uid
    output = (await client.get(uid)).output_json
    assert json.loads(output)["hostname"].islower()
    kit.runtime.acknowledges = True
    await client.settled(operation)
    assert json.loads((await client.get(uid)).observed_json) == {"tlsReady": True, "activeDeploymentRouteReady": True}
    await client.settled(await client.update(uid, 1, {"worker": ref(worker)}))
    await kit.restart()
    assert (await client.get(uid)).output_json == output


async def test_a_deployment_closes_before_it_stops(kit: Kit, client: Client, build: Builder) -> None:
    """WD-09: selection ends first; the delete succeeds only with the proof that nothing runs."""
    worker = await build.worker()
    uid = await build.deployment(worker, await build.version(worker, ["fetch"]))
    kit.runtime.holds["Drain"] = asyncio.Event()
    operation = await client.delete(uid, 1)

    async def draining() -> bool:
        return bool(kit.runtime.called("Drain"))

    await eventually(draining)
    assert uid not in kit.runtime.hosted
    assert json.loads((await client.get(worker)).observed_json) == {"activeDeploymentUid": None, "ready": False}
    assert (await client.operation(operation.id)).status == pb.OPERATION_STATUS_RUNNING
    kit.runtime.holds["Drain"].set()
    assert (await client.settled(operation)).status == pb.OPERATION_STATUS_SUCCEEDED


async def test_a_delete_touches_its_own_only(client: Client, build: Builder) -> None:
    """F-10: deleting a Version leaves its bundle as it was."""
    worker = await build.worker()
    await build.version(worker)
    (version,) = (await client.list(form=VERSION)).items
    (bundle,) = (await client.list(form=urls.WORKER_BUNDLE)).items
    await client.deleted(version.uid)
    code = b'{"handlers": [], "classes": []}'
    assert json.loads((await client.get(bundle.uid)).spec_json) == artifact(manifest_of({"main.js": code}))


async def test_a_known_contradiction_is_not_activated(kit: Kit, client: Client, build: Builder) -> None:
    """WD-10: recorded histories are replayed against Versions that are new in the allocation, and only those.

    A definite mismatch fails the Operation with the instances' ids, and the old allocation stays.
    """
    worker = await build.worker()
    one, two = await build.version(worker, ["fetch"]), await build.version(worker, ["fetch"])
    uid = await build.deployment(worker, one)
    kit.runtime.mismatches = [
        admin_pb2.ReplayMismatch(
            version_uid=two,
            workflow_uid="w",
            workflow_name="orders",
            instance_id=f"order-{number}",
            step_name="grace",
            begun_with="step.sleep",
            called_with="step.do",
        )
        for number in range(30)
    ]
    failed = await client.settled(await client.update(uid, 1, deployment_spec(worker, one, two)))
    assert (failed.status, failed.effect) == (pb.OPERATION_STATUS_FAILED, pb.EFFECT_NONE)
    assert failed.error.code == "step_history_incompatible"
    for said in ("'order-0'", "orders", "'grace'", "step.sleep", "step.do", two, "'order-19'", "10 more"):
        assert said in failed.error.message
    assert [list(request.version_uids) for request in kit.runtime.called("CheckReplay")] == [[one], [two]]
    assert [item.version_uid for item in (await kit.runtime.hosts(uid)).deployment.versions] == [one]
    # What is selected already is not judged anew.
    again = await client.settled(await client.update(uid, 2, deployment_spec(worker, one)))
    assert again.status == pb.OPERATION_STATUS_SUCCEEDED
    assert len(kit.runtime.called("CheckReplay")) == 2


async def test_what_is_not_known_to_fit_is_told(kit: Kit, client: Client, build: Builder) -> None:
    """WD-10, H-013: a replay that proves nothing fails nothing; the Operation says of whom nothing is known, and why.

    It does so from the switch on, so that whoever makes the next attempt needs no new replay.
    """
    worker = await build.worker()
    one, two = await build.version(worker, ["fetch"]), await build.version(worker, ["fetch"])
    uid = await build.deployment(worker, one)

    def doubt(reason: str, instances: int, named: int, new_step: str = "") -> admin_pb2.ReplayDoubt:
        examples = [
            admin_pb2.ReplayDoubtExample(
                workflow_name="orders", instance_id=f"{reason}-{number}", step_name="grace", new_step=new_step
            )
            for number in range(named)
        ]
        return admin_pb2.ReplayDoubt(
            reason=admin_pb2.ReplayDoubtReason.Value(f"REPLAY_DOUBT_REASON_{reason}"),
            instances=instances,
            examples=examples,
        )

    kit.runtime.doubts = [
        doubt("NEW_STEP", 2, 2, "grace2"),
        doubt("ENDED", 1, 1),
        doubt("ASKED_OUTSIDE", 1, 1),
        doubt("TIME", 30, 20),
        doubt("NOT_RUN", 1, 1),
        doubt("NOT_SAMPLED", 70_000, 20),
        doubt("NOT_SAMPLED", 5, 0),
    ]
    kit.runtime.acknowledges = False
    operation = await client.update(uid, 1, deployment_spec(worker, two))
    await eventually(lambda: _has_warnings(client, operation.id))
    kit.runtime.acknowledges = True
    settled = await client.settled(operation)
    assert (settled.status, settled.effect) == (pb.OPERATION_STATUS_SUCCEEDED, pb.EFFECT_COMPLETE)
    assert {warning.code for warning in settled.warnings} == {"step_history_unconfirmed"}
    renamed, ended, asked, time, lost, sample, nobody = [warning.message for warning in settled.warnings]
    for said in ("2 parked instances go on", "'NEW_STEP-0'", "'NEW_STEP-1'", "'grace'", "'grace2'", "renamed"):
        assert said in renamed
    assert "1 parked instance goes on" in ended and "without the step 'grace'" in ended and "renamed" in ended
    assert "fetch or a Binding" in asked and "renamed" not in asked
    assert "ran out" in time and "'TIME-19' and 10 more." in time
    assert "was lost" in lost
    assert "70000 parked instances" in sample and "69980 more" in sample
    assert "5 parked instances" in nobody and nobody.endswith("not replayed.")


async def _has_warnings(client: Client, operation_id: str) -> bool:
    return bool((await client.operation(operation_id)).warnings)


async def test_a_replay_that_cannot_be_made_is_no_verdict(kit: Kit, client: Client, build: Builder) -> None:
    """WD-10, WD-07: while no runtime can tell, nothing is activated and nothing fails."""
    worker = await build.worker()
    version = await build.version(worker, ["fetch"])
    kit.runtime.fails["CheckReplay"] = SaiseiError("backend_unavailable", "restarting")
    operation = await client.create(DEPLOYMENT, "live", deployment_spec(worker, version))

    async def asked_again() -> bool:
        return len(kit.runtime.called("CheckReplay")) > 1

    await eventually(asked_again)
    assert (await client.operation(operation.id)).status == pb.OPERATION_STATUS_RUNNING
    assert operation.resource_uid not in kit.runtime.hosted
    del kit.runtime.fails["CheckReplay"]
    assert (await client.settled(operation)).status == pb.OPERATION_STATUS_SUCCEEDED


async def test_a_version_is_kept_while_its_contexts_run(kit: Kit, client: Client, build: Builder) -> None:
    """WV-13, WD-08: a Version that is no longer weighted cannot be deleted before what runs of it has retired."""
    worker = await build.worker()
    old, new = await build.version(worker, ["fetch"]), await build.version(worker, ["fetch"])
    uid = await build.deployment(worker, old)
    weighted = await refused(client.delete(old, 1))
    assert weighted.reason == "dependency_conflict"
    assert not kit.runtime.called("ObserveVersion")
    await client.settled(await client.update(uid, 1, deployment_spec(worker, new)))
    for kit.runtime.contexts, kit.runtime.invocations in ((2, 0), (0, 1)):
        running = await refused(client.delete(old, 1))
        assert running.reason == "dependency_conflict"
        assert "still run" in running.message
    kit.runtime.invocations = 0
    asked = kit.runtime.called("ObserveVersion")
    assert {(request.worker_uid, request.version_uid) for request in asked} == {(worker, old)}
    await client.deleted(old)


async def test_a_context_that_appears_after_acceptance_is_waited_for(kit: Kit, client: Client, build: Builder) -> None:
    """WV-13: a runtime that could not be asked refuses nothing; the Operation waits until nothing runs."""
    worker = await build.worker()
    old, new = await build.version(worker, ["fetch"]), await build.version(worker, ["fetch"])
    uid = await build.deployment(worker, old)
    await client.settled(await client.update(uid, 1, deployment_spec(worker, new)))
    kit.runtime.fails["ObserveVersion"] = SaiseiError("backend_unavailable", "restarting")
    operation = await client.delete(old, 1)
    kit.runtime.contexts = 1
    del kit.runtime.fails["ObserveVersion"]
    before = len(kit.runtime.called("ObserveVersion"))

    async def waited() -> bool:
        return len(kit.runtime.called("ObserveVersion")) > before + 1

    await eventually(waited)
    assert not kit.runtime.called("Drain")
    assert old in kit.runtime.hosted
    kit.runtime.contexts = 0
    assert (await client.settled(operation)).status == pb.OPERATION_STATUS_SUCCEEDED
    assert kit.runtime.called("Drain")
