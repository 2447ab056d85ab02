"""The event log: which members each event has, and the JSON object that a subscriber gets (contract 4.2)."""

from __future__ import annotations

from typing import Final

import msgspec

from saisei_runtime.workflow.limits import LIFETIME_MS, MESSAGE_SCALARS
from saisei_runtime.workflow.records import Step

WORKFLOW_QUEUED: Final = "workflow_queued"
WORKFLOW_STARTED: Final = "workflow_started"
WORKFLOW_RUNNING: Final = "workflow_running"
WORKFLOW_WAITING: Final = "workflow_waiting"
WORKFLOW_COMPLETED: Final = "workflow_completed"
WORKFLOW_ERRORED: Final = "workflow_errored"
WORKFLOW_TERMINATED: Final = "workflow_terminated"

ENDINGS: Final = frozenset((WORKFLOW_COMPLETED, WORKFLOW_ERRORED, WORKFLOW_TERMINATED))

# All names of the guide are legal in a filter, also those that never happen here (S-06, S-20).
EVENT_TYPES: Final = frozenset(
    (
        "workflow_queued",
        "workflow_started",
        "workflow_running",
        "workflow_paused",
        "workflow_waiting_for_pause",
        "workflow_waiting",
        "workflow_completed",
        "workflow_errored",
        "workflow_terminated",
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
        "rollback_started",
        "rollback_step_started",
        "rollback_step_completed",
        "rollback_step_errored",
        "rollback_attempt_started",
        "rollback_attempt_completed",
        "rollback_attempt_errored",
        "rollback_completed",
        "rollback_errored",
    )
)

_json = msgspec.json.Encoder().encode


class Fact(msgspec.Struct, frozen=True, gc=False):
    """An event before it has its number and time."""

    type: str
    body: bytes = b""


QUEUED_FACT: Final = Fact(WORKFLOW_QUEUED)
RUNNING_FACT: Final = Fact(WORKFLOW_RUNNING)
WAITING_FACT: Final = Fact(WORKFLOW_WAITING)
TERMINATED_FACT: Final = Fact(WORKFLOW_TERMINATED)


def started(params: bytes | None) -> Fact:
    return Fact(WORKFLOW_STARTED, b"" if params is None else b'"params":' + params)


def completed(output: bytes | None) -> Fact:
    return Fact(WORKFLOW_COMPLETED, b"" if output is None else b'"output":' + output)


def errored(reason: str, message: str | None) -> Fact:
    """S-22: the failure's reason is the error's name."""
    return Fact(WORKFLOW_ERRORED, b'"error":' + error_json(reason, message or ""))


def step_started(step: Step) -> Fact:
    """S-21: `limit` counts retries, times are milliseconds."""
    config = b'{"retries":{"limit":%d,"delay":%d,"backoff":%b},"timeout":%d}' % (
        step.max_attempts - 1,
        step.initial_delay_seconds * 1000,
        _json(step.backoff),
        LIFETIME_MS,
    )
    return Fact("step_started", b'"stepName":' + _json(step.name) + b',"config":' + config)


def step_completed(name: str, output: bytes | None) -> Fact:
    body = b'"stepName":' + _json(name)
    return Fact("step_completed", body if output is None else body + b',"output":' + output)


def step_errored(name: str) -> Fact:
    return _named("step_errored", name)


def attempt_started(name: str, attempt: int) -> Fact:
    return Fact("attempt_started", b'"stepName":%b,"attempt":%d' % (_json(name), attempt))


def attempt_completed(name: str, attempt: int) -> Fact:
    return Fact("attempt_completed", b'"stepName":%b,"attempt":%d' % (_json(name), attempt))


def attempt_errored(name: str, attempt: int, retry_delay_ms: int | None, error_name: str, message: str) -> Fact:
    """S-23: `retryDelayMs` only, but always, when a retry follows."""
    body = b'"stepName":%b,"attempt":%d' % (_json(name), attempt)
    if retry_delay_ms is not None:
        body += b',"retryDelayMs":%d' % retry_delay_ms
    return Fact("attempt_errored", body + b',"error":' + error_json(error_name, message))


def sleep_started(name: str, seconds: int) -> Fact:
    return Fact("sleep_started", b'"stepName":%b,"durationMs":%d' % (_json(name), seconds * 1000))


def sleep_completed(name: str) -> Fact:
    return _named("sleep_completed", name)


def wait_started(name: str, event_type: str) -> Fact:
    return Fact("wait_started", b'"stepName":%b,"eventType":%b' % (_json(name), _json(event_type)))


def wait_completed(name: str) -> Fact:
    return _named("wait_completed", name)


def wait_timed_out(name: str) -> Fact:
    return _named("wait_timed_out", name)


def event_json(instance_id: str, event_id: int, at_ms: int, event_type: str, body: bytes) -> bytes:
    """The whole event object as a subscriber gets it."""
    head = b'{"instanceId":%b,"eventId":%d,"timestamp":%d,"type":%b' % (
        _json(instance_id),
        event_id,
        at_ms,
        _json(event_type),
    )
    return head + (b"," + body if body else b"") + b"}"


def _named(event_type: str, name: str) -> Fact:
    return Fact(event_type, b'"stepName":' + _json(name))


def error_json(name: str, message: str) -> bytes:
    """`{name, message}` of something thrown (S-22)."""
    return b'{"name":%b,"message":%b}' % (_json(tidy(name)), _json(tidy(message)))


def tidy(text: str) -> str:
    """At most 8,192 scalars (W-013), each a real one: a thrown string may hold lone surrogates."""
    text = text[:MESSAGE_SCALARS]
    return text if text.isascii() else text.encode("utf-8", "replace").decode()
