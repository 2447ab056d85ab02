"""WorkerEndpoint 0.3.0: the Host-assigned HTTPS address of a Worker (EP-01 … EP-03)."""

from __future__ import annotations

from dataclasses import dataclass

from saisei_contract.forms import urls
from saisei_contract.forms.base import Form, Reference, closed, reference
from saisei_contract.grammar import is_hostname
from saisei_contract.json_reader import JsonObject


@dataclass(frozen=True, slots=True)
class WorkerEndpointSpec:
    worker_uid: str


class WorkerEndpoint(Form[WorkerEndpointSpec]):
    url = urls.WORKER_ENDPOINT

    def validate(self, spec: JsonObject) -> WorkerEndpointSpec:
        closed(spec, "spec", ("worker",))
        return WorkerEndpointSpec(worker_uid=reference(spec["worker"], "spec.worker"))

    def references(self, spec: JsonObject) -> tuple[Reference, ...]:
        return (Reference("spec.worker", urls.MODULE_WORKER, self.validate(spec).worker_uid, "worker"),)


def endpoint_output(hostname: str) -> JsonObject:
    """The output of an Endpoint from acceptance on (EP-03).

    ValueError when the Host's own hostname breaks the grammar.
    """
    if not is_hostname(hostname):
        raise ValueError(f"{hostname!r} is no lower-case absolute DNS name")
    return {"hostname": hostname, "url": f"https://{hostname}/"}


FORM = WorkerEndpoint()
