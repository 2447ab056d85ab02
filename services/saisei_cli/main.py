"""`saisei`: what the command line is made of. Status 0: done; 1: refused or failed, said in words; 2: not a command."""

from __future__ import annotations

import os
import sys

import typer
from rich.markup import escape

from saisei_cli import audit, operations, resources, tokens, workflows
from saisei_cli.console import err
from saisei_cli.deploy.command import deploy
from saisei_cli.dev.command import dev
from saisei_cli.failures import CommandFailure

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="Saisei: JavaScript Workers and durable workflows that finish, on machines of your own.",
)
app.command()(dev)
app.command()(deploy)
app.add_typer(workflows.app, name="workflows")
app.add_typer(resources.app, name="resources")
app.add_typer(operations.app, name="operations")
app.add_typer(tokens.app, name="token")
app.add_typer(audit.app, name="audit")
app.add_typer(audit.secrets_app, name="secrets")


def _become(module: str) -> None:
    """Replaces this process by the service, so that signals and the exit status are the service's own."""
    os.execv(sys.executable, [sys.executable, "-m", module])  # noqa: S606 - no shell is the point


@app.command()
def control() -> None:
    """Run the control service alone, configured by SAISEI_ variables (for containers)."""
    _become("saisei_control")


@app.command()
def runtime() -> None:
    """Run the runtime service alone, configured by SAISEI_ variables (for containers)."""
    _become("saisei_runtime")


@app.command()
def gateway() -> None:
    """Run the gateway alone, configured by SAISEI_ variables (for containers)."""
    _become("saisei_gateway")


def main() -> None:
    try:
        app()
    except CommandFailure as failure:
        err.print(f"[bold red]saisei:[/] {escape(failure.message)}")
        if failure.hint:
            err.print(escape(failure.hint))
        sys.exit(1)
    except BrokenPipeError:
        # The reader of a pipe went away, for example `| head`; there is nobody left to tell.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)


if __name__ == "__main__":
    main()
