"""Resources and Operations of the control service as records of the contract."""

from __future__ import annotations

from saisei.control.v1 import resources_pb2 as pb
from saisei_contract.grammar import parse_timestamp
from saisei_contract.records import (
    Action,
    Effect,
    InputReason,
    InputRequired,
    Offering,
    OfferingRecord,
    OperationFailure,
    OperationRecord,
    OperationStatus,
    OperationWarning,
    Phase,
    ResourceRecord,
)

_PHASES = {
    pb.PHASE_PENDING: Phase.PENDING,
    pb.PHASE_IDLE: Phase.IDLE,
    pb.PHASE_DELETING: Phase.DELETING,
    pb.PHASE_ERROR: Phase.ERROR,
}
_ACTIONS = {
    pb.ACTION_CREATE: Action.CREATE,
    pb.ACTION_UPDATE: Action.UPDATE,
    pb.ACTION_DELETE: Action.DELETE,
}
_STATUSES = {
    pb.OPERATION_STATUS_QUEUED: OperationStatus.QUEUED,
    pb.OPERATION_STATUS_RUNNING: OperationStatus.RUNNING,
    pb.OPERATION_STATUS_WAITING_INPUT: OperationStatus.WAITING_INPUT,
    pb.OPERATION_STATUS_RECONCILING: OperationStatus.RECONCILING,
    pb.OPERATION_STATUS_SUCCEEDED: OperationStatus.SUCCEEDED,
    pb.OPERATION_STATUS_FAILED: OperationStatus.FAILED,
}
_EFFECTS = {
    pb.EFFECT_NONE: Effect.NONE,
    pb.EFFECT_UNKNOWN: Effect.UNKNOWN,
    pb.EFFECT_PARTIAL: Effect.PARTIAL,
    pb.EFFECT_COMPLETE: Effect.COMPLETE,
}


def resource_record(message: pb.Resource) -> ResourceRecord:
    """KeyError for an enum value that this gateway does not know: it is never told as a known one (H-013)."""
    return ResourceRecord(
        uid=message.uid,
        form=message.form,
        space=message.space,
        name=message.name,
        generation=message.generation,
        observed_generation=message.observed_generation,
        observed_at_ms=parse_timestamp(message.observed_at) if message.HasField("observed_at") else None,
        phase=_PHASES[message.phase],
        spec_json=message.spec_json,
        observed_json=message.observed_json,
        output_json=message.output_json,
        last_operation=message.last_operation,
        offering=Offering(message.offering.id, message.offering.revision) if message.HasField("offering") else None,
    )


def operation_record(message: pb.Operation) -> OperationRecord:
    """As above."""
    error = message.error
    needed = message.input_required
    return OperationRecord(
        id=message.id,
        resource_uid=message.resource_uid,
        action=_ACTIONS[message.action],
        generation=message.generation,
        status=_STATUSES[message.status],
        effect=_EFFECTS[message.effect],
        created_at_ms=parse_timestamp(message.created_at),
        updated_at_ms=parse_timestamp(message.updated_at),
        retain_until_ms=parse_timestamp(message.retain_until),
        error=OperationFailure(error.code, error.message) if message.HasField("error") else None,
        input_required=InputRequired(tuple(needed.names), InputReason(needed.reason))
        if message.HasField("input_required")
        else None,
        warnings=tuple(OperationWarning(warning.code, warning.message) for warning in message.warnings),
    )


def offering_record(message: pb.OfferingDescription) -> OfferingRecord:
    return OfferingRecord(
        id=message.id,
        revision=message.revision,
        form=message.form,
        label=message.label,
        description=message.description,
        terms_url=message.terms_url if message.HasField("terms_url") else None,
    )
