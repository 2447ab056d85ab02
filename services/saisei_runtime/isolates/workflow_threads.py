"""The workflow threads of one Worker: recycled, grown on demand, replaced when worn out, given in order of arrival."""

from __future__ import annotations

import asyncio
from collections import deque

from saisei_contract.errors import SaiseiError
from saisei_runtime.isolates.process import NodeProcess, NodeThread, ThreadRole
from saisei_runtime.isolates.settings import IsolateSettings

# How often waiting starts and idle threads are looked at, in seconds.
_LOOK_EVERY = 0.03
# Starts that wait while contexts end at a good rate need no more threads, only their turn: the boot of one takes 200 ms
# of a core, and 20 MB. More are started when none came free for a while, or one at a time when the wait grows long all
# the same. (Half as long a while: ten-step instances grew the pool to 28 and cost 13 ms of CPU each instead of 7.)
_NONE_FREE_FOR = 0.25
_WAITED_LONG = 1.0
_MOST_STARTING = 8
_MAX_FAILED_STARTS = 3


class WorkflowThreads:
    """Free threads are taken last in, first out, so that the rest can grow idle and be let go."""

    def __init__(self, process: NodeProcess, settings: IsolateSettings) -> None:
        self._process = process
        self._settings = settings
        self._loop = asyncio.get_running_loop()
        self._free: list[tuple[NodeThread, float]] = []
        self._waiting: deque[tuple[asyncio.Future[NodeThread], float]] = deque()
        self._starting = 0
        self._failed_starts = 0
        self._busy = 0
        # When the last thread came free, and when the last one came up.
        self._freed_at = 0.0
        self._grown_at = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._closed = False

    @property
    def idle(self) -> bool:
        """Nothing runs and nobody waits."""
        return self._busy == 0 and not self._waiting

    async def take(self) -> NodeThread:
        """A thread that no context uses. SaiseiError backend_unavailable when the process is gone."""
        if self._closed:
            raise SaiseiError("backend_unavailable", "the Worker's process has ended")
        if self._free and not self._waiting:
            thread, _ = self._free.pop()
            self._busy += 1
            self._keep_spare()
            return thread
        future: asyncio.Future[NodeThread] = self._loop.create_future()
        self._waiting.append((future, self._loop.time()))
        self._keep_spare()
        self._look_soon()
        try:
            return await future
        except asyncio.CancelledError:
            if future.done() and not future.cancelled() and future.exception() is None:
                self.give_back(future.result(), reusable=True)
            raise

    def give_back(self, thread: NodeThread, *, reusable: bool) -> None:
        """The thread's context has ended. A thread that is not to be used again is terminated and replaced."""
        self._busy -= 1
        self._freed_at = self._loop.time()
        if not reusable or thread.killing or thread.gone or self._closed:
            self._let_go(thread)
            self._keep_spare()
        else:
            self._offer(thread)

    def close(self) -> None:
        """The process is gone or going: whoever waits is told."""
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
        self._free.clear()
        while self._waiting:
            future, _ = self._waiting.popleft()
            if not future.done():
                future.set_exception(SaiseiError("backend_unavailable", "the Worker's process has ended"))

    # --- inside ---

    def _total(self) -> int:
        return len(self._free) + self._busy + self._starting

    def _offer(self, thread: NodeThread) -> None:
        while self._waiting:
            future, _ = self._waiting.popleft()
            if not future.done():
                self._busy += 1
                future.set_result(thread)
                return
        thread.on_frame = lambda _frame, _body: thread.terminate()  # a free thread has nothing to say
        thread.on_gone = lambda _kind, _why: self._lost_free(thread)
        self._free.append((thread, self._loop.time()))
        self._look_soon()

    def _lost_free(self, thread: NodeThread) -> None:
        self._free = [entry for entry in self._free if entry[0] is not thread]
        self._keep_spare()

    def _let_go(self, thread: NodeThread) -> None:
        if thread.gone:
            return
        thread.on_frame = lambda _frame, _body: None
        thread.on_gone = lambda _kind, _why: None
        thread.terminate()

    def _keep_spare(self) -> None:
        """Starts threads up to the warm number, as far as somebody waits or a spare is missing."""
        if self._closed:
            return
        wanted = len(self._waiting) + 1 - len(self._free) - self._starting
        room = min(self._settings.warm_threads, self._settings.max_threads) - self._total()
        for _ in range(min(wanted, room)):
            self._spawn()

    def _grow(self) -> None:
        """More threads than the warm ones, when starts wait although threads were given time to come free."""
        room = self._settings.max_threads - self._total()
        if self._starting > 0 or room <= 0:
            return
        now = self._loop.time()
        # The boot of a thread takes the cores from those that run: what is seen meanwhile says nothing about them.
        waits_since = max(self._waiting[0][1], self._grown_at)
        if now - max(waits_since, self._freed_at) >= _NONE_FREE_FOR:
            wanted = min(len(self._waiting), max(1, self._total() // 2), _MOST_STARTING, room)
        else:
            wanted = 1 if now - waits_since >= _WAITED_LONG else 0
        for _ in range(wanted):
            self._spawn()

    def _spawn(self) -> None:
        self._starting += 1
        thread = self._process.spawn(ThreadRole.WORKFLOW)
        thread.ready.add_done_callback(lambda ready: self._started(thread, ready))

    def _started(self, thread: NodeThread, ready: asyncio.Future[None]) -> None:
        self._starting -= 1
        self._grown_at = self._loop.time()
        if self._closed:
            return
        if ready.exception() is None and not thread.gone:
            self._failed_starts = 0
            self._offer(thread)
            return
        self._failed_starts += 1
        if self._failed_starts >= _MAX_FAILED_STARTS:
            self._process.kill("its threads do not start")
        else:
            self._keep_spare()

    def _look_soon(self) -> None:
        if self._timer is None and not self._closed:
            delay = _LOOK_EVERY if self._waiting else max(1.0, self._settings.thread_idle_after / 4)
            self._timer = self._loop.call_later(delay, self._look)
        elif self._timer is not None and self._waiting and self._timer.when() - self._loop.time() > _LOOK_EVERY:
            self._timer.cancel()
            self._timer = self._loop.call_later(_LOOK_EVERY, self._look)

    def _look(self) -> None:
        self._timer = None
        while self._waiting and self._waiting[0][0].done():
            self._waiting.popleft()
        if self._waiting:
            self._grow()
        else:
            self._shrink()
        if self._waiting or self._free:
            self._look_soon()

    def _shrink(self) -> None:
        """Lets go what has been idle for long; one spare stays while the process lives."""
        until = self._loop.time() - self._settings.thread_idle_after
        while len(self._free) > 1 and self._free[0][1] < until:
            thread, _ = self._free.pop(0)
            self._let_go(thread)
