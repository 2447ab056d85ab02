"""`saisei.runtime.v1.InvocationService`: the gateway's HTTP requests, both bodies streamed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from typing import Any

import grpc

from saisei.runtime.v1 import invocation_pb2 as pb
from saisei.runtime.v1 import invocation_pb2_grpc as rpc
from saisei_contract.errors import SaiseiError
from saisei_runtime.isolates.bodies import close_body
from saisei_runtime.isolates.port import FetchHead, FetchResult, StaticAsset
from saisei_runtime.serving.assets import Assets
from saisei_runtime.serving.invoke import Serving
from saisei_service.credentials import require_service

Context = grpc.aio.ServicerContext[Any, Any]

CHUNK_BYTES = 64 * 1024
CLIENT_ENDS_WITHIN_SECONDS = 30.0


class InvocationServicer(rpc.InvocationServiceServicer):
    def __init__(self, serving: Serving, assets: Assets, credential: str) -> None:
        self._serving = serving
        self._assets = assets
        self._credential = credential

    async def Fetch(
        self, request_iterator: AsyncIterator[pb.FetchRequest], context: Context
    ) -> AsyncIterator[pb.FetchResponse]:
        require_service(context, self._credential)
        parts = aiter(request_iterator)
        first = await anext(parts, None)
        if first is None or first.WhichOneof("part") != "head":
            raise SaiseiError("invalid_request", "the first message of an exchange is its head")
        try:
            result = await self._serving.fetch(
                first.head.hostname, _fetch_head(first.head, parts), first.head.version_uid
            )
        except SaiseiError as error:
            yield pb.FetchResponse(refusal=pb.Refusal(reason=error.reason, detail=error.detail))
        else:
            messages = _response(result) if result.asset is None else self._named(result, result.asset)
            async with aclosing(messages):
                async for message in messages:
                    yield message
        # The client ends the call, which cancels this.
        await asyncio.sleep(CLIENT_ENDS_WITHIN_SECONDS)

    async def Locate(
        self, request_iterator: AsyncIterator[pb.LocateRequest], context: Context
    ) -> AsyncIterator[pb.LocateResponse]:
        require_service(context, self._credential)
        async for request in request_iterator:
            yield pb.LocateResponse(answers=[self._answer(question) for question in request.questions])

    async def ReadAsset(self, request: pb.ReadAssetRequest, context: Context) -> AsyncIterator[pb.ReadAssetResponse]:
        require_service(context, self._credential)
        chunks = self._assets.read(
            request.version_uid, request.sha256, gzipped=request.gzip, offset=request.offset, length=request.length
        )
        async with aclosing(chunks):
            async for chunk in chunks:
                yield pb.ReadAssetResponse(data=chunk)

    async def _named(self, result: FetchResult, asset: StaticAsset) -> AsyncGenerator[pb.FetchResponse, None]:
        """Instead of the response its asset: the client has the bytes, or reads them as it needs them."""
        await close_body(result.body)
        yield pb.FetchResponse(asset=self._asset(asset))

    def _answer(self, question: pb.Question) -> pb.Answer:
        found = self._serving.locate(question.hostname, question.url)
        if isinstance(found, StaticAsset):
            return pb.Answer(id=question.id, asset=self._asset(found))
        instead = pb.FetchInstead(version_uid=found, assets_first=self._serving.assets_first(found))
        return pb.Answer(id=question.id, fetch=instead)

    def _asset(self, found: StaticAsset) -> pb.Asset:
        asset = found.asset
        return pb.Asset(
            version_uid=found.version_uid,
            sha256=asset.sha256,
            media_type=asset.media_type,
            size_bytes=asset.size_bytes,
            gzip_sha256=asset.gzip_sha256,
            gzip_bytes=asset.gzip_bytes,
            assets_first=self._serving.assets_first(found.version_uid),
        )


def _fetch_head(head: pb.RequestHead, parts: AsyncIterator[pb.FetchRequest]) -> FetchHead:
    return FetchHead(
        method=head.method,
        url=head.url,
        headers=[(header.name, header.value) for header in head.headers],
        body=_body(parts) if head.has_body else None,
    )


async def _response(result: FetchResult) -> AsyncGenerator[pb.FetchResponse, None]:
    headers = [pb.Header(name=name, value=value) for name, value in result.headers]
    try:
        yield pb.FetchResponse(head=pb.ResponseHead(status=result.status, headers=headers, has_body=True))
        async for chunk in result.body:
            for start in range(0, len(chunk), CHUNK_BYTES):
                yield pb.FetchResponse(data=chunk[start : start + CHUNK_BYTES])
        yield pb.FetchResponse(end=True)
    finally:
        await close_body(result.body)


async def _body(parts: AsyncIterator[pb.FetchRequest]) -> AsyncIterator[bytes]:
    async for part in parts:
        match part.WhichOneof("part"):
            case "data":
                yield part.data
            case "end":
                return
            case _:
                raise SaiseiError("invalid_request", "after the head an exchange has data only")
