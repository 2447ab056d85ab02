"""Cron expressions of five fields, in UTC (CR-02 … CR-05): which minutes match, and which comes next. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta

MAX_CHARACTERS = 64
MINUTE_MS = 60_000
_DIGITS = frozenset("0123456789")
# A 29th of February is at most 8 years away (1896 to 1904, 2096 to 2104).
_YEARS_AHEAD = 9


@dataclass(frozen=True, slots=True)
class _Field:
    name: str
    low: int
    high: int

    @property
    def width(self) -> int:
        return self.high - self.low + 1


_FIELDS = (
    _Field("minute", 0, 59),
    _Field("hour", 0, 23),
    _Field("day of the month", 1, 31),
    _Field("month", 1, 12),
    _Field("day of the week", 0, 6),
)


class CronError(ValueError):
    """Says of an expression which field breaks which rule; completes "cron …"."""


@dataclass(frozen=True, slots=True)
class Cron:
    """The values of each field that match. `weekdays`: 0 is Sunday.

    `either`: day and weekday are both restricted, and a day matches when one of them does (CR-04).
    """

    minutes: frozenset[int]
    hours: frozenset[int]
    days: frozenset[int]
    months: frozenset[int]
    weekdays: frozenset[int]
    either: bool

    def matches(self, at_ms: int) -> bool:
        """Whether the minute that begins at `at_ms`, in epoch milliseconds, is a match."""
        if at_ms % MINUTE_MS:
            return False
        at = datetime.fromtimestamp(at_ms // 1000, UTC)
        return self._has_day(at.date()) and at.hour in self.hours and at.minute in self.minutes

    def matches_between(self, after_ms: int, until_ms: int) -> Iterator[int]:
        """The matches after `after_ms` up to and with `until_ms`, ascending, in epoch milliseconds."""
        at = self.next_after(after_ms)
        while at is not None and at <= until_ms:
            yield at
            at = self.next_after(at)

    def next_after(self, after_ms: int) -> int | None:
        """The first match strictly after `after_ms`; None when there is none, or none before the year 10000."""
        first = after_ms // MINUTE_MS + 1
        try:
            start = datetime.fromtimestamp(first * 60, UTC)
        except (ValueError, OverflowError, OSError):
            return None
        last_year = start.year + _YEARS_AHEAD
        day: date | None = start.date()
        while day is not None and day.year <= last_year:
            if day.month not in self.months:
                day = _next_month(day)
                continue
            if self._has_day(day):
                found = self._first_minute(start.hour * 60 + start.minute if day == start.date() else 0)
                if found is not None:
                    midnight = datetime(day.year, day.month, day.day, tzinfo=UTC)
                    return int(midnight.timestamp()) * 1000 + found * MINUTE_MS
            day = _next_day(day)
        return None

    def _has_day(self, day: date) -> bool:
        if day.month not in self.months:
            return False
        by_date, by_weekday = day.day in self.days, day.isoweekday() % 7 in self.weekdays
        return by_date or by_weekday if self.either else by_date and by_weekday

    def _first_minute(self, earliest: int) -> int | None:
        """The first matching minute of a day that is not before `earliest`."""
        hour, minute = divmod(earliest, 60)
        if hour in self.hours:
            later = [value for value in self.minutes if value >= minute]
            if later:
                return hour * 60 + min(later)
        hours = [value for value in self.hours if value > hour]
        return min(hours) * 60 + min(self.minutes) if hours else None


def parse_cron(text: str) -> Cron:
    """CR-02 … CR-04; CronError names the field and the rule."""
    if not text.isascii() or not 1 <= len(text) <= MAX_CHARACTERS:
        raise CronError(f"must have 1 to {MAX_CHARACTERS} ASCII characters")
    parts = text.split(" ")
    if len(parts) != len(_FIELDS) or not all(parts):
        raise CronError("must have five fields (minute hour day month weekday) with exactly one space between them")
    minutes, hours, days, months, weekdays = (_values(field, part) for field, part in zip(_FIELDS, parts, strict=True))
    # Any other spelling of "all", as */1, is a restriction that every day passes.
    either = parts[2] != "*" and parts[4] != "*"
    return Cron(minutes, hours, days, months, weekdays, either)


def _values(field: _Field, text: str) -> frozenset[int]:
    found: set[int] = set()
    for item in text.split(","):
        if not item:
            raise CronError(f"has an empty item in its {field.name} field")
        found.update(_item(field, item))
    return frozenset(found)


def _item(field: _Field, item: str) -> range:
    """`*`, an integer, `low-high`, `*/step` or `low-high/step`; steps count from the low end (CR-03)."""
    spread, slash, step_text = item.partition("/")
    low_text, dash, high_text = spread.partition("-")
    step = _number(field, item, step_text) if slash else 1
    if not 1 <= step <= field.width:
        raise CronError(f"has {item!r} in its {field.name} field, where a step is from 1 to {field.width}")
    if spread == "*":
        low, high = field.low, field.high
    elif dash:
        low, high = _number(field, item, low_text), _number(field, item, high_text)
    elif slash:
        raise CronError(f"has {item!r} in its {field.name} field, where only * and ranges may have a step")
    else:
        low = high = _number(field, item, spread)
    for value in (low, high):
        if not field.low <= value <= field.high:
            raise CronError(f"has {item!r} in its {field.name} field, which is from {field.low} to {field.high}")
    if low > high:
        raise CronError(f"has {item!r} in its {field.name} field, where a range ascends")
    return range(low, high + 1, step)


def _number(field: _Field, item: str, text: str) -> int:
    if not text or not _DIGITS.issuperset(text):
        raise CronError(
            f"has {item!r} in its {field.name} field, which is *, a number, low-high, */step or low-high/step"
        )
    return int(text)


def _next_day(day: date) -> date | None:
    return None if day == date.max else day + timedelta(days=1)


def _next_month(day: date) -> date | None:
    if (day.year, day.month) == (date.max.year, 12):
        return None
    return date(day.year + day.month // 12, day.month % 12 + 1, 1)
