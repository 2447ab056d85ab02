"""The commands `saisei operations …`."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from saisei_cli.client import Json
from saisei_cli.connection import Connection
from saisei_cli.console import DataDir, err, open_client, open_operator, out
from saisei_cli.failures import CommandFailure

app = typer.Typer(no_args_is_help=True, help="Read Operations, and settle those that need an operator.")


def require_success(operation: Json, connection: Connection) -> None:
    """CommandFailure with code and message of an Operation that failed."""
    if operation["status"] == "failed":
        error = operation.get("error", {})
        raise CommandFailure(
            f"the {operation['action']} failed with {error.get('code')}: {error.get('message')}",
            f"details: {connection.command('operations show ' + operation['id'])}",
        )


class Outcome(StrEnum):
    SUCCEEDED = "succeeded"
    FAILED_NONE = "failed-none"
    FAILED_PARTIAL = "failed-partial"


@app.command()
def resolve(
    operation_id: Annotated[str, typer.Argument(metavar="ID")],
    outcome: Annotated[Outcome, typer.Option(help="What became of the effect: all of it, nothing of it, a part.")],
    reason: Annotated[str, typer.Option(help="What you saw; the audit log keeps it. Never a secret.")],
    data_dir: Annotated[Path | None, typer.Option("--data-dir", help="The Host's data folder.")] = None,
) -> None:
    """Settle an Operation that is reconciling, by your word. It needs the data folder's service credential."""
    from saisei.control.v1 import admin_pb2  # noqa: PLC0415 - see open_operator

    resolution = {
        Outcome.SUCCEEDED: admin_pb2.RESOLUTION_SUCCEEDED,
        Outcome.FAILED_NONE: admin_pb2.RESOLUTION_FAILED_NONE,
        Outcome.FAILED_PARTIAL: admin_pb2.RESOLUTION_FAILED_PARTIAL,
    }[outcome]
    with open_operator(data_dir) as operator:
        settled = operator.resolve(operation_id, resolution, reason)
    err.print(f"{settled.id} is settled: {outcome.value}")


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
