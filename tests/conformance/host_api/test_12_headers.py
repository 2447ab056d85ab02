"""Contract 1.2 and 1.3: headers, routes, statuses, and the order of checks."""

from __future__ import annotations

from typing import Any

import httpx
import pytest
from tests.conformance.kit import (
    BUNDLE,
    MODULE_WORKER,
    UNKNOWN_FORM,
    Principal,
    accepted,
    fresh_key,
    fresh_name,
    problem,
)

BAD_KEYS = ["", "short", "a" * 15, "a" * 129, "-" + "a" * 20, "a b" * 8, "a/" * 10, ":" + "a" * 20]


@pytest.mark.parametrize("key", BAD_KEYS)
def test_idempotency_keys_follow_the_grammar(host: Principal, key: str) -> None:
    """H-020: on create, update and delete a malformed key is a 400."""
    resource = host.made()
    with host.nothing_changes():
        problem(host.post(host.envelope(), idempotency_key=key), 400, "invalid_request")
        problem(host.put(resource["uid"], {"spec": {}}, 1, idempotency_key=key), 400, "invalid_request")
        problem(host.delete(resource["uid"], 1, idempotency_key=key), 400, "invalid_request")


def test_the_idempotency_key_is_required_once(host: Principal) -> None:
    """H-020: it may be neither absent nor repeated."""
    uid = host.made()["uid"]
    generation = {"takoform-expected-generation": "1"}
    with host.nothing_changes():
        problem(host.request("POST", "/resources", host.envelope()), 400, "invalid_request")
        problem(host.request("PUT", f"/resources/{uid}", {"spec": {}}, generation), 400, "invalid_request")
        problem(host.request("DELETE", f"/resources/{uid}", None, generation), 400, "invalid_request")
        twice = httpx.Headers([("idempotency-key", fresh_key()), ("idempotency-key", fresh_key())])
        twice["authorization"] = f"Bearer {host.token}"
        problem(host.http.post(host.base + "/resources", json=host.envelope(), headers=twice), 400, "invalid_request")


@pytest.mark.parametrize("key", ["a" * 16, "A1._:-" + "z" * 122, "0:" + "-" * 20])
def test_keys_of_every_allowed_shape_are_taken(host: Principal, key: str) -> None:
    """H-020: 16 to 128 characters, with . _ : and -."""
    unique = fresh_key()
    key = (unique + key)[:128] if len(key) > 16 else unique[:16]
    accepted(host, host.post(host.envelope(), key))


def test_the_generation_is_required(host: Principal) -> None:
    """H-021: an update or delete without it is a 428."""
    uid = host.made()["uid"]
    key = {"idempotency-key": fresh_key()}
    with host.nothing_changes():
        put = host.request("PUT", f"/resources/{uid}", {"spec": {}}, key)
        problem(put, 428, "expected_generation_required")
        problem(host.request("DELETE", f"/resources/{uid}", None, key), 428, "expected_generation_required")


@pytest.mark.parametrize("generation", ["abc", "1.0", "+1", "-1", "", "01", "00", "0x1", "1e0", "1, 1", "1_0", "1 1"])
def test_malformed_generations_are_refused(host: Principal, generation: str) -> None:
    """H-021: a 400, and never taken for the number that it resembles."""
    uid = host.made()["uid"]
    with host.nothing_changes():
        problem(host.put(uid, {"spec": {}}, generation), 400, "invalid_request")
        problem(host.delete(uid, generation), 400, "invalid_request")


def test_a_repeated_generation_is_refused(host: Principal) -> None:
    """H-021: also when both say the same."""
    uid = host.made()["uid"]
    headers = httpx.Headers([("takoform-expected-generation", "1"), ("takoform-expected-generation", "1")])
    headers["authorization"], headers["idempotency-key"] = f"Bearer {host.token}", fresh_key()
    with host.nothing_changes():
        response = host.http.put(f"{host.base}/resources/{uid}", json={"spec": {}}, headers=headers)
        problem(response, 400, "invalid_request")


def test_stale_generations_conflict(host: Principal) -> None:
    """H-022, H-102: 0, an earlier and a later one are well-formed and stale; nothing changes."""
    uid = host.made()["uid"]
    host.settled(host.put(uid, {"spec": {}}, 1))
    with host.nothing_changes():
        for generation in (0, 1, 3):
            problem(host.put(uid, {"spec": {}}, generation), 409, "generation_conflict")
            problem(host.delete(uid, generation), 409, "generation_conflict")


def test_accepted_mutations_say_where_and_when(host: Principal) -> None:
    """H-023, H-024, H-030, H-031: create, update, delete: Location, Retry-After and status as the Operation stands."""
    operation = host.settled(host.post(host.envelope()))
    uid = operation["resourceUid"]
    host.settled(host.put(uid, {"spec": {}}, 1))
    host.settled(host.delete(uid, 2))


def test_a_settled_operation_answers_200_even_when_it_failed(host: Principal) -> None:
    """H-030: the replay of a create that failed is a 200 with the Operation."""
    failed = host.failed()
    body = host.envelope(BUNDLE, failed["spec"], failed["name"])
    key = fresh_key()
    problem(host.post(body, key), 409, "name_conflict")
    body = host.envelope(BUNDLE, failed["spec"])
    assert host.settled(host.post(body, key))["status"] == "failed"
    again = host.post(body, key)
    assert again.status_code == 200
    assert accepted(host, again)["status"] == "failed"


def test_refusals_carry_their_headers(host: Principal) -> None:
    """H-025: 401 says how to authenticate, 405 says what the path knows."""
    missing = host.http.get(f"{host.base}/resources")
    problem(missing, 401, "unauthenticated")
    scheme = missing.headers["www-authenticate"].split()[0]
    assert scheme.lower() in [name.lower() for name in host.discovery["authentication"]["schemes"]]
    uid = host.made()["uid"]
    for method, path, allowed in (
        ("PUT", "/resources", {"GET", "POST"}),
        ("DELETE", "/resources", {"GET", "POST"}),
        ("POST", f"/resources/{uid}", {"GET", "PUT", "DELETE"}),
        ("PATCH", f"/resources/{uid}", {"GET", "PUT", "DELETE"}),
        ("POST", "/operations/x", {"GET"}),
        ("DELETE", "/operations/x", {"GET"}),
        ("POST", "/support", {"GET"}),
        ("POST", f"{host.address.origin}/.well-known/takoform/v2", {"GET"}),
    ):
        response = host.request(method, path, headers={"content-length": "0"})
        problem(response, 405, "method_not_allowed")
        assert {part.strip() for part in response.headers["allow"].split(",")} - {"HEAD", "OPTIONS"} == allowed


def test_unknown_paths_are_not_found(host: Principal) -> None:
    """H-033: below the root and beside it."""
    for path in ("/nothing", "/resources/a/b", "/support/x", "/Resources"):
        problem(host.get(path), 404, "not_found")


@pytest.mark.parametrize(
    ("capability", "method", "path"),
    [
        ("offerings", "GET", "/offerings"),
        ("previews", "POST", "/previews"),
        ("privateInputs", "PUT", "/operations/op-x/private-inputs"),
    ],
)
def test_capabilities_that_are_not_advertised_are_unavailable(
    host: Principal, capability: str, method: str, path: str
) -> None:
    """H-032: 404 capability_unavailable for every method; an advertised one has its route and its methods."""
    if host.discovery["capabilities"][capability]:
        problem(host.request("PATCH", path, {}), 405, "method_not_allowed")
        assert host.request(method, path, {}).status_code in (400, 404)
        assert "capability_unavailable" not in host.request(method, path, {}).text
    else:
        for each in ("GET", "POST", "PUT", "DELETE"):
            problem(host.request(each, path), 404, "capability_unavailable")


def test_a_delete_takes_no_body(host: Principal) -> None:
    """H-034: an empty JSON object is a body too."""
    uid = host.made()["uid"]
    headers = {"idempotency-key": fresh_key(), "takoform-expected-generation": "1"}
    with host.nothing_changes():
        problem(host.request("DELETE", f"/resources/{uid}", {}, headers), 400, "invalid_request")
        problem(host.request("DELETE", f"/resources/{uid}", b"x", headers), 400, "invalid_request")


def _mistakes(host: Principal, uid: str, key_of_another: str) -> list[tuple[int, str, dict[str, Any]]]:
    """Faults of an update in the order in which they are found; each also carries all the later ones."""
    return [
        (405, "method_not_allowed", {"method": "PATCH"}),
        (401, "unauthenticated", {"token": "wrong"}),
        (400, "invalid_request", {"query": "?x=1"}),
        (400, "invalid_request", {"key": "short"}),
        (428, "expected_generation_required", {"generation": None}),
        (415, "unsupported_media_type", {"media": "text/plain"}),
        (413, "request_too_large", {"size": host.discovery["limits"]["maxRequestBytes"] + 1}),
        (400, "invalid_request", {"body": b'{"spec": '}),
        (404, "not_found", {"uid": "r-absent"}),
        (409, "idempotency_conflict", {"key": key_of_another}),
        (409, "generation_conflict", {"generation": "7"}),
        (422, "invalid_spec", {"body": b'{"spec":{"colour":1}}'}),
    ]


def test_the_first_failing_check_answers(host: Principal) -> None:
    """H-035: method, credential, query, headers, media type, size, JSON, Resource, key, generation, spec."""
    uid, key = host.made()["uid"], fresh_key()
    host.settled(host.post(host.envelope(), key))
    mistakes = _mistakes(host, uid, key)
    with host.nothing_changes():
        for first in range(len(mistakes)):
            made: dict[str, Any] = {}
            for _, _, mistake in reversed(mistakes[first:]):
                made |= mistake
            status, code, _ = mistakes[first]
            problem(_update(host, uid, made), status, code)


def _update(host: Principal, uid: str, made: dict[str, Any]) -> httpx.Response:
    headers = {
        "authorization": f"Bearer {made.get('token', host.token)}",
        "idempotency-key": made.get("key", fresh_key()),
        "content-type": made.get("media", "application/json"),
    }
    generation = made.get("generation", "1")
    if generation is not None:
        headers["takoform-expected-generation"] = generation
    body = made.get("body", b'{"spec":{}}').ljust(made.get("size", 0))
    url = f"{host.base}/resources/{made.get('uid', uid)}{made.get('query', '')}"
    return host.http.request(made.get("method", "PUT"), url, content=body, headers=headers)


def test_a_create_is_checked_in_order(host: Principal) -> None:
    """H-035, H-144: Space, then key, then Form, then spec, then references, then name; none of them uses the key up."""
    taken = host.made()["name"]
    used, fresh = fresh_key(), fresh_key()
    host.settled(host.post(host.envelope(), used))
    absent = {"worker": {"resourceUid": "r-absent"}, "className": "A"}
    workflow = MODULE_WORKER.replace("ModuleWorker", "DurableWorkflow")
    with host.nothing_changes():
        wrong = host.envelope(UNKNOWN_FORM, {"x": 1}, taken)
        problem(host.post(wrong, used), 409, "idempotency_conflict")
        problem(host.post(wrong, fresh), 422, "unsupported_form")
        problem(host.post(host.envelope(MODULE_WORKER, {"x": 1}, taken), fresh), 422, "invalid_spec")
        problem(host.post(host.envelope(workflow, absent, taken), fresh), 409, "dependency_conflict")
        problem(host.post(host.envelope(name=taken), fresh), 409, "name_conflict")
    accepted(host, host.post(host.envelope(name=fresh_name()), fresh))
