"""The verified files that a WorkerVersion is made of: its modules, its static assets, or both (WV-04, WV-05, WV-10)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection

from saisei.control.v1 import assignments_pb2
from saisei_contract.forms.worker_version import SINGLE_PAGE_APPLICATION, WorkerVersionSpec
from saisei_contract.records import Phase
from saisei_control.operations.outcome import Again, Failed, Outcome
from saisei_control.operations.work import Work
from saisei_control.store.rows import StoredResource, live_resource

Facts = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Bundles:
    """What is known of each verified bundle; None for one that the Version does not have."""

    code: Facts | None
    assets: Facts | None


async def verified(work: Work, spec: WorkerVersionSpec) -> Bundles | Outcome:
    """Waits for bundles that are still being verified, for as long as this attempt may."""
    found: dict[str, Facts | None] = {"WorkerBundle": None, "StaticAssetBundle": None}
    assets_uid = None if spec.assets is None else spec.assets.bundle_uid
    for form, uid in (("WorkerBundle", spec.bundle_uid), ("StaticAssetBundle", assets_uid)):
        if uid is None:
            continue
        settled = await _settled(work, uid)
        if settled is None:
            return Again("dependency_pending", f"the {form} {uid} is not verified yet", dispatched=False)
        if not settled.facts.get("ready"):
            return Failed("artifact_unavailable", f"The {form} {uid} is not verified: its Operation failed.")
        found[form] = settled.facts
    return Bundles(found["WorkerBundle"], found["StaticAssetBundle"])


def hosted_files(facts: Facts | None) -> list[assignments_pb2.BundleFile]:
    """The files of a bundle as runtimes get them."""
    return [
        assignments_pb2.BundleFile(
            path=file["path"], sha256=file["sha256"], media_type=file["mediaType"], size_bytes=file["byteSize"]
        )
        for file in (() if facts is None else facts["files"])
    ]


def hosted_assets(spec: WorkerVersionSpec, facts: Facts | None) -> assignments_pb2.AssetsAssignment | None:
    """None for a Version without assets."""
    if spec.assets is None:
        return None
    return assignments_pb2.AssetsAssignment(
        files=hosted_files(facts),
        run_worker_first=spec.assets.run_worker_first,
        single_page_application=spec.assets.not_found_handling == SINGLE_PAGE_APPLICATION,
    )


async def _settled(work: Work, uid: str) -> StoredResource | None:
    def look(connection: Connection) -> StoredResource | None:
        bundle = live_resource(connection, uid)
        assert bundle is not None, "the reference keeps the bundle from being deleted (AR-10)"
        return bundle if bundle.facts.get("ready") or bundle.record.phase is Phase.ERROR else None

    return await work.until(look)
