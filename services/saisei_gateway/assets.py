"""Serving static assets: small ones out of memory, large ones read from the runtime as the client takes them (WV-22).

Bytes are kept by their digest, so that nothing in memory can be out of date; which digest answers a request is the
runtime's to say each time.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections import OrderedDict
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any

import grpc
from starlette.types import Receive, Scope, Send

from saisei.runtime.v1 import invocation_pb2 as pb
from saisei_contract.asset_responses import Asset, AssetResponse, asset_response
from saisei_contract.errors import SaiseiError
from saisei_gateway.streams import until_gone
from saisei_service.credentials import Metadata

if TYPE_CHECKING:
    from saisei.runtime.v1.invocation_pb2_grpc import InvocationServiceAsyncStub

log = logging.getLogger(__name__)

# A larger asset is never held as a whole.
MAX_KEPT_BYTES = 1024 * 1024
CHUNK_BYTES = 64 * 1024
# How long a reading into memory may take.
FILL_SECONDS = 60.0


class AssetServer:
    """`memory_bytes` bounds what is kept for all hostnames together."""

    def __init__(self, stub: InvocationServiceAsyncStub, metadata: Metadata, memory_bytes: int) -> None:
        self._stub = stub
        self._metadata = metadata
        self._memory_bytes = memory_bytes
        self._used_bytes = 0
        self._kept: OrderedDict[str, bytes] = OrderedDict()
        self._filling: dict[str, asyncio.Task[bytes]] = {}

    async def respond(self, named: pb.Asset, scope: Scope, receive: Receive, send: Send) -> int:
        """Sends the response; returns its status. SaiseiError while nothing was sent yet."""
        headers = [(name.decode("latin-1"), value.decode("latin-1")) for name, value in scope["headers"]]
        response = asset_response(_asset(named), scope["method"], headers)
        if response.length == 0 or scope["method"] == "HEAD":
            await _begin(response, send)
            await send({"type": "http.response.body", "body": b""})
            return response.status
        digest, size = (named.gzip_sha256, named.gzip_bytes) if response.gzip else (named.sha256, named.size_bytes)
        if size <= min(MAX_KEPT_BYTES, self._memory_bytes):
            data = self._kept.get(digest)
            if data is None:
                data = await self._fill(named, response.gzip, digest, size)
            else:
                self._kept.move_to_end(digest)
            await _send_kept(response, memoryview(data), send)
            return response.status
        await self._stream(named, response, receive, send)
        return response.status

    async def _fill(self, named: pb.Asset, gzip: bool, digest: str, size: int) -> bytes:
        """One reading for all who want the same bytes at once; it goes on when the first of them leaves."""
        task = self._filling.get(digest)
        if task is None:
            task = asyncio.create_task(self._read_whole(named, gzip, digest, size))
            self._filling[digest] = task
            task.add_done_callback(lambda _: self._filling.pop(digest, None))
        return await asyncio.shield(task)

    async def _read_whole(self, named: pb.Asset, gzip: bool, digest: str, size: int) -> bytes:
        request = pb.ReadAssetRequest(
            version_uid=named.version_uid, sha256=named.sha256, gzip=gzip, offset=0, length=size
        )
        call: Any = self._stub.ReadAsset(request, metadata=self._metadata, timeout=FILL_SECONDS)
        try:
            data = b"".join([part.data async for part in call])
        except grpc.aio.AioRpcError as error:
            raise _unavailable(error) from None
        if hashlib.sha256(data).hexdigest() != digest:
            raise SaiseiError("backend_unavailable", "The asset came with other bytes than announced; try again.")
        self._kept[digest] = data
        self._kept.move_to_end(digest)
        self._used_bytes += len(data)
        while self._used_bytes > self._memory_bytes:
            _, dropped = self._kept.popitem(last=False)
            self._used_bytes -= len(dropped)
        return data

    async def _stream(self, named: pb.Asset, response: AssetResponse, receive: Receive, send: Send) -> None:
        request = pb.ReadAssetRequest(
            version_uid=named.version_uid,
            sha256=named.sha256,
            gzip=response.gzip,
            offset=response.offset,
            length=response.length,
        )
        call: Any = self._stub.ReadAsset(request, metadata=self._metadata)
        try:
            await until_gone(receive, _pass_on(call, response, send))
        finally:
            call.cancel()


async def _pass_on(call: Any, response: AssetResponse, send: Send) -> None:
    """The head waits for the first bytes: until then a failure can still be told."""
    parts: AsyncIterator[pb.ReadAssetResponse] = aiter(call)
    try:
        first = await anext(parts, None)
    except grpc.aio.AioRpcError as error:
        raise _unavailable(error) from None
    if first is None:
        raise SaiseiError("backend_unavailable", "The asset came without its bytes; try again.")
    await _begin(response, send)
    left = response.length
    try:
        part: pb.ReadAssetResponse | None = first
        while part is not None:
            data = memoryview(part.data)
            left -= len(data)
            for start in range(0, len(data), CHUNK_BYTES):
                more = left > 0 or start + CHUNK_BYTES < len(data)
                await send({"type": "http.response.body", "body": data[start : start + CHUNK_BYTES], "more_body": more})
            part = await anext(parts, None)
    except grpc.aio.AioRpcError as error:
        # Too late for a status: the server cuts the connection of a response that is left open.
        log.info("an asset broke off", extra={"code": error.code().name})


async def _send_kept(response: AssetResponse, data: memoryview, send: Send) -> None:
    """In pieces: what a slow client has not taken waits here once for all, and not once more for each of them."""
    await _begin(response, send)
    end = response.offset + response.length
    for start in range(response.offset, end, CHUNK_BYTES):
        stop = min(start + CHUNK_BYTES, end)
        await send({"type": "http.response.body", "body": data[start:stop], "more_body": stop < end})


async def _begin(response: AssetResponse, send: Send) -> None:
    headers = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in response.headers]
    await send({"type": "http.response.start", "status": response.status, "headers": headers})


def _asset(named: pb.Asset) -> Asset:
    return Asset(named.sha256, named.media_type, named.size_bytes, named.gzip_sha256, named.gzip_bytes)


def _unavailable(error: grpc.aio.AioRpcError) -> SaiseiError:
    """Whatever the reason: the runtime named the asset a moment ago, so that asking again finds what is true now."""
    log.info("an asset could not be read", extra={"code": error.code().name})
    return SaiseiError("backend_unavailable", "The asset cannot be read now; try again.")
