"""Host API v2 over real HTTPS: routes, check order, headers, envelopes, problems."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest
from tests.gateway.conftest import ROOT, Host
from tests.gateway.fakes import FORM, MAX_PAGE_SIZE, MAX_REQUEST_BYTES, operation

from saisei.control.v1 import resources_pb2 as pb
from saisei_contract.errors import SaiseiError

KEY = {"idempotency-key": "0123456789abcdef"}
CREATE = {"form": FORM, "space": "default", "name": "hello", "spec": {}}


def assert_problem(response: httpx.Response, status: int, code: str) -> dict[str, Any]:
    assert response.status_code == status, response.text
    assert response.headers["content-type"] == "application/problem+json"
    assert response.headers["cache-control"] == "no-store"
    problem: dict[str, Any] = response.json()
    assert problem["type"] == "about:blank"
    assert problem["status"] == status
    assert problem["code"] == code
    assert set(problem) <= {"type", "title", "status", "code", "detail", "operationId"}
    return problem


async def test_discovery(host: Host) -> None:
    """H-040, H-041, H-042, H-043: discovery needs no credential and names exact URLs of its own origin."""
    response = await host.client.get("/.well-known/takoform/v2", headers={"authorization": ""})
    assert response.status_code == 200
    assert response.headers["content-type"] == "application/json"
    body = response.json()
    assert body["baseUrl"] == host.origin + ROOT
    assert body["documentation"].startswith("https://")
    assert body["authentication"]["schemes"] == ["Bearer"]
    assert body["capabilities"] == {"offerings": False, "previews": False, "privateInputs": False}
    assert body["limits"] == {
        "maxRequestBytes": MAX_REQUEST_BYTES,
        "maxPageSize": MAX_PAGE_SIZE,
        "replayWindowSeconds": 3600,
    }
    assert_problem(await host.client.get("/.well-known/takoform/v2?x=1"), 400, "invalid_request")


@pytest.mark.parametrize(
    ("method", "path", "allow"),
    [
        ("POST", "/.well-known/takoform/v2", "GET"),
        ("DELETE", ROOT + "/resources", "GET, POST"),
        ("POST", ROOT + "/resources/r-1", "GET, PUT, DELETE"),
        ("PATCH", ROOT + "/operations/op-1", "GET"),
        ("PUT", ROOT + "/support", "GET"),
        ("GET", "/apis/saisei/v1/workflows/w/instances/i:terminate", "POST"),
        ("GET", "/artifacts/v1/sha256/" + "0" * 64, "PUT"),
    ],
)
async def test_wrong_method(host: Host, method: str, path: str, allow: str) -> None:
    """H-025, H-033, H-035: a known path with another method is 405 with Allow, before the credential is looked at."""
    response = await host.client.request(method, path, headers={"authorization": "Bearer bad"})
    assert_problem(response, 405, "method_not_allowed")
    assert response.headers["allow"] == allow


@pytest.mark.parametrize(
    "path", ["/", ROOT, ROOT + "/", ROOT + "/unknown", ROOT + "/resources/", "//", "/openapi.json/"]
)
async def test_unknown_path(host: Host, path: str) -> None:
    """H-033, H-003: an unknown path is a 404 problem; nothing redirects, not even a trailing slash."""
    assert_problem(await host.client.get(path), 404, "not_found")


@pytest.mark.parametrize("method", ["GET", "POST", "PUT", "DELETE"])
@pytest.mark.parametrize("path", ["/offerings", "/previews", "/operations/op-1/private-inputs"])
async def test_capability_that_is_not_advertised(host: Host, method: str, path: str) -> None:
    """H-032: its routes are 404 capability_unavailable for each method."""
    assert_problem(await host.client.request(method, ROOT + path), 404, "capability_unavailable")


@pytest.mark.parametrize("authorization", [None, "", "Bearer", "Basic abc", "Bearer bad token", "Bearer unknown"])
async def test_unauthenticated(host: Host, authorization: str | None) -> None:
    """H-025, H-044: a missing, malformed or unknown credential is 401 with WWW-Authenticate."""
    request = host.client.build_request("GET", ROOT + "/resources")
    del request.headers["authorization"]
    if authorization is not None:
        request.headers["authorization"] = authorization
    response = await host.client.send(request)
    assert_problem(response, 401, "unauthenticated")
    assert response.headers["www-authenticate"].startswith("Bearer")


async def test_authentication_is_remembered_for_two_seconds(own_host: Host) -> None:
    """H-044: one question for many requests of a token; the services get the token itself."""
    for _ in range(5):
        assert (await own_host.client.get(ROOT + "/resources/r-1")).status_code == 200
    assert own_host.control.count("Authenticate") == 1
    assert own_host.control.metadata[-1]["authorization"] == "Bearer writer"


async def test_permission_class(host: Host) -> None:
    """H-035, H-044: a principal without the right in any Space is refused before its query is read."""
    reader, nobody = {"authorization": "Bearer reader"}, {"authorization": "Bearer nobody"}
    assert_problem(await host.client.get(ROOT + "/resources?x=1", headers=nobody), 403, "forbidden")
    assert_problem(await host.client.post(ROOT + "/resources", headers=reader), 403, "forbidden")
    assert (await host.client.get(ROOT + "/resources", headers=reader)).status_code == 200


async def test_support(host: Host) -> None:
    """H-050, H-051, H-052, H-053: one exact Form URL, answered letter for letter, unsupported ones too."""
    assert (await host.client.get(ROOT + "/support", params={"form": FORM})).json() == {
        "form": FORM,
        "supported": True,
        "operations": ["create", "read", "update", "delete"],
        "privateInputs": False,
    }
    cut = FORM.rstrip("/")
    assert (await host.client.get(ROOT + "/support", params={"form": cut})).json() == {
        "form": cut,
        "supported": False,
        "operations": [],
        "privateInputs": False,
    }
    for query in ("", "?form=", f"?form={FORM}&form={FORM}", "?form=http://a/", f"?form={FORM}&x=1", "?form=%zz"):
        assert_problem(await host.client.get(ROOT + "/support" + query), 400, "invalid_request")


async def test_create(host: Host) -> None:
    """H-023, H-024, H-030, H-080: 202 with exact Location and Retry-After; numbers reach control as spelled."""
    content = json.dumps({**CREATE, "spec": {"n": 1.0}, "privateInputs": {}})
    headers = {**KEY, "content-type": "application/json; charset=utf-8"}
    response = await host.client.post(ROOT + "/resources", content=content, headers=headers)
    assert response.status_code == 202
    assert response.headers["location"] == f"{host.origin}{ROOT}/operations/op-1"
    assert int(response.headers["retry-after"]) > 0
    assert response.headers["cache-control"] == "no-store"
    assert response.json()["status"] == "queued"
    request = host.control.last("CreateResource")
    assert request.spec_json == '{"n":1.0}'
    assert request.idempotency_key == KEY["idempotency-key"]
    assert request.HasField("private_inputs")
    assert not request.HasField("offering")


async def test_settled_mutation(host: Host) -> None:
    """H-024, H-030: a settled Operation answers 200 with Location and without Retry-After."""
    host.control.mutation = operation(pb.OPERATION_STATUS_SUCCEEDED)
    headers = {**KEY, "takoform-expected-generation": "1"}
    response = await host.client.put(ROOT + "/resources/r-1", json={"spec": {}}, headers=headers)
    assert response.status_code == 200
    assert response.headers["location"] == f"{host.origin}{ROOT}/operations/op-1"
    assert "retry-after" not in response.headers


@pytest.mark.parametrize(
    "key", [None, "", "short", "0123456789abcde", "x" * 129, "-123456789abcdef0", "0123456789abcde/"]
)
async def test_idempotency_key(host: Host, key: str | None) -> None:
    """H-020: a missing or malformed key is 400, before the media type is looked at."""
    headers = {} if key is None else {"idempotency-key": key}
    assert_problem(await host.client.post(ROOT + "/resources", content=b"x", headers=headers), 400, "invalid_request")
    assert host.control.count("CreateResource") == 0


@pytest.mark.parametrize("value", ["abc", "1.0", "+1", "-1", "", "01", "9007199254740992", "1,1"])
async def test_malformed_generation(host: Host, value: str) -> None:
    """H-021: anything but a plain decimal in range is 400."""
    headers = {**KEY, "takoform-expected-generation": value}
    response = await host.client.put(ROOT + "/resources/r-1", json={"spec": {}}, headers=headers)
    assert_problem(response, 400, "invalid_request")


async def test_generation(host: Host) -> None:
    """H-021, H-022: missing is 428, repeated 400, zero goes on to the control service."""
    url = ROOT + "/resources/r-1"
    assert_problem(await host.client.delete(url, headers=KEY), 428, "expected_generation_required")
    pairs = [*KEY.items(), ("takoform-expected-generation", "1"), ("takoform-expected-generation", "1")]
    assert_problem(await host.client.delete(url, headers=pairs), 400, "invalid_request")
    response = await host.client.delete(url, headers={**KEY, "takoform-expected-generation": "0"})
    assert response.status_code == 202
    assert host.control.last("DeleteResource").expected_generation == 0


async def test_delete_takes_no_body(host: Host) -> None:
    """H-034: a DELETE with a body that is not empty is 400."""
    headers = {**KEY, "takoform-expected-generation": "1"}
    response = await host.client.request("DELETE", ROOT + "/resources/r-1", headers=headers, content=b"{}")
    assert_problem(response, 400, "invalid_request")
    assert host.control.count("DeleteResource") == 0


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"content-type": "text/plain"},
        {"content-type": "application/jsonx"},
        {"content-type": "application/problem+json"},
        {"content-type": "application/json", "content-encoding": "gzip"},
    ],
)
async def test_media_type(host: Host, headers: dict[str, str]) -> None:
    """H-014, H-015: another or no media type, or a coded body, is 415 before the body is read."""
    response = await host.client.post(ROOT + "/resources", content=b"{", headers=KEY | headers)
    assert_problem(response, 415, "unsupported_media_type")


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[]",
        b'{"form":1}',
        b"\xff",
        b'{"form":"a","form":"b"}',
        json.dumps({**CREATE, "unknown": 1}).encode(),
        json.dumps({**CREATE, "spec": []}).encode(),
        json.dumps({**CREATE, "privateInputs": None}).encode(),
        json.dumps({**CREATE, "name": "a\n"}).encode(),
        b"[" * 5000,
    ],
)
async def test_bad_envelope(host: Host, body: bytes) -> None:
    """H-004, H-006, H-009, H-011, H-012: malformed JSON and broken envelopes are 400 and reach nobody."""
    headers = {**KEY, "content-type": "application/json"}
    assert_problem(await host.client.post(ROOT + "/resources", content=body, headers=headers), 400, "invalid_request")
    assert host.control.count("CreateResource") == 0


async def test_too_large_while_reading(host: Host) -> None:
    """H-015: a chunked body without Content-Length is refused once it passes the limit, not after it ended."""
    sent = 0

    async def endless() -> Any:
        nonlocal sent
        while sent < 8 * MAX_REQUEST_BYTES:
            sent += 16 * 1024
            yield b" " * 16 * 1024

    headers = {**KEY, "content-type": "application/json"}
    response = await host.client.post(ROOT + "/resources", content=endless(), headers=headers)
    assert_problem(response, 413, "request_too_large")
    assert response.headers["connection"] == "close"


async def test_body_at_the_limit(host: Host) -> None:
    """H-015: exactly maxRequestBytes octets pass, one more does not."""
    headers = {**KEY, "content-type": "application/json"}
    body = json.dumps(CREATE).encode().ljust(MAX_REQUEST_BYTES)
    assert (await host.client.post(ROOT + "/resources", content=body, headers=headers)).status_code == 202
    response = await host.client.post(ROOT + "/resources", content=body + b" ", headers=headers)
    assert_problem(response, 413, "request_too_large")


async def test_read_resource(host: Host) -> None:
    """H-070, H-073, H-077: a Resource has all its fields; what was never observed is null."""
    body = (await host.client.get(ROOT + "/resources/r-1")).json()
    assert body == {
        "uid": "r-1",
        "form": FORM,
        "space": "default",
        "name": "hello",
        "generation": 1,
        "observedGeneration": 0,
        "observedAt": None,
        "phase": "pending",
        "spec": {"number": 1.0},
        "observed": {},
        "output": {},
        "lastOperation": "op-1",
    }


@pytest.mark.parametrize("uid", ["%20", "-a", "a%2Fb", "a%00", "%ff", "%", "a" * 129, "a%0A"])
async def test_uid_of_another_grammar(host: Host, uid: str) -> None:
    """H-006, H-091: what is no UID names nothing."""
    assert_problem(await host.client.get(f"{ROOT}/resources/{uid}"), 404, "not_found")


async def test_list(host: Host) -> None:
    """H-092, H-093: filters and limit go on as they are; nextCursor is always present."""
    params = {"space": "default", "name": "hello", "form": FORM, "limit": "7", "cursor": "abc"}
    body = (await host.client.get(ROOT + "/resources", params=params)).json()
    assert [item["uid"] for item in body["items"]] == ["a", "b"]
    assert body["nextCursor"] == "bmV4dA"
    request = host.control.last("ListResources")
    assert (request.space, request.name, request.form) == ("default", "hello", FORM)
    assert (request.limit, request.cursor) == (7, "abc")
    await host.client.get(ROOT + "/resources")
    request = host.control.last("ListResources")
    assert request.limit == MAX_PAGE_SIZE
    assert not request.HasField("space")
    assert not request.HasField("cursor")


@pytest.mark.parametrize(
    "query",
    [
        "limit=0",
        f"limit={MAX_PAGE_SIZE + 1}",
        "limit=abc",
        "limit=01",
        "limit=%2B1",
        "limit=",
        "limit=1&limit=1",
        "space=",
        "name=a%0A",
        "form=x",
        "sort=name",
        "space=%ff",
        "space=%E0%A4%A",
    ],
)
async def test_bad_list_query(host: Host, query: str) -> None:
    """H-009, H-093: an unknown, repeated or malformed query parameter is 400."""
    assert_problem(await host.client.get(f"{ROOT}/resources?{query}"), 400, "invalid_request")


@pytest.mark.parametrize(
    ("path", "method"),
    [(ROOT + "/operations/op-1", "GET"), (ROOT + "/resources/r-1", "GET"), (ROOT + "/resources", "POST")],
)
async def test_routes_without_query(host: Host, path: str, method: str) -> None:
    """H-009: routes that take no query refuse one."""
    assert_problem(await host.client.request(method, path + "?a=b"), 400, "invalid_request")


async def test_refusals_of_control(host: Host) -> None:
    """H-031, H-180: a refusal keeps its code, its detail and its operationId, under its HTTP status."""
    refusal = SaiseiError("private_inputs_unverifiable", "they can no longer be compared", {"operationId": "op-9"})
    host.control.refusals["GetResource"] = refusal
    problem = assert_problem(await host.client.get(ROOT + "/resources/r-1"), 409, "private_inputs_unverifiable")
    assert problem["operationId"] == "op-9"
    assert problem["detail"] == "they can no longer be compared"
    host.control.refusals["GetResource"] = SaiseiError("rate_limited")
    response = await host.client.get(ROOT + "/resources/r-1")
    assert_problem(response, 429, "rate_limited")
    assert int(response.headers["retry-after"]) > 0


async def test_control_is_away(own_host: Host) -> None:
    """H-180, H-181: a service that is away is 503 temporarily_unavailable with Retry-After."""
    await own_host.client.get(ROOT + "/resources/r-1")
    await own_host.servers["control"].stop(0)
    response = await own_host.client.get(ROOT + "/resources/r-1")
    assert_problem(response, 503, "temporarily_unavailable")
    assert int(response.headers["retry-after"]) > 0


async def test_unforeseen_failure(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    """H-182: an unforeseen failure is a 500 problem without internal text."""

    async def fail(*_: Any) -> None:
        raise RuntimeError("secret detail")

    monkeypatch.setattr(type(host.gateway.authenticator), "caller", fail)
    response = await host.client.get(ROOT + "/resources")
    assert_problem(response, 500, "internal_error")
    assert "secret" not in response.text


async def test_openapi(host: Host) -> None:
    """Design 5: the additions of this Host are documented in OpenAPI."""
    body = (await host.client.get("/openapi.json")).json()
    assert body["openapi"].startswith("3.1")
    assert body["servers"] == [{"url": host.origin}]
    assert "/apis/saisei/v1/workflows/{uid}/instances/{id}/events" in body["paths"]
    assert "/test/v1/clock:advance" not in body["paths"]
