"""The commands `saisei workflows …`: instances of a DurableWorkflow, which is named by UID or by Resource name."""

from __future__ import annotations

import json
import shlex
from collections import Counter
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.markup import escape

from saisei_cli.client import HostClient, HostError, Json, StreamLost
from saisei_cli.console import AsJson, DataDir, err, open_client, out, parse_document, print_json, print_rows
from saisei_cli.deploy.apply import DURABLE_WORKFLOW
from saisei_cli.deploy.project import PROJECT_FILE, read_project_file
from saisei_cli.failures import CommandFailure

app = typer.Typer(no_args_is_help=True, help="Create, watch and steer instances of workflows.")

Workflow = Annotated[str, typer.Argument(help="The workflow's UID or Resource name.")]
InstanceId = Annotated[str, typer.Argument(metavar="ID", help="The instance's id.")]
Space = Annotated[str | None, typer.Option("--space", help="Space of the workflow; default: of ./saisei.toml, or any.")]

# How long `tail` waits for a Host that was restarted.
TAIL_PATIENCE_SECONDS = 300.0

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
    """The UID behind a UID or a name; CommandFailure when there is none, or several.

    In an app's folder, a name that its saisei.toml has means the one of that file's Space.
    """
    filters = {"form": DURABLE_WORKFLOW} | ({"space": space} if space else {})
    found = [resource for resource in client.resources(**filters) if workflow in (resource["uid"], resource["name"])]
    here = None if space else space_here(workflow)
    if here is not None and found and all(resource["uid"] != workflow for resource in found):
        elsewhere = ", ".join(sorted(resource["space"] for resource in found))
        found = [resource for resource in found if resource["space"] == here]
        if not found:
            raise CommandFailure(
                f"there is no workflow {workflow!r} in the Space {here!r}, which the saisei.toml in this folder names",
                f"deploy it, or name another Space with --space: {elsewhere}",
            )
    if not found:
        raise CommandFailure(
            f"there is no workflow {workflow!r}", f"{client.connection.command('resources list')} shows what there is"
        )
    if len(found) > 1:
        spaces = ", ".join(sorted(resource["space"] for resource in found))
        raise CommandFailure(f"several Spaces have a workflow {workflow!r}: {spaces}", "name one with --space")
    return str(found[0]["uid"])


def space_here(workflow: str) -> str | None:
    """The Space of the app in the current folder, if it has a workflow of that name."""
    if not Path(PROJECT_FILE).is_file():
        return None
    try:
        file = read_project_file(Path())
    except CommandFailure:
        return None  # that is for `deploy` to say
    return file.space if workflow in [entry.name for entry in file.workflows] else None


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
        uid = find_workflow(client, workflow, space)
        try:
            print_json(client.create_instance(uid, instance_id, document))
        except HostError as error:
            if error.code == "backend_unavailable":
                raise CommandFailure(
                    error.message, "if the workflow's Worker has no active Deployment, `saisei deploy DIR` makes one"
                ) from error
            raise


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
    print_rows(("id", "status", "result"), [(item["id"], item["status"], _result(item)) for item in items])


@app.command()
def show(
    workflow: Workflow, instance_id: InstanceId, space: Space = None, data_dir: DataDir = None, as_json: AsJson = False
) -> None:
    """Show one instance: status, output or error, steps, what failed in them, what they wait for, and queued events."""
    with open_client(data_dir) as client:
        uid = find_workflow(client, workflow, space)
        instance = client.instance(uid, instance_id)
        steps, queued = client.journal(uid, instance_id)
        add_causes(client, uid, instance_id, steps)
    if as_json:
        print_json(instance | {"steps": steps, "queuedEvents": queued})
        return
    out.print(f"{escape(instance['id'])}  {_status(instance)}  {escape(_result(instance))}")
    rows = [
        (str(step["name"]), str(step["kind"]), str(step["state"]), str(step["failedAttempts"]), _about(step))
        for step in steps
    ]
    print_rows(("step", "kind", "state", "failed attempts", "about"), rows)
    for kind, count in Counter(event["type"] for event in queued).items():
        # What was sent before its wait, or with a type that no wait names.
        out.print(f"queued: {count} event{'s' * (count > 1)} of the type {escape(_text(kind))}, taken by no wait yet")


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
        try:
            for event in client.events(
                uid,
                instance_id,
                cursor,
                types.split(",") if types is not None else None,
                patience_seconds=TAIL_PATIENCE_SECONDS,
                on_cut=lambda: err.print("the Host does not answer; waiting for it", style="dim"),
            ):
                if as_json:
                    print(json.dumps(event, ensure_ascii=False), flush=True)
                else:
                    out.print(describe_event(event))
        except StreamLost as lost:
            words = ["workflows", "tail", workflow, instance_id, "--cursor", str(lost.cursor)]
            words += ["--filter", types] if types is not None else []
            words += ["--space", space] if space is not None else []
            words += ["--json"] if as_json else []
            raise CommandFailure(lost.message, f"go on with: {client.connection.command(shlex.join(words))}") from lost


@app.command("send-event")
def send_event(
    workflow: Workflow,
    instance_id: InstanceId,
    event_type: Annotated[str, typer.Argument(metavar="TYPE")],
    payload: Annotated[str | None, typer.Option(help="A JSON object, or @file.")] = None,
    space: Space = None,
    data_dir: DataDir = None,
) -> None:
    """Send an event to an instance; prints id and type as JSON once it is durably accepted."""
    document = parse_document("--payload", payload)
    with open_client(data_dir) as client:
        client.send_event(find_workflow(client, workflow, space), instance_id, event_type, document)
        print_json({"id": instance_id, "event": event_type, "accepted": True})


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
    text = "  ".join(f"{key}={_text(value)}" for key, value in special.items())
    return f"[dim]{event['eventId']:>4}[/]  {event['type']:<20} {escape(text)}"


def add_causes(client: HostClient, uid: str, instance_id: str, steps: list[Json]) -> None:
    """Gives steps `lastError` (of the last failed attempt) and `eventType` (of a wait), from the instance's events."""
    missing = sum(step["failedAttempts"] for step in steps) + sum(step["kind"] == "wait" for step in steps)
    if missing == 0:
        return
    known = {step["name"]: step for step in steps}
    for event in client.events(uid, instance_id, types=["attempt_errored", "wait_started"]):
        step = known.get(event["stepName"])
        if step is not None and event["type"] == "attempt_errored":
            step["lastError"] = event["error"]
        elif step is not None:
            step["eventType"] = event["eventType"]
        missing -= 1
        # So many such events exist already; the next one may never come.
        if missing == 0:
            return


def _about(step: Json) -> str:
    """What a reader of a step wants to know: why it failed, what it waits for, until when."""
    parts = []
    if "lastError" in step:
        error = step["lastError"]
        parts.append(f"{error['name']}: {error['message']}".removesuffix(": "))
    elif "error" in step:
        parts.append(str(step["error"]))
    if "eventType" in step:
        parts.append(f"event {_text(step['eventType'])}")
    if "dueAt" in step:
        word = {"wait": "timeout", "sleep": "until"}.get(step["kind"], "next attempt")
        parts.append(f"{word} {step['dueAt']}")
    return "; ".join(parts)


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _status(instance: Json) -> str:
    status = str(instance["status"])
    return f"[{STATUS_COLOURS.get(status, 'white')}]{status}[/]"


def _result(instance: Json) -> str:
    if "error" in instance:
        error = instance["error"]
        return f"{error['reason']}: {error.get('message', '')}".removesuffix(": ")
    return _text(instance["output"]) if "output" in instance else ""
