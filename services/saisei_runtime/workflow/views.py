"""Instances and steps as callers see them: no rows, no fences."""

from __future__ import annotations

from dataclasses import dataclass

from saisei_runtime.workflow.records import Instance, Step


@dataclass(frozen=True, slots=True)
class InstanceView:
    """W-011: `output` only on complete, `error_reason` only on errored. `ended_at_ms` is 0 while not terminal."""

    id: str
    status: str
    output: bytes | None
    error_reason: str | None
    error_message: str | None
    created_at_ms: int
    ended_at_ms: int


@dataclass(frozen=True, slots=True)
class StepView:
    """One journaled step; `state` is pending, retry_wait, waiting, complete or errored; `due_at_ms` 0 when none."""

    name: str
    kind: str
    state: str
    failed_attempts: int
    result: bytes | None
    error: str | None
    created_at_ms: int
    due_at_ms: int


def instance_view(instance: Instance) -> InstanceView:
    return InstanceView(
        instance.instance_id,
        instance.status,
        instance.output,
        instance.error_reason,
        instance.error_message,
        instance.created_at_ms,
        instance.ended_at_ms or 0,
    )


def step_view(step: Step) -> StepView:
    return StepView(
        step.name,
        step.kind,
        step.state,
        step.failed_attempts,
        None if step.error else step.result,
        step.error,
        step.created_at_ms,
        0 if step.finished else step.due_at_ms or 0,
    )
