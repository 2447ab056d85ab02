"""A client of a Host: Resources and Operations (Host API v2), artifacts, workflow instances, Worker traffic.

Synchronous; one object may be used by several threads. A call returns or raises HostError or HostUnreachable.
"""

from __future__ import annotations

import hashlib
import json
import secrets
import ssl
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import TracebackType
from typing import Any
from urllib.parse import quote

import httpx

from saisei_cli.connection import Connection
from saisei_cli.failures import CommandFailure
from saisei_cli.streams import END, lines_of, read_sse

Json = dict[str, Any]

CALL_SECONDS = 30.0
# For the connection and its TLS handshake, which are tried again as long as the client's patience lasts.
CONNECT_SECONDS = 5.0
# The stream's heartbeats come more often than this; a longer silence means that the connection is dead.
STREAM_SILENCE_SECONDS = 60.0
_FIRST_PAUSE_SECONDS = 0.05
_LONGEST_PAUSE_SECONDS = 1.0
# Answers of a gateway whose other services are just (re)starting.
_HOST_IS_BUSY = (httpx.codes.BAD_GATEWAY, httpx.codes.SERVICE_UNAVAILABLE)
TERMINAL_EVENTS = ("workflow_completed", "workflow_errored", "workflow_terminated")


def _hint(code: str, detail: str) -> str:
    if code == "unauthenticated":
        return "the token is unknown, expired or revoked: set SAISEI_TOKEN to another one"
    if code == "forbidden":
        grant = "SPACE:read" if " read " in detail else "SPACE:admin" if "administer" in detail else "SPACE:read,write"
        return f"it takes a token with that grant: saisei token create --principal NAME --space {grant}"
    return ""


class HostError(CommandFailure):
    """The Host refused: `status` and `code` are the problem's (H-180)."""

    def __init__(self, status: int, problem: Json) -> None:
        self.status = status
        self.problem = problem
        code = str(problem.get("code", "internal_error"))
        detail = problem.get("detail") or problem.get("title") or "no further details"
        super().__init__(f"{code} ({status}): {detail}", _hint(code, str(detail)), code)


class HostUnreachable(CommandFailure):
    """No answer: proves nothing about whether the Host accepted the request (H-181)."""


class StreamLost(HostUnreachable):
    """An event stream broke off and could not be resumed; it goes on after event `cursor`."""

    def __init__(self, message: str, cursor: int) -> None:
        super().__init__(message)
        self.cursor = cursor


@dataclass(frozen=True, slots=True)
class Answer:
    """What a Worker answered."""

    status: int
    headers: httpx.Headers
    body: bytes


class HostClient:
    """`patience_seconds`: how long a call that may be repeated goes on trying while the Host does not answer."""

    def __init__(self, connection: Connection, patience_seconds: float = 10.0) -> None:
        self.connection = connection
        self.origin = connection.origin
        self._patience_seconds = patience_seconds
        cafile = str(connection.ca_file) if connection.ca_file else None
        try:
            context = ssl.create_default_context(cafile=cafile)
        except OSError as error:
            raise CommandFailure(
                f"cannot read the CA file {cafile}: {error.strerror or 'it holds no certificate'}",
                "SAISEI_CA_FILE names the authority of the Host's certificate; of a saisei dev it is tls/ca.pem",
            ) from error
        self._http = httpx.Client(
            verify=context,
            trust_env=False,
            timeout=httpx.Timeout(CALL_SECONDS, connect=CONNECT_SECONDS),
            limits=httpx.Limits(max_connections=200, max_keepalive_connections=50),
        )
        self._authorization = {"authorization": f"Bearer {connection.token}"}
        self._base_url: str | None = None

    def __enter__(self) -> HostClient:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        self._http.close()

    # --- Host API v2 ---------------------------------------------------------------------------------------------

    @property
    def base_url(self) -> str:
        """Of discovery, read once (H-041)."""
        if self._base_url is None:
            self._base_url = str(self.discovery()["baseUrl"])
        return self._base_url

    def discovery(self) -> Json:
        return self._json("GET", f"{self.origin}/.well-known/takoform/v2", repeatable=True)

    def support(self, form: str) -> Json:
        return self._json("GET", f"{self.base_url}/support", params={"form": form}, repeatable=True)

    def create_resource(
        self, form: str, space: str, name: str, spec: Json, private_inputs: dict[str, str] | None = None
    ) -> Json:
        """Returns the Operation (H-080). The call is repeated under one idempotency key when the answer got lost."""
        body: Json = {"form": form, "space": space, "name": name, "spec": spec}
        if private_inputs is not None:
            body["privateInputs"] = private_inputs
        return self._mutate("POST", f"{self.base_url}/resources", body, None)

    def update_resource(
        self, uid: str, generation: int, spec: Json, private_inputs: dict[str, str] | None = None
    ) -> Json:
        """Returns the Operation (H-100)."""
        body: Json = {"spec": spec}
        if private_inputs is not None:
            body["privateInputs"] = private_inputs
        return self._mutate("PUT", self._resource_url(uid), body, generation)

    def delete_resource(self, uid: str, generation: int) -> Json:
        """Returns the Operation (H-105)."""
        return self._mutate("DELETE", self._resource_url(uid), None, generation)

    def resource(self, uid: str) -> Json:
        return self._json("GET", self._resource_url(uid), repeatable=True)

    def resources(self, **filters: str) -> Iterator[Json]:
        """Every Resource that matches `space`, `name`, `form` (H-092), page by page."""
        yield from self._pages(f"{self.base_url}/resources", filters)

    def find_resource(self, space: str, name: str) -> Json | None:
        return next(self.resources(space=space, name=name), None)

    def operation(self, operation_id: str) -> Json:
        return self._json("GET", f"{self.base_url}/operations/{quote(operation_id, safe='')}", repeatable=True)

    def wait_operation(
        self, operation: Json, timeout_seconds: float = 120.0, on_change: Callable[[Json], None] | None = None
    ) -> Json:
        """Polls until the Operation is succeeded or failed, and returns it; CommandFailure after `timeout_seconds`."""
        deadline = time.monotonic() + timeout_seconds
        pause = _FIRST_PAUSE_SECONDS
        while operation["status"] not in ("succeeded", "failed"):
            if time.monotonic() > deadline:
                raise CommandFailure(
                    f"Operation {operation['id']} is still {operation['status']} after {timeout_seconds:.0f} s",
                    f"it goes on in the background: {self.connection.command('operations show ' + operation['id'])}",
                )
            time.sleep(pause)
            pause = min(pause * 1.5, _LONGEST_PAUSE_SECONDS)
            newer = self.operation(operation["id"])
            if on_change is not None and newer["status"] != operation["status"]:
                on_change(newer)
            operation = newer
        return operation

    # --- artifacts -----------------------------------------------------------------------------------------------

    def artifact_url(self, sha256: str) -> str:
        return f"{self.origin}/artifacts/v1/sha256/{sha256}"

    def put_artifact(self, content: bytes) -> tuple[str, bool]:
        """Uploads bytes (≤ 16,777,216); returns their digest and whether they were new to this principal."""
        sha256 = hashlib.sha256(content).hexdigest()
        response = self._send(
            "PUT",
            self.artifact_url(sha256),
            content=content,
            headers={"content-type": "application/octet-stream"},
            repeatable=True,
        )
        return sha256, response.status_code == httpx.codes.CREATED

    # --- workflow instances --------------------------------------------------------------------------------------

    def create_instance(self, workflow_uid: str, instance_id: str | None = None, params: Json | None = None) -> Json:
        """Returns `{id, status}`. Not repeated by itself: a lost answer may have created the instance."""
        body = {key: value for key, value in (("id", instance_id), ("params", params)) if value is not None}
        return self._json("POST", self._instances_url(workflow_uid), json=body)

    def instance(self, workflow_uid: str, instance_id: str) -> Json:
        """Returns `{id, status, output?, error?}`."""
        return self._json("GET", self._instance_url(workflow_uid, instance_id), repeatable=True)

    def instances(self, workflow_uid: str, status: str | None = None) -> Iterator[Json]:
        yield from self._pages(self._instances_url(workflow_uid), {"status": status} if status else {})

    def steps(self, workflow_uid: str, instance_id: str) -> list[Json]:
        """The whole step journal, page by page."""
        return self.journal(workflow_uid, instance_id)[0]

    def journal(self, workflow_uid: str, instance_id: str) -> tuple[list[Json], list[Json]]:
        """The steps, and the events that no wait has taken: `{type, acceptedAt}` each, the oldest first."""
        steps: list[Json] = []
        page: Json = {}
        for page in self._whole_pages(self._instance_url(workflow_uid, instance_id) + "/steps", {}):
            steps += page["items"]
        return steps, page.get("queuedEvents", [])

    def send_event(self, workflow_uid: str, instance_id: str, event_type: str, payload: Json | None = None) -> None:
        """Not repeated by itself: two calls are two events (W-029)."""
        body: Json = {"type": event_type}
        if payload is not None:
            body["payload"] = payload
        self._send("POST", self._instance_url(workflow_uid, instance_id) + "/events", json=body)

    def terminate(self, workflow_uid: str, instance_id: str) -> Json:
        """Returns once the instance is terminal; repeating it is harmless (W-029)."""
        return self._json(
            "POST", self._instance_url(workflow_uid, instance_id) + ":terminate", json={}, repeatable=True
        )

    def events(
        self,
        workflow_uid: str,
        instance_id: str,
        cursor: int = 0,
        types: list[str] | None = None,
        *,
        patience_seconds: float | None = None,
        on_cut: Callable[[], None] | None = None,
    ) -> Iterator[Json]:
        """Each event after `cursor`, history and then live, until the instance has ended.

        A cut connection is resumed after the last event seen, as long as `patience_seconds` (the client's own unless
        given) last without progress; then StreamLost. `on_cut` is called once for each time that it broke off.
        """
        patience = self._patience_seconds if patience_seconds is None else patience_seconds
        url = self._instance_url(workflow_uid, instance_id) + "/events"
        deadline: float | None = None
        pause = _FIRST_PAUSE_SECONDS
        while True:
            params = {"cursor": str(cursor)} | ({"filter": ",".join(types)} if types is not None else {})
            try:
                with self._http.stream(
                    "GET",
                    url,
                    params=params,
                    headers=self._authorization | {"accept": "text/event-stream"},
                    timeout=httpx.Timeout(CALL_SECONDS, connect=CONNECT_SECONDS, read=STREAM_SILENCE_SECONDS),
                ) as response:
                    if response.status_code != httpx.codes.OK:
                        response.read()
                        raise _problem(response)
                    for record in read_sse(lines_of(response.iter_bytes())):
                        if record.type == END:
                            return
                        deadline = None
                        cursor = int(record.event["eventId"])
                        yield record.event
            except (httpx.HTTPError, HostError) as error:
                if isinstance(error, HostError) and error.status not in _HOST_IS_BUSY:
                    raise
                if _distrusted(error):
                    raise self._unreachable(error) from error
            if deadline is None:
                deadline = time.monotonic() + patience
                pause = _FIRST_PAUSE_SECONDS
                if on_cut is not None:
                    on_cut()
            if time.monotonic() > deadline:
                raise StreamLost(f"the event stream of {instance_id} broke off and could not be resumed", cursor)
            time.sleep(pause)
            pause = min(pause * 2, _LONGEST_PAUSE_SECONDS)

    def wait_instance(self, workflow_uid: str, instance_id: str) -> Json:
        """Follows the instance to its end and returns its final status."""
        for _ in self.events(workflow_uid, instance_id, types=list(TERMINAL_EVENTS)):
            pass
        return self.instance(workflow_uid, instance_id)

    # --- the rest ------------------------------------------------------------------------------------------------

    def advance_clock(self, seconds: float) -> Json:
        """Only with `saisei dev --virtual-clock`."""
        return self._json("POST", f"{self.origin}/test/v1/clock:advance", json={"seconds": seconds})

    def fetch(self, hostname: str, path: str = "/", method: str = "GET", **options: Any) -> Answer:
        """A request to a Worker by its Endpoint's hostname, over this Host's own address."""
        headers = {**options.pop("headers", {}), "host": hostname}
        try:
            response = self._http.request(
                method, self.origin + path, headers=headers, extensions={"sni_hostname": hostname}, **options
            )
        except httpx.HTTPError as error:
            raise self._unreachable(error) from error
        return Answer(response.status_code, response.headers, response.content)

    # --- plumbing ------------------------------------------------------------------------------------------------

    def _resource_url(self, uid: str) -> str:
        return f"{self.base_url}/resources/{quote(uid, safe='')}"

    def _instances_url(self, workflow_uid: str) -> str:
        return f"{self.origin}/apis/saisei/v1/workflows/{quote(workflow_uid, safe='')}/instances"

    def _instance_url(self, workflow_uid: str, instance_id: str) -> str:
        # A path segment "." or ".." would be taken for a step through folders, also by this HTTP library.
        segment = quote(instance_id, safe="").replace(".", "%2E")
        return f"{self._instances_url(workflow_uid)}/{segment}"

    def _mutate(self, method: str, url: str, body: Json | None, generation: int | None) -> Json:
        headers = {"idempotency-key": secrets.token_hex(16)}
        if generation is not None:
            headers["takoform-expected-generation"] = str(generation)
        if body is None:
            return self._json(method, url, headers=headers, repeatable=True)
        return self._json(method, url, headers=headers, json=body, repeatable=True)

    def _pages(self, url: str, filters: dict[str, str]) -> Iterator[Json]:
        for page in self._whole_pages(url, filters):
            yield from page["items"]

    def _whole_pages(self, url: str, filters: dict[str, str]) -> Iterator[Json]:
        cursor: str | None = None
        while True:
            page = self._json(
                "GET", url, params=filters | ({"cursor": cursor} if cursor is not None else {}), repeatable=True
            )
            yield page
            cursor = page.get("nextCursor")
            if cursor is None:
                return

    def _json(self, method: str, url: str, **options: Any) -> Json:
        answer = self._send(method, url, **options)
        try:
            value: Json = answer.json()
        except (json.JSONDecodeError, UnicodeDecodeError) as error:
            raise HostUnreachable(f"{method} {url} answered with something that is not JSON") from error
        return value

    def _send(self, method: str, url: str, *, repeatable: bool = False, **options: Any) -> httpx.Response:
        headers = self._authorization | options.pop("headers", {})
        deadline = time.monotonic() + self._patience_seconds
        pause = _FIRST_PAUSE_SECONDS
        while True:
            try:
                response = self._http.request(method, url, headers=headers, **options)
                is_busy = response.status_code == httpx.codes.SERVICE_UNAVAILABLE
                if not repeatable or not is_busy or time.monotonic() > deadline:
                    break
            except httpx.HTTPError as error:
                # A connection that could not be made carried no request, whatever the call.
                may_repeat = repeatable or isinstance(error, httpx.ConnectError | httpx.ConnectTimeout)
                if not may_repeat or _distrusted(error) or time.monotonic() > deadline:
                    raise self._unreachable(error) from error
            time.sleep(pause)
            pause = min(pause * 2, _LONGEST_PAUSE_SECONDS)
        if response.status_code >= httpx.codes.BAD_REQUEST:
            raise _problem(response)
        return response

    def _unreachable(self, error: Exception) -> HostUnreachable:
        if _distrusted(error):
            return HostUnreachable(
                f"the certificate of {self.origin} is not trusted: {error}",
                f"SAISEI_CA_FILE (now {self.connection.ca_file or 'not set'}) must name the authority that signed it",
            )
        why = str(error) or type(error).__name__
        return HostUnreachable(f"{self.origin} does not answer: {why}", "is the Host running, and is this its address?")


def _distrusted(error: Exception) -> bool:
    """Whether the connection failed on the certificate, which no repetition changes."""
    return isinstance(error, httpx.ConnectError) and "CERTIFICATE_VERIFY_FAILED" in str(error)


def _problem(response: httpx.Response) -> HostError:
    try:
        problem = response.json()
    except ValueError:
        problem = {}
    if not isinstance(problem, dict):
        problem = {}
    return HostError(response.status_code, problem)
