"""Records as protobuf messages."""

from __future__ import annotations

from saisei.common.v1 import common_pb2
from saisei.control.v1 import resources_pb2 as pb
from saisei_contract.grammar import format_ms
from saisei_contract.records import Action, Effect, OperationRecord, OperationStatus, Phase, ResourceRecord
from saisei_control.access.rights import Caller

_PHASES = {
    Phase.PENDING: pb.PHASE_PENDING,
    Phase.IDLE: pb.PHASE_IDLE,
    Phase.DELETING: pb.PHASE_DELETING,
    Phase.ERROR: pb.PHASE_ERROR,
}
_ACTIONS = {
    Action.CREATE: pb.ACTION_CREATE,
    Action.UPDATE: pb.ACTION_UPDATE,
    Action.DELETE: pb.ACTION_DELETE,
}
_STATUSES = {
    OperationStatus.QUEUED: pb.OPERATION_STATUS_QUEUED,
    OperationStatus.RUNNING: pb.OPERATION_STATUS_RUNNING,
    OperationStatus.WAITING_INPUT: pb.OPERATION_STATUS_WAITING_INPUT,
    OperationStatus.RECONCILING: pb.OPERATION_STATUS_RECONCILING,
    OperationStatus.SUCCEEDED: pb.OPERATION_STATUS_SUCCEEDED,
    OperationStatus.FAILED: pb.OPERATION_STATUS_FAILED,
}
_EFFECTS = {
    Effect.NONE: pb.EFFECT_NONE,
    Effect.UNKNOWN: pb.EFFECT_UNKNOWN,
    Effect.PARTIAL: pb.EFFECT_PARTIAL,
    Effect.COMPLETE: pb.EFFECT_COMPLETE,
}


def resource_message(record: ResourceRecord) -> pb.Resource:
    return pb.Resource(
        uid=record.uid,
        form=record.form,
        space=record.space,
        name=record.name,
        generation=record.generation,
        observed_generation=record.observed_generation,
        observed_at=None if record.observed_at_ms is None else format_ms(record.observed_at_ms),
        phase=_PHASES[record.phase],
        spec_json=record.spec_json,
        observed_json=record.observed_json,
        output_json=record.output_json,
        last_operation=record.last_operation,
        offering=None
        if record.offering is None
        else pb.Offering(id=record.offering.id, revision=record.offering.revision),
    )


def operation_message(record: OperationRecord) -> pb.Operation:
    message = pb.Operation(
        id=record.id,
        resource_uid=record.resource_uid,
        action=_ACTIONS[record.action],
        generation=record.generation,
        status=_STATUSES[record.status],
        effect=_EFFECTS[record.effect],
        created_at=format_ms(record.created_at_ms),
        updated_at=format_ms(record.updated_at_ms),
        retain_until=format_ms(record.retain_until_ms),
    )
    if record.error is not None:
        message.error.code = record.error.code
        message.error.message = record.error.message
    for warning in record.warnings:
        message.warnings.add(code=warning.code, message=warning.message)
    return message


def principal_message(caller: Caller) -> common_pb2.Principal:
    return common_pb2.Principal(
        name=caller.principal,
        rights=[
            common_pb2.SpaceRights(
                space=space, read=rights.read, write=rights.write, use=rights.use, admin=rights.admin
            )
            for space, rights in sorted(caller.rights.items())
        ],
    )
