"""The commands `saisei operations …`."""

from __future__ import annotations

from typing import Annotated

import typer

from saisei_cli.client import Json
from saisei_cli.console import DataDir, open_client, out
from saisei_cli.failures import CommandFailure

app = typer.Typer(no_args_is_help=True, help="Read Operations: what an accepted change became.")


def require_success(operation: Json) -> None:
    """CommandFailure with code and message of an Operation that failed."""
    if operation["status"] == "failed":
        error = operation.get("error", {})
        raise CommandFailure(
            f"the {operation['action']} failed with {error.get('code')}: {error.get('message')}",
            f"details: saisei operations show {operation['id']}",
        )


@app.command()
def show(
    operation_id: Annotated[str, typer.Argument(metavar="ID")],
    wait: Annotated[bool, typer.Option("--wait", help="Wait until it is settled.")] = False,
    data_dir: DataDir = None,
) -> None:
    """Print one Operation as JSON."""
    with open_client(data_dir) as client:
        operation = client.operation(operation_id)
        out.print_json(data=client.wait_operation(operation) if wait else operation)
