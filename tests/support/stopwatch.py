"""How long something took by itself, also on a machine that is busy with other things."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable
from pathlib import Path


class Stopwatch:
    """Wall-clock seconds since it was made, less those in which the watched processes waited for a CPU.

    A promise such as "within two seconds" is about the product, not about what else the machine has to do. The waits of
    all threads are added up (/proc/PID/task/TID/schedstat): on a quiet machine that is nothing, on a busy one the
    promise is judged mildly. Where the kernel does not count them, the wall clock alone counts.
    """

    def __init__(self, pids: Iterable[int] = ()) -> None:
        """Watches `pids` and this process."""
        self._pids = {os.getpid(), *pids}
        self._waited = self._waits()
        self._begun = time.monotonic()

    def seconds(self) -> float:
        """Up to now."""
        elapsed = time.monotonic() - self._begun
        now = self._waits()
        # A thread that has ended takes its count with it.
        waited = sum(max(0, ns - self._waited.get(thread, 0)) for thread, ns in now.items())
        return elapsed - waited / 1e9

    def _waits(self) -> dict[str, int]:
        found = {}
        for pid in self._pids:
            for task in Path(f"/proc/{pid}/task").glob("*"):
                try:
                    found[task.name] = int((task / "schedstat").read_text().split()[1])
                except (OSError, IndexError):
                    continue
        return found
