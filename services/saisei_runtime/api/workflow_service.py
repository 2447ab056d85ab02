"""`saisei.runtime.v1.WorkflowService`: instances for gRPC clients and the gateway. Thin: the engine has the rules."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import grpc

from saisei.common.v1.common_pb2 import Document
from saisei.runtime.v1 import workflows_pb2 as pb
from saisei.runtime.v1 import workflows_pb2_grpc as rpc
from saisei_contract import documents, grammar
from saisei_contract.errors import SaiseiError
from saisei_contract.events import EVENT_TYPES
from saisei_runtime.access import Authenticator, admit
from saisei_runtime.hosting.state import HostedState
from saisei_runtime.workflow.engine import InstanceView, StepView, WorkflowEngine
from saisei_runtime.workflow.subscriptions import BATCH_BYTES, BATCH_EVENTS, EventRecord

Context = grpc.aio.ServicerContext[Any, Any]

BATCH_AT_MOST = 100
PAGE_AT_MOST = 500
PAGE_DEFAULT = 100
# An instance id has up to 1 KiB: a message stays under the limit of 4 MiB.
CHANGES_PER_MESSAGE = 1000

_STATUS: dict[str, pb.InstanceStatus.ValueType] = {
    "queued": pb.INSTANCE_STATUS_QUEUED,
    "running": pb.INSTANCE_STATUS_RUNNING,
    "sleeping": pb.INSTANCE_STATUS_SLEEPING,
    "waiting": pb.INSTANCE_STATUS_WAITING,
    "complete": pb.INSTANCE_STATUS_COMPLETE,
    "errored": pb.INSTANCE_STATUS_ERRORED,
    "terminated": pb.INSTANCE_STATUS_TERMINATED,
}
_STATUS_NAME = {number: name for name, number in _STATUS.items()}


class WorkflowServicer(rpc.WorkflowServiceServicer):
    def __init__(self, engine: WorkflowEngine, state: HostedState, access: Authenticator) -> None:
        self._engine = engine
        self._state = state
        self._access = access

    async def CreateInstance(self, request: pb.CreateInstanceRequest, context: Context) -> pb.CreateInstanceResponse:
        await self._admit(request.workflow_uid, context, write=True)
        created = await self._engine.create(request.workflow_uid, _given_id(request), _params(request))
        return pb.CreateInstanceResponse(id=created, status=pb.INSTANCE_STATUS_QUEUED)

    async def BatchCreateInstances(
        self, request: pb.BatchCreateInstancesRequest, context: Context
    ) -> pb.BatchCreateInstancesResponse:
        await self._admit(request.workflow_uid, context, write=True)
        if not 1 <= len(request.items) <= BATCH_AT_MOST:
            raise SaiseiError("invalid_request", f"items: a batch holds 1 to {BATCH_AT_MOST} instances")
        # An item that is itself malformed is refused alone; the others go on.
        checked: list[tuple[str | None, bytes | None] | SaiseiError] = []
        for item in request.items:
            try:
                checked.append((_given_id(item), _params(item)))
            except SaiseiError as error:
                checked.append(error)
        created = iter(
            await self._engine.create_batch(
                request.workflow_uid, [item for item in checked if not isinstance(item, SaiseiError)]
            )
        )
        outcomes = [item if isinstance(item, SaiseiError) else next(created) for item in checked]
        return pb.BatchCreateInstancesResponse(outcomes=[_batch_outcome(outcome) for outcome in outcomes])

    async def GetInstance(self, request: pb.GetInstanceRequest, context: Context) -> pb.Instance:
        await self._admit(request.workflow_uid, context)
        return _instance(await self._engine.get(request.workflow_uid, _instance_id(request.id)))

    async def ListInstances(self, request: pb.ListInstancesRequest, context: Context) -> pb.ListInstancesResponse:
        await self._admit(request.workflow_uid, context)
        limit = request.limit if request.HasField("limit") else PAGE_DEFAULT
        if not 1 <= limit <= PAGE_AT_MOST:
            raise SaiseiError("invalid_request", f"limit: 1 to {PAGE_AT_MOST}")
        status = _STATUS_NAME.get(request.status)
        if status is None and request.status != pb.INSTANCE_STATUS_UNSPECIFIED:
            raise SaiseiError("invalid_request", "status: not one of the seven statuses")
        cursor = request.cursor if request.HasField("cursor") else None
        items, next_cursor = await self._engine.list(request.workflow_uid, status, limit, cursor)
        return pb.ListInstancesResponse(items=[_instance(item) for item in items], next_cursor=next_cursor)

    async def ListSteps(self, request: pb.ListStepsRequest, context: Context) -> pb.ListStepsResponse:
        await self._admit(request.workflow_uid, context)
        cursor = request.cursor if request.HasField("cursor") else None
        steps, next_cursor, events = await self._engine.steps(request.workflow_uid, _instance_id(request.id), cursor)
        answer = pb.ListStepsResponse(steps=[_step(step) for step in steps], next_cursor=next_cursor)
        for kind, at in events:
            answer.queued_events.add(type=kind, accepted_at_ms=at)
        return answer

    async def SendEvent(self, request: pb.SendEventRequest, context: Context) -> pb.SendEventResponse:
        await self._admit(request.workflow_uid, context, write=True)
        if not grammar.is_event_type(request.type):
            raise SaiseiError("invalid_request", "type: a string of 1 to 256 Unicode scalars")
        payload = _document(request.payload) if request.HasField("payload") else None
        await self._engine.send_event(request.workflow_uid, _instance_id(request.id), request.type, payload)
        return pb.SendEventResponse()

    async def Terminate(self, request: pb.TerminateRequest, context: Context) -> pb.TerminateResponse:
        await self._admit(request.workflow_uid, context, write=True)
        view = await self._engine.terminate(request.workflow_uid, _instance_id(request.id))
        return pb.TerminateResponse(status=_STATUS[view.status])

    async def SubscribeEvents(
        self, request: pb.SubscribeEventsRequest, context: Context
    ) -> AsyncIterator[pb.InstanceEvent]:
        await self._admit(request.workflow_uid, context)
        if request.cursor < 0:
            raise SaiseiError("invalid_request", "cursor: a non-negative event id")
        if request.max_batch < 0:
            raise SaiseiError("invalid_request", "max_batch: a number of events")
        types = None
        if request.HasField("filter"):
            types = frozenset(request.filter.types)
            unknown = sorted(types - EVENT_TYPES)
            if unknown:
                raise SaiseiError("invalid_request", f"filter: {unknown[0][:64]!r} is not an event type")
        subscription = await self._engine.subscribe(
            request.workflow_uid, _instance_id(request.id), request.cursor, types
        )
        # Headers at once: a client that waits for the first event knows that it is subscribed.
        await context.send_initial_metadata(())
        several = min(request.max_batch, BATCH_EVENTS) - 1
        try:
            while (event := await subscription.next()) is not None:
                message = _event(event)
                if several > 0:
                    rest = subscription.drain(several, BATCH_BYTES - len(event.json))
                    if rest:
                        first, message = message, pb.InstanceEvent(following=map(_event, rest))
                        message.MergeFrom(first)
                yield message
        finally:
            subscription.close()

    async def WatchInstances(
        self, request: pb.WatchInstancesRequest, context: Context
    ) -> AsyncIterator[pb.WatchInstancesResponse]:
        await self._admit(request.workflow_uid, context)
        watch = self._engine.watch(request.workflow_uid)
        try:
            yield pb.WatchInstancesResponse()
            async for changes in watch:
                listed = [
                    pb.InstanceChange(id=changed, status=_STATUS[status], at_ms=at) for changed, status, at in changes
                ]
                for first in range(0, len(listed), CHANGES_PER_MESSAGE):
                    yield pb.WatchInstancesResponse(changes=listed[first : first + CHANGES_PER_MESSAGE])
        finally:
            watch.close()

    async def _admit(self, workflow_uid: str, context: Context, *, write: bool = False) -> None:
        admit(self._state, await self._access.principal(context), workflow_uid, write=write)


def _given_id(request: pb.CreateInstanceRequest) -> str | None:
    if not request.HasField("id"):
        return None
    if not grammar.is_instance_id(request.id):
        raise SaiseiError("invalid_request", "id: a string of 1 to 256 Unicode scalars")
    return request.id


def _instance_id(value: str) -> str:
    if not grammar.is_instance_id(value):
        raise SaiseiError("invalid_request", "id: a string of 1 to 256 Unicode scalars")
    return value


def _document(document: Document) -> bytes:
    return documents.canonical_document(document.canonical_json)


def _params(request: pb.CreateInstanceRequest) -> bytes | None:
    return _document(request.params) if request.HasField("params") else None


def _batch_outcome(outcome: str | SaiseiError) -> pb.BatchCreateOutcome:
    if isinstance(outcome, SaiseiError):
        return pb.BatchCreateOutcome(refused=outcome.reason)
    return pb.BatchCreateOutcome(created=pb.CreateInstanceResponse(id=outcome, status=pb.INSTANCE_STATUS_QUEUED))


def _optional_document(data: bytes | None) -> Document | None:
    return None if data is None else Document(canonical_json=data)


def _instance(view: InstanceView) -> pb.Instance:
    error = None
    if view.error_reason is not None:
        error = pb.InstanceError(reason=view.error_reason, message=view.error_message)
    return pb.Instance(
        id=view.id,
        status=_STATUS[view.status],
        output=_optional_document(view.output),
        error=error,
        created_at_ms=view.created_at_ms,
        ended_at_ms=view.ended_at_ms or 0,
    )


def _event(event: EventRecord) -> pb.InstanceEvent:
    """Made once for all readers of a tail: nobody changes it."""
    message = event.message
    if not isinstance(message, pb.InstanceEvent):
        event.message = message = pb.InstanceEvent(
            event_id=event.event_id,
            type=event.type,
            timestamp_ms=event.timestamp_ms,
            instance_id=event.instance_id,
            event_json=event.json,
        )
    return message


def _step(step: StepView) -> pb.Step:
    return pb.Step(
        name=step.name,
        kind=step.kind,
        state=step.state,
        failed_attempts=step.failed_attempts,
        result=_optional_document(step.result),
        error=step.error,
        created_at_ms=step.created_at_ms,
        due_at_ms=step.due_at_ms or 0,
    )
