"""DurableWorkflow 0.3.0: one workflow class of a Worker and its space of instance ids (DW-01, DW-06)."""

from __future__ import annotations

from dataclasses import dataclass

from saisei_contract.forms import urls
from saisei_contract.forms.base import Form, Reference, closed, matching, reference
from saisei_contract.grammar import is_class_name
from saisei_contract.json_reader import JsonObject


@dataclass(frozen=True, slots=True)
class DurableWorkflowSpec:
    worker_uid: str
    class_name: str


class DurableWorkflow(Form[DurableWorkflowSpec]):
    url = urls.DURABLE_WORKFLOW

    def validate(self, spec: JsonObject) -> DurableWorkflowSpec:
        closed(spec, "spec", ("worker", "className"))
        return DurableWorkflowSpec(
            worker_uid=reference(spec["worker"], "spec.worker"),
            class_name=matching(
                spec["className"],
                "spec.className",
                is_class_name,
                "an identifier: a letter, _ or $, then at most 63 letters, digits, _ or $",
            ),
        )

    def references(self, spec: JsonObject) -> tuple[Reference, ...]:
        return (Reference("spec.worker", urls.MODULE_WORKER, self.validate(spec).worker_uid, "worker"),)


FORM = DurableWorkflow()
