"""Where sealing keys are kept: a ring of them, the current one first. A file by default; a KMS by an own provider."""

from __future__ import annotations

import os
import secrets
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

KEY_BYTES = 32


class KeyRing(Protocol):
    """What a provider of sealing keys does; `SAISEI_SEALING_KEY_RING` names a callable that makes one.

    A provider over a KMS keeps the ring wrapped by a key that never leaves the KMS: `load` unwraps, `save` wraps. Both
    may raise OSError while it cannot be reached.
    """

    def load(self) -> list[bytes]:
        """Every key, 32 random bytes each, the current one first. Called often: what is costly is remembered inside."""
        ...

    def save(self, keys: Sequence[bytes]) -> None:
        """Replaces the ring durably and in one step: a reader sees the old ring or the new one."""
        ...


class FileKeyRing:
    """One key a line in hex digits, mode 0600, beside the database and not in it: neither alone tells anything."""

    def __init__(self, path: Path) -> None:
        self._path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        if not path.exists():
            self._create()

    def load(self) -> list[bytes]:
        return [bytes.fromhex(line) for line in self._path.read_text().split()]

    def save(self, keys: Sequence[bytes]) -> None:
        draft = self._write(keys)
        draft.replace(self._path)
        self._sync_folder()

    def _create(self) -> None:
        """Of several processes that start at once, one makes the first key."""
        draft = self._write([secrets.token_bytes(KEY_BYTES)])
        try:
            os.link(draft, self._path)
        except FileExistsError:
            pass
        finally:
            draft.unlink()
        self._sync_folder()

    def _write(self, keys: Sequence[bytes]) -> Path:
        draft = self._path.with_name(f".{self._path.name}.{os.getpid()}.{secrets.token_hex(4)}")
        with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            file.write("".join(f"{key.hex()}\n" for key in keys))
            file.flush()
            os.fsync(file.fileno())
        return draft

    def _sync_folder(self) -> None:
        descriptor = os.open(self._path.parent, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
