"""Asking the runtime which asset answers: one open call, many questions in each message (WV-23, WD-04).

A call for each request would cost more than the response. What is decided, and where, stays the same: the runtime
chooses the Version for each request as it comes; this side only remembers for which hostnames asking pays.
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from typing import TYPE_CHECKING, Any

import grpc

from saisei.runtime.v1 import invocation_pb2 as pb
from saisei_service.credentials import Metadata

if TYPE_CHECKING:
    from saisei.runtime.v1.invocation_pb2_grpc import InvocationServiceAsyncStub

log = logging.getLogger(__name__)

MAX_QUESTIONS = 1024
MAX_HOSTNAMES = 10_000
# A runtime that says nothing for so long is asked in the ordinary way.
PATIENCE_SECONDS = 5.0


class Locator:
    """Answers are never kept: a Deployment that changes is seen by the very next request."""

    def __init__(self, stub: InvocationServiceAsyncStub, metadata: Metadata) -> None:
        self._stub = stub
        self._metadata = metadata
        self._assets_first: OrderedDict[str, None] = OrderedDict()
        self._asked: list[pb.Question] = []
        self._waiting: dict[int, asyncio.Future[pb.Answer | None]] = {}
        self._wake = asyncio.Event()
        self._last = 0
        self._talk: asyncio.Task[None] | None = None

    def pays(self, hostname: str) -> bool:
        """Whether the last that was heard of the hostname is that its assets come first."""
        return hostname in self._assets_first

    def learn(self, hostname: str, *, assets_first: bool) -> None:
        if not assets_first:
            self._assets_first.pop(hostname, None)
            return
        self._assets_first[hostname] = None
        self._assets_first.move_to_end(hostname)
        if len(self._assets_first) > MAX_HOSTNAMES:
            self._assets_first.popitem(last=False)

    async def ask(self, hostname: str, url: str) -> pb.Answer | None:
        """The runtime's verdict on a GET or HEAD; None when none came, so that Fetch is to be asked."""
        self._last += 1
        number = self._last
        answer: asyncio.Future[pb.Answer | None] = asyncio.get_running_loop().create_future()
        self._waiting[number] = answer
        self._asked.append(pb.Question(id=number, hostname=hostname, url=url))
        self._wake.set()
        if self._talk is None:
            self._talk = asyncio.create_task(self._converse(), name="locate")
        try:
            async with asyncio.timeout(PATIENCE_SECONDS):
                return await answer
        except TimeoutError:
            if self._talk is not None:
                self._talk.cancel()
            return None
        finally:
            self._waiting.pop(number, None)

    async def stop(self) -> None:
        talk = self._talk
        if talk is not None:
            talk.cancel()
            await asyncio.gather(talk, return_exceptions=True)

    async def _converse(self) -> None:
        """Until the call ends; what was asked by then and not answered is told so."""
        call: Any = self._stub.Locate(metadata=self._metadata)
        listening = asyncio.create_task(self._listen(call))
        speaking = asyncio.create_task(self._speak(call))
        try:
            await asyncio.wait((listening, speaking), return_when=asyncio.FIRST_COMPLETED)
        finally:
            # From here on, whoever asks begins another one.
            self._talk = None
            call.cancel()
            for task in (listening, speaking):
                task.cancel()
            self._asked.clear()
            for answer in self._waiting.values():
                if not answer.done():
                    answer.set_result(None)
            for ended in await asyncio.gather(listening, speaking, return_exceptions=True):
                if isinstance(ended, Exception) and not isinstance(
                    ended, grpc.aio.AioRpcError | asyncio.InvalidStateError
                ):
                    log.error("asking for assets failed", exc_info=ended)

    async def _speak(self, call: Any) -> None:
        while True:
            await self._wake.wait()
            # Whoever is about to ask in this round of the loop comes along.
            await asyncio.sleep(0)
            batch = self._asked[:MAX_QUESTIONS]
            del self._asked[:MAX_QUESTIONS]
            if not self._asked:
                self._wake.clear()
            if batch:
                await call.write(pb.LocateRequest(questions=batch))

    async def _listen(self, call: Any) -> None:
        async for response in call:
            for answer in response.answers:
                waiting = self._waiting.get(answer.id)
                if waiting is not None and not waiting.done():
                    waiting.set_result(answer)
