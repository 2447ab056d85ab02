"""The command `saisei destroy`: deletes what `saisei deploy` made, in the order that always works (DW-10, WD-12)."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from saisei_cli.client import HostClient, Json
from saisei_cli.console import DataDir, err, open_client
from saisei_cli.deploy.apply import (
    DURABLE_WORKFLOW,
    MODULE_WORKER,
    STATIC_ASSET_BUNDLE,
    WORKER_BUNDLE,
    WORKER_DEPLOYMENT,
    WORKER_VERSION,
)
from saisei_cli.deploy.project import ProjectFile, read_project_file
from saisei_cli.failures import CommandFailure
from saisei_cli.operations import require_success
from saisei_cli.resources import form_name

# The statuses of instances that have not ended.
LIVE = ("queued", "running", "sleeping", "waiting")
_LAST_FIRST = (
    WORKER_DEPLOYMENT,
    WORKER_VERSION,
    DURABLE_WORKFLOW,
    WORKER_BUNDLE,
    STATIC_ASSET_BUNDLE,
    MODULE_WORKER,
)


def destroy(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Folder with the saisei.toml of the app.")],
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    data_dir: DataDir = None,
) -> None:
    """Delete an app: its Worker with Versions, Bundles and Endpoint, its workflows and all their instances."""
    file = read_project_file(folder)
    with open_client(data_dir) as client:
        doomed = belongings(client, file)
        if not doomed:
            err.print(f"nothing of {file.name} is in the Space {file.space}")
            return
        if not yes:
            _ask(client, file, doomed)
        for resource in doomed:
            operation = client.delete_resource(resource["uid"], resource["generation"])
            require_success(client.wait_operation(operation), client.connection)
            err.print(f"[green]{'deleted':>9}[/]  {form_name(resource['form'])} {resource['name']}")


def described(counts: dict[str, int]) -> str:
    """`3 live instances (1 sleeping, 2 waiting) and 12 that have ended`, of the counts by status."""
    parts = [f"{counts[status]} {status}" for status in LIVE if counts.get(status)]
    live = sum(counts.get(status, 0) for status in LIVE)
    ended = sum(counts.values()) - live
    told = f"{live} live instance{'s' * (live != 1)} ({', '.join(parts)})" if live else "no live instances"
    return f"{told} and {ended} that {'has' if ended == 1 else 'have'} ended" if ended else told


def belongings(client: HostClient, file: ProjectFile) -> list[Json]:
    """What belongs to the app's Worker, in the order in which it can go."""
    there = list(client.resources(space=file.space))
    worker = next((item for item in there if item["form"] == MODULE_WORKER and item["name"] == file.name), None)
    prefixes = {WORKER_BUNDLE: f"{file.name}.bundle.", STATIC_ASSET_BUNDLE: f"{file.name}.assets."}
    found = [item for item in there if item["name"].startswith(prefixes.get(item["form"], "\0"))]
    if worker is not None:
        found.append(worker)
        uid = worker["uid"]
        found += [item for item in there if item["spec"].get("worker", {}).get("resourceUid") == uid]
    # Endpoints, and whatever else is attached to the Worker, come before all that is in the list.
    return sorted(found, key=lambda item: _LAST_FIRST.index(item["form"]) if item["form"] in _LAST_FIRST else -1)


def _ask(client: HostClient, file: ProjectFile, doomed: list[Json]) -> None:
    live = 0
    for resource in doomed:
        instances = ""
        if resource["form"] == DURABLE_WORKFLOW:
            # Read anew: what a list shows may have been observed a while ago.
            counts = client.resource(resource["uid"])["observed"].get("instanceCounts", {})
            live += sum(counts.get(status, 0) for status in LIVE)
            instances = f", with {described(counts)}"
        err.print(f"          {form_name(resource['form'])} {resource['name']}{instances}")
    ends = f"; {live} live instance{'s' * (live != 1)} would end" if live else ""
    if not sys.stdin.isatty():
        raise CommandFailure(f"destroy asks before it deletes, and nobody can answer here{ends}", "say --yes")
    if live:
        err.print(f"[bold red]{live} live instance{'s' * (live != 1)}[/] will end, and cannot be brought back")
    if not typer.confirm(f"Delete all of this from the Space {file.space}?", err=True):
        raise CommandFailure("nothing was deleted")
