"""Idempotency keys: one mutation for each (principal, API, key), however often it is sent (H-130 … H-148)."""

from __future__ import annotations

import hashlib
import hmac
from dataclasses import dataclass

from sqlalchemy import Connection, bindparam, select

from saisei_contract.errors import SaiseiError
from saisei_contract.records import OperationRecord
from saisei_contract.strict_json import JsonObject, equality_key
from saisei_control.secrets.vault import SecretMacs
from saisei_control.store.rows import operation_of
from saisei_control.store.schema import idempotency, operations
from saisei_control.store.statements import Statement, insert_into

_REPLAY = Statement(
    select(idempotency.c.request_digest, idempotency.c.secrets_mac, operations)
    .join(operations, operations.c.id == idempotency.c.operation_id)
    .where(
        idempotency.c.principal == bindparam("principal"),
        idempotency.c.api == bindparam("api"),
        idempotency.c.key == bindparam("key"),
    )
)
_REGISTER = Statement(
    insert_into(idempotency, "principal", "api", "key", "request_digest", "secrets_mac", "operation_id")
)


@dataclass(frozen=True, slots=True)
class Key:
    """A principal's idempotency key; the same text is another key in another API (H-149). `api` is "host" or "grpc"."""

    api: str
    text: str


@dataclass(frozen=True, slots=True)
class Request:
    """A mutation as far as H-140 compares it."""

    principal: str
    key: Key
    digest: str
    # Keyed MACs of the private inputs; None when none were given (H-141).
    secrets: SecretMacs | None


def request_digest(method: str, path: str, generation: int | None, body: JsonObject | None) -> str:
    """`path` is relative to the API root, None is what the request does not have; `body` is without private values."""
    return hashlib.sha256(
        equality_key({"method": method, "path": path, "generation": generation, "body": body}).encode()
    ).hexdigest()


def find_replay(connection: Connection, request: Request) -> OperationRecord | None:
    """The Operation that this request already became; None for a fresh key.

    SaiseiError idempotency_conflict when the key belongs to another request (H-143), private_inputs_unverifiable when
    only the private inputs could tell and their comparison key is lost (H-155).
    """
    row = _REPLAY.first(connection, _scope(request))
    if row is None:
        return None
    digest, secrets_mac, *columns = row
    operation = operation_of(columns).record
    if digest != request.digest or (secrets_mac is None) != (request.secrets is None):
        raise _conflict()
    if request.secrets is not None and not _are_equal(secrets_mac, request.secrets, operation.id):
        raise _conflict()
    return operation


def _scope(request: Request) -> dict[str, str]:
    return {"principal": request.principal, "api": request.key.api, "key": request.key.text}


def check_original_inputs(connection: Connection, operation_id: str, given: SecretMacs) -> None:
    """H-154: SaiseiError private_inputs_conflict unless these are the Operation's original private inputs."""
    original = connection.execute(
        select(idempotency.c.secrets_mac).where(idempotency.c.operation_id == operation_id)
    ).scalar_one_or_none()
    if original is None or not _are_equal(original, given, operation_id):
        raise SaiseiError(
            "private_inputs_conflict", "these are not the private inputs of the original request; send exactly those"
        )


def _are_equal(original: str, given: SecretMacs, operation_id: str) -> bool:
    """H-155: compared under the key of the original."""
    mac = given.under_key_of(original)
    if mac is None:
        raise SaiseiError(
            "private_inputs_unverifiable",
            "the original private inputs can no longer be compared on this Host; read the Operation instead",
            {"operationId": operation_id},
        )
    return hmac.compare_digest(original, mac)


def _conflict() -> SaiseiError:
    return SaiseiError(
        "idempotency_conflict", "this Idempotency-Key was used for another request; send a new key for a new intent"
    )


def register(connection: Connection, request: Request, operation_id: str) -> None:
    """Part of the acceptance transaction (H-145)."""
    _REGISTER.run(
        connection,
        {
            **_scope(request),
            "request_digest": request.digest,
            "secrets_mac": None if request.secrets is None else request.secrets.current,
            "operation_id": operation_id,
        },
    )
