"""The command `saisei deploy`."""

from __future__ import annotations

import os
import shlex
from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape

from saisei_cli.console import AsJson, DataDir, err, open_client, out, print_json
from saisei_cli.deploy import apply
from saisei_cli.deploy.project import read_project
from saisei_cli.failures import CommandFailure


def deploy(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Folder with a saisei.toml.")],
    data_dir: DataDir = None,
    prune: Annotated[bool, typer.Option("--prune", help="Delete Versions and Bundles no longer used.")] = False,
    as_json: AsJson = False,
) -> None:
    """Upload DIR's modules, create or update its Resources, wait until they are live, and print where they are."""
    project = read_project(folder)
    missing = [name for name in project.file.secrets if not os.environ.get(name)]
    if missing:
        raise CommandFailure(f"the environment has no value for the secret {missing[0]}", f"export {missing[0]}=…")
    secrets = {name: os.environ[name] for name in project.file.secrets}

    def say(change: apply.Change) -> None:
        colour = "dim" if change.verb == "unchanged" else "green"
        err.print(f"[{colour}]{change.verb:>9}[/]  {change.form} {change.name}")

    def warn(text: str) -> None:
        err.print(f"[bold yellow]warning:[/] {escape(text)}")

    with open_client(data_dir) as client:
        deployed = apply.deploy(client, project, secrets, say, prune=prune, warn=warn)
        if as_json:
            print_json(deployed.as_json())
        else:
            _print(deployed, client.origin, str(client.connection.ca_file or ""))


def _print(deployed: apply.Deployed, origin: str, ca_file: str) -> None:
    for name, uid in deployed.workflows.items():
        out.print(f"workflow  {name}  {uid}")
    if deployed.url is not None:
        out.print(f"url       {deployed.url}")
        ca = f"--cacert {shlex.quote(ca_file)} " if ca_file else ""
        authority = origin.removeprefix("https://")
        # The Endpoint's address has no port (EP-03); a dev Host listens on one.
        to = f"--connect-to ::{authority} " if ":" in authority else ""
        out.print(f"try       curl {ca}{to}{deployed.url}")
