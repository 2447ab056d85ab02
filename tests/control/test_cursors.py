"""Cursors as values."""

from __future__ import annotations

import pytest

from saisei_contract.errors import SaiseiError
from saisei_control.resources.cursors import CURSOR_LIFETIME_MS, Cursors


def test_an_old_cursor_has_expired() -> None:
    """H-095: after its lifetime a cursor is cursor_expired, not wrong."""
    cursors = Cursors(b"k" * 32)
    cursor = cursors.seal("r-1", "walk", 1_000)
    assert cursors.open(cursor, "walk", 1_000 + CURSOR_LIFETIME_MS) == "r-1"
    with pytest.raises(SaiseiError) as refusal:
        cursors.open(cursor, "walk", 1_001 + CURSOR_LIFETIME_MS)
    assert refusal.value.reason == "cursor_expired"


def test_each_changed_character_is_noticed() -> None:
    """H-095: no other spelling of a cursor is taken."""
    cursors = Cursors(b"k" * 32)
    cursor = cursors.seal("r-1", "walk", 1_000)
    for place in range(len(cursor)):
        other = cursor[:place] + ("B" if cursor[place] != "B" else "C") + cursor[place + 1 :]
        with pytest.raises(SaiseiError) as refusal:
            cursors.open(other, "walk", 1_000)
        assert refusal.value.reason == "invalid_request"
