"""`saisei.control.v1.ArtifactService`: uploads by digest (AR-09 … AR-11)."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

from saisei.control.v1 import artifacts_pb2 as pb
from saisei.control.v1 import artifacts_pb2_grpc as rpc
from saisei_contract.artifacts import MAX_FILE_BYTES
from saisei_contract.errors import SaiseiError
from saisei_contract.grammar import is_sha256
from saisei_control.api.callers import Callers, Context
from saisei_control.artifacts.custody import Custody

_DRAIN_BYTES = 2 * MAX_FILE_BYTES
_DRAIN_SECONDS = 5.0


class ArtifactServicer(rpc.ArtifactServiceServicer):
    def __init__(self, callers: Callers, custody: Custody) -> None:
        self._callers = callers
        self._custody = custody

    async def PutArtifact(
        self, request_iterator: AsyncIterator[pb.PutArtifactRequest], context: Context
    ) -> pb.PutArtifactResponse:
        try:
            return await self._put(request_iterator, context)
        except SaiseiError:
            await _drain(request_iterator)
            raise

    async def _put(
        self, request_iterator: AsyncIterator[pb.PutArtifactRequest], context: Context
    ) -> pb.PutArtifactResponse:
        caller = await self._callers.of(context)
        caller.require_any_write()
        first = await anext(aiter(request_iterator), None)
        if first is None or first.WhichOneof("part") != "header":
            raise SaiseiError("invalid_request", "the first message must be the header with the digest")
        if not is_sha256(first.header.sha256):
            raise SaiseiError("invalid_request", "sha256 must be 64 lower-case hexadecimal digits")
        held, created = await self._custody.put(first.header.sha256, _data(request_iterator), caller.principal)
        return pb.PutArtifactResponse(sha256=held.sha256, size_bytes=held.size_bytes, created=created)


async def _drain(requests: AsyncIterator[pb.PutArtifactRequest]) -> None:
    """Reads on for a bounded while before a refusal: a client whose write meets an ended call may never see why."""
    dropped = 0
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(_DRAIN_SECONDS):
            async for request in requests:
                dropped += len(request.data)
                if dropped > _DRAIN_BYTES:
                    return


async def _data(requests: AsyncIterator[pb.PutArtifactRequest]) -> AsyncIterator[bytes]:
    async for request in requests:
        if request.WhichOneof("part") != "data":
            raise SaiseiError("invalid_request", "after the header come data messages only")
        yield request.data
