"""Waiting for what is about to happen in this process."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

from tests.support.stopwatch import Stopwatch


async def eventually(condition: Callable[[], Any], seconds: float = 10.0) -> None:
    """Polls; AssertionError after `seconds`."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        await asyncio.sleep(0.005)


async def within_a_second(condition: Callable[[], Any]) -> None:
    """The gateway and both fakes live in this process: its own waits for a CPU do not count."""
    stopwatch = Stopwatch()
    await eventually(condition)
    assert stopwatch.seconds() < 1
