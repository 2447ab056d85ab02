"""Control and runtime as the gateway sees them: real gRPC servers whose answers a test decides."""

# ruff: noqa: N802 - the names of gRPC methods
from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

import grpc
from tests.gateway.fake_assets import FakeAssets
from tests.gateway.fake_feed import FakeFeed

from saisei.common.v1.common_pb2 import Document, Principal, SpaceRights
from saisei.control.v1 import access_pb2, access_pb2_grpc, artifacts_pb2, artifacts_pb2_grpc
from saisei.control.v1 import admin_pb2 as control_admin_pb
from saisei.control.v1 import admin_pb2_grpc as control_admin_grpc
from saisei.control.v1 import resources_pb2 as control_pb
from saisei.control.v1 import resources_pb2_grpc as control_grpc
from saisei.runtime.v1 import admin_pb2, admin_pb2_grpc, feed_pb2_grpc, invocation_pb2, invocation_pb2_grpc
from saisei.runtime.v1 import workflows_pb2 as runtime_pb
from saisei.runtime.v1 import workflows_pb2_grpc as runtime_grpc
from saisei_contract.errors import SaiseiError
from saisei_service.credentials import bearer_token, require_service
from saisei_service.rpc import RpcServer

CREDENTIAL = "service-credential-of-the-tests"
MAX_REQUEST_BYTES = 64 * 1024
MAX_PAGE_SIZE = 50
FORM = "https://edge.forms.takoform.com/forms/ModuleWorker/0.3.0/"

TOKENS = {
    "writer": Principal(name="writer", rights=[SpaceRights(space="default", read=True, write=True, use=True)]),
    "reader": Principal(name="reader", rights=[SpaceRights(space="default", read=True)]),
    "nobody": Principal(name="nobody"),
}


def operation(status: control_pb.OperationStatus = control_pb.OPERATION_STATUS_QUEUED) -> control_pb.Operation:
    done = status == control_pb.OPERATION_STATUS_SUCCEEDED
    return control_pb.Operation(
        id="op-1",
        resource_uid="r-1",
        action=control_pb.ACTION_CREATE,
        generation=1,
        status=status,
        effect=control_pb.EFFECT_COMPLETE if done else control_pb.EFFECT_NONE,
        created_at="2026-01-01T00:00:00.000Z",
        updated_at="2026-01-01T00:00:00.000Z",
        retain_until="2026-01-02T00:00:00.000Z",
    )


def resource(uid: str = "r-1") -> control_pb.Resource:
    return control_pb.Resource(
        uid=uid,
        form=FORM,
        space="default",
        name="hello",
        generation=1,
        phase=control_pb.PHASE_PENDING,
        spec_json='{"number":1.0}',
        observed_json="{}",
        output_json="{}",
        last_operation="op-1",
    )


@dataclass
class Fake:
    """What both fakes share. `calls` holds each request in order; `refusals` makes a method fail by its name."""

    calls: list[tuple[str, Any]] = field(default_factory=list)
    metadata: list[dict[str, Any]] = field(default_factory=list)
    refusals: dict[str, SaiseiError] = field(default_factory=dict)

    def seen(self, name: str, request: Any, context: Any) -> None:
        self.calls.append((name, request))
        self.metadata.append(dict(context.invocation_metadata() or ()))
        if name in self.refusals:
            raise self.refusals[name]

    def reset(self) -> None:
        self.__dict__.update(type(self)().__dict__)

    def last(self, name: str) -> Any:
        return next(request for method, request in reversed(self.calls) if method == name)

    def count(self, name: str) -> int:
        return sum(method == name for method, _ in self.calls)


@dataclass
class FakeControl(Fake):
    mutation: control_pb.Operation = field(default_factory=operation)
    uploads: dict[str, bytes] = field(default_factory=dict)
    supported: bool = True
    private_inputs: bool = False
    previews: bool = False
    preview: control_pb.PreviewMutationResponse = field(default_factory=control_pb.PreviewMutationResponse)
    offerings: list[control_pb.OfferingDescription] | None = None
    schemes: tuple[str, ...] = ("Bearer",)
    now_ms: int = 0

    def register(self, server: RpcServer) -> None:
        server.register(
            access_pb2_grpc.add_AccessServiceServicer_to_server, _Access(self), "saisei.control.v1.AccessService"
        )
        server.register(
            control_grpc.add_ResourceServiceServicer_to_server, _Resources(self), "saisei.control.v1.ResourceService"
        )
        server.register(
            control_grpc.add_SupportServiceServicer_to_server, _Support(self), "saisei.control.v1.SupportService"
        )
        server.register(
            control_grpc.add_OperationServiceServicer_to_server, _Operations(self), "saisei.control.v1.OperationService"
        )
        server.register(
            artifacts_pb2_grpc.add_ArtifactServiceServicer_to_server,
            _Artifacts(self),
            "saisei.control.v1.ArtifactService",
        )
        server.register(
            control_admin_grpc.add_ControlAdminServiceServicer_to_server,
            _ControlAdmin(self),
            "saisei.control.v1.ControlAdminService",
        )


class _Access(access_pb2_grpc.AccessServiceServicer):
    def __init__(self, fake: FakeControl) -> None:
        self._fake = fake

    async def Authenticate(self, request: Any, context: Any) -> Any:
        require_service(context, CREDENTIAL)
        self._fake.seen("Authenticate", request, context)
        if request.token not in TOKENS:
            raise SaiseiError("unauthenticated", "the token is not known")
        return access_pb2.AuthenticateResponse(principal=TOKENS[request.token])


class _Resources(control_grpc.ResourceServiceServicer):
    def __init__(self, fake: FakeControl) -> None:
        self._fake = fake

    async def CreateResource(self, request: Any, context: Any) -> Any:
        self._fake.seen("CreateResource", request, context)
        return control_pb.MutationResponse(operation=self._fake.mutation)

    async def UpdateResource(self, request: Any, context: Any) -> Any:
        self._fake.seen("UpdateResource", request, context)
        return control_pb.MutationResponse(operation=self._fake.mutation)

    async def DeleteResource(self, request: Any, context: Any) -> Any:
        self._fake.seen("DeleteResource", request, context)
        return control_pb.MutationResponse(operation=self._fake.mutation)

    async def PreviewMutation(self, request: Any, context: Any) -> Any:
        self._fake.seen("PreviewMutation", request, context)
        return self._fake.preview

    async def GetResource(self, request: Any, context: Any) -> Any:
        self._fake.seen("GetResource", request, context)
        return resource(request.uid)

    async def ListResources(self, request: Any, context: Any) -> Any:
        self._fake.seen("ListResources", request, context)
        return control_pb.ListResourcesResponse(items=[resource("a"), resource("b")], next_cursor="bmV4dA")


class _Operations(control_grpc.OperationServiceServicer):
    def __init__(self, fake: FakeControl) -> None:
        self._fake = fake

    async def GetOperation(self, request: Any, context: Any) -> Any:
        self._fake.seen("GetOperation", request, context)
        return self._fake.mutation

    async def SupplyPrivateInputs(self, request: Any, context: Any) -> Any:
        self._fake.seen("SupplyPrivateInputs", request, context)
        return self._fake.mutation


class _ControlAdmin(control_admin_grpc.ControlAdminServiceServicer):
    def __init__(self, fake: FakeControl) -> None:
        self._fake = fake

    async def AdvanceClock(self, request: Any, context: Any) -> Any:
        require_service(context, CREDENTIAL)
        self._fake.seen("AdvanceClock", request, context)
        return control_admin_pb.AdvanceClockResponse(now_ms=max(request.to_ms, self._fake.now_ms))


class _Support(control_grpc.SupportServiceServicer):
    def __init__(self, fake: FakeControl) -> None:
        self._fake = fake

    async def GetSupport(self, request: Any, context: Any) -> Any:
        self._fake.seen("GetSupport", request, context)
        bearer_token(context)
        supported = request.form == FORM and self._fake.supported
        return control_pb.GetSupportResponse(form=request.form, supported=supported)

    async def GetDiscovery(self, request: Any, context: Any) -> Any:
        self._fake.seen("GetDiscovery", request, context)
        offered = self._fake.offerings is not None
        return control_pb.GetDiscoveryResponse(
            offerings=offered,
            previews=self._fake.previews,
            private_inputs=self._fake.private_inputs,
            authentication_schemes=self._fake.schemes,
            max_request_bytes=MAX_REQUEST_BYTES,
            max_page_size=MAX_PAGE_SIZE,
            replay_window_seconds=3600,
        )

    async def ListOfferings(self, request: Any, context: Any) -> Any:
        self._fake.seen("ListOfferings", request, context)
        return control_pb.ListOfferingsResponse(items=self._fake.offerings or [])


class _Artifacts(artifacts_pb2_grpc.ArtifactServiceServicer):
    def __init__(self, fake: FakeControl) -> None:
        self._fake = fake

    async def PutArtifact(self, request_iterator: Any, context: Any) -> Any:
        parts = aiter(request_iterator)
        header = (await anext(parts)).header
        self._fake.seen("PutArtifact", header, context)
        content = b"".join([part.data async for part in parts])
        created = header.sha256 not in self._fake.uploads
        self._fake.uploads[header.sha256] = content
        return artifacts_pb2.PutArtifactResponse(sha256=header.sha256, size_bytes=len(content), created=created)


@dataclass
class FakeInstance:
    """`events` may grow while streams are open; `closed` ends them, `broken` cuts them."""

    message: runtime_pb.Instance
    events: list[runtime_pb.InstanceEvent] = field(default_factory=list)
    closed: bool = False
    broken: bool = False


@dataclass
class FakeRuntime(Fake):
    instances: dict[str, FakeInstance] = field(default_factory=dict)
    changed: asyncio.Condition = field(default_factory=asyncio.Condition)
    open_streams: int = 0
    open_fetches: int = 0
    release: asyncio.Event = field(default_factory=asyncio.Event)
    received: bytes = b""
    assets: FakeAssets = field(default_factory=FakeAssets)

    def register(self, server: RpcServer) -> None:
        server.register(
            runtime_grpc.add_WorkflowServiceServicer_to_server, _Workflows(self), "saisei.runtime.v1.WorkflowService"
        )
        server.register(
            feed_pb2_grpc.add_EventFeedServiceServicer_to_server,
            FakeFeed(self, CREDENTIAL),
            "saisei.runtime.v1.EventFeedService",
        )
        server.register(
            admin_pb2_grpc.add_RuntimeAdminServiceServicer_to_server,
            _Admin(self),
            "saisei.runtime.v1.RuntimeAdminService",
        )
        server.register(
            invocation_pb2_grpc.add_InvocationServiceServicer_to_server,
            _Invocation(self),
            "saisei.runtime.v1.InvocationService",
        )

    def add(self, instance: runtime_pb.Instance) -> FakeInstance:
        self.instances[instance.id] = FakeInstance(instance)
        return self.instances[instance.id]

    async def emit(self, instance_id: str, event_type: str, *, last: bool = False) -> None:
        async with self.changed:
            instance = self.instances[instance_id]
            number = len(instance.events) + 1
            text = f'{{"eventId":{number},"instanceId":"{instance_id}","timestamp":{number},"type":"{event_type}"}}'
            instance.events.append(
                runtime_pb.InstanceEvent(
                    event_id=number,
                    type=event_type,
                    timestamp_ms=number,
                    instance_id=instance_id,
                    event_json=text.encode(),
                )
            )
            instance.closed = instance.closed or last
            self.changed.notify_all()

    async def cut(self, instance_id: str) -> None:
        async with self.changed:
            self.instances[instance_id].broken = True
            self.changed.notify_all()


class _Workflows(runtime_grpc.WorkflowServiceServicer):
    def __init__(self, fake: FakeRuntime) -> None:
        self._fake = fake

    def _known(self, instance_id: str) -> FakeInstance:
        if instance_id not in self._fake.instances:
            raise SaiseiError("unknown_instance", "there is no such instance")
        return self._fake.instances[instance_id]

    async def CreateInstance(self, request: Any, context: Any) -> Any:
        self._fake.seen("CreateInstance", request, context)
        bearer_token(context)
        created = runtime_pb.Instance(id=request.id or "issued", status=runtime_pb.INSTANCE_STATUS_QUEUED)
        if request.HasField("params"):
            created.output.CopyFrom(request.params)
        self._fake.add(created)
        return runtime_pb.CreateInstanceResponse(id=created.id, status=created.status)

    async def BatchCreateInstances(self, request: Any, context: Any) -> Any:
        self._fake.seen("BatchCreateInstances", request, context)
        outcomes = [
            runtime_pb.BatchCreateOutcome(refused="instance_exists")
            if item.id == "taken"
            else runtime_pb.BatchCreateOutcome(
                created=runtime_pb.CreateInstanceResponse(id=item.id, status=runtime_pb.INSTANCE_STATUS_QUEUED)
            )
            for item in request.items
        ]
        return runtime_pb.BatchCreateInstancesResponse(outcomes=outcomes)

    async def GetInstance(self, request: Any, context: Any) -> Any:
        self._fake.seen("GetInstance", request, context)
        return self._known(request.id).message

    async def ListInstances(self, request: Any, context: Any) -> Any:
        self._fake.seen("ListInstances", request, context)
        return runtime_pb.ListInstancesResponse(items=[each.message for each in self._fake.instances.values()])

    async def ListSteps(self, request: Any, context: Any) -> Any:
        self._fake.seen("ListSteps", request, context)
        steps = [
            runtime_pb.Step(
                name="charge",
                kind="do",
                state="complete",
                failed_attempts=1,
                result=Document(canonical_json=b'{"n":1}'),
                created_at_ms=1,
            ),
            runtime_pb.Step(name="nap", kind="sleep", state="waiting", created_at_ms=2, due_at_ms=3),
        ]
        return runtime_pb.ListStepsResponse(steps=steps)

    async def SendEvent(self, request: Any, context: Any) -> Any:
        self._fake.seen("SendEvent", request, context)
        self._known(request.id)
        return runtime_pb.SendEventResponse()

    async def Terminate(self, request: Any, context: Any) -> Any:
        self._fake.seen("Terminate", request, context)
        self._known(request.id)
        return runtime_pb.TerminateResponse(status=runtime_pb.INSTANCE_STATUS_TERMINATED)


class _Admin(admin_pb2_grpc.RuntimeAdminServiceServicer):
    def __init__(self, fake: FakeRuntime) -> None:
        self._fake = fake

    async def AdvanceClock(self, request: Any, context: Any) -> Any:
        require_service(context, CREDENTIAL)
        self._fake.seen("AdvanceClock", request, context)
        return admin_pb2.AdvanceClockResponse(now_ms=86_400_000, started=2)


class _Invocation(invocation_pb2_grpc.InvocationServiceServicer):
    """Hosts `hello.workers.localhost`; the path decides what its Worker does."""

    def __init__(self, fake: FakeRuntime) -> None:
        self._fake = fake

    async def Fetch(self, request_iterator: Any, context: grpc.aio.ServicerContext[Any, Any]) -> AsyncIterator[Any]:
        require_service(context, CREDENTIAL)
        parts = aiter(request_iterator)
        head = (await anext(parts)).head
        self._fake.seen("Fetch", head, context)
        if head.hostname != "hello.workers.localhost":
            refusal = invocation_pb2.Refusal(reason="not_found", detail="no Endpoint has this hostname")
            yield invocation_pb2.FetchResponse(refusal=refusal)
            return
        self._fake.open_fetches += 1
        try:
            async for answer in self._answers(head, parts):
                yield answer
            yield invocation_pb2.FetchResponse(end=True)
            await asyncio.sleep(30)
        finally:
            self._fake.open_fetches -= 1

    async def Locate(self, request_iterator: Any, context: Any) -> AsyncIterator[Any]:
        require_service(context, CREDENTIAL)
        async for request in request_iterator:
            yield self._fake.assets.locate(request)

    def ReadAsset(self, request: Any, context: Any) -> AsyncIterator[Any]:
        require_service(context, CREDENTIAL)
        return self._fake.assets.read(request)

    async def _answers(self, head: invocation_pb2.RequestHead, parts: AsyncIterator[Any]) -> AsyncIterator[Any]:
        path = head.url.split("?")[0].removeprefix("https://").partition("/")[2]
        named = self._fake.assets.named(path) if head.method in ("GET", "HEAD") else None
        if named is not None:
            yield invocation_pb2.FetchResponse(asset=named)
            return
        match path:
            case "echo":
                yield _head(200, ("content-type", "application/octet-stream"))
                async for part in parts:
                    if part.end:
                        break
                    if part.data:
                        self._fake.received += part.data
                        yield invocation_pb2.FetchResponse(data=part.data)
            case "hang":
                yield _head(200, ("content-type", "text/plain"))
                yield invocation_pb2.FetchResponse(data=b"first")
                await self._fake.release.wait()
                yield invocation_pb2.FetchResponse(data=b"last")
            case "silent":
                await self._fake.release.wait()
                yield _head(204)
            case "broken":
                yield _head(200, ("content-length", "100"))
                yield invocation_pb2.FetchResponse(data=b"half")
                raise SaiseiError("backend_unavailable", "the context was lost")
            case "wrong-length":
                yield _head(200, ("content-length", "2"))
                yield invocation_pb2.FetchResponse(data=b"longer than two")
            case "not-modified":
                yield _head(304, ("content-length", "12"), ("etag", '"x"'))
            case _:
                yield _head(
                    201,
                    ("set-cookie", "a=1"),
                    ("set-cookie", "b=2"),
                    ("connection", "x-private"),
                    ("x-private", "1"),
                    ("keep-alive", "timeout=5"),
                )
                yield invocation_pb2.FetchResponse(data=b"made")


def _head(status: int, *headers: tuple[str, str]) -> invocation_pb2.FetchResponse:
    listed = [invocation_pb2.Header(name=name, value=value) for name, value in headers]
    return invocation_pb2.FetchResponse(head=invocation_pb2.ResponseHead(status=status, headers=listed, has_body=True))
