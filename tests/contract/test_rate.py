"""Token buckets, with the time as a number."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from saisei_contract.errors import SaiseiError
from saisei_contract.rate import RETRY_AFTER, RateLimit


def test_a_burst_and_then_the_rate() -> None:
    """H-024, H-180: a burst passes, then one for each fraction of a second; a refusal says when to come again."""
    limit = RateLimit(per_second=0.5, burst=2)
    assert [limit.take("a", 0.0) for _ in range(3)] == [0.0, 0.0, 2.0]
    assert limit.take("b", 0.0) == 0.0
    assert limit.take("a", 1.0) == 1.0
    assert limit.take("a", 2.0) == 0.0
    with pytest.raises(SaiseiError) as failure:
        limit.require("a", 2.5)
    assert failure.value.reason == "rate_limited"
    assert failure.value.metadata == {RETRY_AFTER: "2"}


def test_zero_is_no_limit() -> None:
    """H-180: an operator may leave rates to something in front."""
    limit = RateLimit(per_second=0, burst=1)
    assert not any(limit.take("a", 0.0) for _ in range(1000))


def test_principals_are_not_remembered_for_ever() -> None:
    """H-180: who comes once takes no memory for good."""
    limit = RateLimit(per_second=1000, burst=1)
    for number in range(30_000):
        limit.take(f"p{number}", float(number))
    assert len(limit._buckets) <= 10_000


@given(st.lists(st.floats(0, 5), max_size=50), st.floats(0.1, 100), st.integers(1, 20))
def test_never_more_than_burst_and_rate(gaps: list[float], rate: float, burst: int) -> None:
    """H-180: over any span, at most the burst and the rate times the span pass."""
    limit, now, passed = RateLimit(rate, burst), 0.0, 0
    for gap in gaps:
        now += gap
        passed += limit.take("a", now) == 0.0
    assert passed <= burst + rate * now + 1e-6
