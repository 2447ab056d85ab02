"""WorkerCronTrigger 0.3.0: a schedule in UTC on which a Worker's `scheduled` handler is called (CR-01 … CR-04)."""

from __future__ import annotations

from dataclasses import dataclass

from saisei_contract.cron import CronError, parse_cron
from saisei_contract.forms import urls
from saisei_contract.forms.base import Form, Reference, closed, invalid, reference
from saisei_contract.json_reader import JsonObject


@dataclass(frozen=True, slots=True)
class WorkerCronTriggerSpec:
    """`cron` as it was given: it is part of what names a match (CR-06)."""

    worker_uid: str
    cron: str


class WorkerCronTrigger(Form[WorkerCronTriggerSpec]):
    url = urls.WORKER_CRON_TRIGGER
    mutable = frozenset({"cron"})

    def validate(self, spec: JsonObject) -> WorkerCronTriggerSpec:
        closed(spec, "spec", ("worker", "cron"))
        worker, cron = reference(spec["worker"], "spec.worker"), spec["cron"]
        if not isinstance(cron, str):
            raise invalid("spec.cron", "must be a string")
        try:
            parse_cron(cron)
        except CronError as error:
            raise invalid("spec.cron", str(error)) from None
        return WorkerCronTriggerSpec(worker, cron)

    def references(self, spec: JsonObject) -> tuple[Reference, ...]:
        return (Reference("spec.worker", urls.MODULE_WORKER, self.validate(spec).worker_uid, "worker"),)


FORM = WorkerCronTrigger()
