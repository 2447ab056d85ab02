"""The commands `saisei workflows …`: instances of a DurableWorkflow, which is named by UID or by Resource name."""

from __future__ import annotations

import json
from typing import Annotated, Any

import typer
from rich.markup import escape
from rich.table import Table

from saisei_cli.client import HostClient, Json
from saisei_cli.console import AsJson, DataDir, open_client, out, parse_document, print_json
from saisei_cli.deploy.apply import DURABLE_WORKFLOW
from saisei_cli.failures import CommandFailure

app = typer.Typer(no_args_is_help=True, help="Create, watch and steer instances of workflows.")

Workflow = Annotated[str, typer.Argument(help="The workflow's UID or Resource name.")]
InstanceId = Annotated[str, typer.Argument(metavar="ID", help="The instance's id.")]
Space = Annotated[str | None, typer.Option("--space", help="Space of the workflow, when its name is used in several.")]

STATUS_COLOURS = {
    "queued": "cyan",
    "running": "blue",
    "sleeping": "magenta",
    "waiting": "yellow",
    "complete": "green",
    "errored": "red",
    "terminated": "red",
}


def find_workflow(client: HostClient, workflow: str, space: str | None) -> str:
    """The UID behind a UID or a name; CommandFailure when there is none, or several."""
    filters = {"form": DURABLE_WORKFLOW} | ({"space": space} if space else {})
    found = [resource for resource in client.resources(**filters) if workflow in (resource["uid"], resource["name"])]
    if not found:
        raise CommandFailure(f"there is no workflow {workflow!r}", "saisei resources list shows what there is")
    if len(found) > 1:
        spaces = ", ".join(sorted(resource["space"] for resource in found))
        raise CommandFailure(f"several Spaces have a workflow {workflow!r}: {spaces}", "name one with --space")
    return str(found[0]["uid"])


@app.command()
def create(
    workflow: Workflow,
    instance_id: Annotated[str | None, typer.Option("--id", help="Default: the Host issues one.")] = None,
    params: Annotated[str | None, typer.Option(help="A JSON object, or @file.")] = None,
    space: Space = None,
    data_dir: DataDir = None,
) -> None:
    """Queue a new instance; prints its id and status as JSON."""
    document = parse_document("--params", params)
    with open_client(data_dir) as client:
        print_json(client.create_instance(find_workflow(client, workflow, space), instance_id, document))


@app.command("list")
def list_(
    workflow: Workflow,
    status: Annotated[str | None, typer.Option(help="Only instances with this status.")] = None,
    space: Space = None,
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """List instances."""
    if status is not None and status not in STATUS_COLOURS:
        raise CommandFailure(f"--status {status!r} is not a status", f"one of {', '.join(STATUS_COLOURS)}")
    with open_client(data_dir) as client:
        items = list(client.instances(find_workflow(client, workflow, space), status))
    if as_json:
        print_json(items)
        return
    table = Table("id", "status", "result")
    for item in items:
        table.add_row(escape(item["id"]), _status(item), escape(_result(item)))
    out.print(table)


@app.command()
def show(
    workflow: Workflow, instance_id: InstanceId, space: Space = None, data_dir: DataDir = None, as_json: AsJson = False
) -> None:
    """Show one instance: its status, output or error, and its steps."""
    with open_client(data_dir) as client:
        uid = find_workflow(client, workflow, space)
        instance, steps = client.instance(uid, instance_id), client.steps(uid, instance_id)
    if as_json:
        print_json(instance | {"steps": steps})
        return
    out.print(f"{escape(instance['id'])}  {_status(instance)}  {escape(_result(instance))}")
    table = Table("step", "kind", "state", "failed attempts")
    for step in steps:
        failed = str(step.get("failedAttempts", 0))
        table.add_row(escape(str(step.get("name"))), str(step.get("kind")), str(step.get("state")), failed)
    out.print(table)


@app.command()
def tail(
    workflow: Workflow,
    instance_id: InstanceId,
    cursor: Annotated[int, typer.Option(min=0, help="Start after this event id; 0 shows everything.")] = 0,
    types: Annotated[str | None, typer.Option("--filter", help="Event types, comma-separated.")] = None,
    space: Space = None,
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """Print the instance's events, history first and then live, until it ends."""
    with open_client(data_dir) as client:
        uid = find_workflow(client, workflow, space)
        for event in client.events(uid, instance_id, cursor, types.split(",") if types is not None else None):
            if as_json:
                print_json(event)
            else:
                out.print(describe_event(event))


@app.command("send-event")
def send_event(
    workflow: Workflow,
    instance_id: InstanceId,
    event_type: Annotated[str, typer.Argument(metavar="TYPE")],
    payload: Annotated[str | None, typer.Option(help="A JSON object, or @file.")] = None,
    space: Space = None,
    data_dir: DataDir = None,
) -> None:
    """Send an event to an instance; returns once it is durably accepted."""
    document = parse_document("--payload", payload)
    with open_client(data_dir) as client:
        client.send_event(find_workflow(client, workflow, space), instance_id, event_type, document)


@app.command()
def terminate(workflow: Workflow, instance_id: InstanceId, space: Space = None, data_dir: DataDir = None) -> None:
    """Stop an instance for good; prints its terminal status once its code has provably stopped."""
    with open_client(data_dir) as client:
        print_json(client.terminate(find_workflow(client, workflow, space), instance_id))


def describe_event(event: Json) -> str:
    """One event as a line of rich markup: id, type, and what is special to the type."""
    special = {
        key: value
        for key, value in event.items()
        if key not in ("instanceId", "eventId", "timestamp", "type", "config")
    }
    text = "  ".join(f"{key}={_short(value)}" for key, value in special.items())
    return f"[dim]{event['eventId']:>4}[/]  {event['type']:<20} {escape(text)}"


def _short(value: Any, limit: int = 100) -> str:
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return text if len(text) <= limit else text[: limit - 1] + "…"


def _status(instance: Json) -> str:
    status = str(instance["status"])
    return f"[{STATUS_COLOURS.get(status, 'white')}]{status}[/]"


def _result(instance: Json) -> str:
    if "error" in instance:
        error = instance["error"]
        return _short(f"{error['reason']}: {error.get('message', '')}".removesuffix(": "))
    return _short(instance["output"]) if "output" in instance else ""
