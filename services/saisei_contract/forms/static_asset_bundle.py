"""StaticAssetBundle 0.2.0: an immutable set of verified static files, which a WorkerVersion serves (AR-01, AR-06)."""

from __future__ import annotations

from saisei_contract.artifacts import ManifestKind
from saisei_contract.forms import urls
from saisei_contract.forms.artifact import ArtifactForm


class StaticAssetBundle(ArtifactForm):
    url = urls.STATIC_ASSET_BUNDLE
    supported = True
    kind = ManifestKind.STATIC_ASSET_BUNDLE


FORM = StaticAssetBundle()
