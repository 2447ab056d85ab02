"""How runtimes on one PostgreSQL database hear of each other's commits (design 4).

Each transaction that changed instances sends one NOTIFY with their incarnations. A runtime that hears of one looks at
the rows itself: a notice is a reason to look, never a fact. SQLite has one runtime and needs none of this.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Iterable, Sequence
from typing import Final

import psycopg

from saisei_service.database import Database

_log = logging.getLogger(__name__)

CHANNEL: Final = "saisei_workflow"
SEND: Final = "SELECT pg_notify(%s, %s)"
# A payload has less than 8,000 bytes: that many incarnations of 32 characters fit next to the sender's name.
NAMED_MAX: Final = 200
LISTEN_SECONDS: Final = 0.5
RETRY_SECONDS: Final = 1.0


def payload(sender: str, incarnations: Sequence[str]) -> str:
    """`sender` is a token without commas. More incarnations than fit are `*`: look at everything."""
    return ",".join((sender, *incarnations)) if len(incarnations) <= NAMED_MAX else f"{sender},*"


class Notices:
    """Listens in a thread of its own and calls `heard` in the event loop: incarnations, or None for "anything"."""

    def __init__(self, database: Database, sender: str, heard: Callable[[Iterable[str] | None], None]) -> None:
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
                    loop.call_soon_threadsafe(self._heard, None)
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
        sender, _, rest = text.partition(",")
        if sender != self._sender:
            loop.call_soon_threadsafe(self._heard, None if rest == "*" else rest.split(","))
