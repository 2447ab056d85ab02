"""Service Bindings between Workers: what they aim at answers HTTP, whichever side comes first."""

from __future__ import annotations

import asyncio
import json

import pytest
from tests.control.kit import Builder, Client, Kit, deployment_spec, eventually, ref, refused

from saisei.control.v1 import assignments_pb2
from saisei.control.v1 import resources_pb2 as pb
from saisei_contract.forms import urls

VERSION, DEPLOYMENT, FLOW = urls.WORKER_VERSION, urls.WORKER_DEPLOYMENT, urls.DURABLE_WORKFLOW


def calls(*workers: str) -> dict[str, object]:
    return {"serviceBindings": [{"name": f"S{i}", "resource": ref(uid)} for i, uid in enumerate(workers)]}


async def caller_spec(build: Builder, worker: str, *callees: str) -> dict[str, object]:
    bundle = await build.bundle(["fetch"])
    return {"worker": ref(worker), "bundle": ref(bundle), "handlers": ["fetch"]} | calls(*callees)


async def test_a_version_is_bound_to_the_uid(kit: Kit, client: Client, build: Builder) -> None:
    """MW-40, F-02, WV-10: a Worker without a Deployment can be bound; the assignment names its UID; itself as well."""
    worker, callee = await build.worker(), await build.worker()
    uid = await build.version(worker, ["fetch"], **calls(callee, worker))
    body = (await kit.runtime.hosts(uid)).version
    kind = assignments_pb2.BINDING_KIND_SERVICE
    assert [(item.name, item.kind, item.resource_uid) for item in body.bindings] == [
        ("S0", kind, callee),
        ("S1", kind, worker),
    ]
    observed = json.loads((await client.get(uid)).observed_json)
    assert observed == {"ready": True, "resolvedBindings": True, "bundleVerified": True}


async def test_the_bound_worker_stays(client: Client, build: Builder) -> None:
    """MW-03, WV-14: an undeleted Version, selected or not, keeps the Worker that it calls."""
    worker, callee = await build.worker(), await build.worker()
    uid = await build.version(worker, ["fetch"], **calls(callee))
    refusal = await refused(client.delete(callee, 1))
    assert (refusal.reason, "WorkerVersion" in refusal.message) == ("dependency_conflict", True)
    await client.deleted(uid)
    await client.deleted(callee)


@pytest.mark.parametrize("wrong", ["unknown", "form", "space", "deleted"])
async def test_what_is_no_worker_of_the_space_is_refused(kit: Kit, client: Client, build: Builder, wrong: str) -> None:
    """F-02, F-03, F-13: target of another Form, another Space, deleted or unknown: one answer for all of them."""
    worker = await build.worker()
    target = "r-unknown"
    if wrong == "form":
        target = await client.made(FLOW, "flow", {"worker": ref(worker), "className": "Flow"})
    elif wrong == "space":
        other = await kit.client(main="read,write", other="read,write")
        target = await other.made(urls.MODULE_WORKER, "there", {}, space="other")
    elif wrong == "deleted":
        target = await build.worker()
        await client.deleted(target)
    spec = await caller_spec(build, worker, target)
    refusal = await refused(client.create(VERSION, "caller", spec))
    assert refusal.reason == "dependency_conflict"
    assert "spec.serviceBindings[0].resource names" in refusal.message


async def test_a_principal_without_the_right_binds_nothing(kit: Kit, client: Client, build: Builder) -> None:
    """F-13, F-03: who may not use Resources of the Space cannot make a Version that calls one."""
    callee, worker = await build.worker(), await build.worker()
    spec = await caller_spec(build, worker, callee)
    reader = await kit.client("bob", main="read")
    assert (await refused(reader.create(VERSION, "caller", spec))).reason == "forbidden"


async def test_what_does_not_answer_http_cannot_be_bound(client: Client, build: Builder) -> None:
    """WD-06: a Version that would call an allocation without fetch is refused before effects."""
    worker, callee = await build.worker(), await build.worker()
    await build.deployment(callee, await build.version(callee, ["queue"]))
    refusal = await refused(client.create(VERSION, "caller", await caller_spec(build, worker, callee)))
    assert (refusal.reason, "does not answer HTTP" in refusal.message) == ("dependency_conflict", True)


async def test_a_called_worker_keeps_answering_http(client: Client, build: Builder) -> None:
    """WD-05, WD-06: no allocation without fetch while any Version, selected or not, calls the Worker."""
    worker, callee = await build.worker(), await build.worker()
    fetching, mute = await build.version(callee, ["fetch"]), await build.version(callee, ["queue"])
    caller = await build.version(worker, ["fetch"], **calls(callee))
    assert (await refused(client.create(DEPLOYMENT, "live", deployment_spec(callee, mute)))).reason == (
        "dependency_conflict"
    )
    uid = await build.deployment(callee, fetching)
    for versions in ((mute,), (fetching, mute)):
        refusal = await refused(client.update(uid, 1, deployment_spec(callee, *versions)))
        assert (refusal.reason, "does not answer HTTP" in refusal.message) == ("dependency_conflict", True)
    await client.deleted(caller)
    settled = await client.settled(await client.update(uid, 1, deployment_spec(callee, mute)))
    assert settled.status == pb.OPERATION_STATUS_SUCCEEDED


async def test_two_sides_at_once(kit: Kit, client: Client, build: Builder) -> None:
    """WD-06: of a Version that calls and a Deployment without fetch, accepted at the same time, never both hold."""
    worker = await build.worker()
    for number in range(6):
        callee = await build.worker()
        mute = await build.version(callee, ["queue"])
        spec = await caller_spec(build, worker, callee)
        pair = [
            client.create(VERSION, f"caller-{number}", spec),
            client.create(DEPLOYMENT, f"live-{number}", deployment_spec(callee, mute)),
        ]
        if number % 2:
            pair.reverse()
        answers = await asyncio.gather(*pair, return_exceptions=True)
        held = [await client.settled(one) for one in answers if isinstance(one, pb.Operation)]
        assert sum(one.status == pb.OPERATION_STATUS_SUCCEEDED for one in held) == 1, answers


async def test_a_switch_that_is_under_way_is_waited_for(kit: Kit, client: Client, build: Builder) -> None:
    """WD-06, WD-07: while the callee's first Version is still verified, binding it is resource_busy."""
    worker, callee = await build.worker(), await build.worker()
    spec = await caller_spec(build, worker, callee)
    bundle = await build.bundle(["fetch"])
    kit.runtime.holds["InspectVersion"] = asyncio.Event()
    held = await client.create(VERSION, "held", {"worker": ref(callee), "bundle": ref(bundle), "handlers": ["fetch"]})
    live = await client.create(DEPLOYMENT, "live", deployment_spec(callee, held.resource_uid))
    assert (await refused(client.create(VERSION, "caller", spec))).reason == "resource_busy"
    kit.runtime.holds["InspectVersion"].set()
    assert (await client.settled(live)).status == pb.OPERATION_STATUS_SUCCEEDED
    assert await client.made(VERSION, "caller", spec)


async def test_what_changed_since_acceptance_is_found(kit: Kit, client: Client, build: Builder) -> None:
    """WD-06: what an accepted Version meets when it is published is its Operation's failure, and a PUT converges."""
    worker, callee = await build.worker(), await build.worker()
    deployment = await build.deployment(callee, await build.version(callee, ["fetch"]))
    spec = await caller_spec(build, worker, callee)
    kit.runtime.holds["InspectVersion"] = asyncio.Event()
    operation = await client.create(VERSION, "caller", spec)

    async def inspected() -> bool:
        return len(kit.runtime.called("InspectVersion")) > 1

    await eventually(inspected)
    await client.deleted(deployment)
    kit.runtime.holds["InspectVersion"].set()
    assert (await client.settled(operation)).status == pb.OPERATION_STATUS_SUCCEEDED
    mute = await refused(client.create(DEPLOYMENT, "mute", deployment_spec(callee, await build.version(callee, []))))
    assert mute.reason == "dependency_conflict"
