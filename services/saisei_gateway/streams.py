"""Watching both ends of a streamed response."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

from starlette.types import Receive


async def until_gone(receive: Receive, draining: asyncio.Event | None, work: Coroutine[Any, Any, None]) -> bool:
    """Runs `work` until it is done, the client has gone, or `draining` is set; then `work` is cancelled and awaited.

    True: the client has gone. Errors of `work` are raised.
    """
    working = asyncio.create_task(work)
    leaving = asyncio.create_task(_disconnected(receive))
    watched: set[asyncio.Task[Any]] = {working, leaving}
    stopping = asyncio.create_task(draining.wait()) if draining is not None else None
    if stopping is not None:
        watched.add(stopping)
    try:
        await asyncio.wait(watched, return_when=asyncio.FIRST_COMPLETED)
        gone = leaving.done() and not working.done()
    finally:
        for task in watched:
            task.cancel()
        await asyncio.gather(*watched, return_exceptions=True)
    if not working.cancelled() and (error := working.exception()) is not None:
        raise error
    return gone


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
