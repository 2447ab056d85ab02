"""What bad input gets over real HTTPS: an error that names the field and the rule, and nothing half done."""

from __future__ import annotations

import hashlib
import json
import ssl
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.support.dev_host import DevHost

APPS = Path(__file__).parent / "apps"
FORMS = "https://edge.forms.takoform.com/forms/"
MODULE_WORKER = f"{FORMS}ModuleWorker/0.3.0/"
BUNDLE = f"{FORMS}WorkerBundle/0.2.0/"
VERSION = f"{FORMS}WorkerVersion/0.5.0/"
DEPLOYMENT = f"{FORMS}WorkerDeployment/0.4.0/"
WORKFLOW = f"{FORMS}DurableWorkflow/0.3.0/"
SPACE = "badinput"


class Raw:
    """Requests byte for byte, with the dev token unless told otherwise."""

    def __init__(self, host: DevHost) -> None:
        self.host = host
        self.base = host.ready["baseUrl"]
        self.origin = host.ready["origin"]
        context = ssl.create_default_context(cafile=host.ready["caFile"])
        self.http = httpx.Client(verify=context, trust_env=False)

    def send(self, method: str, url: str, body: bytes | None = None, token: str | None = None, **headers: str) -> Any:
        sent = {"authorization": f"Bearer {token or self.host.token}"}
        if body is not None:
            sent["content-type"] = "application/json"
        if method in ("PUT", "DELETE") or (method == "POST" and url.endswith("/resources")):
            sent["idempotency-key"] = uuid.uuid4().hex
        sent |= {name.replace("_", "-"): value for name, value in headers.items()}
        return self.http.request(method, url, content=body, headers=sent)

    def create(self, body: bytes, token: str | None = None, **headers: str) -> Any:
        return self.send("POST", f"{self.base}/resources", body, token, **headers)

    def names(self) -> list[str]:
        return [resource["name"] for resource in self.host.client.resources(space=SPACE)]

    def made(self, form: str, spec: dict[str, Any], name: str | None = None) -> dict[str, Any]:
        """A Resource of the Form after its create has settled, with the Operation under "operation"."""
        client = self.host.client
        operation = client.create_resource(form, SPACE, name or f"r-{uuid.uuid4().hex[:12]}", spec)
        settled = client.wait_operation(operation)
        return client.resource(settled["resourceUid"]) | {"operation": settled}

    def bundle(self, modules: dict[str, str], **changed: str) -> dict[str, Any]:
        """A WorkerBundle of JavaScript modules; `changed` replaces keys of its artifact."""
        client = self.host.client
        files = []
        for path, source in modules.items():
            digest, _ = client.put_artifact(source.encode())
            media_type = "application/javascript+module"
            files.append({"path": path, "url": client.artifact_url(digest), "sha256": digest, "mediaType": media_type})
        manifest = json.dumps({"entrypoint": "main.mjs", "files": files}).encode()
        digest, _ = client.put_artifact(manifest)
        return self.made(BUNDLE, {"artifact": {"url": client.artifact_url(digest), "sha256": digest} | changed})


@pytest.fixture(scope="module")
def raw(host: DevHost) -> Iterator[Raw]:
    yield Raw(host)


def problem(response: httpx.Response, status: int, code: str) -> dict[str, Any]:
    assert response.status_code == status, response.text
    assert response.headers["content-type"] == "application/problem+json"
    assert response.headers["cache-control"] == "no-store"
    body: dict[str, Any] = response.json()
    assert (body["status"], body["code"], body["type"]) == (status, code, "about:blank")
    return body


def envelope(**changed: Any) -> dict[str, Any]:
    return {"form": MODULE_WORKER, "space": SPACE, "name": f"n-{uuid.uuid4().hex[:8]}", "spec": {}} | changed


@pytest.mark.parametrize(
    ("body", "named"),
    [
        (b'{"form": ', ""),
        (b"\xff\xfe{}", ""),
        (b'\xef\xbb\xbf{"form":"x"}', ""),
        (b'{"form":"a","form":"b"}', "form"),
        (b'{"spec":{"a":{"b":1,"b":2}}}', "b"),
        (b'{"spec":{"a":NaN}}', ""),
        (b'{"spec":{"a":1e999}}', ""),
        (b'{"spec":{"a":"\\ud800"}}', ""),
        (b'{"spec":' + b"[" * 100_000 + b"]" * 100_000 + b"}", ""),
    ],
    ids=["cut", "utf16", "bom", "duplicate", "deep-duplicate", "nan", "overflow", "surrogate", "depth-bomb"],
)
def test_malformed_json_is_refused(raw: Raw, body: bytes, named: str) -> None:
    """H-004: JSON that is not strict is a 400 that says where, and no Resource comes of it."""
    before = raw.names()
    detail = problem(raw.create(body), 400, "invalid_request")["detail"]
    assert named in detail
    assert raw.names() == before


@pytest.mark.parametrize(
    ("changed", "status", "code", "named"),
    [
        ({"colour": "red"}, 400, "invalid_request", "colour"),
        ({"spec": None}, 400, "invalid_request", "spec"),
        ({"spec": []}, 400, "invalid_request", "spec"),
        ({"name": "a b"}, 400, "invalid_request", "name"),
        ({"name": "newline\n"}, 400, "invalid_request", "name"),
        ({"space": ""}, 400, "invalid_request", "space"),
        ({"form": "http://example.com/"}, 400, "invalid_request", "form"),
        ({"form": MODULE_WORKER.rstrip("/")}, 422, "unsupported_form", ""),
        ({"spec": {"a": 1}}, 422, "invalid_spec", "a"),
    ],
)
def test_wrong_envelopes_are_refused(raw: Raw, changed: dict[str, Any], status: int, code: str, named: str) -> None:
    """H-006, H-008, H-009, H-011, H-012, H-083, F-01: each names its field, and no Resource comes of it."""
    before = raw.names()
    response = raw.create(json.dumps(envelope(**changed)).encode())
    assert named in problem(response, status, code)["detail"]
    assert raw.names() == before


def test_headers_and_generations_are_checked(raw: Raw) -> None:
    """H-020, H-021, H-022, H-033, H-102: keys, generations and methods, each with its own code."""
    body = json.dumps(envelope()).encode()
    problem(raw.create(body, idempotency_key="short"), 400, "invalid_request")
    problem(raw.create(body, content_type="text/plain"), 415, "unsupported_media_type")
    made = raw.made(MODULE_WORKER, {})
    url = f"{raw.base}/resources/{made['uid']}"
    spec = b'{"spec":{}}'
    problem(raw.send("PUT", url, spec), 428, "expected_generation_required")
    problem(raw.send("PUT", url, spec, takoform_expected_generation="+1"), 400, "invalid_request")
    problem(raw.send("PUT", url, spec, takoform_expected_generation="0"), 409, "generation_conflict")
    problem(raw.send("PUT", url, spec, takoform_expected_generation="7"), 409, "generation_conflict")
    refused = raw.send("PATCH", url, spec)
    problem(refused, 405, "method_not_allowed")
    assert set(refused.headers["allow"].split(", ")) == {"GET", "PUT", "DELETE"}
    assert raw.host.client.resource(made["uid"])["generation"] == 1


def test_unknown_uids_and_names_are_refused(raw: Raw) -> None:
    """H-046, H-084, H-091, F-02, F-03: unknown UIDs, taken names, references that lead nowhere or to another Form."""
    problem(raw.send("GET", f"{raw.base}/resources/no-such-uid"), 404, "not_found")
    problem(raw.send("GET", f"{raw.base}/operations/no-such-operation"), 404, "not_found")
    made = raw.made(MODULE_WORKER, {})
    taken = raw.create(json.dumps(envelope(name=made["name"])).encode())
    problem(taken, 409, "name_conflict")
    for reference, status, code in (
        ({"resourceUid": "no-such-uid"}, 409, "dependency_conflict"),
        ({"resourceUid": "not a uid"}, 422, "invalid_spec"),
        ({"resourceUid": made["uid"], "name": "x"}, 422, "invalid_spec"),
        ({}, 422, "invalid_spec"),
    ):
        spec = {"worker": reference, "className": "Report"}
        problem(raw.create(json.dumps(envelope(form=WORKFLOW, spec=spec)).encode()), status, code)
    bundle_as_worker = raw.bundle({"main.mjs": "export default {};"})["uid"]
    spec = {"worker": {"resourceUid": bundle_as_worker}, "className": "Report"}
    problem(raw.create(json.dumps(envelope(form=WORKFLOW, spec=spec)).encode()), 409, "dependency_conflict")


def test_tokens_are_judged(raw: Raw) -> None:
    """H-025, H-044, H-046: no or a wrong token is a 401; one without the Space cannot create, see or use anything."""
    missing = raw.http.get(f"{raw.base}/resources")
    problem(missing, 401, "unauthenticated")
    assert missing.headers["www-authenticate"].startswith("Bearer")
    problem(raw.send("GET", f"{raw.base}/resources", token="wrong"), 401, "unauthenticated")
    command = [sys.executable, "-m", "saisei_cli", "token", "create", "--principal", "other"]
    command += ["--space", "elsewhere:read,write", "--data-dir", str(raw.host.data_dir)]
    other = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()[-1]
    made = raw.made(MODULE_WORKER, {})
    problem(raw.create(json.dumps(envelope()).encode(), token=other), 403, "forbidden")
    problem(raw.send("GET", f"{raw.base}/resources/{made['uid']}", token=other), 404, "not_found")
    assert raw.send("GET", f"{raw.base}/resources", token=other).json()["items"] == []
    used = envelope(space="elsewhere", form=WORKFLOW, spec={"worker": {"resourceUid": made["uid"]}, "className": "A"})
    problem(raw.create(json.dumps(used).encode(), token=other), 409, "dependency_conflict")


def test_artifacts_are_checked_against_their_digest(raw: Raw) -> None:
    """AR-01, AR-02, AR-13: bytes that do not match are not taken; a bundle of a wrong digest fails without effect."""
    wrong = hashlib.sha256(b"other").hexdigest()
    url = f"{raw.origin}/artifacts/v1/sha256/{wrong}"
    problem(raw.send("PUT", url, b"bytes", content_type="application/octet-stream"), 400, "invalid_request")
    missing = raw.bundle({"main.mjs": "export default {};"}, sha256=wrong)
    assert missing["operation"]["status"] == "failed"
    assert missing["operation"]["effect"] == "none"
    assert missing["observed"] == {}
    digest, _ = raw.host.client.put_artifact(b'{"entrypoint":"main.mjs","files":[],"files":[]}')
    artifact = {"url": raw.host.client.artifact_url(digest), "sha256": digest}
    twice = raw.made(BUNDLE, {"artifact": artifact})
    assert (twice["operation"]["status"], twice["observed"]) == ("failed", {})
    assert twice["operation"]["error"]["code"] == "artifact_invalid"


@pytest.mark.parametrize(
    ("modules", "code", "named"),
    [
        (
            {"main.mjs": 'import "./part.mjs";\nexport default {};', "part.mjs": "\n\nlet x = ;\n"},
            "syntax_error",
            "part.mjs",
        ),
        ({"main.mjs": 'import "./absent.mjs";\nexport default {};'}, "module_not_found", "absent.mjs"),
        ({"main.mjs": 'import "node:fs";\nexport default {};'}, "module_not_found", "node:fs"),
        ({"main.mjs": "export const a = 1;"}, "default_export_invalid", "default"),
        ({"main.mjs": "throw new Error('no');\nexport default {};"}, "evaluation_threw", "no"),
    ],
    ids=["syntax", "missing", "bare", "no-default", "throws"],
)
def test_code_that_does_not_load_is_never_ready(raw: Raw, modules: dict[str, str], code: str, named: str) -> None:
    """MW-10, MW-12, MW-13, MW-14: the Version never becomes Ready, and its Operation names the module and the line."""
    worker = raw.made(MODULE_WORKER, {})["uid"]
    spec = {"worker": {"resourceUid": worker}, "bundle": {"resourceUid": raw.bundle(modules)["uid"]}, "handlers": []}
    version = raw.made(VERSION, spec)
    assert version["operation"]["status"] == "failed"
    assert version["operation"]["error"]["code"] == code
    assert named in version["operation"]["error"]["message"]
    if code == "syntax_error":
        assert "line 3" in version["operation"]["error"]["message"]
    assert version["observed"].get("ready") is not True


def test_class_without_run_is_refused(raw: Raw) -> None:
    """W-080, DW-03, WD-05: a class without `run` cannot serve a Workflow: neither before nor after it is selected."""
    worker = {"resourceUid": raw.made(MODULE_WORKER, {})["uid"]}
    bundle = raw.bundle({"main.mjs": "export class Report {}\nexport default {};"})["uid"]
    version = raw.made(VERSION, {"worker": worker, "bundle": {"resourceUid": bundle}, "handlers": []})
    assert version["operation"]["status"] == "succeeded"
    versions = [{"workerVersion": {"resourceUid": version["uid"]}, "weight": 10000}]
    deployment = raw.made(DEPLOYMENT, {"worker": worker, "versions": versions})
    assert deployment["operation"]["status"] == "succeeded"
    spec = {"worker": worker, "className": "Report"}
    refused = raw.create(json.dumps(envelope(form=WORKFLOW, spec=spec)).encode())
    assert "Report" in problem(refused, 409, "dependency_conflict")["detail"]


def test_instances_refuse_bad_input(raw: Raw) -> None:
    """W-020, W-025, W-028, W-041: events for nobody, documents that are none, ids and types out of range."""
    host = raw.host
    uid = host.deploy(APPS / "caller").workflows["greetings"]
    url = f"{raw.origin}/apis/saisei/v1/workflows/{uid}/instances"
    problem(raw.send("POST", f"{url}/nobody/events", b'{"type":"answer"}'), 404, "unknown_instance")
    problem(raw.send("GET", f"{url}/nobody"), 404, "unknown_instance")
    problem(raw.send("POST", url, b'{"params":[1]}'), 422, "invalid_params")
    problem(raw.send("POST", url, b'{"id":"","params":{}}'), 400, "invalid_request")
    problem(raw.send("POST", url, b'{"idd":"x"}'), 400, "invalid_request")
    large = json.dumps({"params": {"text": "x" * 1_048_576}}).encode()
    problem(raw.send("POST", url, large), 413, "document_too_large")
    problem(raw.send("GET", f"{raw.origin}/apis/saisei/v1/workflows/unknown/instances"), 404, "not_found")
    created = host.client.create_instance(uid, f"bad-{uuid.uuid4().hex}", {"name": "x"})
    problem(raw.send("POST", url, json.dumps({"id": created["id"]}).encode()), 409, "instance_exists")
    problem(raw.send("POST", f"{url}/{created['id']}/events", b'{"type":""}'), 400, "invalid_request")
    host.client.terminate(uid, created["id"])
    problem(raw.send("POST", f"{url}/{created['id']}/events", b'{"type":"answer"}'), 409, "instance_terminal")
