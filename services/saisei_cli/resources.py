"""The commands `saisei resources …`."""

from __future__ import annotations

from typing import Annotated

import typer

from saisei_cli.client import HostClient, Json
from saisei_cli.console import AsJson, DataDir, err, open_client, out, print_json, print_rows
from saisei_cli.failures import CommandFailure
from saisei_cli.operations import require_success

app = typer.Typer(no_args_is_help=True, help="Read and delete Resources.")

Space = Annotated[str | None, typer.Option("--space", help="Only in this Space.")]
Named = Annotated[str, typer.Argument(metavar="RESOURCE", help="Its UID or name.")]


def find(client: HostClient, named: str, space: str | None) -> Json:
    """The Resource with this UID or name; CommandFailure when there is none, or several."""
    filters = {"space": space} if space else {}
    found = [resource for resource in client.resources(**filters) if named in (resource["uid"], resource["name"])]
    if not found:
        raise CommandFailure(
            f"there is no Resource {named!r}", f"{client.connection.command('resources list')} shows what there is"
        )
    if len(found) > 1:
        spaces = ", ".join(sorted(resource["space"] for resource in found))
        raise CommandFailure(f"several Spaces have a Resource {named!r}: {spaces}", "name one with --space")
    return found[0]


@app.command("list")
def list_(space: Space = None, data_dir: DataDir = None, as_json: AsJson = False) -> None:
    """List Resources."""
    with open_client(data_dir) as client:
        items = list(client.resources(**({"space": space} if space else {})))
    if as_json:
        print_json(items)
        return
    print_rows(
        ("space", "name", "form", "phase", "generation", "uid"),
        [
            (item["space"], item["name"], form_name(item["form"]), item["phase"], str(item["generation"]), item["uid"])
            for item in sorted(items, key=lambda item: (item["space"], item["name"]))
        ],
    )


def form_name(url: str) -> str:
    """`DurableWorkflow/0.3.0` of a Form's URL."""
    return "/".join(url.rstrip("/").split("/")[-2:])


@app.command()
def show(named: Named, space: Space = None, data_dir: DataDir = None, as_json: AsJson = False) -> None:
    """Print one Resource, with what the Host observes of it now. It is JSON with and without --json."""
    with open_client(data_dir) as client:
        # A list has the last observation; a read of the one Resource makes a new one.
        out.print_json(data=client.resource(find(client, named, space)["uid"]))


@app.command()
def delete(named: Named, space: Space = None, data_dir: DataDir = None) -> None:
    """Delete one Resource and wait until it is gone. Nothing else is deleted with it."""
    with open_client(data_dir) as client:
        resource = find(client, named, space)
        operation = client.delete_resource(resource["uid"], resource["generation"])
        require_success(client.wait_operation(operation), client.connection)
        err.print(f"deleted {resource['name']} ({resource['uid']})")
