"""Worker traffic: any Host but the origin's goes to `InvocationService.Fetch`, both bodies streamed (EP-03, MW-23).

The Worker sees the request as the client sent it, but for headers that belong to one connection (RFC 9110 7.6.1).
What a client claims about forwarding is dropped, since nothing trustworthy stands before this gateway; its own
`x-forwarded-for` and `x-forwarded-proto` say what it has seen.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Iterable
from typing import Any, TypeAlias

import grpc
from starlette.requests import Request
from starlette.types import Receive, Scope, Send

from saisei.runtime.v1 import invocation_pb2 as pb
from saisei_contract.errors import SaiseiError
from saisei_contract.http_headers import HOP_BY_HOP
from saisei_gateway.calls import Gateway
from saisei_gateway.host_api.respond import host_error, problem_response
from saisei_gateway.settings import hostname_of
from saisei_gateway.streams import until_gone
from saisei_service.rpc_errors import from_rpc_error

log = logging.getLogger(__name__)

Pairs: TypeAlias = list[tuple[str, str]]

CHUNK_BYTES = 64 * 1024
METHODS_REFUSED = frozenset({"CONNECT", "TRACE", "TRACK"})
METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS")

FORWARDING = frozenset({"forwarded", "x-forwarded-for", "x-forwarded-host", "x-forwarded-port", "x-forwarded-proto"})
BODILESS = frozenset({204, 205, 304})

_AUTHORITY = re.compile(r"(?:[A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\])(?::[0-9]{1,5})?\Z", re.ASCII)


def authority_of(request: Request) -> str:
    """The Host header; SaiseiError invalid_request unless there is exactly one `host[:port]` (RFC 9112 3.2)."""
    values = request.headers.getlist("host")
    if len(values) != 1 or not _AUTHORITY.match(values[0].strip(" \t")):
        raise SaiseiError("invalid_request", "The request needs exactly one Host header: host or host:port.")
    return values[0].strip(" \t")


def end_to_end(headers: Iterable[tuple[str, str]], dropped: frozenset[str] = frozenset()) -> Pairs:
    """The headers without those of one connection, also the ones that Connection names."""
    pairs = list(headers)
    named = {token.strip(" \t").lower() for name, value in pairs if name == "connection" for token in value.split(",")}
    return [(name, value) for name, value in pairs if name not in HOP_BY_HOP | named | dropped]


def request_head(request: Request, authority: str) -> pb.RequestHead:
    scope = request.scope
    query = scope["query_string"].decode("latin-1")
    headers = end_to_end(((n.decode("latin-1"), v.decode("latin-1")) for n, v in scope["headers"]), FORWARDING)
    client = scope.get("client")
    if client:
        headers.append(("x-forwarded-for", client[0]))
    headers.append(("x-forwarded-proto", "https"))
    return pb.RequestHead(
        hostname=hostname_of(authority),
        method=scope["method"],
        url=f"https://{authority.lower()}{scope['raw_path'].decode('latin-1')}{'?' + query if query else ''}",
        headers=[pb.Header(name=name, value=value) for name, value in headers],
        has_body=_has_body(request),
    )


def _has_body(request: Request) -> bool:
    length = request.headers.get("content-length")
    return "transfer-encoding" in request.headers or (length is not None and length.strip() != "0")


class Exchange:
    """One request for a Worker. The call is cancelled when the client goes; a response that breaks off is cut."""

    def __init__(self, gateway: Gateway, request: Request, authority: str) -> None:
        self._gateway = gateway
        self._request = request
        self._authority = authority
        self._disconnected = asyncio.Event()
        self._body_read = asyncio.Event()
        # The Version that was chosen when an asset was looked for.
        self._chosen = ""
        self.status = 0

    async def run(self, scope: Scope, receive: Receive, send: Send) -> None:
        """SaiseiError while nothing was sent yet."""
        if scope["method"] in METHODS_REFUSED:
            await problem_response(SaiseiError("method_not_allowed"), allow=METHODS)(scope, receive, send)
            self.status = 405
            return
        if await self._is_asset(scope, receive, send):
            return
        rpc = self._gateway.backends.invocations.Fetch(metadata=self._gateway.service_metadata)
        with self._gateway.metrics.stream("traffic"):
            try:
                await self._relay(rpc, receive, send)
            finally:
                rpc.cancel()

    async def _is_asset(self, scope: Scope, receive: Receive, send: Send) -> bool:
        """Asks for an asset where that is likely to be one, and answers with it (WV-22, WV-23)."""
        locator, hostname = self._gateway.locator, hostname_of(self._authority)
        if scope["method"] not in ("GET", "HEAD") or not locator.pays(hostname):
            return False
        url = f"https://{self._authority.lower()}{scope['raw_path'].decode('latin-1')}"
        answer = await locator.ask(hostname, url)
        if answer is None:
            return False
        if answer.WhichOneof("verdict") == "asset":
            self.status = await self._gateway.assets.respond(answer.asset, scope, receive, send)
            return True
        locator.learn(hostname, assets_first=answer.fetch.assets_first)
        self._chosen = answer.fetch.version_uid
        return False

    async def _relay(self, rpc: Any, receive: Receive, send: Send) -> None:
        head = request_head(self._request, self._authority)
        head.version_uid = self._chosen
        uploading = asyncio.create_task(self._upload(rpc, head, receive))

        async def watched_receive() -> dict[str, Any]:
            # The body has one reader; the watcher takes over when it is through.
            await self._body_read.wait()
            if self._disconnected.is_set():
                return {"type": "http.disconnect"}
            return dict(await receive())

        try:
            await until_gone(watched_receive, self._download(rpc, watched_receive, send))
        finally:
            uploading.cancel()
            await asyncio.gather(uploading, return_exceptions=True)

    async def _upload(self, rpc: Any, head: pb.RequestHead, receive: Receive) -> None:
        """The head and the body. A failed write is told by the response side, which knows why.

        The call is left half open: its end cancels it, and each further write is one that may meet a broken call.
        """
        try:
            await rpc.write(pb.FetchRequest(head=head))
            more = head.has_body
            while more:
                message = await receive()
                if message["type"] == "http.disconnect":
                    self._disconnected.set()
                    return
                body = message.get("body", b"")
                for start in range(0, len(body), CHUNK_BYTES):
                    await rpc.write(pb.FetchRequest(data=body[start : start + CHUNK_BYTES]))
                more = message.get("more_body", False)
            if head.has_body:
                await rpc.write(pb.FetchRequest(end=True))
        except (grpc.aio.AioRpcError, asyncio.InvalidStateError):
            log.debug("the Worker stopped reading its request")
        finally:
            self._body_read.set()

    async def _download(self, rpc: Any, receive: Receive, send: Send) -> None:
        try:
            first = await rpc.read()
        except grpc.aio.AioRpcError as error:
            raise host_error(from_rpc_error(error)) from None
        if first is not grpc.aio.EOF and first.WhichOneof("part") == "refusal":
            raise host_error(SaiseiError(first.refusal.reason, first.refusal.detail))
        if first is not grpc.aio.EOF and first.WhichOneof("part") == "asset":
            self._gateway.locator.learn(hostname_of(self._authority), assets_first=first.asset.assets_first)
            self.status = await self._gateway.assets.respond(first.asset, self._request.scope, receive, send)
            return
        if first is grpc.aio.EOF or first.WhichOneof("part") != "head":
            raise SaiseiError("internal_error", "The Worker's response had no head.")
        self.status = first.head.status
        bodiless = first.head.status in BODILESS or self._request.method == "HEAD"
        headers = _response_headers(first.head, keep_length=self._request.method == "HEAD")
        await send({"type": "http.response.start", "status": self.status, "headers": headers})
        try:
            while (message := await rpc.read()) is not grpc.aio.EOF and not message.end:
                if message.data and not bodiless:
                    await send({"type": "http.response.body", "body": message.data, "more_body": True})
            if message is grpc.aio.EOF:
                log.info("a Worker's response ended without its end")
                return
        except grpc.aio.AioRpcError as error:
            # Too late for a status: the server cuts the connection of a response that is left open.
            log.info("a Worker's response broke off", extra={"reason": from_rpc_error(error).reason})
            return
        await send({"type": "http.response.body", "body": b"", "more_body": False})


def _response_headers(head: pb.ResponseHead, *, keep_length: bool) -> list[tuple[bytes, bytes]]:
    """The server writes its own Date and frames the body itself: a Worker's Content-Length is a claim that its streamed
    body may not keep, and a wrong one would break the connection. `keep_length`: there is no body to contradict it."""
    length = keep_length and head.status not in BODILESS
    dropped = frozenset({"date"}) if length else frozenset({"content-length", "date"})
    pairs = end_to_end(((header.name.lower(), header.value) for header in head.headers), dropped)
    encoded = [(name.encode("latin-1"), value.encode("latin-1", "replace")) for name, value in pairs]
    return [*encoded, (b"content-length", b"0")] if head.status == 205 else encoded
