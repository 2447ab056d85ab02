"""Contract 1.15: every refusal of the table over real HTTP, with status, code, headers, and nothing changed."""

from __future__ import annotations

import re

from tests.conformance.kit import (
    MODULE_WORKER,
    UNKNOWN_FORM,
    VERSION,
    WORKFLOW,
    Principal,
    accepted,
    fresh_key,
    problem,
)

CLASSES = {
    400: {"invalid_request"},
    401: {"unauthenticated"},
    403: {"forbidden"},
    404: {"not_found", "capability_unavailable"},
    405: {"method_not_allowed"},
    409: {
        *("name_conflict", "generation_conflict", "resource_busy", "idempotency_conflict", "offering_changed"),
        *("dependency_conflict", "private_inputs_conflict", "private_inputs_unverifiable", "operation_terminal"),
        "cursor_expired",
    },
    410: {"gone"},
    413: {"request_too_large"},
    415: {"unsupported_media_type"},
    422: {"unsupported_form", "invalid_spec", "capability_required"},
    428: {"expected_generation_required"},
    429: {"rate_limited"},
    500: {"internal_error"},
    503: {"temporarily_unavailable"},
}


def test_each_class_has_one_status_and_an_explanation(host: Principal, other: Principal) -> None:
    """H-180, H-182, H-031: the whole Problem of each refusal that a client can bring about; none changes a thing."""
    resource, key = host.made(), fresh_key()
    uid = resource["uid"]
    host.settled(host.post(host.envelope(), key))
    gone = host.made()["uid"]
    host.removed(gone)
    absent = {"worker": {"resourceUid": "r-absent"}, "className": "A"}
    with host.nothing_changes():
        responses = [
            host.post(b"{"),
            host.request("GET", "/resources", headers={"authorization": "Bearer x"}),
            other.post(other.envelope(space=host.space)),
            host.get("/resources/r-never"),
            host.request("PATCH", "/resources"),
            host.post(host.envelope(name=resource["name"])),
            host.put(uid, {"spec": {}}, 7),
            host.post(host.envelope(), key),
            host.post(host.envelope(WORKFLOW, absent)),
            host.get(f"/resources/{gone}"),
            host.post(b" " * (host.discovery["limits"]["maxRequestBytes"] + 1)),
            host.post(host.envelope(), content_type="text/plain"),
            host.post(host.envelope(UNKNOWN_FORM)),
            host.post(host.envelope(spec={"x": 1})),
            host.post(host.envelope(privateInputs={})),
            host.request("DELETE", f"/resources/{uid}", None, {"idempotency-key": fresh_key()}),
        ]
    for response in responses:
        code = response.json()["code"]
        assert code in CLASSES[response.status_code]
        detail = problem(response, response.status_code, code).get("detail", "")
        assert not re.search(r"Traceback|File \"|sqlite|psycopg|grpc|0x[0-9a-f]{6}|/usr/|/tmp/", detail)
        assert host.token not in response.text
    assert len({response.status_code for response in responses}) >= 10


def test_forms_speak_in_the_detail(host: Principal) -> None:
    """H-180: a Form's own reason changes neither status nor code, and names the field."""
    for form, spec, field in (
        (MODULE_WORKER, {"colour": 1}, "colour"),
        (WORKFLOW, {"worker": {"resourceUid": "r-1"}, "className": "1"}, "className"),
        (VERSION, {"worker": {"resourceUid": "r-1"}, "handlers": ["nothing"]}, "handlers"),
    ):
        assert field in problem(host.post(host.envelope(form, spec)), 422, "invalid_spec")["detail"]


def test_hostile_requests_do_not_break_anything(host: Principal) -> None:
    """H-180, H-181, H-182: heads and paths of every bad kind get a 4xx, and the Host goes on."""
    for path in (
        "/resources/%",
        "/resources/%zz",
        "/resources/" + "a" * 20_000,
        "/resources?" + "a" * 20_000,
        "/resources?%",
        "/resources?name=%ff",
        "/resources?cursor=" + "A" * 10_000,
        "/%2e%2e/%2e%2e/etc/passwd",
        "/resources/%00",
        "/operations/%F0%9F%98%80",
    ):
        assert 400 <= host.get(path).status_code < 500, path
    for name in ("idempotency-key", "takoform-expected-generation", "content-type", "authorization"):
        uid = host.made()["uid"]
        headers = {"idempotency-key": fresh_key(), "takoform-expected-generation": "1", name: "x" * 30_000}
        assert 400 <= host.request("PUT", f"/resources/{uid}", {"spec": {}}, headers).status_code < 500
    accepted(host, host.post(host.envelope()))
