"""The one atomic acceptance of a mutation (H-082), with its checks in the order of H-035.

UID, name reservation, generation, Operation, idempotency record, reference edges and sealed secrets are written in a
single transaction, before anything is touched.
"""

from __future__ import annotations

import secrets
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from sqlalchemy import Connection, bindparam, select

from saisei_contract import operations as machine
from saisei_contract.clock import Clock
from saisei_contract.errors import SaiseiError
from saisei_contract.forms import registry, urls
from saisei_contract.forms.worker_endpoint import endpoint_output
from saisei_contract.forms.worker_version import FORM as WORKER_VERSION
from saisei_contract.grammar import is_uid
from saisei_contract.records import Action, OperationRecord, Phase
from saisei_contract.strict_json import MAX_INTEGER, JsonObject
from saisei_contract.wire import CreateInput, UpdateInput
from saisei_control.access import audit
from saisei_control.access.audit import Deed
from saisei_control.access.rights import Caller
from saisei_control.resources.admission import admit, check_deletable, check_references
from saisei_control.resources.check import (
    CheckedSpec,
    check_create,
    check_update,
    off_loop,
    supported_form,
    takes_private_inputs,
)
from saisei_control.resources.gate import SpaceGate
from saisei_control.resources.idempotency import (
    Key,
    Request,
    check_original_inputs,
    find_replay,
    register,
    request_digest,
)
from saisei_control.resources.offerings import Offerings
from saisei_control.resources.references import add_edges
from saisei_control.secrets.vault import SecretMacs, SecretsLost, Vault
from saisei_control.store.rows import (
    OPERATION_STATE,
    StoredResource,
    dump,
    exact_spec,
    find_operation,
    find_resource,
    operation_values,
    unfinished_operation,
    update_resource,
)
from saisei_control.store.schema import operations, resources
from saisei_control.store.statements import Statement, insert_into
from saisei_control.store.store import Change, Store

_LABEL_ALPHABET = "abcdefghijkmnpqrstuvwxyz23456789"
_LABEL_LENGTH = 12
# Every other column is NULL at first.
_INSERT_RESOURCE = Statement(
    insert_into(
        resources,
        "uid",
        "form",
        "space",
        "name",
        "principal",
        "generation",
        "observed_generation",
        "phase",
        "spec_json",
        "observed_json",
        "output_json",
        "facts_json",
        "last_operation",
        "offering_id",
        "offering_revision",
    )
)
_INSERT_OPERATION = Statement(
    insert_into(
        operations,
        "id",
        "resource_uid",
        "action",
        "generation",
        "principal",
        "created_at",
        "attempts",
        "due_at",
        *OPERATION_STATE,
    )
)
_NAMED = Statement(
    select(resources.c.uid).where(
        resources.c.space == bindparam("space"), resources.c.name == bindparam("name"), resources.c.deleted_at.is_(None)
    )
)


@dataclass(frozen=True, slots=True)
class Acceptance:
    """Accepts mutations. `previews`: creates of Forms that do not hold as a whole yet are taken (H-053)."""

    store: Store
    vault: Vault
    clock: Clock
    workers_domain: str
    previews: bool
    offerings: Offerings
    gate: SpaceGate
    # How many contexts and invocations of (Worker UID, Version UID) are under way.
    in_use: Callable[[str, str], Awaitable[int]]

    async def create(self, caller: Caller, key: Key, wanted: CreateInput, spec_json: str) -> OperationRecord:
        """H-080 … H-085. `spec_json` is the text that `wanted.spec` was read from."""
        caller.require_write(wanted.space)
        body: JsonObject = {"form": wanted.form, "space": wanted.space, "name": wanted.name, "spec": wanted.spec}
        if wanted.offering is not None:
            body["offering"] = {"id": wanted.offering.id, "revision": wanted.offering.revision}
        digest = await off_loop(spec_json, lambda: request_digest("POST", "/resources", None, body))
        request = Request(caller.principal, key, digest, self._mac(wanted.private_inputs))
        replay = await self.store.peek(lambda connection: find_replay(connection, request))
        if replay is not None:
            return replay
        with self.gate.entered(wanted.space):
            checked = await off_loop(spec_json, lambda: self.check_create(wanted))
            return await self.store.write(
                lambda connection: self._accept_create(connection, caller, request, checked, wanted, spec_json),
                Change.DUE,
            )

    def check_create(self, wanted: CreateInput) -> CheckedSpec:
        """What can be judged without other Resources: Form, Offering, capability, spec, private inputs (H-035)."""
        form = supported_form(wanted.form, previews=self.previews)
        self.offerings.choose(wanted.form, wanted.space, wanted.offering)
        return check_create(form, wanted.spec, wanted.private_inputs)

    async def update(
        self, caller: Caller, key: Key, uid: str, generation: int, wanted: UpdateInput, spec_json: str
    ) -> OperationRecord:
        """H-100 … H-104."""
        body: JsonObject = {"spec": wanted.spec}
        digest = await off_loop(spec_json, lambda: request_digest("PUT", f"/resources/{uid}", generation, body))
        request = Request(caller.principal, key, digest, self._mac(wanted.private_inputs))
        found = await self.store.peek(lambda connection: _replay_or_resource(connection, caller, request, uid))
        if isinstance(found, OperationRecord):
            return found
        seen = found
        judged = await off_loop(spec_json, lambda: judge_update(seen, wanted))

        def work(connection: Connection) -> OperationRecord:
            now = _replay_or_resource(connection, caller, request, uid)
            if isinstance(now, OperationRecord):
                return now
            check_current(connection, now, generation)
            # What is current was judged above, unless it changed since.
            verdict = judged if now.record.generation == seen.record.generation else judge_update(now, wanted)
            if isinstance(verdict, SaiseiError):
                raise verdict
            return self._accept_update(connection, caller, request, now, verdict, wanted, spec_json)

        with self.gate.entered(seen.record.space):
            return await self.store.write(work, Change.DUE)

    async def delete(self, caller: Caller, key: Key, uid: str, generation: int) -> OperationRecord:
        """H-105 … H-109."""
        digest = request_digest("DELETE", f"/resources/{uid}", generation, None)
        request = Request(caller.principal, key, digest, None)
        found = await self.store.peek(lambda connection: _replay_or_resource(connection, caller, request, uid))
        if isinstance(found, OperationRecord):
            return found
        await self.check_retired(found, generation)

        def work(connection: Connection) -> OperationRecord:
            now = _replay_or_resource(connection, caller, request, uid)
            if isinstance(now, OperationRecord):
                return now
            check_current(connection, now, generation)
            check_deletable(connection, uid)
            return self._next(connection, request, now, Action.DELETE, {})

        with self.gate.entered(found.record.space):
            return await self.store.write(work, Change.DUE)

    async def check_retired(self, found: StoredResource, generation: int) -> None:
        """WV-13: SaiseiError dependency_conflict while a context of a WorkerVersion runs.

        Judged last, since runtimes are asked; one that cannot answer refuses nothing, because the Operation asks again.
        """
        uid = found.record.uid
        if found.record.form != urls.WORKER_VERSION:
            return

        def judge(connection: Connection) -> None:
            check_current(connection, found, generation)
            check_deletable(connection, uid)

        await self.store.read(judge)
        try:
            count = await self.in_use(WORKER_VERSION.validate(exact_spec(found)).worker_uid, uid)
        except SaiseiError:
            return
        if count:
            raise SaiseiError(
                "dependency_conflict",
                f"{count} {'context' if count == 1 else 'contexts'} of the WorkerVersion {uid} still run; delete it "
                "when they have ended, 15 minutes after it left the Deployment at the latest",
            )

    async def supply_private_inputs(
        self, caller: Caller, operation_id: str, private_inputs: dict[str, str]
    ) -> OperationRecord:
        """H-154. Nothing here ever waits for private inputs: they are sealed at acceptance."""

        def work(connection: Connection) -> OperationRecord:
            found = find_operation(connection, operation_id) if is_uid(operation_id) else None
            if found is None:
                raise SaiseiError("not_found", "there is no such Operation")
            stored = visible_for_writing(connection, caller, found.record.resource_uid)
            if not takes_private_inputs(registry.form(stored.record.form)):
                raise SaiseiError("capability_required", "the Operation's Form takes no privateInputs on this Host")
            if found.record.status.is_terminal:
                raise SaiseiError("operation_terminal", "the Operation has ended; it takes no private inputs")
            check_original_inputs(connection, operation_id, self.vault.mac(private_inputs))
            return found.record

        return await self.store.read(work)

    def _accept_create(
        self,
        connection: Connection,
        caller: Caller,
        request: Request,
        checked: CheckedSpec,
        wanted: CreateInput,
        spec_json: str,
    ) -> OperationRecord:
        again = find_replay(connection, request)
        if again is not None:
            return again
        judge_create(connection, caller, checked, wanted)
        uid = f"r-{secrets.token_hex(16)}"
        operation = self._operation(uid, Action.CREATE, 1)
        _INSERT_RESOURCE.run(
            connection,
            {
                "uid": uid,
                "form": wanted.form,
                "space": wanted.space,
                "name": wanted.name,
                "principal": caller.principal,
                "generation": 1,
                "observed_generation": 0,
                "phase": Phase.PENDING.value,
                "spec_json": spec_json,
                "observed_json": "{}",
                "output_json": dump(self._output(wanted.form)),
                "facts_json": "{}",
                "last_operation": operation.id,
                "offering_id": None if wanted.offering is None else wanted.offering.id,
                "offering_revision": None if wanted.offering is None else wanted.offering.revision,
            },
        )
        add_edges(connection, uid, (reference.uid for reference in checked.references))
        if wanted.private_inputs:
            self.vault.store(connection, uid, wanted.private_inputs)
        self._insert(connection, operation, request, wanted.space)
        return operation

    def _accept_update(
        self,
        connection: Connection,
        caller: Caller,
        request: Request,
        stored: StoredResource,
        checked: CheckedSpec,
        wanted: UpdateInput,
        spec_json: str,
    ) -> OperationRecord:
        self.judge_current_update(connection, caller, stored, checked, wanted)
        operation = self._next(connection, request, stored, Action.UPDATE, {"spec_json": spec_json})
        add_edges(connection, stored.uid, (reference.uid for reference in checked.references))
        return operation

    def judge_current_update(
        self,
        connection: Connection,
        caller: Caller,
        stored: StoredResource,
        checked: CheckedSpec,
        wanted: UpdateInput,
    ) -> None:
        """What other Resources and the stored secrets say."""
        if wanted.private_inputs is not None:
            self._check_kept_secrets(connection, stored.uid, wanted.private_inputs)
        check_references(connection, caller, stored.record.space, checked.references)
        admit(connection, checked.value, own_uid=stored.uid)

    def _check_kept_secrets(self, connection: Connection, uid: str, given: dict[str, str]) -> None:
        """WV-07, WV-08: equal to the sealed ones; new values never pass for lost ones."""
        try:
            kept = self.vault.load(connection, uid)
        except SecretsLost:
            raise SaiseiError(
                "private_inputs_unverifiable", "the stored private inputs do not open with this Host's key any more"
            ) from None
        if given != kept:
            raise SaiseiError(
                "invalid_spec", "privateInputs differ from the stored ones; a changed secret needs a new Resource"
            )

    def _next(
        self,
        connection: Connection,
        request: Request,
        stored: StoredResource,
        action: Action,
        values: dict[str, str],
    ) -> OperationRecord:
        operation = self._operation(stored.uid, action, stored.record.generation + 1)
        update_resource(
            connection,
            stored.uid,
            {
                **values,
                "generation": operation.generation,
                "phase": machine.phase_of(action, operation.status).value,
                "last_operation": operation.id,
            },
        )
        self._insert(connection, operation, request, stored.record.space)
        return operation

    def _operation(self, uid: str, action: Action, generation: int) -> OperationRecord:
        return machine.accepted(f"op-{secrets.token_hex(16)}", uid, action, generation, self.clock.now_ms())

    def _insert(self, connection: Connection, operation: OperationRecord, request: Request, space: str) -> None:
        _INSERT_OPERATION.run(
            connection,
            {
                "id": operation.id,
                "resource_uid": operation.resource_uid,
                "action": operation.action.value,
                "generation": operation.generation,
                "principal": request.principal,
                "created_at": operation.created_at_ms,
                "attempts": 0,
                "due_at": 0,
                **operation_values(operation),
            },
        )
        register(connection, request, operation.id)
        deed = Deed(request.principal, operation.action.value, space, operation.resource_uid, operation.id)
        audit.record(connection, deed, operation.created_at_ms)

    def _mac(self, private_inputs: dict[str, str] | None) -> SecretMacs | None:
        """H-141."""
        return None if private_inputs is None else self.vault.mac(private_inputs)

    def _output(self, form_url: str) -> JsonObject:
        """EP-03: an Endpoint's address is fixed at acceptance."""
        if form_url != urls.WORKER_ENDPOINT:
            return {}
        label = "".join(secrets.choice(_LABEL_ALPHABET) for _ in range(_LABEL_LENGTH))
        return endpoint_output(f"{label}.{self.workers_domain}")


def judge_create(connection: Connection, caller: Caller, checked: CheckedSpec, wanted: CreateInput) -> None:
    """What other Resources say: references, the Form's conditions, then the name (H-035)."""
    check_references(connection, caller, wanted.space, checked.references)
    admit(connection, checked.value, own_uid=None)
    if _NAMED.first(connection, {"space": wanted.space, "name": wanted.name}) is not None:
        raise SaiseiError("name_conflict", f"the name {wanted.name} is taken in the Space {wanted.space}")


def judge_update(stored: StoredResource, wanted: UpdateInput) -> CheckedSpec | SaiseiError:
    """A refusal of the spec is a value: it is told only after tombstone, busy and generation were looked at (H-035)."""
    try:
        form = registry.form(stored.record.form)
        return check_update(form, exact_spec(stored), wanted.spec, wanted.private_inputs)
    except SaiseiError as refusal:
        return refusal


def _replay_or_resource(
    connection: Connection, caller: Caller, request: Request, uid: str
) -> OperationRecord | StoredResource:
    """The Operation that the request became already, else the Resource or tombstone, visible to the caller (H-142)."""
    stored = visible_for_writing(connection, caller, uid)
    return find_replay(connection, request) or stored


def visible_for_writing(connection: Connection, caller: Caller, uid: str) -> StoredResource:
    """The Resource or its tombstone. SaiseiError not_found for unknown and unseen ones, forbidden without the right to
    write.
    """
    stored = find_resource(connection, uid)
    if stored is not None:
        rights = caller.in_space(stored.record.space)
        if rights.write:
            return stored
        if rights.read:
            raise SaiseiError("forbidden", f"the token may not write in the Space {stored.record.space}")
    raise SaiseiError("not_found", f"there is no Resource {uid}")


def check_current(connection: Connection, stored: StoredResource, generation: int) -> None:
    """Tombstone, then busy, then generation (H-005, H-036, H-091, H-102)."""
    if stored.deleted_at_ms is not None:
        raise SaiseiError("gone", "the Resource was deleted")
    busy = unfinished_operation(connection, stored.uid)
    if busy is not None:
        raise SaiseiError(
            "resource_busy", "an earlier mutation of the Resource is unfinished", {"operationId": busy.record.id}
        )
    current = stored.record.generation
    if generation != current:
        raise SaiseiError("generation_conflict", f"the expected generation is {generation}, the current one {current}")
    if current >= MAX_INTEGER:
        raise SaiseiError("generation_conflict", f"the generation {current} is the last one; no change can follow it")
