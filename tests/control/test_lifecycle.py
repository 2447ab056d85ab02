"""Six Forms from create to delete, over gRPC, with a runtime beside."""

from __future__ import annotations

import json

from saisei.control.v1 import resources_pb2 as pb
from saisei_contract.forms import urls


def ref(uid: str) -> dict[str, str]:
    return {"resourceUid": uid}


async def test_the_order_of_creation_and_of_clean_up_works(kit, client, build):
    """DW-10, WD-12: Worker → Workflow → Version that binds it → Deployment → Endpoint, and back in the other order."""
    worker = await build.worker()
    workflow = await client.made(urls.DURABLE_WORKFLOW, "flow", {"worker": ref(worker), "className": "Flow"})
    version = await build.version(
        worker, ["fetch"], ["Flow"], workflowBindings=[{"name": "FLOW", "resource": ref(workflow)}]
    )
    deployment = await build.deployment(worker, version)
    endpoint = await client.made(urls.WORKER_ENDPOINT, "door", {"worker": ref(worker)})

    for uid in (worker, workflow, version, deployment, endpoint):
        found = await client.get(uid)
        assert (found.phase, found.generation, found.observed_generation) == (pb.PHASE_IDLE, 1, 1)
    assert json.loads((await client.get(worker)).observed_json) == {"activeDeploymentUid": deployment, "ready": True}
    assert json.loads((await client.get(version)).observed_json) == {
        "ready": True,
        "resolvedBindings": True,
        "bundleVerified": True,
    }
    assert json.loads((await client.get(deployment)).observed_json) == {
        "ready": True,
        "active": True,
        "selectedVersions": [{"resourceUid": version, "weight": 10_000}],
    }
    output = json.loads((await client.get(endpoint)).output_json)
    assert output["url"] == f"https://{output['hostname']}/"
    assert output["hostname"].endswith(".workers.localhost")
    hosted = kit.runtime.hosted
    assert hosted[endpoint].endpoint.hostname == output["hostname"]
    assert hosted[version].version.bindings[0].resource_uid == workflow

    bundle = (await client.list(form=urls.WORKER_BUNDLE)).items[0].uid
    for uid in (endpoint, deployment, version, bundle, workflow, worker):
        await client.deleted(uid)
    assert (await client.list()).items == []
    assert kit.runtime.hosted == {}
    assert [request.workflow_uid for request in kit.runtime.called("Purge")] == [workflow]
    drained = [(request.worker_uid, request.version_uid) for request in kit.runtime.called("Drain")]
    assert drained == [(worker, ""), (worker, version)]
