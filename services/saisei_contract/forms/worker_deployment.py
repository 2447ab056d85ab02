"""WorkerDeployment 0.4.0: which Versions of a Worker take new work, and in what ratio (WD-01)."""

from __future__ import annotations

from dataclasses import dataclass

from saisei_contract.forms import urls
from saisei_contract.forms.base import Form, Reference, array, closed, integer, invalid, reference
from saisei_contract.json_reader import JsonObject, JsonValue

TOTAL_WEIGHT = 10_000
MAX_VERSIONS = 8


@dataclass(frozen=True, slots=True)
class WeightedVersion:
    """`weight` in basis points, 1-10000."""

    version_uid: str
    weight: int


@dataclass(frozen=True, slots=True)
class WorkerDeploymentSpec:
    """`versions` ascend by UID; their order has no meaning. The weights add up to exactly 10000."""

    worker_uid: str
    versions: tuple[WeightedVersion, ...]


class WorkerDeployment(Form[WorkerDeploymentSpec]):
    url = urls.WORKER_DEPLOYMENT
    mutable = frozenset({"versions"})

    def validate(self, spec: JsonObject) -> WorkerDeploymentSpec:
        closed(spec, "spec", ("worker", "versions"))
        worker = reference(spec["worker"], "spec.worker")
        weights = _weights(spec["versions"])
        if sum(weights.values()) != TOTAL_WEIGHT:
            raise invalid(
                "spec.versions", f"must have weights that add up to {TOTAL_WEIGHT}, not {sum(weights.values())}"
            )
        return WorkerDeploymentSpec(worker, tuple(WeightedVersion(uid, weights[uid]) for uid in sorted(weights)))

    def references(self, spec: JsonObject) -> tuple[Reference, ...]:
        valid = self.validate(spec)
        return (
            Reference("spec.worker", urls.MODULE_WORKER, valid.worker_uid, "worker"),
            *(
                Reference(f"spec.versions[{index}].workerVersion", urls.WORKER_VERSION, uid, "versions")
                for index, uid in enumerate(_weights(spec["versions"]))
            ),
        )

    def normalise(self, spec: JsonObject) -> JsonObject:
        valid = self.validate(spec)
        return {
            "worker": {"resourceUid": valid.worker_uid},
            "versions": [
                {"workerVersion": {"resourceUid": item.version_uid}, "weight": item.weight} for item in valid.versions
            ],
        }


def _weights(value: JsonValue) -> dict[str, int]:
    """Weight by Version UID, in the order of the spec."""
    weights: dict[str, int] = {}
    for index, entry in enumerate(array(value, "spec.versions", 1, MAX_VERSIONS)):
        path = f"spec.versions[{index}]"
        item = closed(entry, path, ("workerVersion", "weight"))
        uid = reference(item["workerVersion"], f"{path}.workerVersion")
        if uid in weights:
            raise invalid(f"{path}.workerVersion", "names a WorkerVersion that is listed already")
        weights[uid] = integer(item["weight"], f"{path}.weight", 1, TOTAL_WEIGHT)
    return weights


FORM = WorkerDeployment()
