"""`saisei.control.v1.AssignmentService`. Internal: takes the service credential."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

from sqlalchemy import Connection

from saisei.control.v1 import assignments_pb2 as pb
from saisei.control.v1 import assignments_pb2_grpc as rpc
from saisei_contract.errors import SaiseiError
from saisei_contract.forms import urls
from saisei_contract.forms.worker_version import FORM as WORKER_VERSION
from saisei_contract.grammar import is_name, is_sha256
from saisei_control.api.callers import Context
from saisei_control.artifacts.custody import Custody, Held, resource_owner
from saisei_control.assignments.watch import Replicas
from saisei_control.secrets.vault import SecretsLost, Vault
from saisei_control.store.rows import StoredResource, exact_spec, live_resource
from saisei_control.store.store import Store
from saisei_service.credentials import require_service


class AssignmentServicer(rpc.AssignmentServiceServicer):
    def __init__(self, store: Store, replicas: Replicas, custody: Custody, vault: Vault, credential: str) -> None:
        self._store = store
        self._replicas = replicas
        self._custody = custody
        self._vault = vault
        self._credential = credential

    async def WatchAssignments(
        self, request: pb.WatchAssignmentsRequest, context: Context
    ) -> AsyncIterator[pb.Assignment]:
        require_service(context, self._credential)
        runtime_id = _runtime_id(request.runtime_id)
        if request.after_revision < 0:
            raise SaiseiError("invalid_request", "after_revision must be 0 or a revision")
        async for message in self._replicas.watch(runtime_id, request.after_revision):
            yield message

    async def AckAssignment(self, request: pb.AckAssignmentRequest, context: Context) -> pb.AckAssignmentResponse:
        require_service(context, self._credential)
        await self._replicas.acknowledge(_runtime_id(request.runtime_id), request.revision)
        return pb.AckAssignmentResponse()

    async def FetchArtifact(
        self, request: pb.FetchArtifactRequest, context: Context
    ) -> AsyncIterator[pb.FetchArtifactResponse]:
        require_service(context, self._credential)
        held = await self._store.read(lambda connection: self._named(connection, request))
        if held is None:
            raise SaiseiError("not_found", f"the WorkerVersion {request.version_uid} has no such file in custody")
        chunks = self._custody.chunks(held.sha256)
        while (chunk := await asyncio.to_thread(next, chunks, None)) is not None:
            yield pb.FetchArtifactResponse(data=chunk)

    async def OpenSecrets(self, request: pb.OpenSecretsRequest, context: Context) -> pb.OpenSecretsResponse:
        require_service(context, self._credential)

        def load(connection: Connection) -> dict[str, str]:
            _version(connection, request.version_uid)
            return self._vault.load(connection, request.version_uid)

        try:
            return pb.OpenSecretsResponse(values=await self._store.read(load))
        except SecretsLost:
            raise SaiseiError("backend_unavailable", "the Version's secrets do not open with this Host's key") from None

    def _named(self, connection: Connection, request: pb.FetchArtifactRequest) -> Held | None:
        """A file of the Version's own bundles, also while the Version's Operation is unfinished."""
        spec = WORKER_VERSION.validate(exact_spec(_version(connection, request.version_uid)))
        bundles = [spec.bundle_uid, None if spec.assets is None else spec.assets.bundle_uid]
        if not is_sha256(request.sha256):
            return None
        owners = [resource_owner(uid) for uid in bundles if uid is not None]
        return self._custody.held_by(connection, request.sha256, owners)


def _version(connection: Connection, uid: str) -> StoredResource:
    stored = live_resource(connection, uid)
    if stored is None or stored.record.form != urls.WORKER_VERSION:
        raise SaiseiError("not_found", f"there is no WorkerVersion {uid[:128]}")
    return stored


def _runtime_id(text: str) -> str:
    if not is_name(text):
        raise SaiseiError("invalid_request", "runtime_id must have 1 to 128 characters of A-Z a-z 0-9 . _ -")
    return text
