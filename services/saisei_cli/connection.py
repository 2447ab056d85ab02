"""Which Host a command talks to: the `saisei dev` of a data folder, or what SAISEI_ORIGIN, _TOKEN and _CA_FILE say."""

from __future__ import annotations

import json
import os
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from saisei_cli.failures import CommandFailure

DEFAULT_DATA_DIR = Path(".saisei")


@dataclass(frozen=True, slots=True)
class Connection:
    """`origin` is `https://host[:port]`. Without `ca_file` the system's authorities are trusted.

    `data_dir` is what the user named, so that hints can name it again.
    """

    origin: str
    token: str
    ca_file: Path | None = None
    data_dir: Path | None = field(default=None, compare=False)

    def command(self, words: str) -> str:
        """A command that can be pasted: `saisei {words}` against the same Host."""
        return f"saisei {words}" + (f" --data-dir {shlex.quote(str(self.data_dir))}" if self.data_dir else "")


def connect_to(data_dir: Path | None, environment: Mapping[str, str] = os.environ) -> Connection:
    """An explicit data folder wins over the environment, and the environment over ./.saisei."""
    if data_dir is None and environment.get("SAISEI_ORIGIN"):
        return _of_environment(environment)
    description = dev_description(data_dir or DEFAULT_DATA_DIR)
    token = environment.get("SAISEI_TOKEN") or description["token"]
    return Connection(description["origin"], token, Path(description["caFile"]), data_dir)


def _of_environment(environment: Mapping[str, str]) -> Connection:
    origin = environment["SAISEI_ORIGIN"].rstrip("/")
    try:
        parts = urlsplit(origin)
        is_origin = (
            parts.scheme == "https" and bool(parts.hostname) and not (parts.path or parts.query or parts.fragment)
        )
        is_origin = is_origin and (parts.port or 443) > 0
    except ValueError:
        is_origin = False
    if not is_origin:
        raise CommandFailure(
            f"SAISEI_ORIGIN {origin!r} is not the address of a Host",
            "write https://HOST or https://HOST:PORT, without a path; a Host speaks HTTPS only",
        )
    token = environment.get("SAISEI_TOKEN", "")
    if not token:
        raise CommandFailure(
            "SAISEI_ORIGIN is set, but SAISEI_TOKEN is not",
            "export SAISEI_TOKEN=…; the Host's operator makes one with `saisei token create`",
        )
    if not token.isascii() or not token.isprintable() or " " in token:
        raise CommandFailure("SAISEI_TOKEN holds characters that no token has", "export it without spaces or quotes")
    ca_file = environment.get("SAISEI_CA_FILE")
    return Connection(origin, token, Path(ca_file) if ca_file else None)


def dev_description(data_dir: Path) -> dict[str, Any]:
    """The ready line of the `saisei dev` that runs on the folder; CommandFailure when none does."""
    file = data_dir / "dev.json"
    try:
        description: dict[str, Any] = json.loads(file.read_text())
    except FileNotFoundError as error:
        raise CommandFailure(
            f"no saisei dev runs on {data_dir.absolute()}",
            "start one with `saisei dev`, name its --data-dir, or set SAISEI_ORIGIN, SAISEI_TOKEN and SAISEI_CA_FILE",
        ) from error
    except (OSError, ValueError) as error:
        raise CommandFailure(f"cannot read {file}: {error}", "give the --data-dir of a running saisei dev") from error
    return description
