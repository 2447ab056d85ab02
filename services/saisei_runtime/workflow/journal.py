"""Group commit: the queue of commands is turned into transactions by one writer, one fsync for many transitions.

The writer is a thread. On SQLite the event loop itself writes the rows of commands that need no look at the disk, and
leaves only the COMMIT to the thread. Each statement gives the interpreter's lock away: where both threads are busy,
taking it back cost more than the statement did, and a tenth of all steps a second.

Callers hear of a reply only after the commit. A command whose fence does not match fails alone; a command that the
database itself refuses is tried alone, so that it takes no other down with it.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Collection, Container, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from typing import Any, TypeAlias, TypeVar

import msgspec
from sqlalchemy import Connection

from saisei_contract.clock import Clock
from saisei_contract.errors import SaiseiError
from saisei_runtime.isolates.port import Completed, DoSucceeded
from saisei_runtime.workflow import notices
from saisei_runtime.workflow.commands import (
    Claim,
    Command,
    ContextEnded,
    Create,
    Instant,
    Release,
    RenewLease,
    Reply,
    StepCalled,
)
from saisei_runtime.workflow.statements import Cursor, is_passing, is_unavailable, prefer_indexes, statements
from saisei_runtime.workflow.transactions import SqliteTransactions, Transactions
from saisei_runtime.workflow.workspace import Change, Workspace
from saisei_service.clock import wall_ms
from saisei_service.database import Database

_log = logging.getLogger(__name__)

BATCH_MAX = 256
# What the event loop writes at one go, commands and bytes of a document: it does nothing else for as long, 1 to 2 ms.
IN_LOOP_MAX = 32
LIGHT_BYTES = 16_384
# A transaction that failed for a passing reason (a lost connection, a deadlock between replicas) is run again.
ATTEMPTS_MAX = 3
RETRY_PAUSE_SECONDS = 0.05

T = TypeVar("T")
Outcome: TypeAlias = Reply | SaiseiError
Callback: TypeAlias = Callable[[Outcome], None]


class _Entry(msgspec.Struct, frozen=True):
    command: Command
    callback: Callback


@dataclass(frozen=True, slots=True)
class _Work:
    """A transaction of somebody's own, such as a purge: run by the same thread, so that there is one writer."""

    run: Callable[[Connection], Any]
    future: Future[Any]


@dataclass(frozen=True, slots=True)
class _Ready:
    """A transaction whose rows the event loop has written: only its COMMIT is left."""

    batch: list[_Entry]
    replies: list[Reply]
    changes: list[Change]
    workspace: Workspace


class _Stop:
    pass


# Commands travel in lists: waking the writer for each of them cost more than handing them over did.
_Item: TypeAlias = list[_Entry] | _Ready | _Work | _Stop


class Journal:
    """The one writer of the runtime's workflow tables in this process.

    `committed` is called in the event loop with the changes of each transaction, before the callers' callbacks.
    `alive` holds the incarnations that have a context here; `closed` the workflows that admit nothing (DW-08);
    `sender` names this runtime's life to the others on a shared database, and `unplaced` says, in the writer's thread,
    of which workflows among the changes something is due that this runtime has no place for.
    """

    def __init__(
        self,
        database: Database,
        clock: Clock,
        *,
        committed: Callable[[Sequence[Change]], None],
        alive: Container[str],
        closed: Container[str],
        sender: str = "",
        unplaced: Callable[[Sequence[Change]], Collection[str]] = lambda _: (),
    ) -> None:
        self._clock = clock
        self._committed = committed
        self._alive = alive
        self._sender = sender
        self._unplaced = unplaced
        self._closed = closed
        self._sql = statements(database.is_postgresql)
        prefer_indexes(database.writer)
        self._sqlite = None if database.is_postgresql else SqliteTransactions(database.writer)
        self._transactions = self._sqlite or Transactions(database.writer)
        # What is not with the thread yet, and how much of what is there it has not done (counted for SQLite only).
        self._fresh: list[_Entry] = []
        self._pending = 0
        self._queue: SimpleQueue[_Item] = SimpleQueue()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._thread = threading.Thread(target=self._run, name="journal", daemon=True)
        self._thread.start()

    async def stop(self) -> None:
        """Commits what is queued, then ends the thread."""
        if self._thread is not None:
            self._flush()
            self._put(_Stop())
            await asyncio.to_thread(self._thread.join)
            self._thread = None

    def submit(self, command: Command, callback: Callback) -> None:
        """Queues a command; `callback` gets its reply in the event loop, after the commit, or backend_unavailable.

        Called in the event loop: what one turn of it brings goes to the writer together.
        """
        assert self._loop is not None
        if not self._fresh and (self._pending == 0 or self._sqlite is None):
            self._loop.call_soon(self._hand_over)
        self._fresh.append(_Entry(command, callback))

    def _hand_over(self) -> None:
        """Begins the next transaction, unless one is under way: what comes meanwhile goes into one together."""
        if self._sqlite is None:
            self._flush()
            return
        if self._pending > 0 or not self._fresh:
            return
        part = self._fresh[:IN_LOOP_MAX]
        if all(self._is_light(entry.command) for entry in part):
            ready = self._written(self._sqlite, part)
            if ready is not None:
                del self._fresh[:IN_LOOP_MAX]
                self._put(ready)
                return
        self._flush()

    def _flush(self) -> None:
        if self._fresh:
            fresh, self._fresh = self._fresh, []
            self._put(fresh)

    def _put(self, item: _Item) -> None:
        self._pending += 1
        self._queue.put(item)

    def _is_light(self, command: Command) -> bool:
        """Whether its rows are known, so that the loop waits for no disk, and are small."""
        assert self._sqlite is not None
        match command:
            case Create():
                return self._sqlite.opened and (command.params is None or len(command.params) <= LIGHT_BYTES)
            case StepCalled():
                size = len(command.call.result or b"") if isinstance(command.call, DoSucceeded) else 0
            case ContextEnded():
                outcome = command.end.outcome
                size = len(outcome.output or b"") if isinstance(outcome, Completed) else 0
            case Claim() | Release() | RenewLease():
                size = 0
            case _:
                return False
        return size <= LIGHT_BYTES and self._sqlite.kept.get(command.incarnation) is not None

    def _written(self, transactions: SqliteTransactions, batch: list[_Entry]) -> _Ready | None:
        """The batch, ready for its COMMIT; None: the thread shall do it all, and deal with what is wrong."""
        try:
            cursor = transactions.try_begin()
            if cursor is None:
                return None
            workspace, replies, changes = self._write(cursor, batch)
        except Exception:
            # A command that cannot be applied takes no other down with it: the thread tries each alone.
            _log.info("the journal writes %d commands in its own thread", len(batch), exc_info=True)
            transactions.close(broken=True)
            return None
        return _Ready(batch, replies, changes, workspace)

    def ask(self, command: Command) -> asyncio.Future[Reply]:
        """`submit` as a future; SaiseiError backend_unavailable when the database cannot commit."""
        assert self._loop is not None
        future: asyncio.Future[Reply] = self._loop.create_future()

        def _resolve(outcome: Outcome) -> None:
            if future.done():
                return
            if isinstance(outcome, SaiseiError):
                future.set_exception(outcome)
            else:
                future.set_result(outcome)

        self.submit(command, _resolve)
        return future

    async def transact(self, run: Callable[[Connection], T]) -> T:
        """Runs a transaction of its own in the writer thread, between two batches."""
        future: Future[T] = Future()
        self._flush()
        self._put(_Work(run, future))
        return await asyncio.wrap_future(future)

    # --- the writer thread ---

    def _run(self) -> None:
        while True:
            item: _Item | None = self._queue.get()
            done = 1
            batch: list[_Entry] = []
            while isinstance(item, list):
                batch.extend(item)
                item = None
                if len(batch) < BATCH_MAX:
                    with suppress(Empty):
                        item = self._queue.get_nowait()
                        done += 1
            for first in range(0, len(batch), BATCH_MAX):
                self._guarded(self._process, batch[first : first + BATCH_MAX])
            match item:
                case _Ready():
                    self._guarded(self._finish, item)
                case _Work():
                    self._perform(item)
                case _Stop():
                    self._transactions.close()
                    return
            if self._sqlite is not None:
                self._in_loop(self._done, done)

    def _guarded(self, work: Callable[[T], None], what: T) -> None:
        try:
            work(what)
        except Exception:
            # The writer outlives everything: without it nothing of this runtime would ever commit again.
            _log.exception("the journal lost commands")

    def _done(self, count: int) -> None:
        """In the loop: so many items are over."""
        self._pending -= count
        self._hand_over()

    def _finish(self, ready: _Ready) -> None:
        assert self._sqlite is not None
        try:
            self._sqlite.commit()
        except Exception:
            # Once more from the start: whatever of it was committed after all is recognised by the fences.
            _log.warning("a transaction of the journal could not be committed", exc_info=True)
            self._process(ready.batch)
            return
        ready.workspace.keep(self._sqlite.kept)
        self._tell(
            [(entry.callback, reply) for entry, reply in zip(ready.batch, ready.replies, strict=True)], ready.changes
        )

    def _process(self, batch: list[_Entry]) -> None:
        try:
            replies, changes = self._commit(batch)
        except Exception as error:
            if len(batch) > 1 and not is_unavailable(error):
                for entry in batch:
                    self._process([entry])
                return
            _log.exception("the journal could not commit %d commands", len(batch))
            refusal = SaiseiError("backend_unavailable", "The journal cannot commit now. Try again later.")
            self._tell([(entry.callback, refusal) for entry in batch], ())
            return
        self._tell([(entry.callback, reply) for entry, reply in zip(batch, replies, strict=True)], changes)

    def _commit(self, batch: list[_Entry]) -> tuple[list[Reply], list[Change]]:
        for attempt in range(1, ATTEMPTS_MAX + 1):
            try:
                with self._transactions.cursor() as cursor:
                    workspace, replies, changes = self._write(cursor, batch)
                if self._sqlite is not None:
                    workspace.keep(self._sqlite.kept)
                return replies, changes
            except Exception as error:
                if attempt == ATTEMPTS_MAX or not is_passing(error):
                    raise
                time.sleep(RETRY_PAUSE_SECONDS * attempt)
        raise AssertionError("unreachable")

    def _write(self, cursor: Cursor, batch: list[_Entry]) -> tuple[Workspace, list[Reply], list[Change]]:
        """Everything of a transaction but its beginning and its end."""
        commands = [entry.command for entry in batch]
        kept = None if self._sqlite is None else self._sqlite.kept
        workspace = Workspace(cursor, self._sql, self._alive, self._closed, kept)
        workspace.load(commands)
        # After the rows are locked, so that a time that was read earlier cannot be committed later.
        now = Instant(self._clock.now_ms(), wall_ms())
        replies = [workspace.apply(command, now) for command in commands]
        with cursor.together():
            changes = workspace.flush()
            if changes and self._sql.postgresql:
                changed = [change.after.incarnation for change in changes]
                notice = notices.payload(self._sender, changed, self._unplaced(changes))
                cursor.call(notices.SEND, (notices.CHANNEL, notice))
        return workspace, replies, changes

    def _perform(self, work: _Work) -> None:
        if not work.future.set_running_or_notify_cancel():
            return
        try:
            with self._transactions.begin() as connection:
                result = work.run(connection)
        except Exception as error:
            _log.warning("a transaction of the journal failed", exc_info=True)
            work.future.set_exception(
                error
                if isinstance(error, SaiseiError)
                else SaiseiError("backend_unavailable", "The journal cannot commit now. Try again later.")
            )
        else:
            work.future.set_result(result)

    def _tell(self, outcomes: list[tuple[Callback, Outcome]], changes: Sequence[Change]) -> None:
        self._in_loop(self._deliver, outcomes, changes)

    def _in_loop(self, callback: Callable[..., None], *arguments: Any) -> None:
        assert self._loop is not None
        try:
            self._loop.call_soon_threadsafe(callback, *arguments)
        except RuntimeError:
            # The loop is gone: the process is ending and nobody waits any more.
            _log.debug("the loop closed before the journal")

    def _deliver(self, outcomes: list[tuple[Callback, Outcome]], changes: Sequence[Change]) -> None:
        if changes:
            self._committed(changes)
        for callback, outcome in outcomes:
            try:
                callback(outcome)
            except Exception:
                _log.exception("a caller of the journal failed")
