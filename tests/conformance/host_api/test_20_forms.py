"""Contract 2.0: what all Forms share, as far as it is seen through the Host API."""

from __future__ import annotations

from typing import Any

import pytest
from tests.conformance.kit import (
    BUNDLE,
    DEPLOYMENT,
    ENDPOINT,
    MODULE_WORKER,
    VERSION,
    WORKFLOW,
    Json,
    Principal,
    problem,
    reference,
)


@pytest.fixture(scope="module")
def worker(host: Principal) -> Json:
    return host.made()


def test_specs_are_closed_at_every_depth(host: Principal, worker: Json) -> None:
    """F-01, H-010: unknown keys, nulls, wrong types and missing keys are refused before effects."""
    ref = reference(worker)
    bundle = {"url": "https://host.example/x", "sha256": "a" * 64}
    refused: list[tuple[str, Any]] = [
        (MODULE_WORKER, {"": None}),
        (BUNDLE, {}),
        (BUNDLE, {"artifact": None}),
        (BUNDLE, {"artifact": bundle | {"x": 1}}),
        (BUNDLE, {"artifact": bundle | {"sha256": "A" * 64}}),
        (BUNDLE, {"artifact": bundle | {"sha256": "a" * 63}}),
        (BUNDLE, {"artifact": bundle | {"url": "http://host.example/x"}}),
        (WORKFLOW, {"worker": ref}),
        (WORKFLOW, {"worker": ref, "className": None}),
        (WORKFLOW, {"worker": ref, "className": ""}),
        (WORKFLOW, {"worker": ref, "className": "a-b"}),
        (WORKFLOW, {"worker": ref, "className": "A\n"}),
        (WORKFLOW, {"worker": ref, "className": 1}),
        (WORKFLOW, {"worker": ref, "className": "A", "x": 1}),
        (ENDPOINT, {"worker": ref, "hostname": "x"}),
        (VERSION, {"worker": ref, "handlers": ["fetch", "fetch"]}),
        (VERSION, {"worker": ref, "bundle": ref, "handlers": [], "vars": {"a b": 1}}),
        (DEPLOYMENT, {"worker": ref, "versions": []}),
        (DEPLOYMENT, {"worker": ref, "versions": [{"workerVersion": ref, "weight": 9999}]}),
    ]
    with host.nothing_changes():
        for form, spec in refused:
            problem(host.post(host.envelope(form, spec)), 422, "invalid_spec")


@pytest.mark.parametrize("weight", ["0", "-1", "10001", "1.5", '"10000"', "true", "null", "1e400", "[10000]"])
def test_integers_are_not_coerced(host: Principal, worker: Json, weight: str) -> None:
    """F-01, H-004: strings, booleans, fractions and numbers out of range are no weights."""
    import json  # noqa: PLC0415

    spec = {"worker": reference(worker), "versions": [{"workerVersion": reference(worker), "weight": "@"}]}
    body = json.dumps(host.envelope(DEPLOYMENT, spec)).replace('"@"', weight).encode()
    status, code = (400, "invalid_request") if weight == "1e400" else (422, "invalid_spec")
    with host.nothing_changes():
        problem(host.post(body), status, code)


@pytest.mark.parametrize("weight", ["10000", "10000.0", "1e4", "100000e-1"])
def test_integers_of_any_spelling_are_integers(host: Principal, weight: str) -> None:
    """F-01, H-005: 1e4 is the integer 10000."""
    import json  # noqa: PLC0415

    spec = host.version_spec()
    version = host.made(VERSION, spec)
    wanted = {"worker": spec["worker"], "versions": [{"workerVersion": reference(version), "weight": "@"}]}
    body = json.dumps(host.envelope(DEPLOYMENT, wanted)).replace('"@"', weight).encode()
    assert host.settled(host.post(body))["status"] == "succeeded"


@pytest.mark.parametrize(
    "value",
    ["r-1", None, [], {}, {"uid": "r-1"}, {"resourceUid": 1}, {"resourceUid": None}, {"resourceUid": ""}]
    + [{"resourceUid": text} for text in ("a b", "a/b", "-a", "a\n", "a" * 129)]
    + [{"resourceUid": "r-1", "x": 1}],
)
def test_references_have_one_shape(host: Principal, value: Any) -> None:
    """F-02, F-03: anything but {"resourceUid": uid} is malformed, which is a matter of the spec."""
    with host.nothing_changes():
        problem(host.post(host.envelope(WORKFLOW, {"worker": value, "className": "A"})), 422, "invalid_spec")


def test_unusable_targets_are_all_alike(host: Principal, other: Principal) -> None:
    """F-02, F-03, H-109: unknown, deleted, of another Form, Space or principal: one status, code and wording."""
    gone, bundle, foreign = host.made(), host.made(BUNDLE, host.bundle_spec()), other.made()
    host.removed(gone["uid"])
    details = set()
    with host.nothing_changes():
        for uid in ("r-never", gone["uid"], bundle["uid"], foreign["uid"]):
            spec = {"worker": {"resourceUid": uid}, "className": "A"}
            refused = problem(host.post(host.envelope(WORKFLOW, spec)), 409, "dependency_conflict")
            details.add(refused.get("detail", "").replace(uid, "X"))
    assert len(details) == 1


def test_references_are_pinned_by_uid(host: Principal) -> None:
    """F-02: a Resource of the same name that is made later is another one."""
    worker = host.made()
    host.removed(worker["uid"])
    again = host.made(name=worker["name"])
    spec = {"worker": reference(worker), "className": "A"}
    problem(host.post(host.envelope(WORKFLOW, spec)), 409, "dependency_conflict")
    assert again["uid"] != worker["uid"]


def test_updates_are_checked_as_creates_are(host: Principal) -> None:
    """F-01, F-02, F-05, F-06: immutable fields and unusable targets are refused and use no generation up."""
    spec = host.version_spec()
    version = host.made(VERSION, spec)
    deployment = host.made(
        DEPLOYMENT, {"worker": spec["worker"], "versions": [{"workerVersion": reference(version), "weight": 10000}]}
    )
    uid = deployment["uid"]
    missing = [{"workerVersion": {"resourceUid": "r-never"}, "weight": 10000}]
    elsewhere = deployment["spec"] | {"worker": reference(host.made())}
    with host.nothing_changes():
        problem(host.put(uid, {"spec": deployment["spec"] | {"versions": missing}}, 1), 409, "dependency_conflict")
        problem(host.put(uid, {"spec": deployment["spec"] | {"x": 1}}, 1), 422, "invalid_spec")
        problem(host.put(uid, {"spec": elsewhere}, 1), 422, "invalid_spec")
    again = host.settled(host.put(uid, {"spec": deployment["spec"]}, 1))
    assert (again["status"], again["generation"]) == ("succeeded", 2)


def test_conflicts_with_other_resources(host: Principal) -> None:
    """F-05: a second Deployment, a second Endpoint, a class that nobody exports: dependency_conflict."""
    spec = host.version_spec()
    version = host.made(VERSION, spec)
    wanted = {"worker": spec["worker"], "versions": [{"workerVersion": reference(version), "weight": 10000}]}
    host.made(DEPLOYMENT, wanted)
    host.made(ENDPOINT, {"worker": spec["worker"]})
    with host.nothing_changes():
        problem(host.post(host.envelope(DEPLOYMENT, wanted)), 409, "dependency_conflict")
        problem(host.post(host.envelope(ENDPOINT, {"worker": spec["worker"]})), 409, "dependency_conflict")
        absent = {"worker": spec["worker"], "className": "Absent"}
        problem(host.post(host.envelope(WORKFLOW, absent)), 409, "dependency_conflict")


def test_observed_has_the_forms_fields(host: Principal) -> None:
    """F-11, F-08: exactly those of the Form once observed; a new workflow owns no instance."""
    spec = host.version_spec()
    bundle = host.resource(spec["bundle"]["resourceUid"])
    fields = {"manifestSha256", "fileCount", "totalBytes", "files", "entrypoint"}
    assert bundle["observed"].keys() == fields
    version = host.made(VERSION, spec)
    worker = host.resource(spec["worker"]["resourceUid"])
    assert worker["observed"] == {"activeDeploymentUid": None, "ready": False}
    wanted = {"worker": spec["worker"], "versions": [{"workerVersion": reference(version), "weight": 10000}]}
    deployment = host.made(DEPLOYMENT, wanted)
    assert host.resource(worker["uid"])["observed"] == {"activeDeploymentUid": deployment["uid"], "ready": True}
    workflow = host.made(WORKFLOW, {"worker": spec["worker"], "className": "Report"})
    assert set(workflow["observed"]["instanceCounts"].values()) == {0}


def test_lengths_count_scalars(host: Principal, worker: Json) -> None:
    """F-14: a class name is ASCII; a variable may have as many scalars as the Form says, whatever their bytes."""
    spec = {"worker": reference(worker), "className": "Ａ"}
    problem(host.post(host.envelope(WORKFLOW, spec)), 422, "invalid_spec")
    version = host.version_spec()
    for count, accepts in ((8192, True), (8193, False)):
        body = host.envelope(VERSION, version | {"vars": {"V": "\U0001f600" * count}})
        response = host.post(body)
        if accepts:
            assert host.settled(response)["status"] == "succeeded"
        else:
            problem(response, 422, "invalid_spec")


def test_bindings_need_the_right_to_their_target(host: Principal, other: Principal) -> None:
    """F-13, F-02, F-03: a WorkerVersion may not bind what its creator may not use."""
    foreign = other.version_spec()
    version = other.made(VERSION, foreign)
    versions = [{"workerVersion": reference(version), "weight": 10000}]
    other.made(DEPLOYMENT, {"worker": foreign["worker"], "versions": versions})
    workflow = other.made(WORKFLOW, {"worker": foreign["worker"], "className": "Report"})
    spec = host.version_spec()
    bindings = [{"name": "THEIRS", "resource": reference(workflow)}]
    with host.nothing_changes():
        problem(host.post(host.envelope(VERSION, spec | {"workflowBindings": bindings})), 409, "dependency_conflict")
