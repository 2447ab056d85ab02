"""Equal questions at the same time are asked once."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, Generic, TypeVar

K = TypeVar("K")
V = TypeVar("V")


class Shared(Generic[K, V]):
    """One call of `ask` for all who want a key while it runs. Who stops waiting does not stop the others."""

    def __init__(self, ask: Callable[[K], Coroutine[Any, Any, V]]) -> None:
        self._ask = ask
        self._running: dict[K, asyncio.Task[V]] = {}

    async def of(self, key: K) -> V:
        task = self._running.get(key)
        if task is None:
            task = asyncio.create_task(self._ask(key))
            self._running[key] = task
            task.add_done_callback(lambda done: self._forget(key, done))
        return await asyncio.shield(task)

    def _forget(self, key: K, task: asyncio.Task[V]) -> None:
        self._running.pop(key, None)
        # When all who asked have gone, nobody else takes note of a failure.
        if not task.cancelled():
            task.exception()
