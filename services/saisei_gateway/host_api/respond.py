"""Answers: JSON bodies, problems, and the headers that belong to them (H-001, H-002, H-023 … H-025, H-180)."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping, Sequence

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from saisei_contract import strict_json
from saisei_contract.errors import SaiseiError
from saisei_contract.json_reader import JsonValue
from saisei_contract.rate import RETRY_AFTER
from saisei_contract.wire import problem

NO_STORE = {"cache-control": "no-store"}
RETRY_SECONDS = 1
CHALLENGE = 'Bearer realm="saisei"'

# After a refusal in the middle of a body the rest is thrown away for a while: closing at once would reset the
# connection, and the client might never see the answer.
LINGER_BYTES = 32 * 1024 * 1024
LINGER_SECONDS = 5.0


def json_response(body: JsonValue, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    return json_bytes(strict_json.dumps(body).encode(), status, headers)


def json_bytes(body: bytes, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """`body` is JSON already."""
    return Response(body, status, {**NO_STORE, **(headers or {})}, "application/json")


def problem_response(error: SaiseiError, *, allow: Sequence[str] = ()) -> Response:
    """The Problem of a refusal, with the headers that its status needs."""
    headers = dict(NO_STORE)
    match error.kind.http_status:
        case 401:
            headers["www-authenticate"] = CHALLENGE
        case 405:
            headers["allow"] = ", ".join(allow)
        case 429 | 503:
            headers["retry-after"] = error.metadata.get(RETRY_AFTER, str(RETRY_SECONDS))
    body = problem_body(error)
    if error.kind.http_status == 413:
        return LingeringResponse(body, 413, {**headers, "connection": "close"}, "application/problem+json")
    return Response(body, error.kind.http_status, headers, "application/problem+json")


def problem_body(error: SaiseiError) -> bytes:
    return strict_json.dumps(problem(error)).encode()


def host_error(error: SaiseiError) -> SaiseiError:
    """The Host API has its own name for a part that is away (H-180)."""
    if error.reason == "backend_unavailable":
        return SaiseiError("temporarily_unavailable", error.detail, error.metadata)
    return error


class LingeringResponse(Response):
    """Answers at once, and goes on dropping the request for a bounded while before the connection closes."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        await send({"type": "http.response.body", "body": self.body, "more_body": True})
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(LINGER_SECONDS):
                await _drain(receive)
        await send({"type": "http.response.body", "body": b"", "more_body": False})


async def _drain(receive: Receive) -> None:
    dropped = 0
    while dropped <= LINGER_BYTES:
        message = await receive()
        if message["type"] == "http.disconnect" or not message.get("more_body", False):
            return
        dropped += len(message.get("body", b""))
