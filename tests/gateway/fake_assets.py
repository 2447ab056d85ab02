"""The assets of a runtime that a test tells what to say."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

from saisei.runtime.v1 import invocation_pb2 as pb
from saisei_contract.errors import SaiseiError

CHUNK = 65_536


@dataclass
class FakeAssets:
    """`files` by path. Every other path is for Fetch, of the Version `v`."""

    files: dict[str, bytes] = field(default_factory=dict)
    # Numbers of questions that came together.
    batches: list[int] = field(default_factory=list)
    reads: list[pb.ReadAssetRequest] = field(default_factory=list)
    open_reads: int = 0
    # "" for none; else Locate ends instead of answering, or the bytes come wrong, not at all, or stop half-way.
    fault: str = ""
    hold: asyncio.Event | None = None

    def named(self, path: str) -> pb.Asset | None:
        data = self.files.get(path)
        if data is None:
            return None
        digest = hashlib.sha256(data).hexdigest()
        return pb.Asset(
            version_uid="v", sha256=digest, media_type="text/plain", size_bytes=len(data), assets_first=True
        )

    def locate(self, request: pb.LocateRequest) -> pb.LocateResponse:
        self.batches.append(len(request.questions))
        if self.fault == "locate":
            raise SaiseiError("backend_unavailable", "the runtime stops")
        answers = []
        for question in reversed(request.questions):
            found = self.named(question.url.removeprefix("https://").partition("/")[2])
            instead = pb.FetchInstead(version_uid="v", assets_first=self.fault != "no-assets")
            answers.append(
                pb.Answer(id=question.id, fetch=instead) if found is None else pb.Answer(id=question.id, asset=found)
            )
        return pb.LocateResponse(answers=answers)

    async def read(self, request: pb.ReadAssetRequest) -> AsyncIterator[pb.ReadAssetResponse]:
        self.reads.append(request)
        self.open_reads += 1
        try:
            if self.hold is not None:
                await self.hold.wait()
            if self.fault == "away":
                raise SaiseiError("backend_unavailable", "no bytes now")
            data = next(data for data in self.files.values() if hashlib.sha256(data).hexdigest() == request.sha256)
            if self.fault == "wrong":
                data = bytes(len(data))
            end = request.offset + request.length
            for start in range(request.offset, end, CHUNK):
                if self.fault == "half" and start > request.offset:
                    raise SaiseiError("backend_unavailable", "the Version was stopped")
                yield pb.ReadAssetResponse(data=data[start : min(start + CHUNK, end)])
        finally:
            self.open_reads -= 1
