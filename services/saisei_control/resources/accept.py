"""The one atomic acceptance of a mutation (H-082): checks in the order of H-035, then UID, name reservation,
generation, Operation,
idempotency record, reference edges and sealed secrets in a single transaction, before anything is touched.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

from sqlalchemy import Connection, insert

from saisei_contract import operations as machine
from saisei_contract.clock import Clock
from saisei_contract.errors import SaiseiError
from saisei_contract.forms import registry, urls
from saisei_contract.forms.registry import AnyForm
from saisei_contract.forms.worker_endpoint import endpoint_output
from saisei_contract.records import Action, OperationRecord, Phase
from saisei_contract.strict_json import JsonObject
from saisei_contract.wire import CreateInput, UpdateInput
from saisei_control.access.rights import Caller
from saisei_control.resources.admission import admit, check_deletable, check_references
from saisei_control.resources.idempotency import Request, find_replay, register, request_digest
from saisei_control.resources.references import add_edges
from saisei_control.secrets.vault import Vault
from saisei_control.store.rows import (
    StoredResource,
    dump,
    exact_spec,
    find_resource,
    operation_values,
    select_resources,
    unfinished_operation,
    update_resource,
)
from saisei_control.store.schema import operations, resources
from saisei_control.store.store import Store

_Accept: TypeAlias = Callable[[Connection, StoredResource], OperationRecord]

_LABEL_ALPHABET = "abcdefghijkmnpqrstuvwxyz23456789"
_LABEL_LENGTH = 12


@dataclass(frozen=True, slots=True)
class Acceptance:
    """Accepts mutations. `previews`: creates of Forms that are hosted but not yet supported as a whole are taken
    (H-053).
    """

    store: Store
    vault: Vault
    clock: Clock
    workers_domain: str
    previews: bool

    async def create(self, caller: Caller, key: str, wanted: CreateInput, spec_json: str) -> OperationRecord:
        """H-080 … H-085. `spec_json` is the text that `wanted.spec` was read from."""
        caller.require_write(wanted.space)
        body: JsonObject = {"form": wanted.form, "space": wanted.space, "name": wanted.name, "spec": wanted.spec}
        if wanted.offering is not None:
            body["offering"] = {"id": wanted.offering.id, "revision": wanted.offering.revision}
        request = self._request(caller, key, "POST", "/resources", None, body, wanted.private_inputs)
        replay = await self.store.read(lambda connection: find_replay(connection, request))
        if replay is not None:
            return replay
        form = self._supported(wanted.form)
        if wanted.offering is not None:
            raise SaiseiError("capability_required", "this Host has no Offerings; leave the field offering out")
        self._check_private_inputs(form, wanted.spec, wanted.private_inputs, creating=True)
        return await self.store.write(
            lambda connection: self._accept_create(connection, caller, request, form, wanted, spec_json)
        )

    async def update(
        self, caller: Caller, key: str, uid: str, generation: int, wanted: UpdateInput, spec_json: str
    ) -> OperationRecord:
        """H-100 … H-104."""
        body: JsonObject = {"spec": wanted.spec}
        request = self._request(caller, key, "PUT", f"/resources/{uid}", generation, body, wanted.private_inputs)
        return await self._mutate(
            caller,
            request,
            uid,
            lambda connection, stored: self._accept_update(
                connection, caller, request, stored, generation, wanted, spec_json
            ),
        )

    async def delete(self, caller: Caller, key: str, uid: str, generation: int) -> OperationRecord:
        """H-105 … H-109."""
        request = self._request(caller, key, "DELETE", f"/resources/{uid}", generation, None, None)
        return await self._mutate(
            caller,
            request,
            uid,
            lambda connection, stored: self._accept_delete(connection, request, stored, generation),
        )

    async def _mutate(self, caller: Caller, request: Request, uid: str, accept: _Accept) -> OperationRecord:
        def replayed(connection: Connection) -> OperationRecord | None:
            visible_for_writing(connection, caller, uid)
            return find_replay(connection, request)

        replay = await self.store.read(replayed)
        if replay is not None:
            return replay

        def work(connection: Connection) -> OperationRecord:
            stored = visible_for_writing(connection, caller, uid)
            again = find_replay(connection, request)
            return again if again is not None else accept(connection, stored)

        return await self.store.write(work)

    def _accept_create(
        self,
        connection: Connection,
        caller: Caller,
        request: Request,
        form: AnyForm,
        wanted: CreateInput,
        spec_json: str,
    ) -> OperationRecord:
        again = find_replay(connection, request)
        if again is not None:
            return again
        references = form.references(wanted.spec)
        check_references(connection, caller, wanted.space, references)
        admit(connection, form.validate(wanted.spec), own_uid=None)
        if select_resources(connection, resources.c.space == wanted.space, resources.c.name == wanted.name, limit=1):
            raise SaiseiError("name_conflict", f"the name {wanted.name} is taken in the Space {wanted.space}")
        uid = f"r-{secrets.token_hex(16)}"
        operation = self._operation(uid, Action.CREATE, 1)
        connection.execute(
            insert(resources).values(
                uid=uid,
                form=wanted.form,
                space=wanted.space,
                name=wanted.name,
                principal=caller.principal,
                generation=1,
                observed_generation=0,
                phase=Phase.PENDING.value,
                spec_json=spec_json,
                observed_json="{}",
                output_json=dump(self._output(wanted.form)),
                facts_json="{}",
                last_operation=operation.id,
            )
        )
        add_edges(connection, uid, (reference.uid for reference in references))
        if wanted.private_inputs:
            self.vault.store(connection, uid, wanted.private_inputs)
        self._insert(connection, operation, request)
        return operation

    def _accept_update(
        self,
        connection: Connection,
        caller: Caller,
        request: Request,
        stored: StoredResource,
        generation: int,
        wanted: UpdateInput,
        spec_json: str,
    ) -> OperationRecord:
        _check_current(connection, stored, generation)
        form = registry.form(stored.record.form)
        self._check_private_inputs(form, wanted.spec, wanted.private_inputs, creating=False)
        form.immutable(exact_spec(stored), wanted.spec)
        if wanted.private_inputs is not None and dict(wanted.private_inputs) != self.vault.load(connection, stored.uid):
            raise SaiseiError(
                "invalid_spec", "privateInputs differ from the stored ones; a changed secret needs a new Resource"
            )
        references = form.references(wanted.spec)
        check_references(connection, caller, stored.record.space, references)
        admit(connection, form.validate(wanted.spec), own_uid=stored.uid)
        operation = self._next(connection, request, stored, Action.UPDATE, {"spec_json": spec_json})
        add_edges(connection, stored.uid, (reference.uid for reference in references))
        return operation

    def _accept_delete(
        self, connection: Connection, request: Request, stored: StoredResource, generation: int
    ) -> OperationRecord:
        _check_current(connection, stored, generation)
        check_deletable(connection, stored.uid)
        return self._next(connection, request, stored, Action.DELETE, {})

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
        self._insert(connection, operation, request)
        return operation

    def _operation(self, uid: str, action: Action, generation: int) -> OperationRecord:
        return machine.accepted(f"op-{secrets.token_hex(16)}", uid, action, generation, self.clock.now_ms())

    def _insert(self, connection: Connection, operation: OperationRecord, request: Request) -> None:
        connection.execute(
            insert(operations).values(
                id=operation.id,
                resource_uid=operation.resource_uid,
                action=operation.action.value,
                generation=operation.generation,
                principal=request.principal,
                created_at=operation.created_at_ms,
                attempts=0,
                due_at=0,
                **operation_values(operation),
            )
        )
        register(connection, request, operation.id)

    def _request(
        self,
        caller: Caller,
        key: str,
        method: str,
        path: str,
        generation: int | None,
        body: JsonObject | None,
        private_inputs: dict[str, str] | None,
    ) -> Request:
        return Request(
            principal=caller.principal,
            key=key,
            digest=request_digest(method, path, generation, body),
            secrets_mac=None if private_inputs is None else self.vault.mac(private_inputs),
        )

    def _supported(self, url: str) -> AnyForm:
        form = registry.form(url)
        if not (form.supported or (form.hosted and self.previews)):
            raise SaiseiError("unsupported_form", f"this Host does not support the Form {form.name} {form.version} yet")
        return form

    def _check_private_inputs(
        self, form: AnyForm, spec: JsonObject, private_inputs: dict[str, str] | None, *, creating: bool
    ) -> None:
        """H-151, then the spec itself, then H-152."""
        if private_inputs is not None and not takes_private_inputs(form):
            raise SaiseiError("capability_required", f"the Form {form.name} takes no privateInputs on this Host")
        form.validate(spec)
        features = form.unhosted_features(spec)
        if features:
            raise SaiseiError("capability_required", f"this Host does not offer yet: spec.{', spec.'.join(features)}")
        form.check_private_inputs(spec, private_inputs, creating=creating)

    def _output(self, form_url: str) -> JsonObject:
        """EP-03: an Endpoint's address is fixed at acceptance."""
        if form_url != urls.WORKER_ENDPOINT:
            return {}
        label = "".join(secrets.choice(_LABEL_ALPHABET) for _ in range(_LABEL_LENGTH))
        return endpoint_output(f"{label}.{self.workers_domain}")


def takes_private_inputs(form: AnyForm) -> bool:
    """F-07: WorkerVersion alone."""
    return form.url == urls.WORKER_VERSION


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


def _check_current(connection: Connection, stored: StoredResource, generation: int) -> None:
    """Tombstone, then busy, then generation (H-036, H-091, H-102)."""
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
