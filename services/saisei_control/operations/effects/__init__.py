"""What each Form's Operations do, by Form URL."""

from __future__ import annotations

from typing import Protocol

from saisei_contract.forms import static_asset_bundle, urls, worker_bundle
from saisei_control.operations.effects.artifact import ArtifactEffect
from saisei_control.operations.effects.durable_workflow import DurableWorkflowEffect
from saisei_control.operations.effects.module_worker import ModuleWorkerEffect
from saisei_control.operations.effects.worker_cron_trigger import WorkerCronTriggerEffect
from saisei_control.operations.effects.worker_deployment import WorkerDeploymentEffect
from saisei_control.operations.effects.worker_endpoint import WorkerEndpointEffect
from saisei_control.operations.effects.worker_version import WorkerVersionEffect
from saisei_control.operations.outcome import Outcome
from saisei_control.operations.work import Work


class FormEffect(Protocol):
    """Both are idempotent: an attempt may have died anywhere, and is made again from its start."""

    async def apply(self, work: Work) -> Outcome:
        """Carries a create or an update out."""
        ...

    async def remove(self, work: Work) -> Outcome:
        """Carries a delete out; what was never made counts as removed."""
        ...


_EFFECTS: dict[str, FormEffect] = {
    urls.MODULE_WORKER: ModuleWorkerEffect(),
    urls.WORKER_BUNDLE: ArtifactEffect(worker_bundle.FORM),
    urls.STATIC_ASSET_BUNDLE: ArtifactEffect(static_asset_bundle.FORM),
    urls.WORKER_VERSION: WorkerVersionEffect(),
    urls.WORKER_DEPLOYMENT: WorkerDeploymentEffect(),
    urls.DURABLE_WORKFLOW: DurableWorkflowEffect(),
    urls.WORKER_ENDPOINT: WorkerEndpointEffect(),
    urls.WORKER_CRON_TRIGGER: WorkerCronTriggerEffect(),
}


def effect_of(form: str) -> FormEffect:
    """Only Forms that acceptance takes have Operations."""
    return _EFFECTS[form]
