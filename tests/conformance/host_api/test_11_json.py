"""Contract 1.1: transport, JSON and grammars."""

from __future__ import annotations

import json
import re
import socket
import ssl
from typing import Any
from urllib.parse import quote, urlsplit

import pytest
from tests.conformance.kit import (
    MODULE_WORKER,
    TIME_GRAMMAR,
    UID_GRAMMAR,
    WORKFLOW,
    Principal,
    accepted,
    answered,
    fresh_key,
    fresh_name,
    problem,
)


def test_success_is_json_and_never_stored(host: Principal) -> None:
    """H-001, H-002: every kind of success is JSON with no-store; refusals of authenticated requests are not stored."""
    resource = host.made()
    answered(host.get("/support", form=MODULE_WORKER), 200)
    answered(host.get("/resources", limit=1), 200)
    answered(host.get(f"/resources/{resource['uid']}"), 200)
    answered(host.get(f"/operations/{resource['lastOperation']}"), 200)
    problem(host.get("/resources/absent"), 404, "not_found")
    problem(host.request("PATCH", "/resources"), 405, "method_not_allowed")


def test_nothing_redirects(host: Principal) -> None:
    """H-003: paths with slashes too many or too few are unknown, and no answer is a redirect."""
    for path in ("/resources/", "//resources", "/support/", "/operations/", ""):
        response = host.request("GET", path)
        assert response.status_code in (400, 404), (path, response.status_code)
        assert "location" not in response.headers


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"{",
        b'{"spec":{}}}',
        b"[]",
        b"null",
        b'"text"',
        b"%SPEC NaN%",
        b"%SPEC Infinity%",
        b"%SPEC -Infinity%",
        b"%SPEC 1e400%",
        b"%SPEC -1e400%",
        b'%SPEC "\\ud800"%',
        b'%SPEC "\\udc00\\ud800"%',
        b'%SPEC "\xed\xa0\x80"%',
        b'%SPEC "\xff"%',
        b'%SPEC "\xc0\x80"%',
        b"%SPEC 01%",
        b"%SPEC .5%",
        b"%SPEC 1.%",
        b"%SPEC +1%",
        b"%SPEC 0x10%",
        b"%SPEC 1_000%",
        b"%SPEC \xd9\xa1%",
        b"%SPEC 'a'%",
        b'%SPEC "\t"%',
        b'%SPEC "\\x41"%',
        b"%SPEC [1,]%",
        b'%SPEC {"a":1,"a":1}%',
        b'%SPEC [{"b":[{"a":1,"\\u0061":2}]}]%',
        b"%SPEC " + b"[" * 200_000 + b"]" * 200_000 + b"%",
        b"%SPEC " + b'{"a":' * 200_000 + b"1" + b"}" * 200_000 + b"%",
    ],
)
def test_loose_json_is_refused(host: Principal, text: bytes) -> None:
    """H-004: what is not strict JSON is a 400, at any depth, and nothing comes of it."""
    if text.startswith(b"%SPEC "):
        envelope = json.dumps(host.envelope(spec={"value": 0})).encode()
        text = envelope.replace(b'"value": 0', b'"value": ' + text[6:-1])
    with host.nothing_changes():
        problem(host.post(text), 400, "invalid_request")


def test_repeated_keys_of_the_envelope_and_other_encodings_are_refused(host: Principal) -> None:
    """H-004: a repeated envelope key, a byte order mark, UTF-16 and UTF-32 are refused."""
    text = json.dumps(host.envelope())
    with host.nothing_changes():
        problem(host.post(text.replace('"spec"', '"spec": {}, "spec"').encode()), 400, "invalid_request")
        problem(host.post(b"\xef\xbb\xbf" + text.encode()), 400, "invalid_request")
        for encoding in ("utf-16", "utf-16-le", "utf-32"):
            problem(host.post(text.encode(encoding)), 400, "invalid_request")


def test_strict_json_of_any_spelling_is_taken(host: Principal) -> None:
    """H-004: white space, escapes and surrogate pairs that are right are no reason to refuse."""
    name = fresh_name()
    body = json.dumps(host.envelope(name=name), indent=3).replace("spec", "\\u0073pec").replace(name[0], "\\u006e", 1)
    assert host.settled(host.post(("\r\n\t " + body + " \n").encode()))["status"] == "succeeded"


@pytest.mark.parametrize("generation", ["9007199254740991", "9007199254740990"])
def test_large_generations_are_well_formed(host: Principal, generation: str) -> None:
    """H-005: the largest integer of the API is read as such, and is stale here."""
    uid = host.made()["uid"]
    problem(host.put(uid, {"spec": {}}, generation), 409, "generation_conflict")


@pytest.mark.parametrize("generation", ["9007199254740992", "18446744073709551616", "9" * 400])
def test_integers_out_of_range_are_refused(host: Principal, generation: str) -> None:
    """H-005, H-021: an integer over 9007199254740991 is a 400 and not stale."""
    problem(host.put(host.made()["uid"], {"spec": {}}, generation), 400, "invalid_request")


@pytest.mark.parametrize(
    "identifier",
    ["", "-a", ".a", "_a", "a b", "a/b", "a\n", "a\u0000", "ä", "a" * 129, "a~", "a:b", "\u0661", "a\u200b"],
)
@pytest.mark.parametrize("field", ["space", "name"])
def test_names_follow_the_grammar(host: Principal, field: str, identifier: str) -> None:
    """H-006: Spaces and names that do not match as a whole are refused."""
    with host.nothing_changes():
        problem(host.post(host.envelope() | {field: identifier}), 400, "invalid_request")


def test_names_of_every_allowed_shape_are_taken(host: Principal) -> None:
    """H-006: 128 characters, dots, hyphens and underscores; case counts."""
    name = fresh_name("A")
    for allowed in (name, name.lower(), f"{name}.-_", name.ljust(128, "z"), f"0{name}"):
        resource = host.made(name=allowed)
        assert resource["name"] == allowed
        assert re.fullmatch(UID_GRAMMAR, resource["uid"])
        assert re.fullmatch(UID_GRAMMAR, resource["lastOperation"])


def test_a_uid_is_one_path_segment(host: Principal) -> None:
    """H-006: what cannot be a UID is not found, however it is escaped."""
    uid = host.made()["uid"]
    for path in (f"{uid}%0A", f"{uid}%00", f"{uid}%2F", f"..%2F{uid}", "%FF", f"{uid}/x", uid.upper() + "X"):
        assert host.get(f"/resources/{path}").status_code in (400, 404), path


def test_times_are_utc(host: Principal) -> None:
    """H-007: every timestamp ends in Z."""
    resource = host.made()
    operation = host.operation(resource["lastOperation"])
    for text in (resource["observedAt"], *(operation[key] for key in ("createdAt", "updatedAt", "retainUntil"))):
        assert re.fullmatch(TIME_GRAMMAR, text), text


@pytest.mark.parametrize(
    "form",
    [
        "http://forms.example.test/a/",
        "https://",
        "https:///a/",
        "https://user@forms.example.test/a/",
        "https://@forms.example.test/a/",
        "https://:@forms.example.test/a/",
        "https://forms.example.test/a/?",
        "https://forms.example.test/a/?x=1",
        "https://forms.example.test/a/#",
        "https://forms.example.test/a/#b",
        "https://forms.example.test/ä/",
        "https://forms.example.test\\a/",
        "https://forms.example.test/a/\n",
        " https://forms.example.test/a/",
        "/a/",
        "",
    ],
)
def test_form_urls_are_checked(host: Principal, form: str) -> None:
    """H-008, H-050, H-083: what is no Form URL is a 400 in a body, in Support and in a filter."""
    with host.nothing_changes():
        problem(host.post(host.envelope() | {"form": form}), 400, "invalid_request")
        problem(host.get(f"/support?form={quote(form, safe='')}"), 400, "invalid_request")
        problem(host.get(f"/resources?form={quote(form, safe='')}"), 400, "invalid_request")


@pytest.mark.parametrize(
    "form",
    [
        MODULE_WORKER.rstrip("/"),
        MODULE_WORKER + "/",
        MODULE_WORKER.replace("https://edge", "https://EDGE"),
        MODULE_WORKER.replace("ModuleWorker", "moduleworker"),
        MODULE_WORKER.replace("ModuleWorker", "ModuleW%6Frker"),
        MODULE_WORKER.replace("0.3.0", "0.3.1"),
        MODULE_WORKER.replace(".com/", ".com:443/"),
    ],
)
def test_forms_are_compared_letter_for_letter(host: Principal, form: str) -> None:
    """H-008, H-052, H-083: another spelling of a supported Form is another, unsupported Form."""
    assert answered(host.get(f"/support?form={quote(form, safe='')}"), 200)["supported"] is False
    with host.nothing_changes():
        problem(host.post(host.envelope() | {"form": form}), 422, "unsupported_form")


def test_unknown_envelope_fields_are_refused(host: Principal) -> None:
    """H-009: on create, update and replenishment; a wrong letter case is another field."""
    resource = host.made()
    with host.nothing_changes():
        for more in ({"colour": 1}, {"Spec": {}}, {"uid": "x"}, {"generation": 1}, {"": 1}):
            problem(host.post(host.envelope() | more), 400, "invalid_request")
            problem(host.put(resource["uid"], {"spec": {}} | more, 1), 400, "invalid_request")
        problem(host.put(resource["uid"], {"spec": {}, "name": resource["name"]}, 1), 400, "invalid_request")


def test_unknown_and_repeated_query_parameters_are_refused(host: Principal) -> None:
    """H-009, H-050: on every route, those without a query too."""
    resource = host.made()
    uid, operation = resource["uid"], resource["lastOperation"]
    form = quote(MODULE_WORKER, safe="")
    for path in (
        "/resources?colour=1",
        "/resources?Space=a",
        "/resources?space=a&space=a",
        "/resources?limit=1&limit=1",
        f"/support?form={form}&form={form}",
        f"/support?form={form}&x=1",
        f"/resources/{uid}?x=1",
        f"/operations/{operation}?x=",
        f"{host.address.origin}/.well-known/takoform/v2?x=1",
    ):
        problem(host.get(path), 400, "invalid_request")
    key = {"idempotency-key": fresh_key()}
    changing = key | {"takoform-expected-generation": "1"}
    with host.nothing_changes():
        problem(host.request("POST", "/resources?dry=1", host.envelope(), key), 400, "invalid_request")
        problem(host.request("PUT", f"/resources/{uid}?force=1", {"spec": {}}, changing), 400, "invalid_request")
        problem(host.request("DELETE", f"/resources/{uid}?force=1", None, changing), 400, "invalid_request")


def test_unknown_fields_inside_the_spec_follow_the_form(host: Principal) -> None:
    """H-010, F-01: they are for the Form to judge, which refuses them."""
    with host.nothing_changes():
        problem(host.post(host.envelope(spec={"colour": "red"})), 422, "invalid_spec")


@pytest.mark.parametrize("field", ["form", "space", "name", "spec"])
def test_required_fields_may_be_neither_absent_nor_null(host: Principal, field: str) -> None:
    """H-011, H-080: each is required, and null is not absence."""
    envelope = host.envelope()
    with host.nothing_changes():
        problem(host.post({key: value for key, value in envelope.items() if key != field}), 400, "invalid_request")
        problem(host.post(envelope | {field: None}), 400, "invalid_request")
        problem(host.post(envelope | {field: 1}), 400, "invalid_request")


@pytest.mark.parametrize("field", ["offering", "privateInputs"])
def test_optional_fields_may_not_be_null(host: Principal, field: str) -> None:
    """H-011, H-150: null is refused where a field may be left out."""
    with host.nothing_changes():
        problem(host.post(host.envelope() | {field: None}), 400, "invalid_request")
    problem(host.put(host.made()["uid"], {"spec": {}, "privateInputs": None}, 1), 400, "invalid_request")


@pytest.mark.parametrize("spec", [[], "text", 1, True, [{}]])
def test_the_spec_is_an_object(host: Principal, spec: Any) -> None:
    """H-012: on create and update, for every Form."""
    with host.nothing_changes():
        problem(host.post(host.envelope() | {"spec": spec}), 400, "invalid_request")
        problem(host.post(host.envelope(WORKFLOW) | {"spec": spec}), 400, "invalid_request")
    problem(host.put(host.made()["uid"], {"spec": spec}, 1), 400, "invalid_request")


def test_answers_hold_what_this_version_knows(host: Principal) -> None:
    """H-013: states and actions are those of the contract, so that no client has to guess."""
    for item in host.walk(limit=100, space=host.space):
        assert item["phase"] in ("pending", "idle", "deleting", "error")


@pytest.mark.parametrize(
    "media_type", ["text/plain", "application/json-patch+json", "application/x-www-form-urlencoded", "", "json"]
)
def test_other_media_types_are_refused(host: Principal, media_type: str) -> None:
    """H-014: on create and update, whatever the body says."""
    resource = host.made()
    with host.nothing_changes():
        problem(host.post(host.envelope(), content_type=media_type), 415, "unsupported_media_type")
        problem(host.put(resource["uid"], {"spec": {}}, 1, content_type=media_type), 415, "unsupported_media_type")


@pytest.mark.parametrize("media_type", ["application/json; charset=utf-8", "Application/JSON", "application/json;a=b"])
def test_json_with_parameters_is_taken(host: Principal, media_type: str) -> None:
    """H-014: parameters and letter case of the type do not matter."""
    accepted(host, host.post(host.envelope(), content_type=media_type))


def test_coded_bodies_are_refused_or_understood(host: Principal) -> None:
    """H-015: a Host that takes no coded requests says 415."""
    with host.nothing_changes():
        for coding in ("gzip", "br", "deflate, gzip"):
            problem(host.post(host.envelope(), content_encoding=coding), 415, "unsupported_media_type")


def test_bodies_over_the_limit_are_refused(host: Principal) -> None:
    """H-015, H-043: one octet over the advertised limit is a 413; as many as the limit are read as JSON."""
    limit = host.discovery["limits"]["maxRequestBytes"]
    envelope = json.dumps(host.envelope()).encode()
    with host.nothing_changes():
        problem(host.post(envelope.ljust(limit + 1)), 413, "request_too_large")
    assert host.settled(host.post(envelope.ljust(limit)))["status"] == "succeeded"


def test_the_limit_holds_while_reading(host: Principal) -> None:
    """H-015: a body without a length, and one whose declared length is far too large, are cut off early."""
    limit = host.discovery["limits"]["maxRequestBytes"]

    def endless() -> Any:
        while True:
            yield b" " * 65536

    headers = {"authorization": f"Bearer {host.token}", "idempotency-key": fresh_key()}
    headers["content-type"] = "application/json"
    with host.nothing_changes():
        # The kernels of both sides hold some megabytes that the Host has not read, the more the slower it is.
        answer = _raw(host, headers | {"transfer-encoding": "chunked"}, endless(), stop_after=limit + (64 << 20))
        assert answer.startswith(b"HTTP/1.1 413 ")
        answer = _raw(host, headers | {"content-length": str(10**15)}, iter(()), stop_after=0)
        assert answer.startswith(b"HTTP/1.1 413 ")


def _raw(host: Principal, headers: dict[str, str], chunks: Any, stop_after: int) -> bytes:
    """The beginning of the answer to a create whose body is sent piece by piece until the Host answers."""
    parts = urlsplit(host.base)
    context = ssl.create_default_context(cafile=host.address.ca_file)
    assert parts.hostname is not None
    connection = socket.create_connection((parts.hostname, parts.port or 443), timeout=30)
    with context.wrap_socket(connection, server_hostname=parts.hostname) as tls:
        lines = [f"POST {parts.path}/resources HTTP/1.1", f"host: {parts.netloc}"]
        lines += [f"{name}: {value}" for name, value in headers.items()]
        tls.sendall(("\r\n".join(lines) + "\r\n\r\n").encode())
        sent = 0
        try:
            for chunk in chunks:
                tls.sendall(b"%x\r\n%s\r\n" % (len(chunk), chunk))
                sent += len(chunk)
                assert sent <= stop_after, "the Host reads on without end"
                tls.settimeout(0.002)
                try:
                    answer: bytes = tls.recv(1024)
                    return answer
                except TimeoutError:
                    tls.settimeout(30)
        except (BrokenPipeError, ConnectionResetError):
            pass
        tls.settimeout(30)
        return tls.recv(1024)
