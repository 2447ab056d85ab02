"""WorkerBundle 0.2.0: an immutable set of verified module files (AR-01, AR-05)."""

from __future__ import annotations

from saisei_contract.artifacts import ManifestKind
from saisei_contract.forms import urls
from saisei_contract.forms.artifact import ArtifactForm


class WorkerBundle(ArtifactForm):
    url = urls.WORKER_BUNDLE
    kind = ManifestKind.WORKER_BUNDLE


FORM = WorkerBundle()
