"""ModuleWorker 0.3.0: the identity of one Worker (MW-01, MW-02)."""

from __future__ import annotations

from dataclasses import dataclass

from saisei_contract.forms import urls
from saisei_contract.forms.base import Form, Reference, closed
from saisei_contract.json_reader import JsonObject


@dataclass(frozen=True, slots=True)
class ModuleWorkerSpec:
    """`{}`."""


class ModuleWorker(Form[ModuleWorkerSpec]):
    url = urls.MODULE_WORKER

    def validate(self, spec: JsonObject) -> ModuleWorkerSpec:
        closed(spec, "spec", ())
        return ModuleWorkerSpec()

    def references(self, spec: JsonObject) -> tuple[Reference, ...]:
        return ()


FORM = ModuleWorker()
