"""Code of assigned Versions: bytes from the control service, kept on disk by digest and in memory while in use."""

from __future__ import annotations

import asyncio
import hashlib
import os
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from saisei.control.v1 import assignments_pb2 as pb
from saisei_contract.errors import SaiseiError
from saisei_runtime.code import Module, WorkerCode
from saisei_runtime.hosting.state import HostedFile, HostedState
from saisei_service.credentials import service_metadata

if TYPE_CHECKING:
    # Exists in the stubs only: what the generated stub class is on an asyncio channel.
    from saisei.control.v1.assignments_pb2_grpc import AssignmentServiceAsyncStub

# Versions whose modules stay in memory. A bundle is at most 128 MiB (AR-02), a usual one well under 1 MiB.
CODE_IN_MEMORY = 64
FETCH_TIMEOUT_SECONDS = 60.0


class CodeStore:
    """Implements `CodeSource`. Bytes are checked against their digest each time they enter from outside."""

    def __init__(self, state: HostedState, stub: AssignmentServiceAsyncStub, credential: str, folder: Path) -> None:
        self._state = state
        self._stub = stub
        self._metadata = service_metadata(credential)
        self._folder = folder
        self._loaded: OrderedDict[str, WorkerCode] = OrderedDict()
        self._loading: dict[str, asyncio.Task[WorkerCode]] = {}

    async def load(self, version_uid: str) -> WorkerCode:
        """SaiseiError backend_unavailable when the Version is not assigned or its bytes cannot be had now."""
        code = self._loaded.get(version_uid)
        if code is not None:
            self._loaded.move_to_end(version_uid)
            return code
        task = self._loading.get(version_uid)
        if task is None:
            task = asyncio.create_task(self._load(version_uid))
            self._loading[version_uid] = task
            task.add_done_callback(lambda _: self._loading.pop(version_uid, None))
        return await asyncio.shield(task)

    def forget(self, version_uid: str) -> None:
        self._loaded.pop(version_uid, None)

    async def modules(self, version_uid: str, files: Sequence[HostedFile]) -> Mapping[str, Module]:
        """The bytes of each file, fetched once; SaiseiError backend_unavailable when one is missing."""
        return {file.path: Module(file.media_type, await self._bytes(version_uid, file.sha256)) for file in files}

    async def _load(self, version_uid: str) -> WorkerCode:
        version = self._state.version(version_uid)
        if version is None:
            raise SaiseiError("backend_unavailable", f"the WorkerVersion {version_uid} is not assigned to this runtime")
        secrets: Mapping[str, str] = {}
        if version.secret_names:
            opened = await self._stub.OpenSecrets(
                pb.OpenSecretsRequest(version_uid=version_uid), metadata=self._metadata, timeout=FETCH_TIMEOUT_SECONDS
            )
            secrets = dict(opened.values)
        code = WorkerCode(
            version_uid=version_uid,
            worker_uid=version.worker_uid,
            entrypoint=version.entrypoint,
            modules=await self.modules(version_uid, version.files),
            handlers=version.handlers,
            vars_json=version.vars_json or b"{}",
            secrets=secrets,
            bindings=version.bindings,
        )
        self._loaded[version_uid] = code
        while len(self._loaded) > CODE_IN_MEMORY:
            self._loaded.popitem(last=False)
        return code

    async def _bytes(self, version_uid: str, sha256: str) -> bytes:
        path = self._folder / sha256[:2] / sha256
        held = await asyncio.to_thread(_read, path)
        if held is not None and hashlib.sha256(held).hexdigest() == sha256:
            return held
        parts: list[bytes] = []
        async for part in self._stub.FetchArtifact(
            pb.FetchArtifactRequest(sha256=sha256, version_uid=version_uid),
            metadata=self._metadata,
            timeout=FETCH_TIMEOUT_SECONDS,
        ):
            parts.append(part.data)
        data = b"".join(parts)
        if hashlib.sha256(data).hexdigest() != sha256:
            raise SaiseiError("backend_unavailable", "the bytes of a module did not match their digest")
        await asyncio.to_thread(_write, path, data)
        return data


def _read(path: Path) -> bytes | None:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return None


def _write(path: Path, data: bytes) -> None:
    # A cache: no fsync. A torn file fails its digest and is fetched again.
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f"{path.name}.{os.getpid()}")
    temporary.write_bytes(data)
    temporary.replace(path)
