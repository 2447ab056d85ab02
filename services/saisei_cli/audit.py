"""The commands `saisei audit …` and `saisei secrets …`: they need the data folder's service credential."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from saisei_cli.console import AsJson, err, open_operator, print_json

app = typer.Typer(no_args_is_help=True, help="Read the audit log.")
secrets_app = typer.Typer(no_args_is_help=True, help="The keys that seal private inputs.")

Folder = Annotated[Path | None, typer.Option("--data-dir", help="The Host's data folder.")]


@app.command("list")
def list_(
    space: Annotated[str | None, typer.Option(help="Only what happened in this Space.")] = None,
    principal: Annotated[str | None, typer.Option(help="Only what this principal did.")] = None,
    operation: Annotated[str | None, typer.Option(help="Only what belongs to this Operation.")] = None,
    limit: Annotated[int, typer.Option(min=1, max=1000, help="How many at most.")] = 100,
    before: Annotated[int | None, typer.Option(help="Only entries before the one with this id.")] = None,
    data_dir: Folder = None,
    as_json: AsJson = False,
) -> None:
    """List who did what, newest first."""
    filters = {
        "space": space,
        "principal": principal,
        "operation_id": operation,
        "limit": limit,
        "before_id": before,
    }
    with open_operator(data_dir) as operator:
        found = [_described(entry) for entry in operator.audit(**filters)]
    if as_json:
        print_json(found)
        return
    for item in found:
        # Lines, not a table: a table would cut what is long.
        print("  ".join(str(value) for value in item.values() if value != ""))


def _described(entry: Any) -> dict[str, Any]:
    return {
        "id": entry.id,
        "at": entry.at,
        "principal": entry.principal,
        "action": entry.action,
        "space": entry.space,
        "resourceUid": entry.resource_uid,
        "operationId": entry.operation_id,
        "detail": entry.detail,
    }


@secrets_app.command("rotate-key")
def rotate_key(data_dir: Folder = None) -> None:
    """Make a new sealing key and seal each stored private input with it."""
    with open_operator(data_dir) as operator:
        done = operator.rotate_sealing_key()
    err.print(f"sealed {done.resealed} private inputs anew; {done.keys} keys are kept")
    print(done.key_id)
