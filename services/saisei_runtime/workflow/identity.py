"""Ids: which ones callers may choose, and the ones that the Host issues (W-020, W-001)."""

from __future__ import annotations

import secrets

from saisei_contract.errors import SaiseiError
from saisei_runtime.workflow.limits import NAME_SCALARS

_RANDOM_BITS = 80


def checked(text: str, what: str) -> str:
    """`text` when it has 1-256 Unicode scalars and no lone surrogate; SaiseiError invalid_request otherwise."""
    if not 1 <= len(text) <= NAME_SCALARS:
        raise SaiseiError("invalid_request", f"The {what} has {len(text)} characters; 1 to {NAME_SCALARS} are allowed.")
    if not text.isascii() and any("\ud800" <= character <= "\udfff" for character in text):
        raise SaiseiError("invalid_request", f"The {what} holds a lone surrogate, which is no Unicode scalar.")
    return text


def known_form(text: str) -> bool:
    """Whether `text` could be an instance id at all."""
    try:
        checked(text, "instance id")
    except SaiseiError:
        return False
    return True


def new_instance_id() -> str:
    """An id that the Host issues: 128 random bits."""
    return secrets.token_hex(16)


class Incarnations:
    """Time-ordered unique ids: 48 bits of epoch ms, 80 random bits, strictly ascending in one process."""

    def __init__(self) -> None:
        self._last = 0

    def new(self, now_ms: int) -> str:
        value = (now_ms << _RANDOM_BITS) | secrets.randbits(_RANDOM_BITS)
        if value <= self._last:
            value = self._last + 1 + secrets.randbits(16)
        self._last = value
        return f"{value:032x}"


def created_at_least(now_ms: int) -> str:
    """Incarnations created before `now_ms` are smaller than this bound."""
    return f"{max(0, now_ms) << _RANDOM_BITS:032x}"
