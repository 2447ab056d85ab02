"""The data folder of `saisei dev`: what lies where, who holds it, and how its files are written."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import socket
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from saisei_cli.failures import CommandFailure

# A unix socket's path has 108 bytes with its final zero; the runtime puts a few short names beside ours.
LONGEST_SOCKET_PATH_BYTES = 100
LARGEST_LOG_BYTES = 16 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class DataFolder:
    """Absolute paths below `--data-dir`."""

    root: Path

    @classmethod
    def at(cls, path: Path) -> DataFolder:
        return cls(path.expanduser().absolute())

    @property
    def description(self) -> Path:
        """dev.json: the ready line with current pids. It holds the token, so only its owner reads it."""
        return self.root / "dev.json"

    @property
    def token(self) -> Path:
        return self.root / "dev-token"

    @property
    def service_credential(self) -> Path:
        return self.root / "service.key"

    @property
    def listen(self) -> Path:
        """The address that port 0 became, so that the origin survives a restart."""
        return self.root / "listen"

    @property
    def tls(self) -> Path:
        return self.root / "tls"

    @property
    def lock(self) -> Path:
        return self.root / "dev.lock"

    def log(self, service: str) -> Path:
        return self.root / "logs" / f"{service}.log"

    def prepare(self) -> None:
        """Makes the folders; only the owner enters them, for they hold keys and everybody's data."""
        for folder in (self.root, self.root / "logs", self.root / "run", self.tls):
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        for log in (self.root / "logs").glob("*.log"):
            if log.stat().st_size > LARGEST_LOG_BYTES:
                log.replace(log.with_suffix(".log.old"))


@contextlib.contextmanager
def only_one(folder: DataFolder) -> Iterator[None]:
    """Holds the folder for this process; CommandFailure when another `saisei dev` does."""
    descriptor = os.open(folder.lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            holder = os.pread(descriptor, 32, 0).decode(errors="replace").strip()
            raise CommandFailure(
                f"another saisei dev (pid {holder or 'unknown'}) runs on {folder.root}",
                "stop it first, or give this one another --data-dir",
            ) from error
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
        yield
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def socket_folder(folder: DataFolder) -> Iterator[Path]:
    """{data}/run, or a private short folder that goes away at the end when sockets there would have too long a path."""
    run = folder.root / "run"
    if len(os.fsencode(run / "control.sock")) <= LONGEST_SOCKET_PATH_BYTES:
        yield run
        return
    with tempfile.TemporaryDirectory(prefix="saisei-") as short:
        yield Path(short)


def write_private(path: Path, text: str) -> None:
    """Replaces the file in one step, mode 0600: a reader sees the old text or the new one, never half of it."""
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    draft.replace(path)


def write_description(folder: DataFolder, description: dict[str, Any]) -> None:
    write_private(folder.description, json.dumps(description) + "\n")


def parse_listen(text: str) -> tuple[str, int]:
    """`host:port` or `[v6]:port` → (host, port); CommandFailure otherwise."""
    host, separator, port = text.rpartition(":")
    if not separator or not host or not port.isascii() or not port.isdigit() or int(port) > 65535:
        raise CommandFailure(
            f"--listen {text!r} is not an address",
            "write host:port, for example 127.0.0.1:8443; port 0 picks a free one",
        )
    return host.removeprefix("[").removesuffix("]"), int(port)


def join_listen(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _is_free(host: str, port: int) -> int | None:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError:
            return None
        return int(probe.getsockname()[1])


def free_port(host: str, *, but: int = 0) -> int:
    """One that nobody listens on now, and another one than `but`, which is chosen already and not yet listened on."""
    port = _is_free(host, 0)
    while port is not None and port == but:
        port = _is_free(host, 0)
    if port is None:
        raise CommandFailure(f"this machine has no address {host!r} to listen on", "give --listen another host")
    return port


def choose_listen(folder: DataFolder, asked: str) -> tuple[str, int]:
    """The address for the gateway.

    Port 0 becomes the same free port as the last time on this folder, if it still is free.
    """
    host, port = parse_listen(asked)
    if port != 0:
        if _is_free(host, port) is None:
            raise CommandFailure(
                f"cannot listen on {join_listen(host, port)}: the port is taken or the address is not this machine's",
                "give another --listen; port 0 picks a free one",
            )
        return host, port
    if folder.listen.exists():
        with contextlib.suppress(CommandFailure, OSError):
            last_host, last_port = parse_listen(folder.listen.read_text().strip())
            if last_host == host and last_port and _is_free(host, last_port):
                return host, last_port
    port = free_port(host)
    write_private(folder.listen, join_listen(host, port) + "\n")
    return host, port
