"""Who may be named, and who cannot be deleted meanwhile."""

from __future__ import annotations

import asyncio

from tests.control.kit import Builder, Client, Kit, deployment_spec, ref, refused

from saisei.control.v1 import resources_pb2 as pb
from saisei_contract.forms import urls

FLOW = urls.DURABLE_WORKFLOW


async def test_unusable_targets_look_alike(kit: Kit, client: Client, build: Builder) -> None:
    """F-02, F-03: unknown, foreign, wrong and deleted targets are one dependency_conflict with one message."""
    everywhere = await kit.client("root", every="read,write")
    worker = await build.worker()
    abroad = await everywhere.made(urls.MODULE_WORKER, "abroad", {}, space="other")
    wrong = await client.made(FLOW, "flow", {"worker": ref(worker), "className": "Flow"})
    gone = await build.worker()
    await client.deleted(gone)
    messages = set()
    for uid in ("r-unknown", abroad, wrong, gone):
        refusal = await refused(client.create(FLOW, "other", {"worker": ref(uid), "className": "Flow"}))
        assert refusal.reason == "dependency_conflict"
        messages.add(refusal.message.replace(uid, "UID"))
    assert len(messages) == 1
    assert (await refused(client.create(FLOW, "x", {"worker": ref("-"), "className": "Flow"}))).reason == "invalid_spec"


async def test_write_includes_use(kit: Kit, client: Client, build: Builder) -> None:
    """H-044: using a target is a right of its own, which a token's write right brings."""
    worker = await build.worker()
    assert await client.made(FLOW, "flow", {"worker": ref(worker), "className": "Flow"})
    reader = await kit.client("reader", main="read,use")
    assert (await refused(reader.create(FLOW, "x", {"worker": ref(worker), "className": "F"}))).reason == "forbidden"


async def test_every_reference_blocks_a_delete(client: Client, build: Builder) -> None:
    """F-04, H-106, MW-03, AR-10, WV-13, WV-14, DW-07: a referred Resource is not deletable, an unreferred one is."""
    worker = await build.worker()
    workflow = await client.made(FLOW, "flow", {"worker": ref(worker), "className": "Flow"})
    version = await build.version(
        worker, ["fetch"], ["Flow"], workflowBindings=[{"name": "FLOW", "resource": ref(workflow)}]
    )
    bundle = (await client.list(form=urls.WORKER_BUNDLE)).items[0].uid
    deployment = await build.deployment(worker, version)
    for uid in (worker, workflow, version, bundle):
        assert (await refused(client.delete(uid, 1))).reason == "dependency_conflict"
    await client.deleted(deployment)
    # WV-14: unweighted, the Version still keeps the workflow.
    assert (await refused(client.delete(workflow, 1))).reason == "dependency_conflict"
    await client.deleted(version)
    for uid in (workflow, bundle, worker):
        await client.deleted(uid)


async def test_a_failed_referrer_still_counts(kit: Kit, client: Client, build: Builder) -> None:
    """F-04, H-108: a Resource in error keeps its targets until its own delete has succeeded."""
    worker = await build.worker()
    bundle = await build.bundle(["fetch"])
    spec = {"worker": ref(worker), "bundle": ref(bundle), "handlers": []}
    failed = await client.settled(await client.create(urls.WORKER_VERSION, "version", spec))
    assert failed.status == pb.OPERATION_STATUS_FAILED
    assert (await refused(client.delete(bundle, 1))).reason == "dependency_conflict"
    await client.deleted(failed.resource_uid)
    await client.deleted(bundle)


async def test_a_delete_and_a_reference_are_serialised(client: Client, build: Builder) -> None:
    """H-109: of a delete and a simultaneous reference exactly one is accepted."""
    outcomes = set()
    for number in range(8):
        worker = await build.worker()
        flow = client.create(FLOW, f"flow-{number}", {"worker": ref(worker), "className": "Flow"})
        answers = await asyncio.gather(client.delete(worker, 1), flow, return_exceptions=True)
        refusals = [answer for answer in answers if isinstance(answer, Exception)]
        assert [refusal.reason for refusal in refusals] == ["dependency_conflict"]
        outcomes.add(isinstance(answers[0], Exception))
    assert outcomes


async def test_a_deleting_target_is_refused(kit: Kit, client: Client, build: Builder) -> None:
    """H-109, F-02: what is going away cannot be referred to any more."""
    worker = await build.worker()
    flow = await client.made(FLOW, "flow", {"worker": ref(worker), "className": "Flow"})
    kit.runtime.holds["Purge"] = asyncio.Event()
    deleting = await client.delete(flow, 1)
    bundle = await build.bundle()
    spec = {
        "worker": ref(worker),
        "bundle": ref(bundle),
        "handlers": [],
        "workflowBindings": [{"name": "FLOW", "resource": ref(flow)}],
    }
    assert (await refused(client.create(urls.WORKER_VERSION, "version", spec))).reason == "dependency_conflict"
    kit.runtime.holds["Purge"].set()
    await client.settled(deleting)


async def test_a_dropped_version_is_free_after_the_switch(client: Client, build: Builder) -> None:
    """WD-08, WV-13: a Version that a Deployment no longer weights can be deleted; the weighted one cannot."""
    worker = await build.worker()
    old, new = await build.version(worker), await build.version(worker)
    deployment = await build.deployment(worker, old)
    await client.settled(await client.update(deployment, 1, deployment_spec(worker, new)))
    assert (await refused(client.delete(new, 1))).reason == "dependency_conflict"
    await client.deleted(old)
