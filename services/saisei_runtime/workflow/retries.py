"""When a failed attempt is tried again (W-101, W-102). Pure."""

from __future__ import annotations

from saisei_runtime.workflow.records import Step

# 2 ** 16 seconds are more than the longest legal delay; beyond it doubling cannot change the minimum.
_DOUBLINGS_MAX = 16


def delay_seconds(step: Step, failed_attempt: int) -> int:
    """Seconds to wait after failed attempt number `failed_attempt` (from 1), by the step's first saved policy."""
    delay = step.initial_delay_seconds
    if step.backoff == "exponential":
        delay *= 2 ** min(failed_attempt - 1, _DOUBLINGS_MAX)
    return min(step.max_delay_seconds, delay)


def loss_backoff_ms(losses: int) -> int:
    """Milliseconds before a lost context is replaced: at once the first time, then 1 s, 2 s, 4 s … 60 s in a row.

    Losses count from 1 and start again when a step ends: a context that kills its process each time may not keep a
    machine busy with deaths.
    """
    return 0 if losses <= 1 else min(60_000, 1_000 * 2 ** min(losses - 2, 6))
