"""The gRPC face of our own Host beside the HTTP one: one Resource, one generation, one mutation at a time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import grpc
import pytest
from tests.conformance.kit import ENDLESS, MODULE_WORKER, VERSION, Principal, accepted, fresh_key, fresh_name, problem
from tests.support.dev_host import DevHost, eventually

from saisei.control.v1 import resources_pb2 as pb
from saisei.control.v1.resources_pb2_grpc import ResourceServiceStub
from saisei_service.rpc_errors import from_rpc_error


class Twin:
    """The same principal at the gRPC face."""

    def __init__(self, dev: DevHost, token: str) -> None:
        self._stub: Any = ResourceServiceStub(grpc.insecure_channel(str(dev.ready["grpc"]["control"])))
        self._metadata = [("authorization", f"Bearer {token}")]

    def create(self, space: str, name: str, spec_json: str = "{}", key: str | None = None) -> Any:
        request = pb.CreateResourceRequest(
            idempotency_key=key or fresh_key(), form=MODULE_WORKER, space=space, name=name, spec_json=spec_json
        )
        return self._stub.CreateResource(request, metadata=self._metadata, timeout=20).operation

    def update(self, uid: str, generation: int) -> Any:
        request = pb.UpdateResourceRequest(
            idempotency_key=fresh_key(), uid=uid, expected_generation=generation, spec_json="{}"
        )
        return self._stub.UpdateResource(request, metadata=self._metadata, timeout=20).operation


@pytest.fixture
def twin(host: Principal, dev: DevHost) -> Twin:
    return Twin(dev, host.token)


def refused(reason: str, call: Callable[[], Any]) -> None:
    with pytest.raises(grpc.RpcError) as caught:
        call()
    assert from_rpc_error(caught.value).reason == reason  # type: ignore[arg-type]


def test_both_faces_change_the_same_resource(host: Principal, twin: Twin) -> None:
    """H-149, H-102, H-072: a generation that one face has used up is stale at the other."""
    uid = host.made()["uid"]
    operation = twin.update(uid, 1)
    assert (operation.resource_uid, operation.generation) == (uid, 2)
    eventually(lambda: host.operation(operation.id)["status"] == "succeeded", within_seconds=30)
    problem(host.put(uid, {"spec": {}}, 1), 409, "generation_conflict")
    host.settled(host.put(uid, {"spec": {}}, 2))
    refused("generation_conflict", lambda: twin.update(uid, 2))
    assert host.resource(uid)["generation"] == 3


def test_each_face_has_keys_of_its_own(host: Principal, twin: Twin) -> None:
    """H-149, H-130, H-143: a key that was used at one face is fresh at the other, and replays where it was used."""
    key, names = fresh_key(), (fresh_name("http"), fresh_name("grpc"))
    over_http = accepted(host, host.post(host.envelope(MODULE_WORKER, {}, names[0]), key))
    over_grpc = twin.create(host.space, names[1], key=key)
    assert over_http["id"] != over_grpc.id
    assert accepted(host, host.post(host.envelope(MODULE_WORKER, {}, names[0]), key))["id"] == over_http["id"]
    assert twin.create(host.space, names[1], key=key).id == over_grpc.id
    problem(host.post(host.envelope(MODULE_WORKER, {}, names[1]), key), 409, "idempotency_conflict")
    refused("idempotency_conflict", lambda: twin.create(host.space, names[0], key=key))


def test_both_faces_exclude_each_other(host: Principal, twin: Twin) -> None:
    """H-149, H-102, H-084: a mutation that is unfinished at one face is busy at the other; names are taken for both."""
    operation = accepted(host, host.post(host.envelope(VERSION, host.version_spec(ENDLESS))))
    refused("resource_busy", lambda: twin.update(operation["resourceUid"], 1))
    name = fresh_name()
    created = twin.create(host.space, name)
    problem(host.post(host.envelope(name=name)), 409, "name_conflict")
    eventually(lambda: host.operation(created.id)["status"] == "succeeded", within_seconds=30)
    assert host.resource(created.resource_uid)["name"] == name
    refused("name_conflict", lambda: twin.create(host.space, name))


def test_the_faces_refuse_alike(host: Principal, twin: Twin) -> None:
    """H-180, H-004, H-006, H-044, F-01: the codes of one table, whichever way the request came."""
    for reason, name, spec_json in (
        ("invalid_request", "a b", "{}"),
        ("invalid_request", fresh_name(), '{"a":1,"a":2}'),
        ("invalid_request", fresh_name(), "[]"),
        ("invalid_spec", fresh_name(), '{"a":1}'),
    ):
        refused(reason, lambda name=name, spec_json=spec_json: twin.create(host.space, name, spec_json))  # type: ignore[misc]
    refused("forbidden", lambda: twin.create("no-such-space", fresh_name()))
    refused("not_found", lambda: twin.update("r-never", 1))
