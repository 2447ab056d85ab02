"""Page cursors: opaque, sealed, bound to filters and principal, expiring (H-095)."""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import json
import secrets

from sqlalchemy import Connection, insert, select

from saisei_contract.errors import SaiseiError
from saisei_control.store.schema import host_keys

CURSOR_LIFETIME_MS = 86_400_000
_MAC_BYTES = 32
_KEY_NAME = "cursor"


def load_or_create_key(connection: Connection) -> bytes:
    """The Host's cursor key, made on the first start. Needs a write transaction."""
    known = connection.execute(select(host_keys.c.value).where(host_keys.c.name == _KEY_NAME)).scalar_one_or_none()
    if known is not None:
        return bytes(known)
    key = secrets.token_bytes(32)
    connection.execute(insert(host_keys).values(name=_KEY_NAME, value=key))
    return key


class Cursors:
    def __init__(self, key: bytes) -> None:
        self._key = key

    def seal(self, last_uid: str, binding: str, now_ms: int) -> str:
        """A cursor that goes on after `last_uid`; `binding` spells what the walk is bound to."""
        body = json.dumps([last_uid, now_ms]).encode()
        return base64.urlsafe_b64encode(self._mac(body, binding) + body).decode().rstrip("=")

    def open(self, cursor: str, binding: str, now_ms: int) -> str:
        """The UID to go on after.

        SaiseiError invalid_request for a cursor that is not of this walk, cursor_expired for an old one.
        """
        wrong = SaiseiError("invalid_request", "the cursor does not belong to this list; start again without one")
        try:
            raw = base64.b64decode(cursor + "=" * (-len(cursor) % 4), altchars=b"-_", validate=True)
        except (binascii.Error, ValueError):
            raise wrong from None
        # One spelling only: base64 ignores the unused bits of its last digit.
        if base64.urlsafe_b64encode(raw).decode().rstrip("=") != cursor:
            raise wrong
        mac, body = raw[:_MAC_BYTES], raw[_MAC_BYTES:]
        if not hmac.compare_digest(mac, self._mac(body, binding)):
            raise wrong
        last_uid, made_at = json.loads(body)
        if now_ms > made_at + CURSOR_LIFETIME_MS:
            raise SaiseiError("cursor_expired", "the cursor is older than a day; start again without one")
        return str(last_uid)

    def _mac(self, body: bytes, binding: str) -> bytes:
        return hmac.new(self._key, binding.encode() + b"\0" + body, hashlib.sha256).digest()
