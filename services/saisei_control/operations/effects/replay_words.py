"""What the replays of recorded histories came to, in the words of an Operation (WD-10)."""

from __future__ import annotations

from collections.abc import Sequence

from saisei.runtime.v1 import admin_pb2 as pb
from saisei_contract.records import OperationWarning

INCOMPATIBLE = "step_history_incompatible"
UNCONFIRMED = "step_history_unconfirmed"

# Instances that a sentence names.
NAMED_INSTANCES = 20


def incompatible(mismatches: Sequence[pb.ReplayMismatch]) -> str:
    """One history in full, and which other instances are in the same position."""
    first = mismatches[0]
    ids = list(dict.fromkeys(one.instance_id for one in mismatches))
    return (
        f"Not activated: the instance {first.instance_id!r} of the DurableWorkflow {first.workflow_name} is in the "
        f"step {first.step_name!r}, which began with {first.begun_with}; the WorkerVersion {first.version_uid} calls "
        f"it with {first.called_with}.{_also(ids, len(ids))} Keep the step as it was, or let these instances end first."
    )


def unconfirmed(doubts: Sequence[pb.ReplayDoubt]) -> list[OperationWarning]:
    """A warning for each reason why nothing is known of parked instances: that is no sign that they fit."""
    return [OperationWarning(UNCONFIRMED, _doubt(doubt)) for doubt in doubts]


def _doubt(doubt: pb.ReplayDoubt) -> str:
    count = doubt.instances
    instances = "1 parked instance goes" if count == 1 else f"{count} parked instances go"
    ids = list(dict.fromkeys(one.instance_id for one in doubt.examples))
    return (
        f"{instances} on with the new code although it is not known to fit: "
        f"{_reason(doubt)}{_also(ids, count)}{_advice(doubt)}"
    )


def _reason(doubt: pb.ReplayDoubt) -> str:
    if not doubt.examples:
        return "they were not replayed."
    first = doubt.examples[0]
    instance = f"{first.instance_id!r} of the DurableWorkflow {first.workflow_name}"
    step = f"the step {first.step_name!r}"
    match doubt.reason:
        case pb.REPLAY_DOUBT_REASON_NEW_STEP:
            return f"before it comes back to {step}, which {instance} is in, the code begins {first.new_step!r}."
        case pb.REPLAY_DOUBT_REASON_ENDED:
            return f"the code came to its end without {step}, which {instance} is in."
        case pb.REPLAY_DOUBT_REASON_ASKED_OUTSIDE:
            return (
                f"outside of its steps the code calls fetch or a Binding, which a replay cannot answer: "
                f"it was not seen to come back to {step}, which {instance} is in."
            )
        case pb.REPLAY_DOUBT_REASON_TIME:
            return f"the time for replays ran out before the code came back to {step}, which {instance} is in."
        case pb.REPLAY_DOUBT_REASON_NOT_SAMPLED:
            return f"there are more than are replayed; {instance}, in {step}, was not."
        case _:
            return f"the replay of {instance}, in {step}, was lost."


def _advice(doubt: pb.ReplayDoubt) -> str:
    if doubt.reason not in (pb.REPLAY_DOUBT_REASON_NEW_STEP, pb.REPLAY_DOUBT_REASON_ENDED):
        return ""
    return (
        " A new step in between is safe. If the old one was renamed or removed, what it waited for is lost and the "
        "instance ends as errored with step_definition_mismatch when run ends: deploy code that still calls it."
    )


def _also(ids: Sequence[str], count: int) -> str:
    """The others, in a sentence of their own."""
    others = ids[1:NAMED_INSTANCES]
    if not ids:
        return ""
    if not others:
        return f" The same holds for {count - 1} more." if count > 1 else ""
    more = count - 1 - len(others)
    return f" The same holds for {', '.join(map(repr, others))}{f' and {more} more' if more > 0 else ''}."
