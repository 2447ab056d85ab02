"""Previews judge as acceptance does, and leave nothing behind."""

from __future__ import annotations

import json
from typing import Any

from sqlalchemy import func, select
from tests.control.kit import Builder, Client, Kit, deployment_spec, ref, refused

from saisei.control.v1 import resources_pb2 as pb
from saisei_contract.forms import urls
from saisei_control.store.schema import metadata

WORKER = urls.MODULE_WORKER


async def preview(client: Client, **mutation: Any) -> tuple[bool, list[str]]:
    request = pb.PreviewMutationRequest(**mutation)
    answer: pb.PreviewMutationResponse = await client.call(client.resources.PreviewMutation, request)
    return answer.valid, [error.code for error in answer.errors]


def create(form: str, name: str, spec: Any, space: str = "main", **more: Any) -> pb.PreviewCreate:
    return pb.PreviewCreate(form=form, space=space, name=name, spec_json=json.dumps(spec), **more)


async def everything(kit: Kit) -> dict[str, int]:
    assert kit.app is not None
    return await kit.app.store.read(
        lambda connection: {
            table.name: connection.execute(select(func.count()).select_from(table)).scalar_one()
            for table in metadata.sorted_tables
        }
    )


async def test_creates(kit: Kit, client: Client, build: Builder) -> None:
    """H-160: valid, or the very code that the create would be refused with; no record, no name, no secret remains."""
    worker, bundle = await build.worker(), await build.bundle()
    before = await everything(kit)
    version = {"worker": ref(worker), "bundle": ref(bundle), "handlers": [], "requiredSensitiveVars": ["KEY"]}
    secret = pb.PrivateInputs(values={"KEY": "hush"})
    assert await preview(client, create=create(WORKER, "free", {})) == (True, [])
    made = create(urls.WORKER_VERSION, "v", version, private_inputs=secret)
    assert await preview(client, create=made) == (True, [])
    for refusal, mutation in (
        ("name_conflict", create(WORKER, "thing-1", {})),
        ("invalid_spec", create(WORKER, "free", {"x": 1})),
        ("invalid_spec", create(urls.WORKER_VERSION, "v", version)),
        ("unsupported_form", create("https://forms.test/None/1.0.0/", "free", {})),
        ("capability_required", create(WORKER, "free", {}, private_inputs=secret)),
        ("capability_required", create(WORKER, "free", {}, offering=pb.Offering(id="a", revision="1"))),
        ("dependency_conflict", create(urls.WORKER_DEPLOYMENT, "d", deployment_spec(worker, "r-none"))),
    ):
        assert await preview(client, create=mutation) == (False, [refusal])
    assert await everything(kit) == before
    assert (await client.create(WORKER, "free", {})).generation == 1


async def test_changes(kit: Kit, client: Client, build: Builder) -> None:
    """H-036, H-160: updates and deletes are judged in the order of acceptance: tombstone, busy, generation, spec."""
    worker = await build.worker()
    workflow = {"worker": ref(worker), "className": "Flow"}
    flow = await client.made(urls.DURABLE_WORKFLOW, "flow", workflow)
    spec_json = json.dumps(workflow)
    before = await everything(kit)

    def update(**more: Any) -> pb.PreviewUpdate:
        return pb.PreviewUpdate(**{"uid": flow, "expected_generation": 1, "spec_json": spec_json} | more)

    assert await preview(client, update=update()) == (True, [])
    assert await preview(client, update=update(expected_generation=0)) == (False, ["generation_conflict"])
    assert await preview(client, update=update(spec_json="{}")) == (False, ["invalid_spec"])
    assert await preview(client, delete=pb.PreviewDelete(uid=flow, expected_generation=1)) == (True, [])
    held = pb.PreviewDelete(uid=worker, expected_generation=1)
    assert await preview(client, delete=held) == (False, ["dependency_conflict"])
    assert await everything(kit) == before
    kit.runtime.acknowledges = False
    busy = await client.delete(flow, 1)
    assert await preview(client, update=update(expected_generation=9)) == (False, ["resource_busy"])
    kit.runtime.acknowledges = True
    await client.settled(busy)
    assert await preview(client, update=update()) == (False, ["gone"])


async def test_what_comes_before_the_verdict(kit: Kit, client: Client) -> None:
    """H-046, H-160: rights and envelopes are refusals as ever, and nothing is learned of what may not be seen."""
    uid = await client.made(WORKER, "one", {})
    stranger, reader = await kit.client("bob", other="read,write"), await kit.client("carol", main="read")
    delete = pb.PreviewDelete(uid=uid, expected_generation=1)
    for caller, mutation, reason in (
        (stranger, {"delete": delete}, "not_found"),
        (stranger, {"create": create(WORKER, "one", {})}, "forbidden"),
        (reader, {"delete": delete}, "forbidden"),
        (client, {"delete": pb.PreviewDelete(uid="r-none", expected_generation=1)}, "not_found"),
        (client, {"delete": pb.PreviewDelete(uid=uid)}, "expected_generation_required"),
        (client, {"create": create(WORKER, "no name", {})}, "invalid_request"),
        (client, {"create": create(WORKER, "name", [])}, "invalid_request"),
        (client, {}, "invalid_request"),
    ):
        assert (await refused(preview(caller, **mutation))).reason == reason
