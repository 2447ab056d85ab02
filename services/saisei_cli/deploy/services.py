"""`[[services]]` of saisei.toml: other Workers of the Space, found by name once and pinned to their UIDs."""

from __future__ import annotations

import shlex

from saisei_cli.client import HostClient, Json
from saisei_cli.deploy.project import ProjectFile
from saisei_cli.failures import CommandFailure


def service_bindings(client: HostClient, file: ProjectFile, form: str, own_uid: str) -> list[Json]:
    """The `serviceBindings` of a Version; `form` is the ModuleWorker's. CommandFailure when a Worker does not exist."""
    found = []
    for entry in file.services:
        uid = own_uid
        if entry.worker != file.name:
            worker = client.find_resource(file.space, entry.worker)
            if worker is None or worker["form"] != form or worker["phase"] == "deleting":
                lists = client.connection.command(f"resources list --space {shlex.quote(file.space)}")
                raise CommandFailure(
                    f"[[services]] {entry.binding!r}: the Space {file.space!r} has no Worker {entry.worker!r}",
                    f"deploy that app first, or write the name of another Worker of this Space: {lists}",
                )
            uid = worker["uid"]
        found.append({"name": entry.binding, "resource": {"resourceUid": uid}})
    return found
