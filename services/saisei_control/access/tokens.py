"""Bearer tokens: random, stored hashed, expiring, revocable. The principal is not the token (H-047)."""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Mapping
from dataclasses import dataclass

from sqlalchemy import Connection, bindparam, insert, select, update

from saisei_contract.errors import SaiseiError
from saisei_contract.strict_json import MAX_INTEGER
from saisei_control.access.rights import SpaceRights, dump_rights, load_rights
from saisei_control.store.schema import tokens
from saisei_control.store.statements import Row, Statement

TOKEN_PREFIX = "saisei_"  # noqa: S105 - tells people and secret scanners what the text is
_TOKEN_BYTES = 32
TOKEN_ID_CHARACTERS = 16
# Far over any token of ours: nothing longer is hashed.
_MAX_TOKEN_CHARACTERS = 256
_TOKEN = Statement(select(tokens).where(tokens.c.digest == bindparam("wanted")))


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


@dataclass(frozen=True, slots=True)
class StoredToken:
    """`id` names a token without telling it. Times are epoch milliseconds, None for never."""

    id: str
    principal: str
    rights: Mapping[str, SpaceRights]
    created_at_ms: int
    expires_at_ms: int | None
    revoked_at_ms: int | None

    def is_valid(self, now_ms: int) -> bool:
        return self.revoked_at_ms is None and (self.expires_at_ms is None or now_ms < self.expires_at_ms)


def find_token(connection: Connection, token: str) -> StoredToken | None:
    """The token with this text, valid or not. It is found by its digest, so no comparison tells how much was right."""
    if len(token) > _MAX_TOKEN_CHARACTERS:
        return None
    row = _TOKEN.first(connection, {"wanted": _digest(token)})
    return None if row is None else _stored(row)


def list_tokens(connection: Connection, principal: str | None = None) -> list[StoredToken]:
    """Oldest first, those that ended too."""
    statement = select(tokens).order_by(tokens.c.created_at, tokens.c.digest)
    if principal is not None:
        statement = statement.where(tokens.c.principal == principal)
    return [_stored(row) for row in connection.execute(statement)]


def revoke_tokens(connection: Connection, principal: str, now_ms: int, token_id: str | None = None) -> int:
    """Ends the valid tokens of the principal, or one of them; returns how many."""
    conditions = [tokens.c.principal == principal, tokens.c.revoked_at.is_(None)]
    if token_id is not None:
        conditions.append(tokens.c.digest.startswith(token_id, autoescape=True))
    return connection.execute(update(tokens).where(*conditions).values(revoked_at=now_ms)).rowcount


def rotate_token(
    connection: Connection, token_id: str, now_ms: int, overlap_seconds: int, expires_in_seconds: int | None
) -> tuple[str, StoredToken]:
    """A new token of the same principal with the same rights; the old one ends after the overlap (H-047).

    Returns the new text and the old token. SaiseiError not_found unless a valid token has the id.
    """
    row = connection.execute(
        select(tokens).where(tokens.c.digest.startswith(token_id, autoescape=True)).limit(1)
    ).first()
    old = None if row is None else _stored(row)
    if row is None or old is None or not old.is_valid(now_ms):
        raise SaiseiError("not_found", "no valid token has this id; `saisei token list` shows them")
    text = create_token(connection, old.principal, old.rights, now_ms, expires_in_seconds)
    ends = now_ms + overlap_seconds * 1000
    values = {"expires_at": ends if old.expires_at_ms is None else min(ends, old.expires_at_ms)}
    if overlap_seconds == 0:
        values["revoked_at"] = now_ms
    connection.execute(update(tokens).where(tokens.c.digest == row[0]).values(**values))
    return text, old


def _stored(row: Row) -> StoredToken:
    """A row of `tokens`, its columns in the table's order."""
    digest, principal, rights_json, created_at, expires_at, revoked_at = row
    return StoredToken(
        digest[:TOKEN_ID_CHARACTERS], principal, load_rights(rights_json), created_at, expires_at, revoked_at
    )
