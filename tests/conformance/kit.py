"""A Host under test: requests byte for byte, waiting for Operations, and what each answer must look like."""

from __future__ import annotations

import contextlib
import hashlib
import json
import ssl
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

Json = dict[str, Any]

FORMS = "https://edge.forms.takoform.com/forms/"
MODULE_WORKER = f"{FORMS}ModuleWorker/0.3.0/"
BUNDLE = f"{FORMS}WorkerBundle/0.2.0/"
VERSION = f"{FORMS}WorkerVersion/0.5.0/"
DEPLOYMENT = f"{FORMS}WorkerDeployment/0.4.0/"
WORKFLOW = f"{FORMS}DurableWorkflow/0.3.0/"
ENDPOINT = f"{FORMS}WorkerEndpoint/0.3.0/"
UNKNOWN_FORM = "https://forms.example.test/no-such-form/0.1.0/"
TERMINAL = ("succeeded", "failed")
UID_GRAMMAR = r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}"
TIME_GRAMMAR = r"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}(\.[0-9]+)?Z"
# A module that never finishes its evaluation keeps the create of its WorkerVersion unfinished for some seconds.
ENDLESS = "for (;;) {}\nexport default {};"
PLAIN = (
    "export class Report { constructor() {} async run() { return {}; } }\n"
    "export default { async fetch() { return new Response('ok'); } };"
)


def fresh_key() -> str:
    return uuid.uuid4().hex


def fresh_name(prefix: str = "n") -> str:
    return f"{prefix}-{uuid.uuid4().hex[:16]}"


@dataclass(frozen=True)
class Address:
    """Where a Host is: its origin, or the URL of its API root, and a file of authorities to trust."""

    base_url: str
    ca_file: str | None

    @property
    def origin(self) -> str:
        return "/".join(self.base_url.split("/")[:3])


class Principal:
    """One credential at a Host. Every method sends one request unless it says otherwise."""

    def __init__(self, address: Address, token: str, space: str) -> None:
        self.address = address
        self.token = token
        self.space = space
        self.http = httpx.Client(
            verify=ssl.create_default_context(cafile=address.ca_file),
            trust_env=False,
            timeout=60,
            limits=httpx.Limits(max_connections=64, max_keepalive_connections=64),
        )
        self.discovery: Json = self.http.get(f"{address.origin}/.well-known/takoform/v2").json()
        self.base: str = self.discovery["baseUrl"]

    def close(self) -> None:
        self.http.close()

    def request(self, method: str, path: str, body: Any = None, headers: dict[str, str] | None = None) -> Any:
        """`path` follows the API root, or is a whole URL. A `body` that is not bytes goes as JSON."""
        sent = httpx.Headers({"authorization": f"Bearer {self.token}"})
        content = None
        if body is not None:
            content = body if isinstance(body, bytes) else json.dumps(body).encode()
            sent["content-type"] = "application/json"
        sent.update(headers or {})
        url = path if path.startswith("https://") else self.base + path
        return self.http.request(method, url, content=content, headers=sent)

    def get(self, path: str, **params: Any) -> Any:
        return self.request("GET", path + ("?" + str(httpx.QueryParams(params)) if params else ""))

    def post(self, body: Any, key: str | None = None, **headers: str) -> Any:
        """A create with a body as it is given."""
        return self.request("POST", "/resources", body, {"idempotency-key": key or fresh_key()} | _dashed(headers))

    def envelope(self, form: str = MODULE_WORKER, spec: Any = None, name: str | None = None, **more: Any) -> Json:
        chosen = {"form": form, "space": self.space, "name": name or fresh_name(), "spec": {} if spec is None else spec}
        if self.discovery["capabilities"]["offerings"] and "offering" not in more:
            offers = self.get("/offerings", form=form, space=chosen["space"]).json()["items"]
            if offers:
                chosen["offering"] = {"id": offers[0]["id"], "revision": offers[0]["revision"]}
        return chosen | more

    def put(self, uid: str, body: Any, generation: object, key: str | None = None, **headers: str) -> Any:
        sent = {"idempotency-key": key or fresh_key(), "takoform-expected-generation": str(generation)}
        return self.request("PUT", f"/resources/{uid}", body, sent | _dashed(headers))

    def delete(self, uid: str, generation: object, key: str | None = None, **headers: str) -> Any:
        sent = {"idempotency-key": key or fresh_key(), "takoform-expected-generation": str(generation)}
        return self.request("DELETE", f"/resources/{uid}", None, sent | _dashed(headers))

    def operation(self, operation_id: str) -> Json:
        return answered(self.get(f"/operations/{operation_id}"), 200)

    def resource(self, uid: str) -> Json:
        return answered(self.get(f"/resources/{uid}"), 200)

    def settled(self, response: httpx.Response, within_seconds: float = 60.0) -> Json:
        """Follows an accepted mutation to its end; checks each Operation that is seen on the way."""
        operation = accepted(self, response)
        deadline = time.monotonic() + within_seconds
        while operation["status"] not in TERMINAL:
            assert time.monotonic() < deadline, f"still {operation}"
            time.sleep(0.02)
            newer = self.operation(operation["id"])
            check_operation(newer)
            for fixed in ("id", "resourceUid", "action", "generation", "createdAt"):
                assert newer[fixed] == operation[fixed]
            operation = newer
        return operation

    def made(self, form: str = MODULE_WORKER, spec: Any = None, **more: Any) -> Json:
        """A new Resource after its create has succeeded."""
        operation = self.settled(self.post(self.envelope(form, spec, **more)))
        assert operation["status"] == "succeeded", operation
        return self.resource(operation["resourceUid"])

    def removed(self, uid: str) -> Json:
        """The Resource deleted, with its Operation."""
        return self.settled(self.delete(uid, self.resource(uid)["generation"]))

    def failed(self) -> Json:
        """A Resource whose create failed: a bundle of bytes that nobody has."""
        digest = hashlib.sha256(fresh_key().encode()).hexdigest()
        spec = {"artifact": {"url": f"{self.address.origin}/artifacts/v1/sha256/{digest}", "sha256": digest}}
        operation = self.settled(self.post(self.envelope(BUNDLE, spec)))
        assert operation["status"] == "failed", operation
        return self.resource(operation["resourceUid"])

    def upload(self, content: bytes) -> Json:
        """Bytes into the Host's custody; answers an artifact `{url, sha256}`."""
        digest = hashlib.sha256(content).hexdigest()
        url = f"{self.address.origin}/artifacts/v1/sha256/{digest}"
        response = self.request("PUT", url, content, {"content-type": "application/octet-stream"})
        assert response.status_code in (200, 201), response.text
        return {"url": url, "sha256": digest}

    def bundle_spec(self, source: str = PLAIN) -> Json:
        """The spec of a WorkerBundle of one module."""
        file = self.upload(source.encode())
        manifest = {
            "entrypoint": "main.mjs",
            "files": [{"path": "main.mjs", "mediaType": "application/javascript+module", **file}],
        }
        return {"artifact": self.upload(json.dumps(manifest).encode())}

    def version_spec(self, source: str = PLAIN, **more: Any) -> Json:
        worker, bundle = self.made(), self.made(BUNDLE, self.bundle_spec(source))
        return {"worker": reference(worker), "bundle": reference(bundle), "handlers": ["fetch"]} | more

    def walk(self, limit: int | None = None, **filters: str) -> list[Json]:
        """Every item of a list, page by page."""
        items: list[Json] = []
        for page in self.pages(limit, **filters):
            items += page["items"]
        return items

    def pages(self, limit: int | None = None, **filters: str) -> Iterator[Json]:
        query: dict[str, Any] = dict(filters) | ({} if limit is None else {"limit": limit})
        while True:
            page = answered(self.get("/resources", **query), 200)
            assert page.keys() >= {"items", "nextCursor"}
            yield page
            if page["nextCursor"] is None:
                return
            query["cursor"] = page["nextCursor"]

    def names(self) -> set[str]:
        return {item["name"] for item in self.walk(space=self.space)}

    @contextlib.contextmanager
    def nothing_changes(self) -> Iterator[None]:
        """What happens inside makes no Resource of the Space, changes none and removes none."""

        def accepted_changes() -> list[tuple[str, int, str]]:
            return [(item["uid"], item["generation"], item["lastOperation"]) for item in self.walk(space=self.space)]

        before = accepted_changes()
        yield
        assert accepted_changes() == before


def _dashed(headers: dict[str, str]) -> dict[str, str]:
    return {name.replace("_", "-"): value for name, value in headers.items()}


def reference(resource: Json) -> Json:
    return {"resourceUid": resource["uid"]}


def answered(response: httpx.Response, status: int) -> Any:
    """The body of a successful answer (H-001, H-002)."""
    assert response.status_code == status, (response.status_code, response.text)
    assert response.headers["content-type"].partition(";")[0] == "application/json"
    assert response.headers["cache-control"] == "no-store"
    return response.json()


def problem(response: httpx.Response, status: int, code: str) -> Json:
    """The Problem of a refusal (contract 1.15)."""
    assert response.status_code == status, (response.status_code, response.text)
    assert response.headers["content-type"] == "application/problem+json"
    assert response.headers["cache-control"] == "no-store"
    body: Json = response.json()
    assert (body["type"], body["status"], body["code"]) == ("about:blank", status, code), body
    assert isinstance(body["title"], str)
    assert body.keys() <= {"type", "title", "status", "code", "detail", "operationId"}
    assert "location" not in response.headers
    return body


def accepted(principal: Principal, response: httpx.Response) -> Json:
    """The Operation of an accepted mutation, with the headers that go with it (H-023, H-024, H-030)."""
    assert response.status_code in (200, 202), (response.status_code, response.text)
    operation: Json = answered(response, response.status_code)
    check_operation(operation)
    assert response.headers["location"] == f"{principal.base}/operations/{operation['id']}"
    assert (response.status_code == 200) == (operation["status"] in TERMINAL), operation
    if response.status_code == 202:
        assert response.headers["retry-after"].isascii()
        assert int(response.headers["retry-after"]) > 0
    return operation


def check_operation(operation: Json) -> None:
    """What every Operation has at every moment (contract 1.11)."""
    required = {"id", "resourceUid", "action", "generation", "status", "effect", "createdAt", "updatedAt"}
    assert operation.keys() >= required | {"retainUntil"}
    status, effect = operation["status"], operation["effect"]
    assert operation["action"] in ("create", "update", "delete")
    assert status in ("queued", "running", "waiting_input", "reconciling", *TERMINAL)
    assert effect in ("none", "unknown", "partial", "complete")
    assert (status == "succeeded") == (effect == "complete")
    assert status != "failed" or effect in ("none", "partial")
    assert status != "reconciling" or effect != "none"
    assert ("error" in operation) == (status == "failed") or status == "reconciling"
    assert ("inputRequired" in operation) == (status == "waiting_input")
    if "error" in operation:
        assert operation["error"].keys() == {"code", "message"}


def seconds_between(earlier: str, later: str) -> float:
    """From one timestamp of the API to another."""
    from datetime import datetime  # noqa: PLC0415

    first, second = (datetime.fromisoformat(text.replace("Z", "+00:00")) for text in (earlier, later))
    return (second - first).total_seconds()


def read_token(path: str | None, text: str | None) -> str | None:
    """A token given as it is, or as a file."""
    return text or (Path(path).read_text().strip() if path else None)
