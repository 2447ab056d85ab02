"""Contract 1.12: idempotency, request equality, retention."""

from __future__ import annotations

import json

import pytest
from tests.conformance.kit import (
    BUNDLE,
    MODULE_WORKER,
    VERSION,
    WORKFLOW,
    Json,
    Principal,
    accepted,
    fresh_key,
    fresh_name,
    problem,
)
from tests.support.dev_host import DevHost, eventually


def test_a_replay_is_the_same_operation_in_its_current_state(host: Principal) -> None:
    """H-142, H-145: of create, update and delete; also after the Resource has moved on and is gone."""
    body, keys = host.envelope(), [fresh_key() for _ in range(3)]
    created = host.settled(host.post(body, keys[0]))
    uid = created["resourceUid"]
    assert accepted(host, host.post(body, keys[0])) == created
    updated = host.settled(host.put(uid, {"spec": {}}, 1, keys[1]))
    deleted = host.settled(host.delete(uid, 2, keys[2]))
    for _ in range(2):
        assert accepted(host, host.post(body, keys[0])) == created
        assert accepted(host, host.put(uid, {"spec": {}}, 1, keys[1])) == updated
        assert accepted(host, host.delete(uid, 2, keys[2])) == deleted
    assert host.get(f"/resources/{uid}").status_code in (404, 410)


def test_a_replay_outlives_its_references(host: Principal) -> None:
    """H-142: what the spec referred to may be gone by now."""
    spec = host.version_spec()
    body, key = host.envelope(VERSION, spec), fresh_key()
    created = host.settled(host.post(body, key))
    host.removed(created["resourceUid"])
    host.removed(spec["worker"]["resourceUid"])
    assert accepted(host, host.post(body, key)) == created


def test_another_request_with_the_key_conflicts(host: Principal) -> None:
    """H-143: another name, spec, generation, UID or method; nothing happens, and the original stays replayable."""
    body, key = host.envelope(), fresh_key()
    operation = host.settled(host.post(body, key))
    one, two = host.made()["uid"], host.made()["uid"]
    changed = host.settled(host.put(one, {"spec": {}}, 1, other := fresh_key()))
    with host.nothing_changes():
        for request in (
            lambda: host.post(body | {"name": fresh_name()}, key),
            lambda: host.post(body | {"form": BUNDLE}, key),
            lambda: host.post(body | {"spec": {"x": 1}}, key),
            lambda: host.put(one, {"spec": {}}, 2, key),
            lambda: host.delete(one, 2, key),
            lambda: host.put(one, {"spec": {}}, 2, other),
            lambda: host.put(two, {"spec": {}}, 1, other),
            lambda: host.delete(one, 1, other),
            lambda: host.post(body, other),
        ):
            assert "operationId" not in problem(request(), 409, "idempotency_conflict")
    assert accepted(host, host.post(body, key)) == operation
    assert accepted(host, host.put(one, {"spec": {}}, 1, other)) == changed


def test_a_malformed_request_fails_its_syntax_check_first(host: Principal) -> None:
    """H-143: whatever the key was used for."""
    key = fresh_key()
    host.settled(host.post(host.envelope(), key))
    problem(host.post(b"{", key), 400, "invalid_request")
    problem(host.post(host.envelope() | {"x": 1}, key), 400, "invalid_request")


# JSON values that H-140 calls equal, and values that it does not.
EQUAL = [
    ("1", "1.0"),
    ("1", "1e0"),
    ("100", "1E2"),
    ("0", "-0"),
    ("0.5", "5e-1"),
    ("-0.0", "0e9"),
    ("9007199254740993", "9007199254740993.000"),
    ('"a"', '"\\u0061"'),
    ('"/"', '"\\/"'),
    ('"\U0001f600"', '"\\ud83d\\ude00"'),
    ('{"a":1,"b":2}', '{ "b" : 2.0, "a" : 1 }'),
    ("[1,2]", "[ 1.0 ,\n2 ]"),
]
DIFFERENT = [
    ("1", "true"),
    ("0", "false"),
    ("0", "null"),
    ("1", '"1"'),
    ("1", "1.0000000000000002"),
    ("9007199254740992", "9007199254740993"),
    ("0.1", "0.1000000000000000055511151231257827"),
    ("[1,2]", "[2,1]"),
    ('"\u00e9"', '"e\u0301"'),
    ('"a"', '"A"'),
    ('{"a":null}', "{}"),
    ("{}", "[]"),
    ('""', "null"),
    ('"a"', '"a "'),
]


def _variants(host: Principal, spec: Json, left: str, right: str) -> tuple[bytes, bytes]:
    text = json.dumps(host.envelope(VERSION, spec | {"vars": {"V": "@"}}))
    return text.replace('"@"', left).encode(), text.replace('"@"', right).encode()


@pytest.fixture(scope="module")
def version_spec(host: Principal) -> Json:
    return host.version_spec()


@pytest.mark.parametrize(("left", "right"), EQUAL)
def test_equal_requests_replay(host: Principal, version_spec: Json, left: str, right: str) -> None:
    """H-140: spelling, key order and white space do not count; numbers are equal mathematically."""
    first, second = _variants(host, version_spec, left, right)
    key = fresh_key()
    operation = accepted(host, host.post(first, key))
    assert accepted(host, host.post(second, key))["id"] == operation["id"]


@pytest.mark.parametrize(("left", "right"), DIFFERENT)
def test_different_requests_conflict(host: Principal, version_spec: Json, left: str, right: str) -> None:
    """H-140, H-143: type, exact value, order, absence and letters count, both ways round."""
    first, second = _variants(host, version_spec, left, right)
    renamed = [body.replace(b'"n-', b'"m-', 1) for body in (second, first)]
    for one, another in ((first, second), renamed):
        key = fresh_key()
        accepted(host, host.post(one, key))
        problem(host.post(another, key), 409, "idempotency_conflict")


def test_absence_is_part_of_the_request(host: Principal, version_spec: Json) -> None:
    """H-140: a key with its default value is not the same as no key."""
    body, key = host.envelope(VERSION, version_spec), fresh_key()
    accepted(host, host.post(body, key))
    problem(host.post(body | {"spec": version_spec | {"vars": {}}}, key), 409, "idempotency_conflict")


def test_the_query_is_part_of_the_request(host: Principal) -> None:
    """H-140: a mutation has no query parameters; one that brings some is refused before its key is looked at."""
    body, key = host.envelope(), fresh_key()
    accepted(host, host.post(body, key))
    problem(host.request("POST", "/resources?a=1", body, {"idempotency-key": key}), 400, "invalid_request")
    accepted(host, host.request("POST", "/resources?", body, {"idempotency-key": key}))


def test_principals_have_their_own_keys(host: Principal, other: Principal) -> None:
    """H-130, H-146, H-192: the same key and body of two principals are two Operations; neither sees the other's."""
    key, name = fresh_key(), fresh_name()
    mine = accepted(host, host.post(host.envelope(name=name), key))
    theirs = accepted(other, other.post(other.envelope(name=name), key))
    assert mine["id"] != theirs["id"]
    assert mine["resourceUid"] != theirs["resourceUid"]
    problem(other.get(f"/operations/{mine['id']}"), 404, "not_found")
    problem(other.post(host.envelope(name=name), key), 403, "forbidden")


def test_refused_requests_use_no_key_up(host: Principal) -> None:
    """H-144: refusals of every class before acceptance leave the key free."""
    key, taken = fresh_key(), host.made()["name"]
    absent = {"worker": {"resourceUid": "r-absent"}, "className": "A"}
    problem(host.post(b"{", key), 400, "invalid_request")
    problem(host.post(host.envelope(), key, content_type="text/plain"), 415, "unsupported_media_type")
    problem(host.post(host.envelope(spec={"x": 1}), key), 422, "invalid_spec")
    problem(host.post(host.envelope(WORKFLOW, absent), key), 409, "dependency_conflict")
    problem(host.post(host.envelope(name=taken), key), 409, "name_conflict")
    accepted(host, host.post(host.envelope(MODULE_WORKER), key))


def test_everything_survives_a_restart(host: Principal, dev: DevHost) -> None:
    """H-145, H-047, H-095: keys, Operations, Resources, cursors and tokens, after each process was killed."""
    import os  # noqa: PLC0415
    import signal  # noqa: PLC0415

    body, key = host.envelope(), fresh_key()
    operation = host.settled(host.post(body, key))
    resource = host.resource(operation["resourceUid"])
    host.made()
    query = {"space": host.space, "form": MODULE_WORKER, "limit": 1}
    cursor = host.get("/resources", **query).json()["nextCursor"]
    for service in ("gateway", "control"):
        os.kill(dev.service_pid(service), signal.SIGKILL)

    def back() -> bool:
        import httpx  # noqa: PLC0415

        try:
            return bool(host.get("/resources", limit=1).status_code == 200)
        except httpx.HTTPError:
            return False

    eventually(back, within_seconds=30)
    assert accepted(host, host.post(body, key)) == operation
    assert host.resource(resource["uid"]) == resource
    assert host.get("/resources", **query, cursor=cursor).status_code == 200
