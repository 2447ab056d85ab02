"""Contract 1.13 and 1.14: private inputs and previews, as far as the Host advertises them."""

from __future__ import annotations

from typing import Any

import pytest
from tests.conformance.kit import (
    BUNDLE,
    DEPLOYMENT,
    ENDLESS,
    MODULE_WORKER,
    UNKNOWN_FORM,
    VERSION,
    WORKFLOW,
    Json,
    Principal,
    accepted,
    answered,
    fresh_key,
    problem,
)
from tests.support.dev_host import DevHost, eventually


def secret_spec(host: Principal, source: str | None = None) -> Json:
    spec = host.version_spec() if source is None else host.version_spec(source)
    return spec | {"requiredSensitiveVars": ["API_KEY", "OTHER"]}


def inputs(marker: str) -> dict[str, str]:
    return {"API_KEY": marker, "OTHER": marker[::-1]}


def advertised(host: Principal) -> bool:
    return bool(host.discovery["capabilities"]["privateInputs"])


@pytest.mark.parametrize("value", [[], "a", 1, True, {"A": 1}, {"A": None}, {"A": True}, {"A": ["a"]}, {"A": {}}])
def test_private_inputs_are_strings(host: Principal, value: Any) -> None:
    """H-150: anything else is a 400 on create, update and replenishment, and never coerced."""
    with host.nothing_changes():
        problem(host.post(host.envelope() | {"privateInputs": value}), 400, "invalid_request")
    problem(host.put(host.made()["uid"], {"spec": {}, "privateInputs": value}, 1), 400, "invalid_request")


@pytest.mark.parametrize("form", [MODULE_WORKER, BUNDLE, WORKFLOW, DEPLOYMENT])
def test_forms_without_secrets_take_none(host: Principal, form: str) -> None:
    """H-151, F-07, H-195: presence alone, even empty, needs the capability of Host and Form."""
    worker = host.made()
    specs: dict[str, Any] = {
        MODULE_WORKER: {},
        BUNDLE: host.bundle_spec(),
        WORKFLOW: {"worker": {"resourceUid": worker["uid"]}, "className": "A"},
        DEPLOYMENT: {"worker": {"resourceUid": worker["uid"]}, "versions": []},
    }
    with host.nothing_changes():
        for given in ({}, {"A": "b"}):
            refused = host.post(host.envelope(form, specs[form], privateInputs=given))
            problem(refused, 422, "capability_required")
    problem(host.put(worker["uid"], {"spec": {}, "privateInputs": {}}, 1), 422, "capability_required")


def test_names_are_the_forms(host: Principal) -> None:
    """H-152, WV-07: unknown, missing and empty ones are a 422; without the capability it is missing."""
    spec = secret_spec(host)
    code = "invalid_spec" if advertised(host) else "capability_required"
    with host.nothing_changes():
        for given in ({}, {"API_KEY": "a"}, {"API_KEY": "a", "OTHER": ""}, inputs("a") | {"MORE": "b"}):
            problem(host.post(host.envelope(VERSION, spec, privateInputs=given)), 422, code)
        problem(host.post(host.envelope(VERSION, spec)), 422, "invalid_spec")


def test_values_appear_nowhere(host: Principal, dev: DevHost) -> None:
    """H-153, H-113: not in the Resource, its Operation, lists, errors, replays, or a log; nor their digest."""
    import hashlib  # noqa: PLC0415

    marker = f"hidden-{fresh_key()}"
    body, key = host.envelope(VERSION, secret_spec(host), privateInputs=inputs(marker)), fresh_key()
    operation = host.settled(host.post(body, key))
    assert operation["status"] == "succeeded", operation
    uid = operation["resourceUid"]
    texts = [
        host.get(f"/resources/{uid}").text,
        host.get(f"/operations/{operation['id']}").text,
        host.get("/resources", name=body["name"]).text,
        host.post(body, key).text,
        host.post(body | {"privateInputs": inputs(marker) | {"X": marker}}, key).text,
        host.post(host.envelope(VERSION, body["spec"], privateInputs={"API_KEY": marker})).text,
        host.put(uid, {"spec": body["spec"], "privateInputs": inputs(marker + "x")}, 1).text,
        host.post(body | {"privateInputs": {"API_KEY": [marker]}}).text,
        *(path.read_text(errors="replace") for path in (dev.data_dir / "logs").glob("*.log")),
    ]
    for text in texts:
        assert marker not in text
        assert marker[::-1] not in text
        for digest in (hashlib.sha256, hashlib.sha1, hashlib.md5):
            assert digest(marker.encode()).hexdigest() not in text


def test_they_are_kept_encrypted(host: Principal, dev: DevHost) -> None:
    """H-153: no file of the data folder holds a value in the clear."""
    marker = f"hidden-{fresh_key()}"
    host.made(VERSION, secret_spec(host), privateInputs=inputs(marker))
    for path in dev.data_dir.rglob("*"):
        if path.is_file():
            assert marker.encode() not in path.read_bytes(), path


def test_they_take_part_in_request_equality(host: Principal) -> None:
    """H-141, H-143: the same replay; another value, one more, one less, or none conflict."""
    body = host.envelope(VERSION, secret_spec(host), privateInputs=inputs("one"))
    key = fresh_key()
    if not advertised(host):
        problem(host.post(body, key), 422, "capability_required")
        return
    operation = accepted(host, host.post(body, key))
    assert accepted(host, host.post(body, key))["id"] == operation["id"]
    without = {name: value for name, value in body.items() if name != "privateInputs"}
    for changed in (
        body | {"privateInputs": inputs("two")},
        body | {"privateInputs": {"API_KEY": "one"}},
        body | {"privateInputs": inputs("one") | {"X": ""}},
        body | {"privateInputs": {}},
        without,
    ):
        problem(host.post(changed, key), 409, "idempotency_conflict")


def test_an_update_may_leave_them_out(host: Principal) -> None:
    """H-101, H-103, H-156: what was stored stays; another value is no replenishment but refused by the Form."""
    version = host.made(VERSION, secret_spec(host), privateInputs=inputs("one"))
    operation = host.settled(host.put(version["uid"], {"spec": version["spec"]}, 1))
    assert operation["status"] == "succeeded"
    same = {"spec": version["spec"], "privateInputs": inputs("one")}
    assert host.settled(host.put(version["uid"], same, 2))["status"] == "succeeded"
    changed = {"spec": version["spec"], "privateInputs": inputs("two")}
    problem(host.put(version["uid"], changed, 3), 422, "invalid_spec")


def _replenish(host: Principal, operation_id: str, value: Any) -> Any:
    return host.request("PUT", f"/operations/{operation_id}/private-inputs", value)


def test_replenishment_compares_and_restarts_nothing(host: Principal) -> None:
    """H-026, H-154: the original map gives the current Operation, another one conflicts; no key, no generation."""
    if not advertised(host):
        problem(_replenish(host, "op-x", {"privateInputs": {}}), 404, "capability_unavailable")
        return
    body = host.envelope(VERSION, secret_spec(host, ENDLESS), privateInputs=inputs("one"))
    operation = accepted(host, host.post(body))
    url = operation["id"]
    for _ in range(2):
        current = answered(_replenish(host, url, {"privateInputs": inputs("one")}), 200)
        assert (current["id"], current["generation"]) == (url, 1)
        assert current["status"] in ("queued", "running", "reconciling")
    for wrong in (inputs("two"), {"API_KEY": "one"}, inputs("one") | {"X": "y"}, {}):
        problem(_replenish(host, url, {"privateInputs": wrong}), 409, "private_inputs_conflict")
    for malformed in ({}, {"privateInputs": None}, {"privateInputs": {"A": 1}}, {"privateInputs": {}, "x": 1}, []):
        problem(_replenish(host, url, malformed), 400, "invalid_request")
    eventually(lambda: host.operation(url)["status"] == "failed", within_seconds=60)
    problem(_replenish(host, url, {"privateInputs": inputs("one")}), 409, "operation_terminal")
    problem(_replenish(host, "op-absent", {"privateInputs": {}}), 404, "not_found")


def test_replenishment_needs_the_right_to_the_resource(host: Principal, other: Principal) -> None:
    """H-045, H-154: another principal learns nothing of the Operation."""
    if advertised(host):
        version = host.made(VERSION, secret_spec(host), privateInputs=inputs("one"))
        refused = _replenish(other, version["lastOperation"], {"privateInputs": inputs("one")})
        problem(refused, 404, "not_found")


def preview(host: Principal, body: Any) -> Json:
    found: Json = answered(host.request("POST", "/previews", body), 200)
    assert found.keys() >= {"valid", "errors"}
    assert found["valid"] == (found["errors"] == [])
    assert all(error.keys() >= {"code", "message"} for error in found["errors"])
    return found


def codes(found: Json) -> list[str]:
    return [error["code"] for error in found["errors"]]


def test_previews_judge_without_a_trace(host: Principal, other: Principal) -> None:
    """H-160, H-032, H-195: create, update and delete; neither Resource nor name nor Operation comes of them."""
    if not host.discovery["capabilities"]["previews"]:
        problem(host.request("POST", "/previews", {"action": "create"}), 404, "capability_unavailable")
        return
    resource = host.made()
    uid, bad = resource["uid"], {"spec": {"x": 1}}
    envelope = host.envelope()
    with host.nothing_changes():
        assert preview(host, {"action": "create", "input": envelope})["valid"]
        assert preview(host, {"action": "create", "input": envelope})["valid"]
        for changed, code in (
            ({"form": UNKNOWN_FORM}, "unsupported_form"),
            ({"spec": {"x": 1}}, "invalid_spec"),
            ({"name": resource["name"]}, "name_conflict"),
            ({"privateInputs": {}}, "capability_required"),
        ):
            assert codes(preview(host, {"action": "create", "input": envelope | changed})) == [code]
        update = {"action": "update", "uid": uid, "expectedGeneration": 1, "input": {"spec": {}}}
        assert preview(host, update)["valid"]
        assert codes(preview(host, update | {"input": bad})) == ["invalid_spec"]
        assert codes(preview(host, update | {"expectedGeneration": 2})) == ["generation_conflict"]
        delete = {"action": "delete", "uid": uid, "expectedGeneration": 1}
        assert preview(host, delete)["valid"]
        assert codes(preview(host, delete | {"expectedGeneration": 0})) == ["generation_conflict"]
    accepted(host, host.post(envelope))
    unseen, absent = ({"action": "delete", "uid": each, "expectedGeneration": 1} for each in (uid, "r-never"))
    answers = [other.request("POST", "/previews", body) for body in (unseen, absent)]
    assert answers[0].status_code == answers[1].status_code
    assert answers[0].text.replace(uid, "X") == answers[1].text.replace("r-never", "X")


@pytest.mark.parametrize(
    "body",
    [
        {},
        [],
        {"action": "read"},
        {"action": "create"},
        {"action": "create", "input": {}},
        {"action": "create", "input": None},
        {"action": "update", "uid": "r-1", "expectedGeneration": "1", "input": {"spec": {}}},
        {"action": "update", "uid": "r-1", "expectedGeneration": 1.5, "input": {"spec": {}}},
        {"action": "update", "uid": "r-1", "expectedGeneration": True, "input": {"spec": {}}},
        {"action": "update", "uid": "r 1", "expectedGeneration": 1, "input": {"spec": {}}},
        {"action": "update", "uid": "r-1", "expectedGeneration": 1, "input": {"spec": []}},
        {"action": "update", "uid": "r-1", "input": {"spec": {}}},
        {"action": "delete", "uid": "r-1", "expectedGeneration": 1, "input": {}},
        {"action": "delete", "uid": "r-1", "expectedGeneration": -1},
        {"action": "delete", "uid": "r-1"},
    ],
)
def test_previews_are_of_three_shapes(host: Principal, body: Any) -> None:
    """H-160, H-009, H-005: anything else is a 400."""
    if host.discovery["capabilities"]["previews"]:
        problem(host.request("POST", "/previews", body), 400, "invalid_request")
    else:
        problem(host.request("POST", "/previews", body), 404, "capability_unavailable")
