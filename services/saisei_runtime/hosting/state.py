"""The assigned Resources as plain values, and what one more assignment changes. Pure: no I/O, no clock."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from saisei.control.v1 import assignments_pb2 as pb
from saisei_contract.asset_responses import pays_to_compress
from saisei_contract.errors import SaiseiError
from saisei_runtime.code import Binding, BindingKind

_KINDS: dict[int, BindingKind] = {
    pb.BINDING_KIND_KV: BindingKind.KV,
    pb.BINDING_KIND_SQLITE: BindingKind.SQLITE,
    pb.BINDING_KIND_BUCKET: BindingKind.BUCKET,
    pb.BINDING_KIND_QUEUE: BindingKind.QUEUE,
    pb.BINDING_KIND_SERVICE: BindingKind.SERVICE,
    pb.BINDING_KIND_ACTOR: BindingKind.ACTOR,
    pb.BINDING_KIND_WORKFLOW: BindingKind.WORKFLOW,
}


@dataclass(frozen=True, slots=True)
class HostedFile:
    path: str
    sha256: str
    media_type: str


@dataclass(frozen=True, slots=True)
class HostedAsset:
    sha256: str
    media_type: str
    size_bytes: int


@dataclass(frozen=True, slots=True)
class HostedAssets:
    """`files` by path. Of several with the same bytes `by_digest` has one, and one with a gzip variant rather."""

    files: Mapping[str, HostedAsset]
    by_digest: Mapping[str, HostedAsset]
    run_worker_first: bool
    single_page_application: bool


@dataclass(frozen=True, slots=True)
class HostedVersion:
    """`entrypoint` is empty for a static-only Version, which has no code (WV-04)."""

    uid: str
    space: str
    worker_uid: str
    entrypoint: str
    files: tuple[HostedFile, ...]
    handlers: frozenset[str]
    vars_json: bytes
    secret_names: tuple[str, ...]
    bindings: tuple[Binding, ...]
    assets: HostedAssets | None = None


@dataclass(frozen=True, slots=True)
class HostedDeployment:
    uid: str
    worker_uid: str
    # (version UID, weight in basis points), sum 10,000 (WD-01).
    versions: tuple[tuple[str, int], ...]


@dataclass(frozen=True, slots=True)
class HostedWorkflow:
    uid: str
    space: str
    name: str
    worker_uid: str
    class_name: str


@dataclass(frozen=True, slots=True)
class HostedEndpoint:
    uid: str
    worker_uid: str
    hostname: str


@dataclass(frozen=True, slots=True)
class HostedCron:
    """`cron` as its creator wrote it."""

    uid: str
    worker_uid: str
    cron: str


Hosted = HostedVersion | HostedDeployment | HostedWorkflow | HostedEndpoint | HostedCron


def read_assignment(message: pb.Assignment) -> Hosted | None:
    """The value behind a message; None for a removal and for a Resource kind that this release does not host."""
    uid = message.resource_uid
    match message.WhichOneof("body"):
        case "version":
            version = message.version
            return HostedVersion(
                uid=uid,
                space=message.space,
                worker_uid=version.worker_uid,
                entrypoint=version.entrypoint,
                files=tuple(HostedFile(file.path, file.sha256, file.media_type) for file in version.files),
                handlers=frozenset(version.handlers),
                vars_json=version.vars_json.encode(),
                secret_names=tuple(version.secret_names),
                bindings=tuple(Binding(b.name, _KINDS[b.kind], b.resource_uid) for b in version.bindings),
                assets=_assets(version.assets) if version.HasField("assets") else None,
            )
        case "deployment":
            deployment = message.deployment
            weights = tuple((item.version_uid, item.weight) for item in deployment.versions)
            return HostedDeployment(uid, deployment.worker_uid, weights)
        case "workflow":
            workflow = message.workflow
            return HostedWorkflow(uid, message.space, message.name, workflow.worker_uid, workflow.class_name)
        case "endpoint":
            return HostedEndpoint(uid, message.endpoint.worker_uid, message.endpoint.hostname)
        case "cron":
            return HostedCron(uid, message.cron.worker_uid, message.cron.cron)
        case _:
            return None


def _assets(message: pb.AssetsAssignment) -> HostedAssets:
    files = {file.path: HostedAsset(file.sha256, file.media_type, file.size_bytes) for file in message.files}
    by_digest: dict[str, HostedAsset] = {}
    for file in files.values():
        if file.sha256 not in by_digest or pays_to_compress(file.media_type, file.size_bytes):
            by_digest[file.sha256] = file
    return HostedAssets(
        files=files,
        by_digest=by_digest,
        run_worker_first=message.run_worker_first,
        single_page_application=message.single_page_application,
    )


class HostedState:
    """Everything assigned, looked up by what the hot paths ask for. Changed only through `apply`, in the event loop."""

    def __init__(self, draw: Callable[[int], int] | None = None) -> None:
        self._by_uid: dict[str, Hosted] = {}
        self._deployment_of: dict[str, HostedDeployment] = {}
        self._by_hostname: dict[str, HostedEndpoint] = {}
        self._crons: dict[str, HostedCron] = {}
        # Weights are ratios (WD-04); no secret depends on this choice.
        self._draw = draw or random.Random().randrange  # noqa: S311
        self.revision = 0
        # Until the whole history was heard once, what is missing here may exist all the same.
        self.complete = False

    def apply(self, message: pb.Assignment) -> str | None:
        """Makes one assignment effective; returns the Worker UID whose allocation, workflows or schedules changed."""
        self.revision = max(self.revision, message.revision)
        self.complete = self.complete or message.caught_up
        if not message.resource_uid:
            return None
        old = self._by_uid.pop(message.resource_uid, None)
        if isinstance(old, HostedEndpoint):
            self._by_hostname.pop(old.hostname, None)
        if isinstance(old, HostedCron):
            del self._crons[old.uid]
        if isinstance(old, HostedDeployment):
            self._deployment_of.pop(old.worker_uid, None)
        new = None if message.removed else read_assignment(message)
        if new is not None:
            self._by_uid[new.uid] = new
            if isinstance(new, HostedEndpoint):
                self._by_hostname[new.hostname] = new
            if isinstance(new, HostedCron):
                self._crons[new.uid] = new
            if isinstance(new, HostedDeployment):
                self._deployment_of[new.worker_uid] = new
        for changed in (new, old):
            if isinstance(changed, HostedDeployment | HostedWorkflow | HostedCron):
                return changed.worker_uid
        return None

    def version(self, uid: str) -> HostedVersion | None:
        found = self._by_uid.get(uid)
        return found if isinstance(found, HostedVersion) else None

    def asset_digests(self) -> set[str]:
        """Of every asset that an assigned Version serves."""
        versions = (found for found in self._by_uid.values() if isinstance(found, HostedVersion))
        return {digest for version in versions if version.assets is not None for digest in version.assets.by_digest}

    def missing(self, error: SaiseiError) -> SaiseiError:
        """What to say of a Resource that is not here: `error`, or backend_unavailable while a start is under way."""
        return error if self.complete else SaiseiError("backend_unavailable", "the runtime is starting; try again")

    def hosted_workflow(self, uid: str) -> HostedWorkflow | None:
        found = self._by_uid.get(uid)
        return found if isinstance(found, HostedWorkflow) else None

    def workflows_of(self, worker_uid: str) -> list[HostedWorkflow]:
        hosted = self._by_uid.values()
        return [found for found in hosted if isinstance(found, HostedWorkflow) and found.worker_uid == worker_uid]

    def crons(self) -> list[HostedCron]:
        return list(self._crons.values())

    def endpoint(self, hostname: str) -> HostedEndpoint | None:
        return self._by_hostname.get(hostname)

    def allocation(self, worker_uid: str) -> Mapping[str, int] | None:
        """Weights of the active Deployment by Version UID, or None without one."""
        deployment = self._deployment_of.get(worker_uid)
        return dict(deployment.versions) if deployment else None

    # The engine's port (`Allocations`):

    def pick(self, worker_uid: str) -> str | None:
        """One Version for one new context or invocation, by weight (WD-04); None without a Deployment."""
        deployment = self._deployment_of.get(worker_uid)
        if deployment is None:
            return None
        if len(deployment.versions) == 1:
            return deployment.versions[0][0]
        point = self._draw(sum(weight for _, weight in deployment.versions))
        for version_uid, weight in deployment.versions:
            if point < weight:
                return version_uid
            point -= weight
        return None

    def selects(self, worker_uid: str, version_uid: str) -> bool:
        """Whether what begins now may be of that Version."""
        deployment = self._deployment_of.get(worker_uid)
        return deployment is not None and any(uid == version_uid for uid, _ in deployment.versions)

    def workflow(self, workflow_uid: str) -> tuple[str, str, str] | None:
        """(worker UID, class name, Space) of an assigned DurableWorkflow."""
        found = self.hosted_workflow(workflow_uid)
        return (found.worker_uid, found.class_name, found.space) if found else None
