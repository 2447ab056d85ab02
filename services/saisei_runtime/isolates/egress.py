"""Outbound `fetch` of tenants (MW-26): performed here, never by the process that runs their code. Calls through service
Bindings come the same way and go to `services`.

Redirects, content codings and the policy of addresses are handled on this side; bodies stream with credit both ways.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import zlib
from collections import deque
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from urllib.parse import urljoin, urlsplit

import httpcore
import httpx

from saisei_contract.errors import SaiseiError
from saisei_runtime.isolates.bodies import close_body
from saisei_runtime.isolates.port import BindingError, FetchHead
from saisei_runtime.isolates.protocol import (
    Frame,
    FromThread,
    InChunk,
    InCredit,
    InEnd,
    InFailed,
    InHead,
    Out,
    OutAbort,
    OutChunk,
    OutCredit,
    OutEnd,
)
from saisei_runtime.isolates.services import ServiceCalls
from saisei_service.egress import EgressPolicy, EgressRefused, PinnedBackend

_log = logging.getLogger(__name__)

WINDOW = 262_144
_CHUNK = 65_536
_MOST_REDIRECTS = 20
_REDIRECTS = frozenset({301, 302, 303, 307, 308})
_BECOMES_GET = frozenset({("POST", 301), ("POST", 302)})
_WITHOUT_BODY = frozenset({204, 205, 304})
# A body that is complete so soon, and no larger than the window, is sent with its length.
_GATHER_SECONDS = 0.05
_CONNECT_SECONDS = 15.0
_GZIP = b"\x1f"
_AT_ONCE = 64
# These concern one connection, or are written here.
_DROPPED = frozenset(
    {
        "accept-encoding",
        "connection",
        "expect",
        "host",
        "keep-alive",
        "proxy-authorization",
        "proxy-connection",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
    }
)
_OF_A_BODY = frozenset({"content-encoding", "content-language", "content-length", "content-location", "content-type"})
_PRIVATE = frozenset({"authorization", "cookie"})


class FetchFailed(Exception):  # noqa: N818 - what the tenant's `fetch` does
    """Rejects the tenant's Promise with a TypeError of this message."""


@dataclass(slots=True)
class Exchange:
    """A response under way. `body` must be iterated to its end, or `close` called."""

    status: int
    headers: list[tuple[str, str]]
    url: str
    redirected: bool
    body: AsyncIterator[bytes]
    has_body: bool
    close: Callable[[], object]


class Egress:
    """The connections of one runtime. Use it from one event loop."""

    def __init__(self, policy: EgressPolicy, silent_after: float = 300.0) -> None:
        """A server that says or takes nothing for `silent_after` seconds is given up."""
        self._policy = policy
        self._silent_after = silent_after
        self._pool: httpcore.AsyncConnectionPool | None = None

    async def close(self) -> None:
        if self._pool is not None:
            await self._pool.aclose()
            self._pool = None

    async def perform(self, head: Out, body: RequestBody | None) -> Exchange:
        """FetchFailed when there is no response, with a message for the tenant."""
        method, url = head.method, head.url
        headers = [(name, value) for name, value in head.headers if name not in _DROPPED]
        content = body
        for hop in range(_MOST_REDIRECTS + 1):
            response = await self._send(method, url, headers, content)
            location = _location(response, url)
            if location is None or head.redirect == "manual":
                return _exchange(response, method, url, redirected=hop > 0)
            await response.aclose()
            if head.redirect == "error":
                raise FetchFailed(f"fetch failed: {url} redirects, and the request's redirect mode is error")
            if (method, response.status) in _BECOMES_GET or (response.status == 303 and method not in ("GET", "HEAD")):
                method, content = "GET", None
            elif content is not None and not content.repeatable:
                raise FetchFailed(f"fetch failed: {url} redirects, and the request's stream cannot be sent twice")
            if content is None:
                headers = [(name, value) for name, value in headers if name not in _OF_A_BODY]
            if _origin(location) != _origin(url):
                headers = [(name, value) for name, value in headers if name not in _PRIVATE]
            url = location
        raise FetchFailed(f"fetch failed: {head.url} redirects more than {_MOST_REDIRECTS} times")

    async def _send(
        self, method: str, url: str, headers: list[tuple[str, str]], body: RequestBody | None
    ) -> httpcore.Response:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise FetchFailed("fetch failed: only http and https URLs can be fetched")
        sent = [("host", parts.netloc.rpartition("@")[2]), *headers, ("accept-encoding", "gzip, deflate")]
        names = {name for name, _ in sent}
        sent += [pair for pair in (("accept", "*/*"), ("user-agent", "Saisei")) if pair[0] not in names]
        content: bytes | AsyncIterator[bytes] | None = None
        if body is not None:
            gathered = await body.gather()
            if gathered is not None:
                sent = [(name, value) for name, value in sent if name != "content-length"]
                sent.append(("content-length", str(len(gathered))))
                content = gathered
            else:
                if "content-length" not in names:
                    sent.append(("transfer-encoding", "chunked"))
                content = body.chunks()
        elif method in ("POST", "PUT", "PATCH"):
            sent = [(name, value) for name, value in sent if name != "content-length"]
            sent.append(("content-length", "0"))
        request = httpcore.Request(
            method,
            url.encode("ascii").partition(b"#")[0],
            headers=[(name.encode("latin-1"), value.encode("latin-1")) for name, value in sent],
            content=content,
            extensions={
                "timeout": {
                    "connect": _CONNECT_SECONDS,
                    "pool": None,
                    "read": self._silent_after,
                    "write": self._silent_after,
                }
            },
        )
        try:
            return await self._connections().handle_async_request(request)
        except EgressRefused as error:
            raise FetchFailed(f"fetch failed: {error}") from None
        except (httpcore.ConnectError, httpcore.ConnectTimeout) as error:
            raise FetchFailed(f"fetch failed: {parts.hostname} cannot be reached") from error
        except (httpcore.ReadTimeout, httpcore.WriteTimeout) as error:
            silent = f"was silent for {self._silent_after:g} seconds"
            raise FetchFailed(f"fetch failed: {parts.hostname} {silent}") from error
        except (httpcore.NetworkError, httpcore.ProtocolError, httpcore.TimeoutException) as error:
            raise FetchFailed(f"fetch failed: the exchange with {parts.hostname} broke off") from error
        except (httpcore.UnsupportedProtocol, UnicodeError, ValueError) as error:
            raise FetchFailed("fetch failed: the request cannot be sent over HTTP/1.1") from error

    def _connections(self) -> httpcore.AsyncConnectionPool:
        if self._pool is None:
            self._pool = httpcore.AsyncConnectionPool(
                ssl_context=httpx.create_ssl_context(),
                max_connections=None,
                max_keepalive_connections=64,
                keepalive_expiry=30,
                network_backend=PinnedBackend(self._policy),
            )
        return self._pool


def _origin(url: str) -> tuple[str, str]:
    parts = urlsplit(url)
    return parts.scheme, parts.netloc


def _location(response: httpcore.Response, url: str) -> str | None:
    if response.status not in _REDIRECTS:
        return None
    for name, value in response.headers:
        if name.lower() == b"location":
            target = urljoin(url, value.decode("latin-1"))
            fragment = urlsplit(url).fragment
            return f"{target}#{fragment}" if fragment and not urlsplit(target).fragment else target
    return None


def _exchange(response: httpcore.Response, method: str, url: str, *, redirected: bool) -> Exchange:
    headers = [(name.decode("latin-1").lower(), value.decode("latin-1")) for name, value in response.headers]
    coding = next((value.strip().lower() for name, value in headers if name == "content-encoding"), "")
    chunks: AsyncIterator[bytes] = response.aiter_stream().__aiter__()
    if coding in ("gzip", "x-gzip", "deflate"):
        chunks = _decoded(chunks, coding)
        headers = [(name, value) for name, value in headers if name not in ("content-encoding", "content-length")]
    has_body = method != "HEAD" and response.status not in _WITHOUT_BODY
    return Exchange(response.status, headers, url, redirected, chunks, has_body, response.aclose)


async def _decoded(chunks: AsyncIterator[bytes], coding: str) -> AsyncIterator[bytes]:
    """At most 64 KiB at a time, however much a few bytes may unfold to. zlib.error when the coding is broken or ends
    too soon. Of gzip, members may follow each other; whatever else comes after the end is passed over."""
    decoder = zlib.decompressobj(31 if coding != "deflate" else zlib.MAX_WBITS)
    first = coding == "deflate"
    empty = True
    async for chunk in chunks:
        rest = chunk
        empty = empty and not chunk
        while rest:
            if decoder.eof:
                if coding == "deflate" or not rest.startswith(_GZIP):
                    break
                decoder = zlib.decompressobj(31)
            try:
                part = decoder.decompress(rest, _CHUNK)
            except zlib.error:
                if not first:
                    raise
                decoder = zlib.decompressobj(-zlib.MAX_WBITS)  # what many servers call deflate
                part = decoder.decompress(rest, _CHUNK)
            first = False
            rest = decoder.unused_data if decoder.eof else decoder.unconsumed_tail
            if part:
                yield part
    last = decoder.flush()
    if last:
        yield last
    if not decoder.eof and not empty:
        raise zlib.error("the coded body ends too soon")


class RequestBody:
    """The body of a tenant's request as it arrives from the thread."""

    def __init__(self, taken: Callable[[int], None]) -> None:
        self._taken = taken
        self._chunks: deque[bytes] = deque()
        self._size = 0
        self._ended = False
        self._cut = False
        self._news = asyncio.Event()
        self._gathered: bytes | None = None
        self._started = False

    def push(self, chunk: bytes) -> None:
        self._chunks.append(chunk)
        self._size += len(chunk)
        self._news.set()

    def end(self, *, cut: bool) -> None:
        self._ended, self._cut = True, cut
        self._news.set()

    @property
    def repeatable(self) -> bool:
        return self._gathered is not None

    async def gather(self) -> bytes | None:
        """All of it, when it is complete soon and small; else None, and `chunks` gives it."""
        if self._gathered is None and not self._started:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_GATHER_SECONDS):
                    while not self._ended and self._size < WINDOW:
                        self._news.clear()
                        await self._news.wait()
            if self._ended and not self._cut:
                self._gathered = b"".join(self._chunks)
        return self._gathered

    async def chunks(self) -> AsyncIterator[bytes]:
        self._started = True
        while True:
            while self._chunks:
                chunk = self._chunks.popleft()
                self._size -= len(chunk)
                self._taken(len(chunk))
                yield chunk
            if self._ended:
                break
            self._news.clear()
            await self._news.wait()
        if self._cut:
            raise FetchFailed("fetch failed: the request body broke off")


class EgressCalls:
    """The fetches of one context or serving thread. `close` cancels what is under way; nothing is sent afterwards.

    `services(scope)` gives the service calls of a context or invocation that has not ended.
    """

    def __init__(
        self,
        egress: Egress | None,
        send: Callable[[Frame, bytes], None],
        services: Callable[[str], ServiceCalls | None],
    ) -> None:
        self._egress = egress
        self._send = send
        self._services = services
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._bodies: dict[int, RequestBody] = {}
        self._credit: dict[int, _Credit] = {}
        self._turn = asyncio.Semaphore(_AT_ONCE)

    def receive(self, frame: FromThread, body: bytes) -> bool:
        """False when the frame is not about a fetch."""
        match frame:
            case Out(id=number):
                self._begin(number, frame)
            case OutChunk(id=number):
                if number in self._bodies:
                    self._bodies[number].push(body)
            case OutEnd(id=number, cut=cut):
                if number in self._bodies:
                    self._bodies[number].end(cut=cut)
            case OutCredit(id=number, bytes=count):
                if number in self._credit:
                    self._credit[number].grant(count)
            case OutAbort(id=number):
                task = self._tasks.get(number)
                if task is not None:
                    task.cancel()
            case _:
                return False
        return True

    def close(self) -> None:
        self._send = lambda _frame, _body: None
        for task in list(self._tasks.values()):
            task.cancel()

    def _begin(self, number: int, head: Out) -> None:
        if head.has_body:
            self._bodies[number] = RequestBody(lambda count: self._send(InCredit(number, count), b""))
        self._credit[number] = _Credit()
        services = self._services(head.scope) if head.binding else None
        task = asyncio.get_running_loop().create_task(self._perform(number, head, services))
        self._tasks[number] = task
        task.add_done_callback(lambda _task: self._forget(number))
        if services is not None:
            services.hold(task)

    def _forget(self, number: int) -> None:
        del self._tasks[number], self._credit[number]
        self._bodies.pop(number, None)

    async def _perform(self, number: int, head: Out, services: ServiceCalls | None) -> None:
        try:
            await (self._call(number, head, services) if head.binding else self._go(number, head))
        except FetchFailed as error:
            self._send(InFailed(number, "TypeError", str(error)), b"")
        except BindingError as error:
            self._send(InFailed(number, error.name, error.message), b"")
        except Exception:
            _log.exception("an outbound request failed")
            self._send(InFailed(number, "TypeError", "fetch failed"), b"")

    async def _go(self, number: int, head: Out) -> None:
        if self._egress is None:
            raise FetchFailed("fetch failed: this Host lets no request out")
        async with self._turn:
            await self._stream(number, await self._egress.perform(head, self._bodies.get(number)))

    async def _call(self, number: int, head: Out, services: ServiceCalls | None) -> None:
        if services is None:
            raise BindingError("backend_unavailable", "the invocation that this call belongs to has ended")
        body = self._bodies.get(number)
        url = head.url.partition("#")[0]
        request = FetchHead(head.method, url, head.headers, None if body is None else body.chunks())
        result = await services.fetch(head.binding, request)
        has_body = head.method != "HEAD" and result.status not in _WITHOUT_BODY
        taken = result.body
        exchange = Exchange(result.status, list(result.headers), url, False, taken, has_body, lambda: close_body(taken))
        await self._stream(number, exchange)

    async def _stream(self, number: int, exchange: Exchange) -> None:
        try:
            await self._send_all(number, exchange)
        finally:
            closing = exchange.close()
            if asyncio.iscoroutine(closing):
                await closing

    async def _send_all(self, number: int, exchange: Exchange) -> None:
        head = InHead(number, exchange.status, exchange.headers, exchange.url, exchange.redirected, exchange.has_body)
        self._send(head, b"")
        if not exchange.has_body:
            return
        credit = self._credit[number]
        cut = True
        try:
            async for chunk in exchange.body:
                for start in range(0, len(chunk), _CHUNK):
                    part = chunk[start : start + _CHUNK]
                    await credit.take(len(part))
                    self._send(InChunk(number), part)
            cut = False
        except (httpcore.NetworkError, httpcore.ProtocolError, httpcore.TimeoutException, zlib.error, SaiseiError):
            return  # the head is out: the body breaks off
        finally:
            self._send(InEnd(number, cut), b"")


class _Credit:
    """Bytes of a response that may be on their way to the thread."""

    def __init__(self) -> None:
        self._left = WINDOW
        self._granted = asyncio.Event()

    def grant(self, count: int) -> None:
        self._left += count
        self._granted.set()

    async def take(self, count: int) -> None:
        while self._left <= 0:
            self._granted.clear()
            await self._granted.wait()
        self._left -= count
