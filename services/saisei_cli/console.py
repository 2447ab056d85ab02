"""How commands speak: results on stdout (JSON with --json), everything else on stderr."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from saisei_cli.client import HostClient
from saisei_cli.connection import connect_to
from saisei_cli.failures import CommandFailure
from saisei_contract import strict_json
from saisei_contract.errors import SaiseiError

if TYPE_CHECKING:
    from saisei_cli.access import Access
    from saisei_cli.operator_calls import Operator

out = Console(soft_wrap=True, highlight=False)
err = Console(stderr=True, soft_wrap=True, highlight=False)

_PLAIN = re.compile(r"[\t\r\n]")
_BODY = "The body is not valid JSON: "

DataDir = Annotated[
    Path | None, typer.Option("--data-dir", help="Folder of a running `saisei dev`; default: SAISEI_ORIGIN or .saisei.")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]


def open_client(data_dir: Path | None) -> HostClient:
    return HostClient(connect_to(data_dir))


def open_operator(data_dir: Path | None) -> Operator:
    """gRPC is loaded by the few commands that speak it: the others would wait for it a quarter of their time."""
    from saisei_cli.operator_calls import Operator, control_of  # noqa: PLC0415

    return Operator(*control_of(data_dir))


def open_access(data_dir: Path | None) -> Access:
    """Like `open_operator`."""
    from saisei_cli.access import Access  # noqa: PLC0415
    from saisei_cli.operator_calls import control_of  # noqa: PLC0415

    return Access(*control_of(data_dir))


def print_json(value: Any) -> None:
    """One line, plain: for programs, and for a pipe into jq."""
    print(json.dumps(value, ensure_ascii=False))


def print_rows(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """A table on a terminal; in a pipe one line a row, with tabs between whole values."""
    if not out.is_terminal:
        print("\t".join(columns))
        for row in rows:
            print("\t".join(_PLAIN.sub(" ", value) for value in row))
        return
    table = Table(box=box.SIMPLE_HEAD)
    for column in columns:
        table.add_column(column, overflow="fold")
    for row in rows:
        table.add_row(*(escape(value) for value in row))
    # soft_wrap would cut nothing but also fold nothing: the table is given the terminal's width.
    out.print(table, soft_wrap=False)


def parse_document(what: str, text: str | None) -> dict[str, Any] | None:
    """A JSON object from the command line, `@file` reads it from a file; None when not given. Strict like the Host."""
    if text is None:
        return None
    raw = os.fsencode(text)
    if text.startswith("@"):
        try:
            raw = Path(text[1:]).read_bytes()
        except (OSError, ValueError) as error:
            raise CommandFailure(
                f"{what}: cannot read {text[1:]!r}: {getattr(error, 'strerror', None) or error}",
                "after @ comes the name of a file with a JSON object",
            ) from error
    example = """write an object, for example '{"group": "all"}'"""
    try:
        strict_json.parse(raw, max_depth=None)
        value = json.loads(raw)
    except SaiseiError as error:
        raise CommandFailure(f"{what} is not JSON: {error.detail.removeprefix(_BODY)}", example) from error
    except RecursionError as error:
        raise CommandFailure(f"{what} is nested too deeply for the command line", "send it over HTTP") from error
    if not isinstance(value, dict):
        raise CommandFailure(f"{what} must be a JSON object", example)
    return value
