"""How runtimes on one PostgreSQL database hear of each other's commits (design 4).

Each transaction that changed instances sends one NOTIFY with their incarnations, and with the workflows of which
something is due that the sender has no place for. A runtime that hears of one looks at the rows itself: a notice is a
reason to look, never a fact. SQLite has one runtime and needs none of this.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Collection, Sequence
from typing import Final

import msgspec
import psycopg

from saisei_service.database import Database

_log = logging.getLogger(__name__)

CHANNEL: Final = "saisei_workflow"
SEND: Final = "SELECT pg_notify(%s, %s)"
# A payload has less than 8,000 bytes: that many incarnations of 32 characters and UIDs of workflows fit next to the
# sender's name.
NAMED_MAX: Final = 160
WORKFLOWS_MAX: Final = 60
UID_CHARACTERS_MAX: Final = 40
EVERYTHING: Final = "*"
LISTEN_SECONDS: Final = 0.5
RETRY_SECONDS: Final = 1.0


def payload(sender: str, incarnations: Sequence[str], unplaced: Collection[str] = ()) -> str:
    """`sender` is a token without `;` and `,`; `unplaced` are UIDs of workflows. What does not fit is `*`: anything."""
    fits = len(unplaced) <= WORKFLOWS_MAX and all(len(uid) <= UID_CHARACTERS_MAX for uid in unplaced)
    named = incarnations if len(incarnations) <= NAMED_MAX else (EVERYTHING,)
    return ";".join((sender, ",".join(named), ",".join(unplaced if fits else (EVERYTHING,))))


class Notice(msgspec.Struct, frozen=True):
    """What another runtime committed: to which instances, and of which workflows something is due that it has no place
    for. None: to any, of any."""

    changed: Collection[str] | None
    unplaced: Collection[str] | None


ANYTHING: Final = Notice(None, None)


def read_notice(text: str, own_sender: str) -> Notice | None:
    """None for what was sent by the listener itself."""
    sender, changed, unplaced = text.split(";")
    return None if sender == own_sender else Notice(_names(changed), _names(unplaced))


def _names(text: str) -> Collection[str] | None:
    return None if text == EVERYTHING else text.split(",") if text else ()


class Notices:
    """Listens in a thread of its own and calls `heard` in the event loop."""

    def __init__(self, database: Database, sender: str, heard: Callable[[Notice], None]) -> None:
        self._engine = database.reader
        self._sender = sender
        self._heard = heard
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        self._thread = threading.Thread(target=self._run, args=(loop,), name="notices", daemon=True)
        self._thread.start()

    async def stop(self) -> None:
        self._stopping.set()
        if self._thread is not None:
            await asyncio.to_thread(self._thread.join)

    def _run(self, loop: asyncio.AbstractEventLoop) -> None:
        arguments, options = self._engine.dialect.create_connect_args(self._engine.url)
        options.pop("context", None)
        while not self._stopping.is_set():
            try:
                with psycopg.connect(*arguments, autocommit=True, **options) as connection:
                    connection.execute(f"LISTEN {CHANNEL}")
                    # Whatever was said before this connection listened was missed.
                    loop.call_soon_threadsafe(self._heard, ANYTHING)
                    while not self._stopping.is_set():
                        for notice in connection.notifies(timeout=LISTEN_SECONDS, stop_after=1):
                            self._pass_on(loop, notice.payload)
            except psycopg.Error as error:
                _log.warning("other runtimes cannot be heard now: %s", type(error).__name__)
                self._stopping.wait(RETRY_SECONDS)
            except RuntimeError:
                # The loop was closed: the process is ending.
                return

    def _pass_on(self, loop: asyncio.AbstractEventLoop, text: str) -> None:
        notice = read_notice(text, self._sender)
        if notice is not None:
            loop.call_soon_threadsafe(self._heard, notice)
