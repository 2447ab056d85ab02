"""Bearer tokens: random, stored hashed, expiring, revocable. The principal is not the token (H-047)."""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Mapping

from sqlalchemy import Connection, insert, select, update

from saisei_contract.errors import SaiseiError
from saisei_contract.strict_json import MAX_INTEGER
from saisei_control.access.rights import Caller, SpaceRights, dump_rights, load_rights
from saisei_control.store.schema import tokens

TOKEN_PREFIX = "saisei_"  # noqa: S105 - tells people and secret scanners what the text is
_TOKEN_BYTES = 32
# Far over any token of ours: nothing longer is hashed.
_MAX_TOKEN_CHARACTERS = 256


def _digest(token: str) -> str:
    return hashlib.sha256(token.encode("utf-8", "surrogatepass")).hexdigest()


def create_token(
    connection: Connection,
    principal: str,
    rights: Mapping[str, SpaceRights],
    now_ms: int,
    expires_in_seconds: int | None = None,
) -> str:
    """Makes a token and returns its text, which is stored nowhere. `expires_in_seconds` is > 0, None for never."""
    token = TOKEN_PREFIX + secrets.token_urlsafe(_TOKEN_BYTES)
    expires_at = None if expires_in_seconds is None else min(now_ms + expires_in_seconds * 1000, MAX_INTEGER)
    connection.execute(
        insert(tokens).values(
            digest=_digest(token),
            principal=principal,
            rights_json=dump_rights(rights),
            created_at=now_ms,
            expires_at=expires_at,
        )
    )
    return token


def authenticate(connection: Connection, token: str, now_ms: int) -> Caller:
    """The caller behind a token; SaiseiError unauthenticated for unknown, expired and revoked ones, with one message
    for all.
    """
    row = None
    if len(token) <= _MAX_TOKEN_CHARACTERS:
        row = connection.execute(select(tokens).where(tokens.c.digest == _digest(token))).first()
    if row is None or row.revoked_at is not None or (row.expires_at is not None and row.expires_at <= now_ms):
        raise SaiseiError("unauthenticated", "the token is not valid here, or no longer")
    return Caller(row.principal, load_rights(row.rights_json))


def revoke_tokens(connection: Connection, principal: str, now_ms: int) -> int:
    """Ends each valid token of the principal; returns how many."""
    result = connection.execute(
        update(tokens).where(tokens.c.principal == principal, tokens.c.revoked_at.is_(None)).values(revoked_at=now_ms)
    )
    return result.rowcount
