"""Work that would hold up every other connection goes to a thread."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")

# Strict reading takes about a millisecond for each 16 KiB; below this a thread costs more than it saves.
INLINE_BYTES = 32 * 1024


async def offload(size: int, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """`work(…)`, in a thread when its input has over 32 KiB (`size` in octets)."""
    if size <= INLINE_BYTES:
        return work(*args, **kwargs)
    return await asyncio.to_thread(work, *args, **kwargs)
