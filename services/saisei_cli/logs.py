"""The command `saisei logs`: what Workers wrote to their console and what went wrong in them, from a dev Host's log."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer

from saisei_cli.client import HostClient
from saisei_cli.connection import DEFAULT_DATA_DIR, connect_to
from saisei_cli.console import err, out
from saisei_cli.deploy.apply import DURABLE_WORKFLOW, MODULE_WORKER
from saisei_cli.failures import CommandFailure

WORKER_LOGGER = "saisei_runtime.worker"
_LOOK_SECONDS = 0.2
_NAMING_PATIENCE_SECONDS = 1.0


def logs(
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on with what is written from now on.")] = False,
    worker: Annotated[str | None, typer.Option(help="Only of this Worker or workflow, by name or UID.")] = None,
    instance: Annotated[str | None, typer.Option(help="Only of this instance.")] = None,
    everything: Annotated[bool, typer.Option("--all", help="Also the runtime's own lines.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the lines as they are: JSON.")] = False,
    data_dir: Annotated[Path | None, typer.Option("--data-dir", help="Folder of a `saisei dev`.")] = None,
) -> None:
    """Show what Workers logged: `console` lines, uncaught errors with their places, failed attempts."""
    folder = data_dir or Path(os.environ.get("SAISEI_DATA_DIR", DEFAULT_DATA_DIR))
    file = folder / "logs" / "runtime.log"
    if not file.exists():
        raise CommandFailure(
            f"there is no log {file}",
            "name the --data-dir of a saisei dev; a runtime in a container logs to its own stderr",
        )
    names = _names(data_dir)
    wanted = None if worker is None else {worker, *(uid for uid, name in names.items() if name == worker)}
    # What was deleted, and classes, are known by their lines alone.
    unknown = wanted is not None and not wanted & {*names}
    if unknown and follow:
        err.print(f"no Worker or workflow is called {worker!r} now; waiting for its lines", style="dim")
    for line in _lines(file, follow):
        try:
            entry: Any = json.loads(line)
        except ValueError:
            continue
        if not isinstance(entry, dict) or not (everything or entry.get("logger") == WORKER_LOGGER):
            continue
        if wanted is not None and not wanted & {entry.get("worker"), entry.get("workflow"), entry.get("class")}:
            continue
        unknown = False
        if instance is not None and entry.get("instance", entry.get("instance_id")) != instance:
            continue
        if as_json:
            print(line, flush=True)
        else:
            out.print(describe(entry, names), markup=False)
    if unknown:
        raise CommandFailure(
            f"no Worker or workflow is called {worker!r}, and no line is of one",
            f"there are: {', '.join(sorted(set(names.values())))}" if names else "",
        )


def describe(entry: dict[str, Any], names: dict[str, str]) -> str:
    """`time level worker/workflow/instance  text`; further lines of the text are indented."""
    who = [names.get(entry[key], entry[key]) for key in ("worker", "workflow") if entry.get(key)]
    who += [entry["instance"]] if entry.get("instance") else []
    text = str(entry.get("message", "")).replace("\n", "\n    ")
    if "exception" in entry:
        text += "\n    " + str(entry["exception"]).replace("\n", "\n    ")
    return f"{entry.get('time', '')} {entry.get('level', ''):<7} {'/'.join(who)}  {text}"


def _names(data_dir: Path | None) -> dict[str, str]:
    """Names by UID, as far as a Host answers; its log can be read without one."""
    try:
        with HostClient(connect_to(data_dir), patience_seconds=_NAMING_PATIENCE_SECONDS) as client:
            found = [resource for form in (MODULE_WORKER, DURABLE_WORKFLOW) for resource in client.resources(form=form)]
            return {resource["uid"]: resource["name"] for resource in found}
    except CommandFailure:
        return {}


def _lines(file: Path, follow: bool) -> Iterator[str]:
    """Whole lines; a file that was replaced or cut is read anew from its beginning."""
    stream = file.open(encoding="utf-8", errors="replace")
    try:
        rest = ""
        while True:
            rest += stream.readline()
            if rest.endswith("\n"):
                yield rest.rstrip("\n")
                rest = ""
            elif not follow:
                return
            else:
                time.sleep(_LOOK_SECONDS)
                if _was_replaced(file, stream.fileno(), stream.tell()):
                    stream.close()
                    stream, rest = file.open(encoding="utf-8", errors="replace"), ""
    finally:
        stream.close()


def _was_replaced(file: Path, descriptor: int, position: int) -> bool:
    try:
        now = file.stat()
    except FileNotFoundError:
        return False
    then = os.fstat(descriptor)
    return now.st_ino != then.st_ino or then.st_size < position
