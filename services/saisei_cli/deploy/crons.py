"""`crons` of saisei.toml: a trigger for each schedule, named by its expression, so that a changed one is another."""

from __future__ import annotations

import hashlib

from saisei_cli.client import HostClient, Json
from saisei_cli.deploy.project import ProjectFile

WORKER_CRON_TRIGGER = "https://edge.forms.takoform.com/forms/WorkerCronTrigger/0.3.0/"


def triggers(file: ProjectFile) -> dict[str, str]:
    """Schedules by the names of their triggers."""
    return {f"{file.name}.cron.{hashlib.sha256(cron.encode()).hexdigest()[:16]}": cron for cron in file.crons}


def obsolete_triggers(client: HostClient, file: ProjectFile, worker_uid: str) -> list[Json]:
    """Triggers that earlier deploys have made of schedules that saisei.toml has no more."""
    wanted, prefix = triggers(file), f"{file.name}.cron."
    return [
        item
        for item in client.resources(space=file.space, form=WORKER_CRON_TRIGGER)
        if item["spec"]["worker"]["resourceUid"] == worker_uid
        and item["name"].startswith(prefix)
        and item["name"] not in wanted
    ]
