"""What the writer knows of rows without looking: those that its own last transactions read or wrote.

It holds only as long as no other connection has committed anything, which SQLite tells (`PRAGMA data_version`); at the
first sign of another writer everything is forgotten. PostgreSQL tells nothing of the kind: there, rows are always read.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from saisei_runtime.workflow.records import QUEUED, RUNNING, Instance, Step

# Instances that are remembered at most. They are queued or running: parked and ended ones are rows only (design 4).
MOST: Final = 4_096


class KeptInstance:
    """`open`: its steps without an outcome, as far as they were met. `finished`: the names of all the others, or None
    when some may be missing."""

    __slots__ = ("finished", "instance", "open")

    def __init__(self, instance: Instance, finished: set[str] | None) -> None:
        self.instance = instance
        self.open: dict[str, Step] = {}
        self.finished = finished


class Kept:
    """By incarnation. Belongs to whoever has the transaction, and learns only what was committed."""

    def __init__(self) -> None:
        self._version: int | None = None
        self._instances: dict[str, KeptInstance] = {}

    def seen(self, data_version: int) -> None:
        """Inside each transaction, before anything is looked up."""
        if data_version != self._version:
            self._version = data_version
            self._instances.clear()

    def get(self, incarnation: str) -> KeptInstance | None:
        return self._instances.get(incarnation)

    def committed(self, before: Instance | None, after: Instance, steps: Iterable[Step]) -> None:
        """One instance as a transaction left it, and the steps that it changed."""
        if after.status not in (QUEUED, RUNNING):
            self._instances.pop(after.incarnation, None)
            return
        kept = self._instances.get(after.incarnation)
        if kept is None:
            if len(self._instances) >= MOST:
                self._instances.clear()
            # Without a step before this transaction, all that there are were made in it.
            stepless = before is None or before.step_count == 0
            kept = self._instances[after.incarnation] = KeptInstance(after, set() if stepless else None)
        else:
            kept.instance = after
        for step in steps:
            if not step.finished:
                kept.open[step.name] = step
                continue
            kept.open.pop(step.name, None)
            if kept.finished is not None:
                kept.finished.add(step.name)
