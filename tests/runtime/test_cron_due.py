"""Which matches of a schedule are due: by the look of a clock that passes, and over a leap of a virtual one."""

from __future__ import annotations

from saisei_contract.cron import parse_cron
from saisei_runtime.cron.due import MOST_OF_A_LEAP, Due, due, due_in_leap

MINUTE = 60_000
# 2026-11-30T12:00:30Z
START = 1_796_040_030_000
FIRST = START + 30_000


def test_only_the_minute_that_it_is() -> None:
    """CR-05: a match is met in its minute, once; minutes that passed unseen are skipped and told."""
    each = parse_cron("* * * * *")
    assert due(each, START, START + 29_999) == Due()
    assert due(each, START, FIRST) == Due((FIRST,))
    assert due(each, START, FIRST + 59_999) == Due((FIRST,))
    assert due(each, FIRST, FIRST + 59_999) == Due()
    assert due(each, START, FIRST + 10 * MINUTE + 5) == Due((FIRST + 10 * MINUTE,), skipped=True)
    assert due(parse_cron("1 12 * * *"), START, FIRST + 10 * MINUTE) == Due((), skipped=True)
    assert due(parse_cron("0 0 31 2 *"), START, FIRST) == Due()


def test_a_leap_passes_each_of_its_matches() -> None:
    """CR-05, Design 6: on a virtual clock nobody was away; a day of minutes is the most of one leap."""
    found = due_in_leap(parse_cron("*/5 * * * *"), START, START + 60 * MINUTE)
    assert found == Due(tuple(FIRST + n * MINUTE for n in range(4, 60, 5)))
    century = due_in_leap(parse_cron("* * * * *"), START, START + 100 * 365 * 86_400_000)
    assert (len(century.matches), century.skipped) == (MOST_OF_A_LEAP, True)
