"""The clock as a port: rules take `now` as data, services ask a Clock, tests advance one."""

from __future__ import annotations

from typing import Protocol


class Clock(Protocol):
    def now_ms(self) -> int:
        """Host time in whole epoch milliseconds (UTC)."""
        ...
