"""The optional parts of the Host API over real HTTPS: private inputs, previews, Offerings."""

from __future__ import annotations

from tests.gateway.conftest import ROOT, Host
from tests.gateway.test_host_api import assert_problem

from saisei_contract.errors import SaiseiError

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
