"""Contract 1.10 and 1.11: update, delete, Operations."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator

import pytest
from tests.conformance.host_api.conftest import Target, make_token
from tests.conformance.kit import (
    BUNDLE,
    DEPLOYMENT,
    ENDLESS,
    ENDPOINT,
    MODULE_WORKER,
    TERMINAL,
    VERSION,
    WORKFLOW,
    Json,
    Principal,
    accepted,
    fresh_key,
    fresh_name,
    problem,
    reference,
    seconds_between,
)
from tests.support.dev_host import DevHost, eventually


def slow(host: Principal) -> Json:
    """The Operation of a create that stays unfinished for some seconds: a WorkerVersion whose code never loads."""
    return accepted(host, host.post(host.envelope(VERSION, host.version_spec(ENDLESS))))


def test_an_update_replaces_the_whole_spec(host: Principal) -> None:
    """H-100: what the new spec leaves out is gone; it is no patch."""
    spec = host.version_spec()
    first, second = (host.made(VERSION, spec | {"vars": {"N": number}}) for number in (1, 2))
    deployment = host.made(DEPLOYMENT, {"worker": spec["worker"], "versions": _only(first)})
    wanted = {"worker": spec["worker"], "versions": _only(second)}
    assert host.settled(host.put(deployment["uid"], {"spec": wanted}, 1))["status"] == "succeeded"
    resource = host.resource(deployment["uid"])
    assert resource["spec"] == wanted
    assert (resource["name"], resource["form"], resource["space"]) == (deployment["name"], DEPLOYMENT, host.space)
    with host.nothing_changes():
        problem(host.put(deployment["uid"], {"spec": {"versions": _only(first)}}, 2), 422, "invalid_spec")


def _only(version: Json) -> list[Json]:
    return [{"workerVersion": reference(version), "weight": 10000}]


def test_one_unfinished_mutation_at_a_time(host: Principal) -> None:
    """H-102, H-036: busy is told before a stale generation, and leaves no trace; replays still work meanwhile."""
    body, key = host.envelope(VERSION, host.version_spec(ENDLESS)), fresh_key()
    operation = accepted(host, host.post(body, key))
    uid = operation["resourceUid"]
    before = host.resource(uid)
    assert before["phase"] == "pending"
    for generation in (1, 0, 9):
        problem(host.put(uid, {"spec": body["spec"]}, generation), 409, "resource_busy")
        problem(host.delete(uid, generation), 409, "resource_busy")
    assert accepted(host, host.post(body, key))["id"] == operation["id"]
    after = host.resource(uid)
    assert (after["generation"], after["lastOperation"]) == (1, operation["id"])


def test_refused_keys_of_a_busy_resource_are_free(host: Principal) -> None:
    """H-102, H-144: the key of a mutation that was refused as busy works once the Resource is idle."""
    operation, key = slow(host), fresh_key()
    uid = operation["resourceUid"]
    problem(host.delete(uid, 1, key), 409, "resource_busy")
    eventually(lambda: host.operation(operation["id"])["status"] in TERMINAL, within_seconds=60)
    assert host.settled(host.delete(uid, 1, key))["status"] == "succeeded"


def test_identity_never_moves(host: Principal) -> None:
    """H-104, H-071, F-06: no update changes Form, name, Space or what the Form calls immutable."""
    bundle = host.made(BUNDLE, host.bundle_spec())
    with host.nothing_changes():
        for field, value in (("form", MODULE_WORKER), ("name", "x"), ("space", "y"), ("offering", {"id": "a"})):
            problem(host.put(bundle["uid"], {"spec": bundle["spec"], field: value}, 1), 400, "invalid_request")
        problem(host.put(bundle["uid"], {"spec": host.bundle_spec("export default {};")}, 1), 422, "invalid_spec")


def test_a_delete_frees_the_name_and_retires_the_uid(host: Principal) -> None:
    """H-105, H-107: its Operation stays readable, the same key gives it again, another one 404 or 410."""
    resource, key = host.made(), fresh_key()
    operation = host.settled(host.delete(resource["uid"], 1, key))
    assert host.operation(operation["id"]) == operation
    assert accepted(host, host.delete(resource["uid"], 1, key)) == operation
    assert host.delete(resource["uid"], 2).status_code in (404, 410)
    again = host.made(name=resource["name"])
    assert again["uid"] != resource["uid"]
    assert accepted(host, host.delete(resource["uid"], 1, key)) == operation
    assert host.resource(again["uid"]) == again


def test_referred_resources_cannot_be_deleted(host: Principal) -> None:
    """H-106, H-108, F-04, F-10: whatever the referrer's phase, no cascade; each can go once its referrers are gone."""
    spec = host.version_spec()
    version = host.made(VERSION, spec)
    for target in (spec["worker"], spec["bundle"]):
        with host.nothing_changes():
            problem(host.delete(target["resourceUid"], 1), 409, "dependency_conflict")
    broken = host.settled(host.post(host.envelope(VERSION, host.version_spec("throw new Error('no');"))))
    assert broken["status"] == "failed"
    refused = host.resource(broken["resourceUid"])
    problem(host.delete(refused["spec"]["worker"]["resourceUid"], 1), 409, "dependency_conflict")
    for each in (refused, version):
        host.removed(each["uid"])
        for target in ("worker", "bundle"):
            assert host.removed(each["spec"][target]["resourceUid"])["status"] == "succeeded"


def test_failed_resources_can_be_repaired_or_removed(host: Principal) -> None:
    """H-108, H-112, H-113, H-194, F-09: by PUT and by DELETE of the same UID with its current generation."""
    artifact = host.bundle_spec(f"// {fresh_key()}\nexport default {{}};")["artifact"]
    failed = host.failed()
    operation = host.operation(failed["lastOperation"])
    assert (operation["status"], operation["effect"]) == ("failed", "none")
    assert operation["error"]["code"]
    again = host.settled(host.put(failed["uid"], {"spec": failed["spec"]}, 1))
    assert (again["status"], again["generation"]) == ("failed", 2)
    assert host.resource(failed["uid"])["phase"] == "error"
    assert host.settled(host.delete(failed["uid"], 2))["status"] == "succeeded"
    late = host.envelope(BUNDLE, {"artifact": artifact})
    assert host.settled(host.post(late))["status"] == "succeeded"


def test_a_reference_to_something_deleted_is_refused(host: Principal) -> None:
    """H-109, F-02, F-03: deleted, unknown, of another Form: one code and the same words."""
    gone, bundle = host.made(), host.made(BUNDLE, host.bundle_spec())
    host.removed(gone["uid"])
    with host.nothing_changes():
        for uid in (gone["uid"], "r-never", bundle["uid"]):
            spec = {"worker": {"resourceUid": uid}, "className": "A"}
            problem(host.post(host.envelope(WORKFLOW, spec)), 409, "dependency_conflict")


def test_operations_tell_the_whole_story(host: Principal) -> None:
    """H-110 … H-113, H-115, H-119: from acceptance to the end in allowed steps, without anyone pushing."""
    order = {"queued": 0, "running": 1, "reconciling": 2, "succeeded": 3, "failed": 3}
    operation = slow(host)
    seen = [operation]
    while seen[-1]["status"] not in TERMINAL:
        newer = eventually(lambda: host.operation(operation["id"]), within_seconds=60)
        if newer != seen[-1]:
            seen.append(newer)
    assert [order[each["status"]] for each in seen] == sorted(order[each["status"]] for each in seen)
    assert [each["updatedAt"] for each in seen] == sorted(each["updatedAt"] for each in seen)
    assert {each["createdAt"] for each in seen} == {operation["createdAt"]}
    assert (seen[-1]["status"], seen[-1]["effect"]) == ("failed", "none")
    assert host.operation(operation["id"]) == seen[-1]


def test_errors_of_operations_hold_nothing_internal(host: Principal) -> None:
    """H-113, H-182: a code and a sentence; no path of the Host, no stack of it."""
    operation = host.settled(host.post(host.envelope(VERSION, host.version_spec("throw new Error('mine');"))))
    error = operation["error"]
    assert error.keys() == {"code", "message"}
    for word in ("Traceback", "/usr", "/home", "/tmp", "node:internal", "sqlalchemy", "grpc", "vm.js"):
        assert word not in error["message"]


def test_retention_is_promised_from_acceptance_and_extended_at_the_end(host: Principal) -> None:
    """H-147: retainUntil is a window after acceptance at least, and after the end; a replay moves nothing."""
    window = host.discovery["limits"]["replayWindowSeconds"]
    body, key = host.envelope(), fresh_key()
    first = accepted(host, host.post(body, key))
    assert seconds_between(first["createdAt"], first["retainUntil"]) >= window
    last = host.settled(host.post(body, key))
    assert seconds_between(last["updatedAt"], last["retainUntil"]) >= window
    assert host.settled(host.post(body, key)) == last


@pytest.fixture
def stalled(target: Target, dev: DevHost) -> Iterator[Principal]:
    """Our Host, whose runtime can be halted and let go by the test; a Space of its own."""
    principal = Principal(target.address, make_token(dev, "stalled", stalled="read,write"), "stalled")
    yield principal
    os.kill(dev.service_pid("runtime"), signal.SIGCONT)
    principal.close()


def test_a_deletion_under_way_keeps_name_and_references(stalled: Principal, dev: DevHost) -> None:
    """H-092, H-105, H-109, H-112, H-116, H-117: deleting while the backend is silent, nothing new, then gone."""
    spec = stalled.version_spec()
    version = stalled.made(VERSION, spec)
    deployment = stalled.made(DEPLOYMENT, {"worker": spec["worker"], "versions": _only(version)})
    workflow = stalled.made(WORKFLOW, {"worker": spec["worker"], "className": "Report"})
    uid = workflow["uid"]
    os.kill(dev.service_pid("runtime"), signal.SIGSTOP)
    operation = accepted(stalled, stalled.delete(uid, 1, key := fresh_key()))
    resource = stalled.resource(uid)
    assert (resource["phase"], resource["generation"], resource["observedGeneration"]) == ("deleting", 2, 1)
    assert resource in stalled.walk(space="stalled")
    eventually(lambda: stalled.operation(operation["id"])["effect"] == "unknown", within_seconds=30)
    problem(stalled.post(stalled.envelope(name=workflow["name"])), 409, "name_conflict")
    problem(stalled.put(uid, {"spec": workflow["spec"]}, 2), 409, "resource_busy")
    problem(stalled.delete(uid, 2), 409, "resource_busy")
    problem(stalled.delete(spec["worker"]["resourceUid"], 1), 409, "dependency_conflict")
    bound = spec | {"workflowBindings": [{"name": "W", "resource": {"resourceUid": uid}}]}
    problem(stalled.post(stalled.envelope(VERSION, bound)), 409, "dependency_conflict")
    assert accepted(stalled, stalled.delete(uid, 1, key))["id"] == operation["id"]
    os.kill(dev.service_pid("runtime"), signal.SIGCONT)
    ended = stalled.settled(stalled.delete(uid, 1, key), within_seconds=60)
    assert (ended["id"], ended["status"]) == (operation["id"], "succeeded")
    assert stalled.get(f"/resources/{uid}").status_code in (404, 410)
    stalled.made(name=workflow["name"])
    assert stalled.removed(deployment["uid"])["status"] == "succeeded"


def test_an_endpoint_has_its_address_from_acceptance_on(host: Principal) -> None:
    """H-077: output is {} but for Forms that assign it at acceptance, and then it never changes."""
    spec = host.version_spec()
    version = host.made(VERSION, spec)
    host.made(DEPLOYMENT, {"worker": spec["worker"], "versions": _only(version)})
    operation = accepted(host, host.post(host.envelope(ENDPOINT, {"worker": spec["worker"]}, fresh_name())))
    output = host.resource(operation["resourceUid"])["output"]
    assert output["url"] == f"https://{output['hostname']}/"
    eventually(lambda: host.operation(operation["id"])["status"] == "succeeded", within_seconds=30)
    assert host.resource(operation["resourceUid"])["output"] == output
