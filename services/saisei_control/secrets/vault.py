"""Secrets of WorkerVersions: AES-256-GCM at rest, HMAC-SHA-256 for comparison (H-141, H-153); keys change."""

from __future__ import annotations

import hashlib
import hmac
import json
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from sqlalchemy import Connection, delete, insert, select, update

from saisei_control.secrets.keys import KEY_BYTES, KeyRing
from saisei_control.store.schema import idempotency, sealed_secrets

_NONCE_BYTES = 12


class SecretsLost(Exception):  # noqa: N818 - what happened to them
    """Sealed values do not open with this Host's keys: a key or a row was lost or changed (WV-08, H-155)."""


@dataclass(frozen=True, slots=True)
class SecretMacs:
    """Keyed MACs of one map of private inputs, `<key id>:<hex digits>` each; they say nothing without the key.

    One for each key of the ring, so that what an older key compared stays comparable (H-148, H-155).
    """

    current: str
    by_key: Mapping[str, str] = field(repr=False)

    def under_key_of(self, other: str) -> str | None:
        """The MAC to compare with `other`; None when the key that made it is gone."""
        return self.by_key.get(other.partition(":")[0])


@dataclass(frozen=True, slots=True)
class Rotation:
    """`keys` counts the ring, the new one included; `resealed` counts values."""

    key_id: str
    resealed: int
    keys: int


@dataclass(frozen=True, slots=True)
class _Key:
    """Two independent keys derived from one of the ring, and its public name."""

    key_id: str
    cipher: AESGCM = field(repr=False)
    mac_key: bytes = field(repr=False)

    @classmethod
    def of(cls, key: bytes) -> _Key:
        key_id = hashlib.sha256(_derive(key, b"name")).hexdigest()[:8]
        return cls(key_id, AESGCM(_derive(key, b"seal")), _derive(key, b"compare"))


class Vault:
    """Seals with the ring's first key and opens with the one that sealed."""

    def __init__(self, ring: KeyRing) -> None:
        self._ring = ring
        self._raw: list[bytes] = []
        self._keys: dict[str, _Key] = {}
        self._refresh()

    def mac(self, values: Mapping[str, str]) -> SecretMacs:
        """Equal exactly for equal maps under one key."""
        self._refresh()
        text = json.dumps(dict(values), sort_keys=True, separators=(",", ":")).encode()
        macs = {
            key.key_id: f"{key.key_id}:{hmac.new(key.mac_key, text, hashlib.sha256).hexdigest()}"
            for key in self._keys.values()
        }
        return SecretMacs(macs[self._current.key_id], macs)

    def store(self, connection: Connection, version_uid: str, values: Mapping[str, str]) -> None:
        for name, value in values.items():
            connection.execute(
                insert(sealed_secrets).values(
                    version_uid=version_uid, name=name, **self._seal(version_uid, name, value)
                )
            )

    def load(self, connection: Connection, version_uid: str) -> dict[str, str]:
        """Every secret of the Version, {} when it has none. Raises SecretsLost."""
        rows = connection.execute(select(sealed_secrets).where(sealed_secrets.c.version_uid == version_uid))
        return {row.name: self._open(version_uid, row.name, row.sealed, row.key_id) for row in rows}

    def forget(self, connection: Connection, version_uid: str) -> None:
        connection.execute(delete(sealed_secrets).where(sealed_secrets.c.version_uid == version_uid))

    def add_key(self) -> None:
        """The first half of a rotation: from now on everything new is sealed with a new key. OSError."""
        self._ring.save([secrets.token_bytes(KEY_BYTES), *self._ring.load()])
        self._refresh()

    def reseal(self, connection: Connection) -> int:
        """The second half: each value that opens is sealed with the current key; returns how many were."""
        resealed = 0
        for row in connection.execute(select(sealed_secrets)).all():
            if row.key_id == self._current.key_id:
                continue
            try:
                value = self._open(row.version_uid, row.name, row.sealed, row.key_id)
            except SecretsLost:
                continue
            connection.execute(
                update(sealed_secrets)
                .where(sealed_secrets.c.version_uid == row.version_uid, sealed_secrets.c.name == row.name)
                .values(**self._seal(row.version_uid, row.name, value))
            )
            resealed += 1
        return resealed

    def needed_keys(self, connection: Connection) -> set[str]:
        """Names of the keys that a sealed value or a comparison still needs (H-148)."""
        macs = connection.execute(
            select(idempotency.c.secrets_mac).where(idempotency.c.secrets_mac.is_not(None)).distinct()
        ).scalars()
        sealed = connection.execute(select(sealed_secrets.c.key_id).distinct()).scalars()
        return {mac.partition(":")[0] for mac in macs} | {key_id for key_id in sealed if key_id is not None}

    def drop_keys(self, needed: set[str], resealed: int) -> Rotation:
        """The end of a rotation, after its commit: keys that nothing needs go for good. OSError.

        The one before the current stays for a round: another replica may be sealing with it right now.
        """
        current = self._current
        older = [key for key in self._raw[2:] if _Key.of(key).key_id in needed]
        kept = [*self._raw[:2], *older]
        if len(kept) < len(self._raw):
            self._ring.save(kept)
            self._refresh()
        return Rotation(current.key_id, resealed, len(kept))

    @property
    def _current(self) -> _Key:
        return next(iter(self._keys.values()))

    def _refresh(self) -> None:
        """Another replica may have rotated. Without an answer of the ring the known keys go on."""
        try:
            raw = self._ring.load()
        except OSError:
            if not self._keys:
                raise
            return
        if raw != self._raw:
            keys = [_Key.of(key) for key in raw]
            self._raw, self._keys = raw, {key.key_id: key for key in keys}

    def _seal(self, version_uid: str, name: str, value: str) -> dict[str, object]:
        key, nonce = self._current, secrets.token_bytes(_NONCE_BYTES)
        sealed = nonce + key.cipher.encrypt(nonce, value.encode(), _bound_to(version_uid, name))
        return {"sealed": sealed, "key_id": key.key_id}

    def _open(self, version_uid: str, name: str, sealed: bytes, key_id: str | None) -> str:
        if key_id is not None and key_id not in self._keys:
            self._refresh()
        for key in self._keys.values():
            if key_id is None or key.key_id == key_id:
                try:
                    return key.cipher.decrypt(
                        sealed[:_NONCE_BYTES], sealed[_NONCE_BYTES:], _bound_to(version_uid, name)
                    ).decode()
                except InvalidTag:
                    continue
        raise SecretsLost(f"a secret of {version_uid} does not open")


def _derive(key: bytes, purpose: bytes) -> bytes:
    return HKDF(algorithm=SHA256(), length=32, salt=None, info=b"saisei " + purpose).derive(key)


def _bound_to(version_uid: str, name: str) -> bytes:
    # A sealed row moved to another Version or name does not open.
    return f"{version_uid}\0{name}".encode()
