"""Contract 1.7 to 1.9: the Resource record, create, read, lists."""

from __future__ import annotations

import base64
import re
from typing import Any

import pytest
from tests.conformance.kit import (
    BUNDLE,
    ENDLESS,
    MODULE_WORKER,
    TIME_GRAMMAR,
    UID_GRAMMAR,
    VERSION,
    Json,
    Principal,
    accepted,
    answered,
    fresh_key,
    fresh_name,
    problem,
)


def check_resource(resource: Json) -> None:
    """What every Resource has at every moment (contract 1.7)."""
    assert resource.keys() - {"offering"} == {
        *("uid", "form", "space", "name", "generation", "observedGeneration", "observedAt", "phase"),
        *("spec", "observed", "output", "lastOperation"),
    }
    assert re.fullmatch(UID_GRAMMAR, resource["uid"])
    assert 0 <= resource["observedGeneration"] <= resource["generation"]
    assert (resource["observedAt"] is None) == (resource["observedGeneration"] == 0)
    assert resource["observedAt"] is None or re.fullmatch(TIME_GRAMMAR, resource["observedAt"])
    for field in ("spec", "observed", "output"):
        assert isinstance(resource[field], dict)


def test_a_resource_has_every_field(host: Principal) -> None:
    """H-070, H-071, H-073, H-074, H-075: after its create has succeeded, of generation 1 and idle."""
    operation = host.settled(host.post(host.envelope(name=(name := fresh_name()))))
    resource = host.resource(operation["resourceUid"])
    check_resource(resource)
    assert (resource["form"], resource["space"], resource["name"]) == (MODULE_WORKER, host.space, name)
    assert (resource["generation"], resource["observedGeneration"], resource["phase"]) == (1, 1, "idle")
    assert resource["lastOperation"] == operation["id"]
    assert ("offering" in resource) == host.discovery["capabilities"]["offerings"]


def test_names_are_unique_in_a_space_across_forms(host: Principal, other: Principal) -> None:
    """H-071, H-084: whatever the Form and the phase; the first one is untouched; other Spaces do not matter."""
    resource = host.made()
    with host.nothing_changes():
        problem(host.post(host.envelope(name=resource["name"])), 409, "name_conflict")
        problem(host.post(host.envelope(BUNDLE, host.bundle_spec(), resource["name"])), 409, "name_conflict")
    failed = host.failed()
    with host.nothing_changes():
        problem(host.post(host.envelope(name=failed["name"])), 409, "name_conflict")
    assert other.made(name=resource["name"])["uid"] != resource["uid"]
    assert host.made(name=resource["name"].upper())["name"] == resource["name"].upper()


def test_generations_count_accepted_changes(host: Principal) -> None:
    """H-072, H-073, H-103: 1 on create, one more for each update, also of an equal spec, and for the delete."""
    uid = host.made()["uid"]
    for generation in (1, 2, 3):
        operation = host.settled(host.put(uid, {"spec": {}}, generation))
        assert (operation["action"], operation["generation"]) == ("update", generation + 1)
        resource = host.resource(uid)
        check_resource(resource)
        assert resource["generation"] == resource["observedGeneration"] == generation + 1
        assert resource["lastOperation"] == operation["id"]
    deleted = host.removed(uid)
    assert (deleted["action"], deleted["generation"], deleted["resourceUid"]) == ("delete", 5, uid)


def test_a_failed_change_keeps_its_generation_and_observes_nothing(host: Principal) -> None:
    """H-072 … H-074, H-077: phase error, generation 1, and nothing observed."""
    failed = host.failed()
    check_resource(failed)
    assert (failed["phase"], failed["generation"], failed["observedGeneration"]) == ("error", 1, 0)
    assert (failed["observedAt"], failed["observed"], failed["output"]) == (None, {}, {})


def test_before_its_first_observation_a_resource_shows_none(host: Principal) -> None:
    """H-074, H-077, H-085, F-11: while its create is unfinished: pending, observed {} at null, generation 0."""
    operation = accepted(host, host.post(host.envelope(VERSION, host.version_spec(ENDLESS))))
    resource = host.resource(operation["resourceUid"])
    check_resource(resource)
    assert resource["phase"] == "pending"
    assert (resource["observed"], resource["observedAt"], resource["observedGeneration"]) == ({}, None, 0)
    assert resource["lastOperation"] == operation["id"]


def test_the_spec_comes_back_as_it_was_sent(host: Principal) -> None:
    """H-076: defaults are not written into it, and numbers and texts stay what they were."""
    worker, bundle = host.made(), host.made(BUNDLE, host.bundle_spec())
    spec: Json = {
        "worker": {"resourceUid": worker["uid"]},
        "bundle": {"resourceUid": bundle["uid"]},
        "handlers": ["fetch"],
        "vars": {"A": 1.5, "B": "é\u2028\U0001f600", "C": {"d": [1e3, -0.0, True, None, 9007199254740993]}},
    }
    assert host.made(VERSION, spec)["spec"] == spec


def test_uids_are_new_each_time(host: Principal) -> None:
    """H-070, H-107: a name may come back, a UID never."""
    name, seen = fresh_name(), set()
    for _ in range(3):
        uid = host.made(name=name)["uid"]
        assert uid not in seen
        seen.add(uid)
        host.removed(uid)
        assert host.get(f"/resources/{uid}").status_code in (404, 410)


def test_a_refused_create_leaves_nothing(host: Principal) -> None:
    """H-081, H-082: neither a name nor an Operation nor the key: the same name and key then work."""
    name, key = fresh_name(), fresh_key()
    problem(host.post(host.envelope(spec={"x": 1}, name=name), key), 422, "invalid_spec")
    problem(host.post(host.envelope(VERSION, {"worker": {"resourceUid": "r-x"}}, name), key), 422, "invalid_spec")
    operation = host.settled(host.post(host.envelope(name=name), key))
    assert host.resource(operation["resourceUid"])["name"] == name


def test_reading_changes_nothing(host: Principal) -> None:
    """H-090: many reads of a Resource, its Operation and lists leave every field as it was."""
    resource = host.made()
    operation = host.operation(resource["lastOperation"])
    for _ in range(20):
        assert host.resource(resource["uid"]) == resource
        assert host.operation(operation["id"]) == operation
        answered(host.get("/resources", space=host.space, name=resource["name"]), 200)


def test_unknown_and_deleted_uids(host: Principal) -> None:
    """H-091, H-101, H-107: 404 for a UID that never was; 404 or 410 for a deleted one, on every method."""
    problem(host.get("/resources/r-never"), 404, "not_found")
    problem(host.put("r-never", {"spec": {}}, 1), 404, "not_found")
    problem(host.delete("r-never", 1), 404, "not_found")
    assert "r-never" not in [item["uid"] for item in host.walk()]
    uid = host.made()["uid"]
    host.removed(uid)
    for response in (host.get(f"/resources/{uid}"), host.put(uid, {"spec": {}}, 2), host.delete(uid, 2)):
        assert response.status_code in (404, 410)
        problem(response, response.status_code, "gone" if response.status_code == 410 else "not_found")


def test_lists_filter_by_exact_equality(host: Principal) -> None:
    """H-092: each filter alone and all together, letter case counts, and no match is an empty page."""
    resource = host.made()
    uid, name = resource["uid"], resource["name"]
    for filters in (
        {"name": name},
        {"space": host.space, "name": name},
        {"space": host.space, "name": name, "form": MODULE_WORKER},
    ):
        assert [item["uid"] for item in host.walk(**filters)] == [uid]
    assert uid in [item["uid"] for item in host.walk(form=MODULE_WORKER)]
    for filters in (
        {"name": name.upper()},
        {"name": name[:-1]},
        {"name": name, "form": BUNDLE},
        {"name": name, "form": MODULE_WORKER.rstrip("/")},
    ):
        page = answered(host.get("/resources", **filters), 200)
        assert page == {"items": [], "nextCursor": None}
    item = host.walk(name=name)[0]
    check_resource(item)
    assert item == resource


def test_deleted_resources_leave_lists_and_failed_ones_stay(host: Principal) -> None:
    """H-092, H-107."""
    failed, deleted = host.failed(), host.made()
    host.removed(deleted["uid"])
    names = host.names()
    assert failed["name"] in names
    assert deleted["name"] not in names


@pytest.mark.parametrize("limit", ["0", "-1", "+1", "01", "1.0", "abc", "", "1e1", "\u0661", "9" * 30])
def test_page_limits_are_checked(host: Principal, limit: str) -> None:
    """H-093: what is no integer from 1 to maxPageSize is a 400."""
    problem(host.get("/resources", limit=limit), 400, "invalid_request")


def test_page_limits_end_at_the_maximum(host: Principal) -> None:
    """H-093: maxPageSize itself is taken, one more is not."""
    largest = host.discovery["limits"]["maxPageSize"]
    answered(host.get("/resources", limit=largest), 200)
    problem(host.get("/resources", limit=largest + 1), 400, "invalid_request")


@pytest.mark.parametrize("size", [1, 2, 3, 100])
def test_a_walk_sees_each_resource_once_in_order(host: Principal, size: int) -> None:
    """H-093, H-094: pages of any size, ascending by UID, no UID twice, null at the end; the size may change."""
    form = BUNDLE
    while len(host.walk(space=host.space, form=form)) < 5:
        host.failed()
    walked: list[str] = []
    for page in host.pages(size, space=host.space, form=form):
        assert len(page["items"]) <= size
        assert page["nextCursor"] is None or len(page["items"]) == size
        walked += [item["uid"] for item in page["items"]]
    assert walked == sorted(set(walked))
    assert walked == [item["uid"] for item in host.walk(space=host.space, form=form)]
    first = answered(host.get("/resources", space=host.space, form=form, limit=1), 200)
    second = answered(host.get("/resources", space=host.space, form=form, limit=2, cursor=first["nextCursor"]), 200)
    assert [item["uid"] for item in second["items"]] == walked[1:3]


def test_cursors_are_bound_to_their_walk(host: Principal, other: Principal) -> None:
    """H-095: another filter, one more, one less, or another principal: 400; so is a made-up or altered cursor."""
    for _ in range(2):
        host.made()
    query: dict[str, Any] = {"space": host.space, "form": MODULE_WORKER, "limit": 1}
    cursor = answered(host.get("/resources", **query), 200)["nextCursor"]
    assert isinstance(cursor, str)
    answered(host.get("/resources", **query, cursor=cursor), 200)
    for changed in (
        {"space": host.space},
        {"form": MODULE_WORKER},
        {},
        query | {"form": BUNDLE},
        query | {"name": "a"},
    ):
        problem(host.get("/resources", **changed, cursor=cursor), 400, "invalid_request")
    problem(other.get("/resources", limit=1, form=MODULE_WORKER, cursor=cursor), 400, "invalid_request")
    middle = cursor[len(cursor) // 2]
    altered = cursor.replace(middle, "A" if middle != "A" else "B", 1)
    uid = base64.urlsafe_b64encode(b'["r-0",0]').decode()
    for wrong in ("", "x", "null", altered, cursor[:-1], cursor + "A", cursor + "=", cursor.swapcase(), uid, "%00"):
        problem(host.get("/resources", **query, cursor=wrong), 400, "invalid_request")


def test_other_peoples_resources_do_not_thin_out_pages(host: Principal, other: Principal) -> None:
    """H-096: pages are full whatever lies between, and a cursor tells nobody's UID."""
    mine = [other.made() if number % 2 else host.made() for number in range(8)]
    ours = {item["uid"] for item in mine if item["space"] == host.space}
    theirs = {item["uid"] for item in mine if item["space"] == other.space}
    pages = list(other.pages(2))
    assert all(len(page["items"]) == 2 for page in pages[:-1])
    seen = {item["uid"] for page in pages for item in page["items"]}
    assert theirs <= seen
    assert not ours & seen
