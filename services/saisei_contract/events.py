"""The instance events of `subscribe()` (specs/002): their names, and the options of a reader (S-05, S-06, S-09)."""

from __future__ import annotations

import re
from collections.abc import Iterable

from saisei_contract.errors import SaiseiError
from saisei_contract.json_reader import shown
from saisei_contract.strict_json import MAX_INTEGER

TERMINAL_EVENT_TYPES = frozenset({"workflow_completed", "workflow_errored", "workflow_terminated"})
"""S-07: a subscription ends after one of these; each instance has exactly one, with the highest id (S-30)."""

EMITTED_EVENT_TYPES = TERMINAL_EVENT_TYPES | {
    "workflow_queued",
    "workflow_started",
    "workflow_running",
    "workflow_waiting",
    "step_started",
    "step_completed",
    "step_errored",
    "attempt_started",
    "attempt_completed",
    "attempt_errored",
    "sleep_started",
    "sleep_completed",
    "wait_started",
    "wait_completed",
    "wait_timed_out",
}
"""The names that this Host writes (contract 4.2)."""

EVENT_TYPES = EMITTED_EVENT_TYPES | {
    "workflow_paused",
    "workflow_waiting_for_pause",
    "rollback_started",
    "rollback_step_started",
    "rollback_step_completed",
    "rollback_step_errored",
    "rollback_attempt_started",
    "rollback_attempt_completed",
    "rollback_attempt_errored",
    "rollback_completed",
    "rollback_errored",
}
"""All 29 names of the guide; a filter may name each of them (S-06), those of S-20 never match."""

_DECIMAL = re.compile(r"(?:0|[1-9][0-9]{0,15})\Z", re.ASCII)


def parse_filter(names: str | Iterable[str] | None) -> frozenset[str] | None:
    """What a reader wants to see: None is everything, the empty set nothing (S-06).

    `names` is the comma-separated text of a query or a sequence of names; an empty text is the empty set. SaiseiError
    invalid_request names the first unknown one (S-09).
    """
    if names is None:
        return None
    listed = (names.split(",") if names else []) if isinstance(names, str) else list(names)
    for name in listed:
        if name not in EVENT_TYPES:
            raise SaiseiError("invalid_request", f"The filter names {shown(name)}, which is no instance event type.")
    return frozenset(listed)


def parse_cursor(text: str | None) -> int:
    """The last event id that the reader has; 0 when absent (S-05).

    SaiseiError invalid_request unless a plain integer (S-09).
    """
    if text is None:
        return 0
    if _DECIMAL.match(text) is None or int(text) > MAX_INTEGER:
        raise SaiseiError("invalid_request", "The cursor must be the eventId of an event: a plain integer from 0 on.")
    return int(text)
