"""The end of an Operation and of its Resource's phase, in one transaction (H-073, H-074, H-107, H-112)."""

from __future__ import annotations

from typing import Any

from sqlalchemy import Connection

from saisei_contract import operations as machine
from saisei_contract.forms import registry
from saisei_contract.records import Action, OperationFailure, OperationRecord
from saisei_control.operations.outcome import Done, Failed
from saisei_control.resources.references import drop_edges, keep_only
from saisei_control.store.rows import StoredResource, dump, exact_spec, update_resource


def settle(
    connection: Connection, record: OperationRecord, resource: StoredResource, outcome: Done | Failed, now_ms: int
) -> OperationRecord:
    """The settled Operation; the Resource row is written, the Operation's own row is for the caller to write."""
    match outcome:
        case Done():
            settled = machine.transition(record, machine.Succeed(), now_ms)
            _confirm(connection, settled, resource, outcome, now_ms)
        case Failed(code, message, effect, also):
            settled = machine.transition(record, machine.Fail(OperationFailure(code, message), effect), now_ms)
            phase = machine.phase_of(settled.action, settled.status)
            update_resource(connection, resource.uid, {"phase": phase.value})
            if also is not None:
                also(connection)
    return settled


def _confirm(
    connection: Connection, settled: OperationRecord, resource: StoredResource, outcome: Done, now_ms: int
) -> None:
    values: dict[str, Any] = {"phase": machine.phase_of(settled.action, settled.status).value}
    if outcome.facts is not None:
        values["facts_json"] = dump(outcome.facts)
    if settled.action is Action.DELETE:
        # The tombstone frees the name and keeps the UID retired (H-107).
        values["deleted_at"] = now_ms
        drop_edges(connection, resource.uid)
    else:
        values |= {"observed_generation": settled.generation, "observed_at": now_ms}
        if outcome.observed is not None:
            values["observed_json"] = dump(outcome.observed)
        if settled.action is Action.UPDATE:
            # A create has no former spec.
            references = registry.form(resource.record.form).references(exact_spec(resource))
            keep_only(connection, resource.uid, (reference.uid for reference in references))
    update_resource(connection, resource.uid, values)
    if outcome.also is not None:
        outcome.also(connection)
