"""The baseline of the public probe of Host API v2 (`conformance/v2` of the specification): one lifecycle, in order."""

from __future__ import annotations

import re

from tests.conformance.kit import (
    MODULE_WORKER,
    TIME_GRAMMAR,
    UNKNOWN_FORM,
    Principal,
    accepted,
    answered,
    fresh_key,
    fresh_name,
    problem,
    seconds_between,
)


def test_the_probes_lifecycle(host: Principal) -> None:
    """H-190, H-191, H-192: discovery, Support, refusal, create, read, list, update, replay, conflict, stale, delete."""
    discovery = host.http.get(f"{host.address.origin}/.well-known/takoform/v2").json()
    assert discovery["api"] == "forms.takoform.com/v2"
    assert re.fullmatch(r"https://[^/?#@\\\s]+(/[^?#\\\s]*[^/?#\\\s])?", discovery["baseUrl"])
    window = discovery["limits"]["replayWindowSeconds"]

    support = answered(host.get("/support", form=MODULE_WORKER), 200)
    assert support["form"] == MODULE_WORKER
    # A Host may take a Form as a preview before it calls it supported.
    assert sorted(support["operations"]) == (["create", "delete", "read", "update"] if support["supported"] else [])
    assert isinstance(support["privateInputs"], bool)
    negative = answered(host.get("/support", form=UNKNOWN_FORM), 200)
    assert negative == {"form": UNKNOWN_FORM, "supported": False, "operations": [], "privateInputs": False}
    problem(host.post(host.envelope() | {"form": UNKNOWN_FORM}), 422, "unsupported_form")

    name, spec = fresh_name("lifecycle"), {}
    body, key = host.envelope(MODULE_WORKER, spec, name), fresh_key()
    response = host.post(body, key)
    first = accepted(host, response)
    assert first["action"] == "create"
    assert first["generation"] == 1
    created = host.settled(response)
    assert created["status"] == "succeeded"
    uid = created["resourceUid"]
    assert host.operation(created["id"]) == created
    for field in ("createdAt", "updatedAt", "retainUntil"):
        assert re.fullmatch(TIME_GRAMMAR, created[field])
    assert seconds_between(created["updatedAt"], created["retainUntil"]) >= window

    resource = host.resource(uid)
    assert (resource["uid"], resource["form"], resource["space"], resource["name"]) == (
        *(uid, MODULE_WORKER, host.space),
        name,
    )
    assert (resource["generation"], resource["phase"], resource["spec"]) == (1, "idle", spec)
    assert resource["lastOperation"] == created["id"]
    listed = host.walk(space=host.space, name=name, form=MODULE_WORKER)
    assert listed == [resource]

    assert accepted(host, host.post(body, key))["id"] == created["id"]
    problem(host.post(body | {"name": name + "-x"}, key), 409, "idempotency_conflict")

    update_key = fresh_key()
    updated = host.settled(host.put(uid, {"spec": spec}, 1, update_key))
    assert (updated["resourceUid"], updated["action"], updated["generation"]) == (uid, "update", 2)
    assert updated["status"] == "succeeded"
    assert updated["id"] != created["id"]
    assert host.resource(uid)["generation"] == 2
    assert accepted(host, host.put(uid, {"spec": spec}, 1, update_key))["id"] == updated["id"]
    problem(host.put(uid, {"spec": spec}, 2, update_key), 409, "idempotency_conflict")
    problem(host.put(uid, {"spec": spec}, 1), 409, "generation_conflict")
    problem(host.delete(uid, 1), 409, "generation_conflict")

    delete_key = fresh_key()
    deleted = host.settled(host.delete(uid, 2, delete_key))
    assert (deleted["resourceUid"], deleted["action"], deleted["generation"]) == (uid, "delete", 3)
    assert deleted["status"] == "succeeded"
    assert accepted(host, host.delete(uid, 2, delete_key))["id"] == deleted["id"]
    assert host.get(f"/resources/{uid}").status_code in (404, 410)
    assert host.walk(space=host.space, name=name) == []
    assert host.operation(deleted["id"]) == deleted
    assert host.delete(uid, 3).status_code in (404, 410)
