"""Contract 1.4 to 1.6: discovery, authentication, authorization, Support, Offerings."""

from __future__ import annotations

import re
from urllib.parse import quote, urlsplit

import pytest
from tests.conformance.host_api.conftest import make_token
from tests.conformance.kit import (
    BUNDLE,
    DEPLOYMENT,
    ENDPOINT,
    MODULE_WORKER,
    UNKNOWN_FORM,
    VERSION,
    WORKFLOW,
    Principal,
    accepted,
    answered,
    fresh_key,
    problem,
    reference,
)
from tests.support.dev_host import DevHost, eventually

ALL = (MODULE_WORKER, BUNDLE, VERSION, DEPLOYMENT, WORKFLOW, ENDPOINT)


def test_discovery_has_every_field(host: Principal) -> None:
    """H-040, H-042, H-043: without a credential, all fields with their types, positive limits."""
    response = host.http.get(f"{host.address.origin}/.well-known/takoform/v2")
    assert response.status_code == 200
    assert response.headers["content-type"].startswith("application/json")
    body = response.json()
    assert body["api"] == "forms.takoform.com/v2"
    assert body.keys() >= {"baseUrl", "documentation", "authentication", "capabilities", "limits"}
    assert body["capabilities"].keys() >= {"offerings", "previews", "privateInputs"}
    assert all(isinstance(value, bool) for value in body["capabilities"].values())
    for name in ("maxRequestBytes", "maxPageSize", "replayWindowSeconds"):
        limit = body["limits"][name]
        assert isinstance(limit, int)
        assert not isinstance(limit, bool)
        assert 0 < limit <= 9007199254740991
    schemes = body["authentication"]["schemes"]
    assert schemes
    assert all(isinstance(scheme, str) and scheme for scheme in schemes)
    for url in (body["documentation"], body["authentication"]["documentation"]):
        assert re.fullmatch(r"https://[!-~]+", url)


def test_discovery_tells_the_same_to_everybody(host: Principal) -> None:
    """H-040: with a credential, a wrong one or none it says the same, and nothing of any Resource."""
    url = f"{host.address.origin}/.well-known/takoform/v2"
    resource = host.made()
    bodies = [host.http.get(url), host.get(url), host.http.get(url, headers={"authorization": "Bearer wrong"})]
    assert bodies[0].json() == bodies[1].json() == bodies[2].json()
    assert resource["uid"] not in bodies[1].text
    assert host.space not in bodies[1].text


def test_the_base_url_is_of_the_same_origin(host: Principal) -> None:
    """H-041: absolute https, same origin, no userinfo, query, fragment, trailing slash, backslash or white space."""
    base = host.discovery["baseUrl"]
    assert re.fullmatch(r"https://[A-Za-z0-9.\-:\[\]]+(/[!-~]*)?", base)
    assert not set("?#@\\ ") & set(base)
    assert not base.endswith("/")
    assert urlsplit(base).netloc == urlsplit(host.address.origin).netloc


@pytest.mark.parametrize(
    "authorization",
    ["", "Bearer", "Bearer wrong", "Basic dGVzdDp0ZXN0", "Bearer a b", "Token x", "Bearer a,b"],
)
def test_every_route_but_discovery_authenticates(host: Principal, authorization: str) -> None:
    """H-044, H-025: each time, whatever else is right or wrong with the request."""
    uid = host.made()["uid"]
    headers = {"authorization": authorization, "idempotency-key": fresh_key(), "takoform-expected-generation": "1"}
    with host.nothing_changes():
        for method, path, body in (
            ("GET", f"/support?form={quote(MODULE_WORKER, safe='')}", None),
            ("GET", "/resources", None),
            ("POST", "/resources", host.envelope()),
            ("GET", f"/resources/{uid}", None),
            ("PUT", f"/resources/{uid}", {"spec": {}}),
            ("DELETE", f"/resources/{uid}", None),
            ("GET", "/operations/op-absent", None),
        ):
            response = host.request(method, path, body, headers)
            problem(response, 401, "unauthenticated")
            assert response.headers["www-authenticate"]


def test_a_token_with_more_around_it_is_none(host: Principal) -> None:
    """H-044: two Authorization headers, or another letter at the end, are no credential."""
    headers = [("authorization", f"Bearer {host.token}"), ("authorization", f"Bearer {host.token}")]
    problem(host.http.get(f"{host.base}/resources", headers=headers), 401, "unauthenticated")
    problem(
        host.request("GET", "/resources", headers={"authorization": f"Bearer {host.token}x"}), 401, "unauthenticated"
    )
    problem(
        host.request("GET", "/resources", headers={"authorization": f"Bearer {host.token[:-1]}"}),
        401,
        "unauthenticated",
    )


def test_other_principals_see_and_change_nothing(host: Principal, other: Principal) -> None:
    """H-044 … H-046: Resources and Operations of a foreign Space are not found, the Space itself is forbidden."""
    resource = host.made()
    uid, operation = resource["uid"], resource["lastOperation"]
    with host.nothing_changes():
        problem(other.get(f"/resources/{uid}"), 404, "not_found")
        problem(other.get(f"/operations/{operation}"), 404, "not_found")
        problem(other.put(uid, {"spec": {}}, 1), 404, "not_found")
        problem(other.delete(uid, 1), 404, "not_found")
        problem(other.post(other.envelope(space=host.space)), 403, "forbidden")
        problem(other.post(other.envelope(space=host.space, name=resource["name"])), 403, "forbidden")
        problem(other.get("/resources", space=host.space), 403, "forbidden")
    assert uid not in [item["uid"] for item in other.walk()]


def test_refusals_of_the_unseen_and_of_the_unknown_are_the_same(host: Principal, other: Principal) -> None:
    """H-046, H-182: nobody learns from an answer whether a foreign Resource exists."""
    resource = host.made()
    for path, real in (("/resources", resource["uid"]), ("/operations", resource["lastOperation"])):
        absent = real[:-6] + "abcdef"
        seen, unseen = other.get(f"{path}/{real}"), other.get(f"{path}/{absent}")
        assert seen.text.replace(real, "X") == unseen.text.replace(absent, "X")
        assert seen.headers.keys() == unseen.headers.keys()


def test_reading_writing_and_using_are_separate(host: Principal, dev: DevHost) -> None:
    """H-044, H-035, F-03: a reader may not write (403); a writer of one Space may not refer into another."""
    reader = Principal(host.address, make_token(dev, "reader", **{host.space: "read"}), host.space)
    writer = Principal(
        host.address, make_token(dev, "writer", **{host.space: "write"}, elsewhere="read,write"), "elsewhere"
    )
    worker = host.made()
    assert reader.resource(worker["uid"]) == worker
    assert reader.operation(worker["lastOperation"])["resourceUid"] == worker["uid"]
    with host.nothing_changes():
        problem(reader.post(reader.envelope()), 403, "forbidden")
        problem(reader.put(worker["uid"], {"spec": {}}, 1), 403, "forbidden")
        problem(reader.delete(worker["uid"], 1), 403, "forbidden")
        spec = {"worker": reference(worker), "className": "A"}
        problem(writer.post(writer.envelope(WORKFLOW, spec)), 409, "dependency_conflict")
    problem(writer.get(f"/resources/{worker['uid']}"), 404, "not_found")


def test_a_principal_survives_its_credential(host: Principal, dev: DevHost) -> None:
    """H-047, H-130, H-146: another token of the principal owns and replays the same; a revoked one gets nothing."""
    tokens = [make_token(dev, "rotating", rotating="read,write") for _ in range(2)]
    first, second = (Principal(host.address, token, "rotating") for token in tokens)
    body, key = first.envelope(), fresh_key()
    operation = accepted(first, first.post(body, key))
    assert accepted(second, second.post(body, key))["id"] == operation["id"]
    assert second.resource(operation["resourceUid"])["name"] == body["name"]
    from saisei_cli.access import Access  # noqa: PLC0415

    with Access(str(dev.ready["grpc"]["control"]), dev.data_dir / "service.key") as access:
        assert access.revoke_tokens("rotating") == 2
    eventually(lambda: first.get("/resources").status_code == 401)
    problem(first.post(body, key), 401, "unauthenticated")
    problem(second.get(f"/operations/{operation['id']}"), 401, "unauthenticated")
    third = Principal(host.address, make_token(dev, "rotating", rotating="read,write"), "rotating")
    assert accepted(third, third.post(body, key))["id"] == operation["id"]


@pytest.mark.parametrize("form", ALL)
def test_supported_forms_say_what_they_can(host: Principal, form: str) -> None:
    """H-051 … H-054, F-01, F-07: all four operations once each, or nothing; the URL comes back letter for letter."""
    body = answered(host.get("/support", form=form), 200)
    assert body["form"] == form
    if body["supported"]:
        assert sorted(body["operations"]) == ["create", "delete", "read", "update"]
        assert body["privateInputs"] == (form == VERSION and host.discovery["capabilities"]["privateInputs"])
    else:
        assert body == {"form": form, "supported": False, "operations": [], "privateInputs": False}


@pytest.mark.parametrize(
    "form", [UNKNOWN_FORM, MODULE_WORKER.rstrip("/"), "https://localhost:1/", "https://forms.example.test/%E3%81%82/"]
)
def test_unsupported_forms_are_a_negative_answer(host: Principal, form: str) -> None:
    """H-051, H-052, H-055, H-190: 200, nothing supported, nothing fetched."""
    body = answered(host.get("/support", form=form), 200)
    assert body == {"form": form, "supported": False, "operations": [], "privateInputs": False}
    with host.nothing_changes():
        problem(host.post(host.envelope() | {"form": form}), 422, "unsupported_form")


def test_support_needs_one_form(host: Principal) -> None:
    """H-050: none, an empty one, or a badly escaped one is a 400."""
    for query in ("", "?", "?form", "?form=", "?Form=" + quote(MODULE_WORKER, safe=""), "?form=%zz", "?form=%ff"):
        problem(host.get(f"/support{query}"), 400, "invalid_request")


def test_support_is_not_authorization(host: Principal, other: Principal) -> None:
    """H-053: every authenticated principal gets the same answer."""
    mine, theirs = (each.get("/support", form=MODULE_WORKER).json() for each in (host, other))
    assert mine == theirs


def test_offerings_are_absent_or_chosen(host: Principal) -> None:
    """H-060 … H-063, H-195: not advertised, the field is a 422; advertised, it is required and exact, and stays."""
    some = {"id": "basic", "revision": "1"}
    malformed = ({}, {"id": "basic"}, {"id": "", "revision": "1"}, {"id": "a", "revision": 1}, some | {"x": 1}, [], "a")
    for offering in malformed:
        problem(host.post(host.envelope() | {"offering": offering}), 400, "invalid_request")
    if not host.discovery["capabilities"]["offerings"]:
        problem(host.post(host.envelope() | {"offering": some}), 422, "capability_required")
        assert "offering" not in host.made()
        return
    problem(host.get("/offerings", form=MODULE_WORKER), 400, "invalid_request")
    problem(host.get("/offerings", space=host.space), 400, "invalid_request")
    page = answered(host.get("/offerings", form=MODULE_WORKER, space=host.space), 200)
    ids = [item["id"] for item in page["items"]]
    assert ids == sorted(ids)
    body = host.envelope()
    missing = {key: value for key, value in body.items() if key != "offering"}
    problem(host.post(missing), 400, "invalid_request")
    problem(host.post(body | {"offering": {"id": "no-such", "revision": "1"}}), 409, "offering_changed")
    problem(host.post(body | {"offering": body["offering"] | {"revision": "other"}}), 409, "offering_changed")
    resource = host.made()
    host.settled(host.put(resource["uid"], {"spec": {}}, 1))
    assert host.resource(resource["uid"])["offering"] == resource["offering"]
