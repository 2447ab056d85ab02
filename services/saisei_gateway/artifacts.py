"""`PUT {origin}/artifacts/v1/sha256/{digest}`: bytes into the caller's custody, streamed (AR-09 … AR-11, design 5)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import grpc
from starlette.requests import Request
from starlette.responses import Response

from saisei.control.v1 import artifacts_pb2 as pb
from saisei_contract.artifacts import MAX_FILE_BYTES
from saisei_contract.errors import SaiseiError
from saisei_contract.grammar import is_sha256
from saisei_gateway.backends import answer_of
from saisei_gateway.calls import Call
from saisei_gateway.host_api.request import body_chunks, read_query, refuse_coding
from saisei_gateway.host_api.respond import json_response

CHUNK_BYTES = 256 * 1024


async def put_artifact(call: Call) -> Response:
    """201 for bytes that the principal did not hold yet, else 200. The control service checks the digest."""
    read_query(call.request)
    refuse_coding(call.request)
    digest = call.segments["digest"]
    if not is_sha256(digest):
        raise SaiseiError("invalid_request", "The digest in the path must be 64 lower-case hexadecimal digits.")
    rpc = call.backends.artifacts.PutArtifact(metadata=call.metadata)
    whole = True
    try:
        whole = await _write_all(rpc, call.request, digest)
        answer = await answer_of(rpc)
    except SaiseiError as error:
        if error.reason == "internal_error" and not whole:
            # A write that meets an ended call can hide the status that ended it.
            raise SaiseiError("backend_unavailable", "The upload was cut off; try again.") from None
        raise
    finally:
        rpc.cancel()
    return json_response({"sha256": answer.sha256, "size": answer.size_bytes}, 201 if answer.created else 200)


async def _write_all(rpc: Any, request: Request, digest: str) -> bool:
    """Whether everything was written. Otherwise the other side has ended the call, and its status says why."""
    try:
        async for message in _messages(request, digest):
            await rpc.write(message)
        await rpc.done_writing()
    except (grpc.aio.AioRpcError, asyncio.InvalidStateError):
        return False
    return True


async def _messages(request: Request, digest: str) -> AsyncIterator[pb.PutArtifactRequest]:
    yield pb.PutArtifactRequest(header=pb.PutArtifactHeader(sha256=digest))
    async for chunk in body_chunks(request, MAX_FILE_BYTES):
        for start in range(0, len(chunk), CHUNK_BYTES):
            yield pb.PutArtifactRequest(data=chunk[start : start + CHUNK_BYTES])
