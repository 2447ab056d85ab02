"""Secrets of WorkerVersions: AES-256-GCM at rest, HMAC-SHA-256 for comparison (H-141, H-153).

The key lies in a file beside the database, so that neither alone tells anything.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import os
import secrets
from collections.abc import Mapping
from pathlib import Path

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from sqlalchemy import Connection, delete, insert, select

from saisei_control.store.schema import sealed_secrets

_NONCE_BYTES = 12


class SecretsLost(Exception):  # noqa: N818 - what happened to them
    """Sealed values do not open with this Host's key: the key file or a row was lost or changed (WV-08, H-155)."""


class Vault:
    """Seals and opens; two independent keys are derived from the one in the key file."""

    def __init__(self, key: bytes) -> None:
        self._cipher = AESGCM(_derive(key, b"seal"))
        self._mac_key = _derive(key, b"compare")
        self._key_id = hashlib.sha256(_derive(key, b"name")).hexdigest()[:8]

    @classmethod
    def open(cls, path: Path) -> Vault:
        """Reads the key file, or makes it (mode 0600) on the first start."""
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        except FileExistsError:
            return cls(bytes.fromhex(path.read_text().strip()))
        with os.fdopen(descriptor, "w") as file:
            key = secrets.token_bytes(32)
            file.write(key.hex() + "\n")
            file.flush()
            os.fsync(file.fileno())
        return cls(key)

    def mac(self, values: Mapping[str, str]) -> str:
        """`<key id>:<hex digits>`, equal exactly for equal maps under one key; says nothing without the key."""
        text = json.dumps(dict(values), sort_keys=True, separators=(",", ":"))
        return f"{self._key_id}:{hmac.new(self._mac_key, text.encode(), hashlib.sha256).hexdigest()}"

    def store(self, connection: Connection, version_uid: str, values: Mapping[str, str]) -> None:
        for name, value in values.items():
            nonce = secrets.token_bytes(_NONCE_BYTES)
            sealed = nonce + self._cipher.encrypt(nonce, value.encode(), _bound_to(version_uid, name))
            connection.execute(insert(sealed_secrets).values(version_uid=version_uid, name=name, sealed=sealed))

    def load(self, connection: Connection, version_uid: str) -> dict[str, str]:
        """Every secret of the Version, {} when it has none. Raises SecretsLost."""
        rows = connection.execute(select(sealed_secrets).where(sealed_secrets.c.version_uid == version_uid))
        return {row.name: self._open(version_uid, row.name, row.sealed) for row in rows}

    def _open(self, version_uid: str, name: str, sealed: bytes) -> str:
        try:
            opened = self._cipher.decrypt(sealed[:_NONCE_BYTES], sealed[_NONCE_BYTES:], _bound_to(version_uid, name))
        except InvalidTag:
            raise SecretsLost(f"a secret of {version_uid} does not open") from None
        return opened.decode()

    def forget(self, connection: Connection, version_uid: str) -> None:
        connection.execute(delete(sealed_secrets).where(sealed_secrets.c.version_uid == version_uid))


def _derive(key: bytes, purpose: bytes) -> bytes:
    return HKDF(algorithm=SHA256(), length=32, salt=None, info=b"saisei " + purpose).derive(key)


def _bound_to(version_uid: str, name: str) -> bytes:
    # A sealed row moved to another Version or name does not open.
    return f"{version_uid}\0{name}".encode()
