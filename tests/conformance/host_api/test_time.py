"""What time does to Operations, keys, tombstones and cursors, on a Host of our own whose clock stands until told."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.conformance.kit import MODULE_WORKER, Address, Principal, accepted, answered, fresh_key, problem
from tests.support.dev_host import DevHost, eventually


@pytest.fixture(scope="module")
def timed() -> Iterator[Principal]:
    with DevHost("--virtual-clock") as dev:
        principal = Principal(Address(dev.ready["origin"], dev.ready["caFile"]), dev.token, "time")
        yield principal
        principal.close()


def advance(host: Principal, seconds: float) -> None:
    answered(host.request("POST", f"{host.address.origin}/test/v1/clock:advance", {"seconds": seconds}), 200)


def test_operations_and_keys_are_kept_for_the_promised_time_and_then_end(timed: Principal) -> None:
    """H-142, H-147, H-148, H-091: readable and replayable until retainUntil, replays move nothing; then neither."""
    window = timed.discovery["limits"]["replayWindowSeconds"]
    body, key = timed.envelope(), fresh_key()
    operation = timed.settled(timed.post(body, key))
    uid = operation["resourceUid"]
    advance(timed, window - 2)
    assert accepted(timed, timed.post(body, key)) == operation
    deleted = timed.settled(timed.delete(uid, 1, late := fresh_key()))
    advance(timed, window - 2)
    assert accepted(timed, timed.delete(uid, 1, late)) == deleted
    assert timed.get(f"/resources/{uid}").status_code in (404, 410)
    advance(timed, window)

    def forgotten() -> bool:
        response = timed.get(f"/operations/{deleted['id']}")
        assert response.status_code in (404, 410), response.text
        return True

    eventually(forgotten, within_seconds=30)
    assert timed.get(f"/operations/{operation['id']}").status_code in (404, 410)
    again = timed.settled(timed.post(body, key))
    assert again["id"] != operation["id"]
    assert again["resourceUid"] != uid


def test_a_living_resource_outlives_its_operations(timed: Principal) -> None:
    """H-075, H-147: lastOperation may be unreadable later; the Resource is not, and can still be changed."""
    resource = timed.made()
    advance(timed, timed.discovery["limits"]["replayWindowSeconds"] * 3)
    path = f"/operations/{resource['lastOperation']}"
    eventually(lambda: timed.get(path).status_code in (404, 410), within_seconds=30)
    assert timed.resource(resource["uid"]) == resource
    assert timed.settled(timed.put(resource["uid"], {"spec": {}}, 1))["generation"] == 2


def test_cursors_expire(timed: Principal) -> None:
    """H-095: an old cursor of the right walk is 409 cursor_expired; of a wrong walk it stays a 400."""
    for _ in range(2):
        timed.made()
    query = {"space": timed.space, "form": MODULE_WORKER, "limit": 1}
    cursor = answered(timed.get("/resources", **query), 200)["nextCursor"]
    advance(timed, 3600)
    answered(timed.get("/resources", **query, cursor=cursor), 200)
    advance(timed, 366 * 86_400)
    problem(timed.get("/resources", **query, cursor=cursor), 409, "cursor_expired")
    problem(timed.get("/resources", cursor=cursor), 400, "invalid_request")
