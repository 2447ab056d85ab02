"""A control service in this process: real database, real gRPC, beside a runtime that a test tells what to say."""

from __future__ import annotations

import asyncio
import hashlib
import json
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import grpc
from google.rpc import error_details_pb2
from grpc_status import rpc_status

from saisei.common.v1 import common_pb2
from saisei.control.v1 import (
    access_pb2,
    access_pb2_grpc,
    artifacts_pb2,
    artifacts_pb2_grpc,
    assignments_pb2,
    assignments_pb2_grpc,
    resources_pb2,
    resources_pb2_grpc,
)
from saisei.control.v1 import admin_pb2 as control_admin
from saisei.control.v1 import admin_pb2_grpc as control_admin_grpc
from saisei.runtime.v1 import admin_pb2, admin_pb2_grpc
from saisei_contract.errors import SaiseiError
from saisei_contract.forms import urls
from saisei_control.app import ControlApp
from saisei_control.settings import ControlSettings
from saisei_service.credentials import require_service, service_metadata, user_metadata
from saisei_service.rpc import RpcServer, open_channel

ORIGIN = "https://host.test"
SPACE = "main"
TERMINAL = (resources_pb2.OPERATION_STATUS_SUCCEEDED, resources_pb2.OPERATION_STATUS_FAILED)


async def eventually(check: Callable[[], Awaitable[Any]], seconds: float = 30.0) -> Any:
    """The first truthy answer of `check`; its last answer or error fails the test after `seconds`."""
    deadline = time.monotonic() + seconds
    while True:
        try:
            found = await check()
            if found:
                return found
            problem: Exception = AssertionError(f"still {found!r}")
        except AssertionError as error:
            problem = error
        if time.monotonic() > deadline:
            raise problem
        await asyncio.sleep(0.01)


class FakeRuntime(admin_pb2_grpc.RuntimeAdminServiceServicer):
    """Implements the real service; `exports` is what an inspection finds, by the bytes of the entrypoint."""

    def __init__(self, credential: str, control: grpc.aio.Channel) -> None:
        self.credential = credential
        self.control = control
        self.assignments = assignments_pb2_grpc.AssignmentServiceStub(control)
        self.calls: list[tuple[str, Any]] = []
        self.problems: list[admin_pb2.CodeProblem] = []
        self.counts: dict[str, int] = {}
        # What runs of any Version, and what a replay finds.
        self.contexts = 0
        self.invocations = 0
        self.mismatches: list[admin_pb2.ReplayMismatch] = []
        self.doubts: list[admin_pb2.ReplayDoubt] = []
        self.fails: dict[str, SaiseiError] = {}
        self.holds: dict[str, asyncio.Event] = {}
        self.hosted: dict[str, assignments_pb2.Assignment] = {}
        self.acknowledges = True
        self.revision = 0
        self._server: RpcServer | None = None
        self._watching: asyncio.Task[None] | None = None

    async def start(self, address: str) -> None:
        self._server = RpcServer()
        self._server.register(
            admin_pb2_grpc.add_RuntimeAdminServiceServicer_to_server, self, "saisei.runtime.v1.RuntimeAdminService"
        )
        await self._server.start([address])
        self._watching = asyncio.create_task(self._watch())

    async def stop(self) -> None:
        if self._watching is not None:
            self._watching.cancel()
            await asyncio.wait([self._watching])
        if self._server is not None:
            await self._server.stop(0)

    async def _watch(self) -> None:
        while True:
            call = self.assignments.WatchAssignments(
                assignments_pb2.WatchAssignmentsRequest(runtime_id="runtime-1", after_revision=self.revision),
                metadata=service_metadata(self.credential),
            )
            try:
                async for message in call:
                    if message.resource_uid:
                        self.hosted[message.resource_uid] = message
                        if message.removed:
                            del self.hosted[message.resource_uid]
                    self.revision = max(self.revision, message.revision)
                    while not self.acknowledges:
                        await asyncio.sleep(0.01)
                    await self.assignments.AckAssignment(
                        assignments_pb2.AckAssignmentRequest(runtime_id="runtime-1", revision=self.revision),
                        metadata=service_metadata(self.credential),
                    )
            except grpc.aio.AioRpcError:
                pass
            await asyncio.sleep(0.02)

    async def _called(self, name: str, request: Any, context: Any) -> None:
        require_service(context, self.credential)
        self.calls.append((name, request))
        if name in self.holds:
            await self.holds[name].wait()
        if name in self.fails:
            raise self.fails[name]

    async def hosts(self, uid: str) -> assignments_pb2.Assignment:
        """The newest assignment of a Resource, once this runtime has heard of it."""

        async def look() -> assignments_pb2.Assignment | None:
            return self.hosted.get(uid)

        found: assignments_pb2.Assignment = await eventually(look)
        return found

    def called(self, name: str) -> list[Any]:
        return [request for called, request in self.calls if called == name]

    async def InspectVersion(self, request: Any, context: Any) -> admin_pb2.InspectVersionResponse:  # noqa: N802
        await self._called("InspectVersion", request, context)
        entry = next(file for file in request.files if file.path == request.entrypoint)
        data = await self.fetch(entry.sha256, request.version_uid)
        if self.problems:
            return admin_pb2.InspectVersionResponse(loads=False, problems=self.problems)
        exports = json.loads(data)
        return admin_pb2.InspectVersionResponse(
            loads=True, handlers=exports.get("handlers", []), workflow_classes=exports.get("classes", [])
        )

    async def fetch(self, sha256: str, version_uid: str) -> bytes:
        call = self.assignments.FetchArtifact(
            assignments_pb2.FetchArtifactRequest(sha256=sha256, version_uid=version_uid),
            metadata=service_metadata(self.credential),
        )
        return b"".join([message.data async for message in call])

    async def Drain(self, request: Any, context: Any) -> admin_pb2.DrainResponse:  # noqa: N802
        await self._called("Drain", request, context)
        return admin_pb2.DrainResponse()

    async def ObserveVersion(self, request: Any, context: Any) -> admin_pb2.ObserveVersionResponse:  # noqa: N802
        await self._called("ObserveVersion", request, context)
        return admin_pb2.ObserveVersionResponse(contexts=self.contexts, invocations=self.invocations)

    async def CheckReplay(self, request: Any, context: Any) -> admin_pb2.CheckReplayResponse:  # noqa: N802
        await self._called("CheckReplay", request, context)
        return admin_pb2.CheckReplayResponse(mismatches=self.mismatches, doubts=self.doubts)

    async def Purge(self, request: Any, context: Any) -> admin_pb2.PurgeResponse:  # noqa: N802
        await self._called("Purge", request, context)
        return admin_pb2.PurgeResponse()

    async def Observe(self, request: Any, context: Any) -> admin_pb2.ObserveResponse:  # noqa: N802
        await self._called("Observe", request, context)
        return admin_pb2.ObserveResponse(ready=True, instance_counts=self.counts)


class Client:
    """A user of the control service with one token. Raises SaiseiError-like `Refused`."""

    def __init__(self, channel: grpc.aio.Channel, token: str) -> None:
        self.metadata = user_metadata(token)
        self.resources = resources_pb2_grpc.ResourceServiceStub(channel)
        self.operations = resources_pb2_grpc.OperationServiceStub(channel)
        self.support = resources_pb2_grpc.SupportServiceStub(channel)
        self.artifacts = artifacts_pb2_grpc.ArtifactServiceStub(channel)
        self._keys = 0

    def key(self) -> str:
        self._keys += 1
        return f"key-{id(self):x}-{self._keys:08d}"

    async def call(self, method: Any, request: Any) -> Any:
        try:
            return await method(request, metadata=self.metadata, wait_for_ready=True, timeout=30)
        except grpc.aio.AioRpcError as error:
            if error.code() is grpc.StatusCode.DEADLINE_EXCEEDED:
                for task in asyncio.all_tasks():
                    task.print_stack(file=sys.stderr)  # what the service, in this process, is waiting for
            raise Refused.of(error) from None

    async def create(
        self,
        form: str,
        name: str,
        spec: Any,
        *,
        key: str | None = None,
        space: str = SPACE,
        secrets: dict[str, str] | None = None,
        offering: tuple[str, str] | None = None,
    ) -> resources_pb2.Operation:
        request = resources_pb2.CreateResourceRequest(
            idempotency_key=key or self.key(),
            form=form,
            space=space,
            name=name,
            spec_json=spec if isinstance(spec, str) else json.dumps(spec),
            private_inputs=None if secrets is None else resources_pb2.PrivateInputs(values=secrets),
            offering=None if offering is None else resources_pb2.Offering(id=offering[0], revision=offering[1]),
        )
        return (await self.call(self.resources.CreateResource, request)).operation

    async def update(
        self,
        uid: str,
        generation: int | None,
        spec: Any,
        *,
        key: str | None = None,
        secrets: dict[str, str] | None = None,
    ) -> resources_pb2.Operation:
        request = resources_pb2.UpdateResourceRequest(
            idempotency_key=key or self.key(),
            uid=uid,
            expected_generation=generation,
            spec_json=spec if isinstance(spec, str) else json.dumps(spec),
            private_inputs=None if secrets is None else resources_pb2.PrivateInputs(values=secrets),
        )
        return (await self.call(self.resources.UpdateResource, request)).operation

    async def delete(self, uid: str, generation: int | None, *, key: str | None = None) -> resources_pb2.Operation:
        request = resources_pb2.DeleteResourceRequest(
            idempotency_key=key or self.key(), uid=uid, expected_generation=generation
        )
        return (await self.call(self.resources.DeleteResource, request)).operation

    async def get(self, uid: str) -> resources_pb2.Resource:
        return await self.call(self.resources.GetResource, resources_pb2.GetResourceRequest(uid=uid))

    async def list(self, **query: Any) -> resources_pb2.ListResourcesResponse:
        return await self.call(self.resources.ListResources, resources_pb2.ListResourcesRequest(**query))

    async def operation(self, operation_id: str) -> resources_pb2.Operation:
        return await self.call(self.operations.GetOperation, resources_pb2.GetOperationRequest(id=operation_id))

    async def settled(self, operation: resources_pb2.Operation) -> resources_pb2.Operation:
        async def look() -> resources_pb2.Operation | None:
            now = await self.operation(operation.id)
            return now if now.status in TERMINAL else None

        return await eventually(look)

    async def made(self, form: str, name: str, spec: Any, **more: Any) -> str:
        """Creates, waits for success, returns the UID."""
        operation = await self.settled(await self.create(form, name, spec, **more))
        assert operation.status == resources_pb2.OPERATION_STATUS_SUCCEEDED, operation
        return operation.resource_uid

    async def deleted(self, uid: str) -> resources_pb2.Operation:
        """Deletes and waits for success."""
        operation = await self.settled(await self.delete(uid, (await self.get(uid)).generation))
        assert operation.status == resources_pb2.OPERATION_STATUS_SUCCEEDED, operation
        return operation

    async def put(self, data: bytes, sha256: str | None = None) -> artifacts_pb2.PutArtifactResponse:
        digest = sha256 or hashlib.sha256(data).hexdigest()

        async def parts() -> AsyncIterator[artifacts_pb2.PutArtifactRequest]:
            yield artifacts_pb2.PutArtifactRequest(header=artifacts_pb2.PutArtifactHeader(sha256=digest))
            for start in range(0, len(data), 1 << 20):
                yield artifacts_pb2.PutArtifactRequest(data=data[start : start + (1 << 20)])

        return await self.call(self.artifacts.PutArtifact, parts())


class Refused(Exception):  # noqa: N818
    def __init__(self, reason: str, message: str) -> None:
        super().__init__(f"{reason}: {message}")
        self.reason = reason
        self.message = message

    @classmethod
    def of(cls, error: grpc.aio.AioRpcError) -> Refused:
        status = rpc_status.from_call(error)
        info = error_details_pb2.ErrorInfo()
        if status is None or not status.details or not status.details[0].Unpack(info):
            return cls(error.code().name, error.details() or "")
        return cls(info.reason, status.message)


async def refused(call: Awaitable[Any]) -> Refused:
    """The refusal that the call ends with; the test fails when it does not."""
    try:
        answer = await call
    except Refused as refusal:
        return refusal
    raise AssertionError(f"not refused: {answer}")


def url_of(data: bytes) -> str:
    return f"{ORIGIN}/artifacts/v1/sha256/{hashlib.sha256(data).hexdigest()}"


def manifest_of(files: dict[str, bytes], entrypoint: str = "main.js") -> bytes:
    return json.dumps(
        {
            "entrypoint": entrypoint,
            "files": [
                {
                    "path": path,
                    "url": url_of(data),
                    "sha256": hashlib.sha256(data).hexdigest(),
                    "mediaType": "application/javascript+module",
                }
                for path, data in files.items()
            ],
        }
    ).encode()


def artifact(data: bytes) -> dict[str, Any]:
    return {"artifact": {"url": url_of(data), "sha256": hashlib.sha256(data).hexdigest()}}


def ref(uid: str) -> dict[str, str]:
    return {"resourceUid": uid}


def deployment_spec(worker: str, *versions: str) -> dict[str, Any]:
    weights = [10_000 // len(versions)] * len(versions)
    weights[0] += 10_000 - sum(weights)
    return {
        "worker": ref(worker),
        "versions": [
            {"workerVersion": ref(uid), "weight": weight} for uid, weight in zip(versions, weights, strict=True)
        ],
    }


class Kit:
    """One installation; `restart` is a new process of the control service over the same data."""

    def __init__(self, folder: Path, database_url: str) -> None:
        self.folder = folder
        self.runtime_address = f"unix:{folder}/runtime.sock"
        self.settings = ControlSettings(
            data_dir=folder,
            control_database_url=database_url,
            control_listen=f"unix:{folder}/control.sock",
            runtime_address=self.runtime_address,
            public_origin=ORIGIN,
            preview_forms=True,
        )
        self.credential = self.settings.credential()
        self.channel = open_channel(self.settings.control_listen)
        self.runtime = FakeRuntime(self.credential, self.channel)
        self.access = access_pb2_grpc.AccessServiceStub(self.channel)
        self.admin = control_admin_grpc.ControlAdminServiceStub(self.channel)
        self.app: ControlApp | None = None

    async def start(self) -> None:
        self.app = await ControlApp.open(self.settings)
        await self.app.start()

    async def stop(self) -> None:
        if self.app is not None:
            app, self.app = self.app, None
            await app.stop()

    async def restart(self) -> None:
        await self.stop()
        await self.start()

    async def reconfigure(self, **settings: Any) -> None:
        """Goes on over the same data with other settings."""
        await self.stop()
        self.settings = self.settings.model_copy(update=settings)
        await self.start()

    async def operate(self, method: Any, request: Any) -> Any:
        """A call of the operator, with the service credential."""
        try:
            return await method(request, metadata=service_metadata(self.credential), wait_for_ready=True, timeout=30)
        except grpc.aio.AioRpcError as error:
            raise Refused.of(error) from None

    async def advance(self, seconds: float) -> int:
        """Moves the virtual clock as the gateway does; returns the new time in epoch ms."""
        assert self.app is not None
        to_ms = self.app.clock.now_ms() + round(seconds * 1000)
        answer = await self.operate(self.admin.AdvanceClock, control_admin.AdvanceClockRequest(to_ms=to_ms))
        return int(answer.now_ms)

    async def second(self) -> tuple[ControlApp, grpc.aio.Channel]:
        """Another replica over the same database and files, with its own address and id; the test stops both."""
        address = f"unix:{self.folder}/control-2.sock"
        app = await ControlApp.open(
            self.settings.model_copy(update={"control_id": "control-2", "control_listen": address})
        )
        await app.start()
        return app, open_channel(address)

    async def token(self, principal: str = "alice", **rights: str) -> str:
        """Rights such as main="read,write"; the Space `every` is "*"."""
        entries = [
            common_pb2.SpaceRights(
                space="*" if space == "every" else space,
                read="read" in text,
                write="write" in text,
                use="use" in text,
                admin="admin" in text,
            )
            for space, text in (rights or {SPACE: "read,write"}).items()
        ]
        request = access_pb2.CreateTokenRequest(principal=common_pb2.Principal(name=principal, rights=entries))
        metadata = service_metadata(self.credential)
        return (await self.access.CreateToken(request, metadata=metadata, wait_for_ready=True, timeout=30)).token

    async def client(self, principal: str = "alice", **rights: str) -> Client:
        return Client(self.channel, await self.token(principal, **rights))

    async def close(self) -> None:
        await self.runtime.stop()
        await self.stop()
        await self.channel.close()


class Builder:
    """Makes what most tests need, as one client."""

    def __init__(self, client: Client) -> None:
        self.client = client
        self._names = 0

    def name(self) -> str:
        self._names += 1
        return f"thing-{self._names}"

    async def worker(self) -> str:
        return await self.client.made(urls.MODULE_WORKER, self.name(), {})

    async def bundle(self, handlers: list[str] | None = None, classes: list[str] | None = None) -> str:
        code = json.dumps({"handlers": handlers or [], "classes": classes or []}).encode()
        manifest = manifest_of({"main.js": code})
        await self.client.put(code)
        await self.client.put(manifest)
        return await self.client.made(urls.WORKER_BUNDLE, self.name(), artifact(manifest))

    async def version(
        self, worker: str, handlers: list[str] | None = None, classes: list[str] | None = None, **more: Any
    ) -> str:
        bundle = await self.bundle(handlers, classes)
        spec = {"worker": ref(worker), "bundle": ref(bundle), "handlers": handlers or []} | more
        return await self.client.made(urls.WORKER_VERSION, self.name(), spec)

    async def deployment(self, worker: str, *versions: str) -> str:
        return await self.client.made(urls.WORKER_DEPLOYMENT, self.name(), deployment_spec(worker, *versions))
