"""Which Host a command talks to: the `saisei dev` of a data folder, or what SAISEI_ORIGIN, _TOKEN and _CA_FILE say."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from saisei_cli.failures import CommandFailure

DEFAULT_DATA_DIR = Path(".saisei")


@dataclass(frozen=True, slots=True)
class Connection:
    """`origin` is `https://host[:port]`. Without `ca_file` the system's authorities are trusted."""

    origin: str
    token: str
    ca_file: Path | None = None


def connect_to(data_dir: Path | None, environment: Mapping[str, str] = os.environ) -> Connection:
    """An explicit data folder wins over the environment, and the environment over ./.saisei."""
    if data_dir is None and environment.get("SAISEI_ORIGIN"):
        ca_file = environment.get("SAISEI_CA_FILE")
        return Connection(
            environment["SAISEI_ORIGIN"].rstrip("/"),
            environment.get("SAISEI_TOKEN", ""),
            Path(ca_file) if ca_file else None,
        )
    description = dev_description(data_dir or DEFAULT_DATA_DIR)
    token = environment.get("SAISEI_TOKEN") or description["token"]
    return Connection(description["origin"], token, Path(description["caFile"]))


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
        raise CommandFailure(f"cannot read {file}: {error}") from error
    return description
