"""How commands speak: results on stdout (JSON with --json), everything else on stderr."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from saisei_cli.client import HostClient
from saisei_cli.connection import connect_to
from saisei_cli.failures import CommandFailure

out = Console(soft_wrap=True, highlight=False)
err = Console(stderr=True, soft_wrap=True, highlight=False)

DataDir = Annotated[
    Path | None, typer.Option("--data-dir", help="Folder of a running `saisei dev`; default: SAISEI_ORIGIN or .saisei.")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]


def open_client(data_dir: Path | None) -> HostClient:
    return HostClient(connect_to(data_dir))


def print_json(value: Any) -> None:
    """One line, plain: for programs, and for a pipe into jq."""
    print(json.dumps(value, ensure_ascii=False))


def parse_document(what: str, text: str | None) -> dict[str, Any] | None:
    """A JSON object from the command line, `@file` reads it from a file; None when not given."""
    if text is None:
        return None
    if text.startswith("@"):
        try:
            text = Path(text[1:]).read_text()
        except OSError as error:
            raise CommandFailure(f"{what}: cannot read {text[1:]}: {error.strerror}") from error
    try:
        value = json.loads(text)
    except json.JSONDecodeError as error:
        raise CommandFailure(
            f"{what} is not JSON: {error}", """write an object, for example '{"group": "all"}'"""
        ) from error
    if not isinstance(value, dict):
        raise CommandFailure(f"{what} must be a JSON object")
    return value
