"""The optional parts of the Host API over real HTTPS: private inputs, previews, Offerings."""

from __future__ import annotations

import asyncio
import contextlib
import ssl

import pytest
from tests.gateway.conftest import ROOT, Host, HostFactory
from tests.gateway.fakes import FORM
from tests.gateway.test_host_api import CREATE, KEY, assert_problem

from saisei.control.v1 import resources_pb2 as pb
from saisei_contract.errors import SaiseiError
from saisei_gateway.host_api import request as request_rules

REPLENISH = ROOT + "/operations/op-1/private-inputs"


async def test_replenishment(own_host: Host) -> None:
    """H-026, H-032, H-154: where it is advertised it takes the envelope alone, and answers the current Operation."""
    own_host.control.private_inputs = True
    assert_problem(await own_host.client.get(REPLENISH), 405, "method_not_allowed")
    for body in ({}, {"privateInputs": None}, {"privateInputs": {"A": 1}}, {"privateInputs": {}, "x": 1}):
        assert_problem(await own_host.client.put(REPLENISH, json=body), 400, "invalid_request")
    assert own_host.control.count("SupplyPrivateInputs") == 0
    response = await own_host.client.put(REPLENISH, json={"privateInputs": {"A": "hush"}})
    assert response.status_code == 200
    assert response.json()["status"] == "queued"
    assert response.headers["cache-control"] == "no-store"
    request = own_host.control.last("SupplyPrivateInputs")
    assert (request.id, dict(request.private_inputs.values)) == ("op-1", {"A": "hush"})


async def test_refused_replenishment(own_host: Host) -> None:
    """H-153, H-154, H-155: each refusal has its code, no value comes back, the Operation is named where it may be."""
    own_host.control.private_inputs = True
    for code, status in (
        ("private_inputs_conflict", 409),
        ("private_inputs_unverifiable", 409),
        ("operation_terminal", 409),
        ("capability_required", 422),
        ("not_found", 404),
        ("forbidden", 403),
    ):
        own_host.control.refusals["SupplyPrivateInputs"] = SaiseiError(code, "no", {"operationId": "op-1"})
        response = await own_host.client.put(REPLENISH, json={"privateInputs": {"A": "hush"}})
        assert assert_problem(response, status, code)["operationId"] == "op-1"
        assert "hush" not in response.text


async def test_previews(own_host: Host) -> None:
    """H-160: three closed envelopes without key and generation headers; the verdict is 200 either way."""
    own_host.control.previews = True
    own_host.control.preview = pb.PreviewMutationResponse(valid=True)
    url = ROOT + "/previews"
    answer = await own_host.client.post(url, json={"action": "create", "input": {**CREATE, "privateInputs": {}}})
    assert (answer.status_code, answer.json()) == (200, {"valid": True, "errors": []})
    create = own_host.control.last("PreviewMutation").create
    assert (create.form, create.space, create.name, create.spec_json) == (FORM, "default", "hello", "{}")
    assert create.HasField("private_inputs")
    own_host.control.preview = pb.PreviewMutationResponse(
        errors=[pb.OperationError(code="generation_conflict", message="stale")]
    )
    update = {"action": "update", "uid": "r-1", "expectedGeneration": 1.0, "input": {"spec": {"n": 1.0}}}
    answer = await own_host.client.post(url, json=update)
    assert answer.json() == {"valid": False, "errors": [{"code": "generation_conflict", "message": "stale"}]}
    seen = own_host.control.last("PreviewMutation").update
    assert (seen.uid, seen.expected_generation, seen.spec_json) == ("r-1", 1, '{"n":1.0}')
    await own_host.client.post(url, json={"action": "delete", "uid": "r-1", "expectedGeneration": 0})
    assert own_host.control.last("PreviewMutation").delete.HasField("expected_generation")


@pytest.mark.parametrize(
    "body",
    [
        [],
        {},
        {"action": "patch"},
        {"action": "create"},
        {"action": "create", "input": CREATE, "uid": "r-1"},
        {"action": "create", "input": {**CREATE, "extra": 1}},
        {"action": "update", "uid": "r-1", "input": {"spec": {}}},
        {"action": "update", "uid": "no uid", "expectedGeneration": 1, "input": {"spec": {}}},
        {"action": "update", "uid": "r-1", "expectedGeneration": 1, "input": {"spec": []}},
        {"action": "update", "uid": "r-1", "expectedGeneration": 1, "input": {"spec": {}, "privateInputs": None}},
        {"action": "delete", "uid": "r-1", "expectedGeneration": True},
        {"action": "delete", "uid": "r-1", "expectedGeneration": -1},
        {"action": "delete", "uid": "r-1", "expectedGeneration": 1.5},
        {"action": "delete", "uid": "r-1", "expectedGeneration": "1"},
        {"action": "delete", "uid": "r-1", "expectedGeneration": 2**53},
        {"action": "delete", "uid": "r-1", "expectedGeneration": 1, "input": {}},
    ],
)
async def test_preview_envelopes_are_closed(own_host: Host, body: object) -> None:
    """H-005, H-009, H-011, H-160: what is no preview is 400 and never reaches the control service."""
    own_host.control.previews = True
    assert_problem(await own_host.client.post(ROOT + "/previews", json=body), 400, "invalid_request")
    assert own_host.control.count("PreviewMutation") == 0


async def test_offerings(own_host: Host) -> None:
    """H-062: a page of the Form in the Space; both parameters are needed, and nothing else is known."""
    own_host.control.offerings = [
        pb.OfferingDescription(
            id="a", revision="1", form=FORM, label="Small", description="", terms_url="https://t.test/"
        ),
        pb.OfferingDescription(id="b", revision="2", form=FORM, label="Large", description="More"),
    ]
    url = ROOT + "/offerings"
    answer = await own_host.client.get(url, params={"form": FORM, "space": "default", "limit": 2})
    assert answer.json() == {
        "items": [
            {
                "id": "a",
                "revision": "1",
                "form": FORM,
                "label": "Small",
                "description": "",
                "termsUrl": "https://t.test/",
            },
            {"id": "b", "revision": "2", "form": FORM, "label": "Large", "description": "More"},
        ],
        "nextCursor": None,
    }
    for query in (
        {"form": FORM},
        {"space": "default"},
        {"form": FORM, "space": "no space"},
        {"form": "x", "space": "s"},
    ):
        assert_problem(await own_host.client.get(url, params=query), 400, "invalid_request")
    query = {"form": FORM, "space": "default", "extra": "1"}
    assert_problem(await own_host.client.get(url, params=query), 400, "invalid_request")


async def test_an_offering_is_chosen_and_shown(host: Host) -> None:
    """H-060, H-061, H-063: the pair of a create reaches control whole."""
    chosen = {"id": "a", "revision": "1"}
    await host.client.post(ROOT + "/resources", json={**CREATE, "offering": chosen}, headers=KEY)
    request = host.control.last("CreateResource")
    assert (request.offering.id, request.offering.revision) == ("a", "1")
    for bad in (None, {}, {"id": "a"}, {"id": "a", "revision": ""}, {"id": "a", "revision": 1}, {**chosen, "x": 1}):
        response = await host.client.post(ROOT + "/resources", json={**CREATE, "offering": bad}, headers=KEY)
        assert_problem(response, 400, "invalid_request")


async def test_schemes_are_those_of_the_control_service(own_host: Host) -> None:
    """H-042: discovery names each way to authenticate."""
    own_host.control.schemes = ("Bearer", "OIDC")
    body = (await own_host.client.get("/.well-known/takoform/v2")).json()
    assert body["authentication"]["schemes"] == ["Bearer", "OIDC"]


async def test_too_many_requests(run_host: HostFactory) -> None:
    """H-024, H-180: over its rate a principal is refused with 429 and Retry-After; others are not."""
    async with run_host(rate_per_second=0.01, rate_burst=3) as host:
        answers = [await host.client.get(ROOT + "/resources") for _ in range(4)]
        assert [answer.status_code for answer in answers] == [200, 200, 200, 429]
        assert_problem(answers[-1], 429, "rate_limited")
        assert 1 < int(answers[-1].headers["retry-after"]) <= 100
        other = await host.client.get(ROOT + "/resources", headers={"authorization": "Bearer reader"})
        assert other.status_code == 200
        host.control.refusals["ListResources"] = SaiseiError("rate_limited", "wait", {"retryAfterSeconds": "7"})
        refused = await host.client.get(ROOT + "/resources", headers={"authorization": "Bearer reader"})
        assert assert_problem(refused, 429, "rate_limited") and refused.headers["retry-after"] == "7"


async def _raw(host: Host, head: str, *parts: bytes) -> bytes:
    reader, writer = await asyncio.open_connection(
        "127.0.0.1", host.port, ssl=host.tls, server_hostname="localhost", ssl_handshake_timeout=30
    )
    # Reads from the beginning: who still writes into a connection that was answered and closed may lose the answer.
    reading = asyncio.create_task(reader.readuntil(b"}"))
    try:
        writer.write(head.encode())
        for part in parts:
            await asyncio.wait([reading], timeout=0.02)
            if reading.done():
                break
            writer.write(part)
        return await asyncio.wait_for(reading, 30)
    finally:
        reading.cancel()
        writer.close()
        with contextlib.suppress(ConnectionError, ssl.SSLError):
            await writer.wait_closed()


async def test_a_body_that_drips_is_cut_off(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    """H-015: neither a body that stops nor one that drips holds a connection for ever."""
    head = (
        f"POST {ROOT}/resources HTTP/1.1\r\nhost: localhost:{host.port}\r\nauthorization: Bearer writer\r\n"
        f"idempotency-key: {KEY['idempotency-key']}\r\ncontent-type: application/json\r\ncontent-length: 1000\r\n\r\n"
    )
    monkeypatch.setattr(request_rules, "BODY_SECONDS", 0.2)
    answer = await _raw(host, head, *([b" "] * 30))
    assert answer.startswith(b"HTTP/1.1 400") and b"invalid_request" in answer
    monkeypatch.setattr(request_rules, "BODY_SECONDS", 60)
    monkeypatch.setattr(request_rules, "BODY_IDLE_SECONDS", 0.1)
    assert b"did not arrive in time" in await _raw(host, head, b"{")


async def test_a_declared_body_of_a_delete_is_not_waited_for(host: Host) -> None:
    """H-034: a DELETE that announces a body is refused by its head."""
    head = (
        f"DELETE {ROOT}/resources/r-1 HTTP/1.1\r\nhost: localhost:{host.port}\r\nauthorization: Bearer writer\r\n"
        f"idempotency-key: {KEY['idempotency-key']}\r\ntakoform-expected-generation: 1\r\ncontent-length: 5\r\n\r\n"
    )
    assert (await _raw(host, head)).startswith(b"HTTP/1.1 400")
