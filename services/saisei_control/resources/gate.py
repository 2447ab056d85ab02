"""No Space takes the whole Host: how many mutations of one are accepted at the same time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from saisei_contract.errors import SaiseiError
from saisei_contract.rate import RETRY_AFTER


class SpaceGate:
    """`limit` counts acceptances under way in one Space, not Operations."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._inside: Counter[str] = Counter()

    @contextmanager
    def entered(self, space: str) -> Iterator[None]:
        """SaiseiError rate_limited before anything was done; the same request may come again (H-144)."""
        if self._inside[space] >= self._limit:
            raise SaiseiError(
                "rate_limited",
                f"{self._limit} mutations of the Space {space} are being accepted; send this one again",
                {RETRY_AFTER: "1"},
            )
        self._inside[space] += 1
        try:
            yield
        finally:
            self._inside[space] -= 1
            if not self._inside[space]:
                del self._inside[space]
