"""What the Forms of verified files have in common: a spec that names a manifest by URL and digest (AR-01).

The manifests' own rules are in `saisei_contract.artifacts`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from saisei_contract.artifacts import ManifestKind
from saisei_contract.forms.base import Form, Reference, closed, matching
from saisei_contract.grammar import is_artifact_url, is_sha256
from saisei_contract.json_reader import JsonObject


@dataclass(frozen=True, slots=True)
class ArtifactSpec:
    """Where the manifest is, and the digest of exactly its bytes (64 lower-case hex digits)."""

    url: str
    sha256: str


class ArtifactForm(Form[ArtifactSpec]):
    """`kind` decides which manifests are valid."""

    kind: ClassVar[ManifestKind]

    def validate(self, spec: JsonObject) -> ArtifactSpec:
        artifact = closed(closed(spec, "spec", ("artifact",))["artifact"], "spec.artifact", ("url", "sha256"))
        return ArtifactSpec(
            url=matching(
                artifact["url"],
                "spec.artifact.url",
                is_artifact_url,
                "an ASCII absolute https URL of at most 8,192 characters without userinfo, query and fragment",
            ),
            sha256=matching(artifact["sha256"], "spec.artifact.sha256", is_sha256, "64 lower-case hexadecimal digits"),
        )

    def references(self, spec: JsonObject) -> tuple[Reference, ...]:
        return ()
