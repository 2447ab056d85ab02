"""Strict reading of requests: query, headers, media type and body, in the order of H-035."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import AsyncIterator, Collection, Iterator
from urllib.parse import unquote_to_bytes

from starlette.requests import Request

from saisei_contract.errors import SaiseiError
from saisei_contract.grammar import is_json_media_type
from saisei_contract.wire import parse_query

# A client that stops in the middle of its body may hold the connection no longer than this between two chunks, and one
# that drips may hold it for a minute and what this rate gives it.
BODY_IDLE_SECONDS = 30.0
BODY_SECONDS = 60.0
SLOWEST_BYTES_PER_SECOND = 16 * 1024

_MALFORMED_ESCAPE = re.compile(r"%(?![0-9A-Fa-f]{2})")


def decode_component(raw: str) -> str:
    """A percent-encoded query or path component; ValueError for a broken escape or bytes that are not UTF-8.

    `+` stands for itself: no value that the Host takes holds a space, but a Form URL may hold a plus.
    """
    if _MALFORMED_ESCAPE.search(raw):
        raise ValueError("a % is not followed by two hexadecimal digits")
    try:
        return unquote_to_bytes(raw).decode("utf-8")
    except UnicodeDecodeError:
        raise ValueError("the escaped bytes are not UTF-8") from None


def read_query(request: Request, known: Collection[str] = ()) -> dict[str, str]:
    """The query parameters; SaiseiError invalid_request for an unknown, repeated or wrongly escaped one (H-009)."""
    return parse_query(_pairs(request.scope["query_string"].decode("latin-1")), known)


def _pairs(query: str) -> Iterator[tuple[str, str]]:
    for part in query.split("&"):
        if not part:
            continue
        name, _, value = part.partition("=")
        try:
            yield decode_component(name), decode_component(value)
        except ValueError as error:
            raise SaiseiError("invalid_request", f"The query is not well-formed: {error}.") from None


def header_values(request: Request, name: str) -> list[str]:
    """All values of a header, outer whitespace removed."""
    return [value.strip(" \t") for value in request.headers.getlist(name)]


def require_json(request: Request) -> None:
    """SaiseiError unsupported_media_type unless the body is uncoded application/json (H-014, H-015)."""
    types = header_values(request, "content-type")
    if len(types) != 1 or not is_json_media_type(types[0]):
        raise SaiseiError("unsupported_media_type", "Send the body as Content-Type: application/json.")
    refuse_coding(request)


def refuse_coding(request: Request) -> None:
    """This Host takes no coded requests (H-015)."""
    if any(value.lower() not in {"", "identity"} for value in header_values(request, "content-encoding")):
        raise SaiseiError("unsupported_media_type", "Send the body without a Content-Encoding.")


async def read_body(request: Request, limit: int) -> bytes:
    """The whole body; errors as `body_chunks`."""
    return b"".join([chunk async for chunk in body_chunks(request, limit)])


async def body_chunks(request: Request, limit: int) -> AsyncIterator[bytes]:
    """The body as it comes; SaiseiError request_too_large as soon as more than `limit` octets are known of (H-015)."""
    refuse_declared_length(request, limit)
    size = 0
    stream = aiter(request.stream())
    began = time.monotonic()
    while True:
        left = began + BODY_SECONDS + size / SLOWEST_BYTES_PER_SECOND - time.monotonic()
        try:
            async with asyncio.timeout(min(BODY_IDLE_SECONDS, left)):
                chunk = await anext(stream, None)
        except TimeoutError:
            raise SaiseiError("invalid_request", "The body did not arrive in time.") from None
        if chunk is None:
            return
        size += len(chunk)
        if size > limit:
            raise too_large(limit)
        yield chunk


async def read_json(request: Request, limit: int) -> bytes:
    """Media type, then size (H-035). What the bytes say is for the envelope's reader."""
    require_json(request)
    return await read_body(request, limit)


async def refuse_body(request: Request) -> None:
    """SaiseiError invalid_request for a body that is not empty (H-034)."""
    refusal = SaiseiError("invalid_request", "This request takes no body.")
    declared = header_values(request, "content-length")
    if declared and declared[0].strip("0"):
        raise refusal
    try:
        async with asyncio.timeout(BODY_IDLE_SECONDS):
            async for chunk in request.stream():
                if chunk:
                    raise refusal
    except TimeoutError:
        raise SaiseiError("invalid_request", "The request did not end in time.") from None


def refuse_declared_length(request: Request, limit: int) -> None:
    declared = header_values(request, "content-length")
    if declared and declared[0].isascii() and declared[0].isdigit() and int(declared[0][:20]) > limit:
        raise too_large(limit)


def too_large(limit: int) -> SaiseiError:
    return SaiseiError("request_too_large", f"The body has more than {limit:,} octets.")
