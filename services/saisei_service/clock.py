"""Clocks: the system's, and one that stands still until it is advanced (`--virtual-clock`)."""

from __future__ import annotations

import time
from collections.abc import Callable

from saisei_contract.clock import Clock

__all__ = ["Clock", "SystemClock", "VirtualClock", "wall_ms"]


# How far one advance of a virtual clock goes at most, in seconds (100 years), and the last instant that it reaches: the
# end of the year 9999, which is the last one that a timestamp can name.
ADVANCE_SECONDS_MAX = 3_155_760_000
VIRTUAL_MS_MAX = 253_402_300_799_999


def wall_ms() -> int:
    """The machine's time in epoch ms: what leases run on, whatever the Host's clock says."""
    return time.time_ns() // 1_000_000


class SystemClock:
    """Wall time that never runs backwards inside one process: a step back of the system clock holds it still."""

    def __init__(self) -> None:
        self._last = 0

    def now_ms(self) -> int:
        self._last = max(self._last, wall_ms())
        return self._last


class VirtualClock:
    """Stands still between advances. `on_advance` callbacks run in the loop of the caller of `advance`."""

    def __init__(self, start_ms: int | None = None) -> None:
        self._now = wall_ms() if start_ms is None else start_ms
        self._listeners: list[Callable[[], None]] = []

    def now_ms(self) -> int:
        return self._now

    def on_advance(self, listener: Callable[[], None]) -> None:
        self._listeners.append(listener)

    def advance(self, seconds: float) -> int:
        """Moves on by `seconds` and returns the new time in epoch ms; ValueError unless 0 < seconds ≤ 100 years, or
        when it would leave the year 9999."""
        if not 0 < seconds <= ADVANCE_SECONDS_MAX:
            raise ValueError(
                f"a clock is advanced by more than 0 and at most {ADVANCE_SECONDS_MAX:,} seconds (100 years)"
            )
        if self._now + seconds * 1000 > VIRTUAL_MS_MAX:
            raise ValueError("a clock is not advanced beyond the year 9999")
        return self.advance_to(self._now + round(seconds * 1000))

    def advance_to(self, now_ms: int) -> int:
        """Moves on to an instant in epoch ms, or stays when it is past already; returns the time."""
        if now_ms > self._now:
            self._now = now_ms
            for listener in self._listeners:
                listener()
        return self._now
