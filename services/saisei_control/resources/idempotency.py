"""Idempotency keys: one mutation for each (principal, key), however often it is sent (H-130 … H-148)."""

from __future__ import annotations

import hashlib
import hmac
from dataclasses import dataclass

from sqlalchemy import Connection, insert, select

from saisei_contract.errors import SaiseiError
from saisei_contract.records import OperationRecord
from saisei_contract.strict_json import JsonObject, equality_key
from saisei_control.store.rows import find_operation
from saisei_control.store.schema import idempotency


@dataclass(frozen=True, slots=True)
class Request:
    """A mutation as far as H-140 compares it."""

    principal: str
    key: str
    digest: str
    # Keyed MAC of the private inputs; None when none were given (H-141).
    secrets_mac: str | None


def request_digest(method: str, path: str, generation: int | None, body: JsonObject | None) -> str:
    """`path` is relative to the API root. None marks what the request does not have; private values are not part of
    `body`.
    """
    return hashlib.sha256(
        equality_key({"method": method, "path": path, "generation": generation, "body": body}).encode()
    ).hexdigest()


def find_replay(connection: Connection, request: Request) -> OperationRecord | None:
    """The Operation that this request already became; None for a fresh key.

    SaiseiError idempotency_conflict when the key belongs to another request (H-143).
    """
    row = connection.execute(
        select(idempotency).where(idempotency.c.principal == request.principal, idempotency.c.key == request.key)
    ).first()
    if row is None:
        return None
    same_secrets = hmac.compare_digest(row.secrets_mac or "", request.secrets_mac or "")
    if row.request_digest != request.digest or not same_secrets:
        raise SaiseiError(
            "idempotency_conflict", "this Idempotency-Key was used for another request; send a new key for a new intent"
        )
    operation = find_operation(connection, row.operation_id)
    assert operation is not None, "the replay mapping goes with its Operation"
    return operation.record


def register(connection: Connection, request: Request, operation_id: str) -> None:
    """Part of the acceptance transaction (H-145)."""
    connection.execute(
        insert(idempotency).values(
            principal=request.principal,
            key=request.key,
            request_digest=request.digest,
            secrets_mac=request.secrets_mac,
            operation_id=operation_id,
        )
    )
