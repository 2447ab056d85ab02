"""Names of instance events, and a reader's options."""

from __future__ import annotations

import re

import pytest

from saisei_contract.errors import SaiseiError
from saisei_contract.events import EMITTED_EVENT_TYPES, EVENT_TYPES, TERMINAL_EVENT_TYPES, parse_cursor, parse_filter


def test_the_names() -> None:
    """S-06, S-07, S-20: 29 names, three of them terminal; eleven are never emitted."""
    assert len(EVENT_TYPES) == 29
    assert len(TERMINAL_EVENT_TYPES) == 3
    assert TERMINAL_EVENT_TYPES < EMITTED_EVENT_TYPES < EVENT_TYPES
    silent = EVENT_TYPES - EMITTED_EVENT_TYPES
    assert silent == {"workflow_paused", "workflow_waiting_for_pause"} | {
        n for n in EVENT_TYPES if n.startswith("rollback_")
    }
    assert len(silent) == 11
    assert all(re.fullmatch(r"[a-z]+(_[a-z]+)+", name) for name in EVENT_TYPES)


def test_filters() -> None:
    """S-06: None is everything, an empty filter nothing; all names are accepted, twice too."""
    assert parse_filter(None) is None
    assert parse_filter("") == parse_filter([]) == frozenset()
    assert parse_filter("step_started,workflow_completed,step_started") == {"step_started", "workflow_completed"}
    assert parse_filter(EVENT_TYPES) == EVENT_TYPES


@pytest.mark.parametrize(
    "names", ["x", "step_started,", ",", "step_started, step_errored", "STEP_STARTED", ["\ud800"], "step_started\n"]
)
def test_unknown_names(names: str | list[str]) -> None:
    """S-09: an unknown name is refused before subscribing."""
    with pytest.raises(SaiseiError, match="invalid_request"):
        parse_filter(names)


def test_cursors() -> None:
    """S-05, S-09: a plain integer from 0 on; 0 when absent."""
    assert parse_cursor(None) == parse_cursor("0") == 0
    assert parse_cursor("9007199254740991") == 9007199254740991
    for text in ("", "-1", "1.0", "01", "+1", "abc", " 1", "1\n", "9007199254740992", "9" * 5000, "١"):
        with pytest.raises(SaiseiError, match="invalid_request"):
            parse_cursor(text)
