"""Which matches of a schedule are due. Pure: no clock, no I/O."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import islice
from typing import Final

from saisei_contract.cron import MINUTE_MS, Cron

# Matches of one schedule that one advance of a virtual clock leads to at most: a day of minutes.
MOST_OF_A_LEAP: Final = 1_440


@dataclass(frozen=True, slots=True)
class Due:
    """`matches` are to be recorded, in order; `skipped` says that there were more."""

    matches: tuple[int, ...] = ()
    skipped: bool = False


def due(schedule: Cron, since_ms: int, now_ms: int) -> Due:
    """What a runtime that looked at `since_ms` meets at `now_ms` (CR-05): the match whose minute it is.

    A minute that has passed meanwhile, because nobody was there to look, is never back-filled.
    """
    current = now_ms - now_ms % MINUTE_MS
    missed = next(iter(schedule.matches_between(since_ms, current - 1)), None) is not None
    return Due((current,) if current > since_ms and schedule.matches(current) else (), missed)


def due_in_leap(schedule: Cron, since_ms: int, now_ms: int) -> Due:
    """What an advance of a virtual clock from `since_ms` to `now_ms` passes: the Host was there all the time."""
    found = tuple(islice(schedule.matches_between(since_ms, now_ms), MOST_OF_A_LEAP + 1))
    return Due(found[:MOST_OF_A_LEAP], len(found) > MOST_OF_A_LEAP)
