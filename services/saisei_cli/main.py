"""`saisei`: what the command line is made of. Status 0: done; 1: refused or failed, said in words; 2: not a command."""

from __future__ import annotations

import os
import sys
from importlib import metadata
from typing import Annotated

import typer
from rich.markup import escape

from saisei_cli import audit, logs, operations, resources, tokens, workflows
from saisei_cli.console import err, print_json
from saisei_cli.deploy.command import deploy
from saisei_cli.deploy.destroy import destroy
from saisei_cli.dev.command import dev
from saisei_cli.failures import CommandFailure

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.command()(dev)
app.command()(deploy)
app.command()(destroy)
app.command("logs")(logs.logs)
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


def _show_version(wanted: bool) -> None:
    if wanted:
        print(f"saisei {metadata.version('saisei')}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Print the version and end.")
    ] = False,
) -> None:
    """Saisei: JavaScript Workers and durable workflows that finish, on machines of your own."""


def _refuse_unreadable(arguments: list[str]) -> None:
    """Names, ids and documents are Unicode text everywhere: what is not cannot mean anything."""
    for argument in arguments:
        try:
            argument.encode()
        except UnicodeEncodeError as error:
            shown = argument.encode(errors="backslashreplace").decode()
            raise CommandFailure(f"the argument {shown!r} is not UTF-8 text", "write it in UTF-8") from error


def _fail(message: str, hint: str) -> None:
    err.print(f"[bold red]saisei:[/] {escape(message)}")
    if hint:
        err.print(escape(hint))
    sys.exit(1)


def main() -> None:
    try:
        _refuse_unreadable(sys.argv[1:])
        app()
    except CommandFailure as failure:
        if "--json" in sys.argv[1:]:
            print_json(failure.as_json())
        _fail(failure.message, failure.hint)
    except BrokenPipeError:
        # The reader of a pipe went away, for example `| head`; there is nobody left to tell.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
    except Exception as error:
        if os.environ.get("SAISEI_DEBUG") == "1":
            raise
        _fail(f"unexpected {type(error).__name__}: {error}", "this is a bug; SAISEI_DEBUG=1 shows where it happened")


if __name__ == "__main__":
    main()
