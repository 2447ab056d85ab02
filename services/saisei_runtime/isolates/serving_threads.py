"""The serving threads of one Version: one as a rule, more when it does not get to new invocations in time.

Threads have a module graph each, so invocations go to the first one that answers: what a Worker keeps in its modules is
shared as far as it can be, and never promised.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from saisei_contract.errors import SaiseiError
from saisei_runtime.isolates.port import ProofKind
from saisei_runtime.isolates.serving import Served, ServingThread


@dataclass(frozen=True, slots=True)
class ThreadLimits:
    """`most` threads of one Version; one that has not answered within `patience` seconds is passed over; the second and
    later ones end after `idle_after` seconds without an invocation."""

    most: int = 4
    patience: float = 0.06
    idle_after: float = 30.0


class ServingThreads:
    def __init__(self, served: Served, limits: ThreadLimits) -> None:
        self._served = served
        self._limits = limits
        self.version_uid = served.code.version_uid
        self._threads: list[ServingThread] = []
        # Terminated, and not joined yet: nothing new goes there, but what is there may still run.
        self._ending: list[ServingThread] = []

    @property
    def invocations(self) -> int:
        """How many are under way, or not proven to have stopped."""
        return sum(len(thread.invocations) for thread in (*self._threads, *self._ending))

    @property
    def size(self) -> int:
        return len(self._threads)

    @property
    def idle_since(self) -> float:
        return max((thread.idle_since for thread in self._threads), default=0.0)

    @property
    def usable(self) -> bool:
        """Whether invocations are under way that nobody has asked to end."""
        return any(thread.usable and thread.invocations for thread in self._threads)

    async def take(self) -> ServingThread:
        """A thread that will get to a new invocation at once. SaiseiError backend_unavailable: none can be had."""
        self._ending = [thread for thread in (*self._ending, *self._threads) if not thread.usable and not thread.gone]
        self._threads = [thread for thread in self._threads if thread.usable]
        asked: list[ServingThread] = []
        for thread in self._threads:
            if thread.quiet:
                return thread
            if asked:  # a later one that has work: only if the first ones do not answer
                continue
            asked.append(thread)
            if await self._first([thread], self._limits.patience) is thread:
                return thread
        asked = [thread for thread in self._threads if thread.usable]
        if len(asked) > 1 and (found := await self._first(asked, self._limits.patience)) is not None:
            return found
        if len(self._threads) < self._limits.most and not any(thread.starting for thread in self._threads):
            self._threads.append(ServingThread(self._served))
        found = await self._first([thread for thread in self._threads if thread.usable], None)
        if found is None:
            raise SaiseiError("backend_unavailable", "the Worker was stopped before it had answered")
        return found

    async def _first(self, threads: list[ServingThread], within: float | None) -> ServingThread | None:
        """The first of `threads` that answers; None when none does, or all are gone."""
        waits = {asyncio.ensure_future(thread.answers()): thread for thread in threads}
        try:
            while waits:
                done, _ = await asyncio.wait(waits, timeout=within, return_when=asyncio.FIRST_COMPLETED)
                if not done:
                    return None
                for wait in done:
                    thread = waits.pop(wait)
                    if wait.result():
                        return thread
            return None
        finally:
            for wait in waits:
                wait.cancel()

    def retire_idle(self, now: float) -> None:
        """Ends the threads after the first one that nobody has used for long."""
        for thread in self._threads[1:]:
            if not thread.invocations and not thread.starting and now - thread.idle_since > self._limits.idle_after:
                self._threads.remove(thread)
                stop = asyncio.ensure_future(thread.stop())
                stop.add_done_callback(lambda done: done.cancelled() or done.exception())

    async def stop(self) -> list[ProofKind]:
        """Terminates all threads; returns their proofs."""
        threads = (*self._threads, *self._ending)
        return list(await asyncio.gather(*(thread.stop() for thread in threads)))
