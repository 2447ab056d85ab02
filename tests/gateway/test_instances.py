"""Instances, artifacts and the virtual clock over HTTPS."""

from __future__ import annotations

import hashlib
import json
from typing import Any
from urllib.parse import quote

import pytest
from tests.gateway.conftest import Host, HostFactory
from tests.gateway.test_host_api import assert_problem
from tests.gateway.test_traffic import raw

from saisei.common.v1.common_pb2 import Document
from saisei.runtime.v1 import workflows_pb2 as pb
from saisei_contract.artifacts import MAX_FILE_BYTES
from saisei_contract.errors import SaiseiError

INSTANCES = "/apis/saisei/v1/workflows/w-1/instances"


def url(instance_id: str, suffix: str = "") -> str:
    return f"{INSTANCES}/{quote(instance_id, safe='')}{suffix}"


async def test_create_and_status(host: Host) -> None:
    """W-020, W-022, W-040: create answers 201 {id, status}; params travel and come back as canonical bytes."""
    response = await host.client.post(INSTANCES, json={"id": "a/b", "params": {"z": 1.0, "a": [True, None]}})
    assert response.status_code == 201
    assert response.json() == {"id": "a/b", "status": "queued"}
    request = host.runtime.last("CreateInstance")
    assert request.workflow_uid == "w-1"
    assert request.params.canonical_json == b'{"a":[true,null],"z":1}'
    response = await host.client.get(url("a/b"))
    assert response.content == b'{"id":"a/b","status":"queued","output":{"a":[true,null],"z":1}}'


async def test_create_without_anything(host: Host) -> None:
    """W-020, W-049: no id and no params are not the same as empty ones."""
    assert (await host.client.post(INSTANCES, json={})).json() == {"id": "issued", "status": "queued"}
    request = host.runtime.last("CreateInstance")
    assert not request.HasField("id")
    assert not request.HasField("params")


NAMES = ["a b", "ü/日本", "😀" * 256, "a:terminate", "%2F", "x?y#z", "events", "new\nline", "+", "\x00", "ａ", "../a"]


@pytest.mark.parametrize("name", NAMES)
async def test_any_unicode_id(host: Host, name: str) -> None:
    """W-020: an id may hold any 1-256 scalars; on the path it is percent-encoded."""
    assert (await host.client.post(INSTANCES, json={"id": name})).status_code == 201
    assert (await host.client.get(url(name))).json()["id"] == name
    await host.client.post(url(name, "/events"), json={"type": "t"})
    assert host.runtime.last("SendEvent").id == name
    ended = await host.client.post(url(name, ":terminate"))
    assert ended.json() == {"id": name, "status": "terminated"}


@pytest.mark.parametrize("segment", ["%ff", "%zz", "%", quote("a" * 257), "%ed%a0%80"])
async def test_malformed_id(host: Host, segment: str) -> None:
    """W-020, W-027: a broken escape, bytes that are no UTF-8, and over 256 scalars are 400."""
    assert_problem(await host.client.get(f"{INSTANCES}/{segment}"), 400, "invalid_request")


@pytest.mark.parametrize(
    ("body", "status", "code"),
    [
        ({"params": []}, 422, "invalid_params"),
        ({"params": None}, 422, "invalid_params"),
        ({"params": {str(n): n for n in range(1025)}}, 422, "invalid_params"),
        ({"params": {"a": "x" * 1_048_576}}, 413, "document_too_large"),
        ({"id": ""}, 400, "invalid_request"),
        ({"id": 1}, 400, "invalid_request"),
        ({"ID": "a"}, 400, "invalid_request"),
        ([], 400, "invalid_request"),
    ],
)
async def test_refused_create(host: Host, body: Any, status: int, code: str) -> None:
    """W-024, W-025, W-041, W-049: bad keys and ids are 400, bad documents 422, large ones 413; nothing is created."""
    assert_problem(await host.client.post(INSTANCES, json=body), status, code)
    assert host.runtime.count("CreateInstance") == 0


async def test_deep_document(host: Host) -> None:
    """W-047: 100,000 nested arrays are a document."""
    body = b'{"params":{"a":' + b"[" * 100_000 + b"]" * 100_000 + b"}}"
    response = await host.client.post(INSTANCES, content=body, headers={"content-type": "application/json"})
    assert response.status_code == 201
    assert len(host.runtime.last("CreateInstance").params.canonical_json) == 200_006


async def test_batch(host: Host) -> None:
    """Design 5: up to 100 instances at once, each with its own outcome, in input order."""
    body = {"instances": [{"id": "one"}, {"id": "taken"}, {"id": "two", "params": {}}]}
    response = await host.client.post(INSTANCES + ":batchCreate", json=body)
    assert response.status_code == 200
    first, second, third = response.json()["items"]
    assert first == {"id": "one", "status": "queued"}
    assert second["code"] == "instance_exists"
    assert third == {"id": "two", "status": "queued"}
    many = {"instances": [{}] * 101}
    assert_problem(await host.client.post(INSTANCES + ":batchCreate", json=many), 400, "invalid_request")


async def test_ended_instances(host: Host) -> None:
    """W-011, W-012: output only as stored, error as reason and message; lists add times and always nextCursor."""
    host.runtime.add(
        pb.Instance(
            id="done",
            status=pb.INSTANCE_STATUS_COMPLETE,
            output=Document(canonical_json='{"ü":1e+21}'.encode()),
            created_at_ms=1000,
            ended_at_ms=2000,
        )
    )
    failure = pb.InstanceError(reason="run_threw", message='no "luck"')
    host.runtime.add(pb.Instance(id="lost", status=pb.INSTANCE_STATUS_ERRORED, error=failure, created_at_ms=1))
    assert (
        await host.client.get(url("done"))
    ).content == '{"id":"done","status":"complete","output":{"ü":1e+21}}'.encode()
    assert (await host.client.get(url("lost"))).json() == {
        "id": "lost",
        "status": "errored",
        "error": {"reason": "run_threw", "message": 'no "luck"'},
    }
    page = (await host.client.get(INSTANCES + "?status=complete&limit=500")).json()
    assert page["nextCursor"] is None
    assert page["items"][0]["createdAt"] == "1970-01-01T00:00:01.000Z"
    assert page["items"][0]["endedAt"] == "1970-01-01T00:00:02.000Z"
    assert "endedAt" not in page["items"][1]
    request = host.runtime.last("ListInstances")
    assert (request.status, request.limit) == (pb.INSTANCE_STATUS_COMPLETE, 500)


@pytest.mark.parametrize("query", ["status=done", "limit=0", "limit=501", "limit=x", "filter=a", "status="])
async def test_bad_instance_query(host: Host, query: str) -> None:
    """H-009, H-093: as on the routes of the Host API."""
    assert_problem(await host.client.get(f"{INSTANCES}?{query}"), 400, "invalid_request")


async def test_errors_of_instances(own_host: Host) -> None:
    """W-027, W-065, W-071, design 6: problems use the Binding's names as code, also when the runtime is away."""
    assert_problem(await own_host.client.get(url("none")), 404, "unknown_instance")
    own_host.runtime.add(pb.Instance(id="i", status=pb.INSTANCE_STATUS_RUNNING))
    for reason, status in (("instance_terminal", 409), ("event_queue_full", 409), ("document_too_large", 413)):
        own_host.runtime.refusals["SendEvent"] = SaiseiError(reason)
        assert_problem(await own_host.client.post(url("i", "/events"), json={"type": "t"}), status, reason)
    own_host.runtime.refusals["Terminate"] = SaiseiError("backend_unavailable")
    response = await own_host.client.post(url("i", ":terminate"))
    assert_problem(response, 503, "backend_unavailable")
    assert int(response.headers["retry-after"]) > 0
    await own_host.servers["runtime"].stop(0)
    assert_problem(await own_host.client.get(url("i")), 503, "backend_unavailable")


async def test_send_event(host: Host) -> None:
    """W-028, W-060: 200 {} once it is accepted; the payload is canonical, absent stays absent."""
    host.runtime.add(pb.Instance(id="i", status=pb.INSTANCE_STATUS_WAITING))
    response = await host.client.post(url("i", "/events"), json={"type": "go", "payload": {"b": 1, "a": 2}})
    assert (response.status_code, response.json()) == (200, {})
    request = host.runtime.last("SendEvent")
    assert (request.id, request.type, request.payload.canonical_json) == ("i", "go", b'{"a":2,"b":1}')
    await host.client.post(url("i", "/events"), json={"type": "go"})
    assert not host.runtime.last("SendEvent").HasField("payload")
    for body in ({}, {"type": ""}, {"type": 1}, {"type": "x" * 257}, {"type": "t", "other": 1}):
        assert_problem(await host.client.post(url("i", "/events"), json=body), 400, "invalid_request")


async def test_terminate_and_steps(host: Host) -> None:
    """W-070, W-072: terminate answers with the status at the end; steps come in order of registration."""
    host.runtime.add(pb.Instance(id="i", status=pb.INSTANCE_STATUS_RUNNING))
    for options in ({}, {"json": {}}):
        response = await host.client.post(url("i", ":terminate"), **options)
        assert (response.status_code, response.json()) == (200, {"id": "i", "status": "terminated"})
    assert_problem(await host.client.post(url("i", ":terminate"), json={"a": 1}), 400, "invalid_request")
    assert (await host.client.get(url("i", "/steps"))).json() == {
        "items": [
            {
                "name": "charge",
                "kind": "do",
                "state": "complete",
                "failedAttempts": 1,
                "createdAt": "1970-01-01T00:00:00.001Z",
                "result": {"n": 1},
            },
            {
                "name": "nap",
                "kind": "sleep",
                "state": "waiting",
                "failedAttempts": 0,
                "createdAt": "1970-01-01T00:00:00.002Z",
                "dueAt": "1970-01-01T00:00:00.003Z",
            },
        ],
        "nextCursor": None,
    }


async def test_permissions_of_instances(host: Host) -> None:
    """H-044: reading needs read, everything else write."""
    reader = {"authorization": "Bearer reader"}
    assert (await host.client.get(INSTANCES, headers=reader)).status_code == 200
    assert_problem(await host.client.post(INSTANCES, json={}, headers=reader), 403, "forbidden")
    assert_problem(await host.client.post(url("i", ":terminate"), headers=reader), 403, "forbidden")


async def test_artifact(host: Host) -> None:
    """Design 5, 6: an upload streams to the control service; 201 when new, 200 when held."""
    content = b"x" * 700_000
    digest = hashlib.sha256(content).hexdigest()
    for status in (201, 200):
        response = await host.client.put(f"/artifacts/v1/sha256/{digest}", content=content)
        assert (response.status_code, response.json()) == (status, {"sha256": digest, "size": len(content)})
    assert host.control.uploads[digest] == content
    assert host.control.metadata[-1]["authorization"] == "Bearer writer"


async def test_refused_artifacts(host: Host) -> None:
    """AR-09, H-015: a bad digest, a coded or oversized body, and refusals of control are problems."""
    good = "/artifacts/v1/sha256/" + "0" * 64
    assert_problem(await host.client.put("/artifacts/v1/sha256/" + "A" * 64), 400, "invalid_request")
    coded = await host.client.put(good, content=b"x", headers={"content-encoding": "gzip"})
    assert_problem(coded, 415, "unsupported_media_type")
    head = f"PUT {good} HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer writer\r\n"
    head += f"content-length: {MAX_FILE_BYTES + 1}\r\nexpect: 100-continue\r\n\r\n"
    large = await raw(host, head.encode(), until=b"}")
    assert large.startswith(b"HTTP/1.1 413 ")
    host.control.refusals["PutArtifact"] = SaiseiError("invalid_request", "the bytes do not match the digest")
    assert_problem(await host.client.put(good, content=b"x"), 400, "invalid_request")


async def test_upload_that_is_refused_early(host: Host) -> None:
    """H-181, AR-09: a call that ends in the middle of an upload is a refusal or a reason to try again, never a 500."""
    host.control.refusals["PutArtifact"] = SaiseiError("forbidden", "no write right")
    for size in range(1, 40):
        response = await host.client.put("/artifacts/v1/sha256/" + "0" * 64, content=b"x" * (50_000 * size))
        assert response.json()["code"] in {"forbidden", "backend_unavailable"}


async def test_oversized_artifact_while_streaming(host: Host) -> None:
    """H-015: a chunked upload is cut off once it passes the limit."""

    async def chunks() -> Any:
        for _ in range(MAX_FILE_BYTES // 262_144 + 2):
            yield b"x" * 262_144

    response = await host.client.put("/artifacts/v1/sha256/" + "0" * 64, content=chunks())
    assert_problem(response, 413, "request_too_large")


async def test_virtual_clock(run_host: HostFactory) -> None:
    """Design 6: the route takes a token and a number over 0, and moves runtime and control to one instant."""
    async with run_host(virtual_clock=True) as host:
        route = "/test/v1/clock:advance"
        response = await host.client.post(route, json={"seconds": 1.5})
        assert response.json() == {"nowMs": 86_400_000, "started": 2}
        assert host.runtime.last("AdvanceClock").seconds == 1.5
        assert host.control.last("AdvanceClock").to_ms == 86_400_000
        host.control.now_ms = 86_400_250
        assert (await host.client.post(route, json={"seconds": 1})).json() == {"nowMs": 86_400_250, "started": 4}
        assert host.runtime.last("AdvanceClock").seconds == 0.25
        for body in ({}, {"seconds": 0}, {"seconds": -1}, {"seconds": "1"}, {"seconds": True}, {"seconds": 1, "a": 1}):
            assert_problem(await host.client.post(route, json=body), 400, "invalid_request")
        anonymous = await host.client.post(route, json={"seconds": 1}, headers={"authorization": "Bearer none"})
        assert_problem(anonymous, 401, "unauthenticated")
        assert route in (await host.client.get("/openapi.json")).json()["paths"]


async def test_no_virtual_clock(host: Host) -> None:
    """Design 6: without the flag the route does not exist."""
    assert_problem(await host.client.post("/test/v1/clock:advance", json={"seconds": 1}), 404, "not_found")


async def test_json_of_lists_is_valid(host: Host) -> None:
    """H-001: bodies that are put together from stored bytes are JSON."""
    for number in range(3):
        host.runtime.add(pb.Instance(id=f'"{number}\\', status=pb.INSTANCE_STATUS_QUEUED))
    content = (await host.client.get(INSTANCES)).content
    assert [item["id"] for item in json.loads(content)["items"]] == ['"0\\', '"1\\', '"2\\']
