"""Token buckets: how often a principal may ask (429 `rate_limited` with Retry-After, H-024, H-180)."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from saisei_contract.errors import SaiseiError

RETRY_AFTER = "retryAfterSeconds"
"""The metadata of an error that says when to come again: positive seconds in digits."""

_REMEMBERED = 10_000


@dataclass(slots=True)
class _Bucket:
    tokens: float
    at: float


@dataclass(slots=True)
class RateLimit:
    """`per_second` 0 is no limit; `burst` is how many may come at once. Time is given: seconds of any steady clock."""

    per_second: float
    burst: int
    _buckets: dict[str, _Bucket] = field(default_factory=dict)

    def take(self, principal: str, now: float) -> float:
        """0.0 when the principal may go on, else the seconds until it may."""
        if self.per_second <= 0:
            return 0.0
        bucket = self._buckets.get(principal)
        if bucket is None:
            if len(self._buckets) >= _REMEMBERED:
                self._forget_full(now)
            bucket = self._buckets[principal] = _Bucket(float(self.burst), now)
        tokens = min(float(self.burst), bucket.tokens + (now - bucket.at) * self.per_second)
        bucket.at = now
        if tokens >= 1:
            bucket.tokens = tokens - 1
            return 0.0
        bucket.tokens = tokens
        return (1 - tokens) / self.per_second

    def require(self, principal: str, now: float) -> None:
        """SaiseiError rate_limited."""
        wait = self.take(principal, now)
        if wait > 0:
            seconds = max(1, math.ceil(wait))
            raise SaiseiError(
                "rate_limited",
                f"this principal sends more than {self.per_second:g} requests a second; wait {seconds} s",
                {RETRY_AFTER: str(seconds)},
            )

    def _forget_full(self, now: float) -> None:
        """Who has not asked for a while is as good as new."""
        refill = self.burst / self.per_second
        self._buckets = {name: bucket for name, bucket in self._buckets.items() if now - bucket.at < refill}
