"""The services behind the gateway: one channel each, and their failures as SaiseiErrors."""

from __future__ import annotations

from collections.abc import Awaitable
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

import grpc

from saisei.control.v1.access_pb2_grpc import AccessServiceStub
from saisei.control.v1.admin_pb2_grpc import ControlAdminServiceStub
from saisei.control.v1.artifacts_pb2_grpc import ArtifactServiceStub
from saisei.control.v1.resources_pb2_grpc import OperationServiceStub, ResourceServiceStub, SupportServiceStub
from saisei.runtime.v1.admin_pb2_grpc import RuntimeAdminServiceStub
from saisei.runtime.v1.feed_pb2_grpc import EventFeedServiceStub
from saisei.runtime.v1.invocation_pb2_grpc import InvocationServiceStub
from saisei.runtime.v1.workflows_pb2_grpc import WorkflowServiceStub
from saisei_service.rpc_errors import from_rpc_error

if TYPE_CHECKING:
    from saisei.control.v1.access_pb2_grpc import AccessServiceAsyncStub
    from saisei.control.v1.admin_pb2_grpc import ControlAdminServiceAsyncStub
    from saisei.control.v1.artifacts_pb2_grpc import ArtifactServiceAsyncStub
    from saisei.control.v1.resources_pb2_grpc import (
        OperationServiceAsyncStub,
        ResourceServiceAsyncStub,
        SupportServiceAsyncStub,
    )
    from saisei.runtime.v1.admin_pb2_grpc import RuntimeAdminServiceAsyncStub
    from saisei.runtime.v1.feed_pb2_grpc import EventFeedServiceAsyncStub
    from saisei.runtime.v1.invocation_pb2_grpc import InvocationServiceAsyncStub
    from saisei.runtime.v1.workflows_pb2_grpc import WorkflowServiceAsyncStub

T = TypeVar("T")

# Reads and acceptances are short; termination waits for the proof that the code has stopped (W-070).
CALL_SECONDS = 30.0
TERMINATE_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class Backends:
    access: AccessServiceAsyncStub
    artifacts: ArtifactServiceAsyncStub
    control_admin: ControlAdminServiceAsyncStub
    operations: OperationServiceAsyncStub
    resources: ResourceServiceAsyncStub
    support: SupportServiceAsyncStub
    admin: RuntimeAdminServiceAsyncStub
    feed: EventFeedServiceAsyncStub
    invocations: InvocationServiceAsyncStub
    workflows: WorkflowServiceAsyncStub


def backends(control: grpc.aio.Channel, runtime: grpc.aio.Channel) -> Backends:
    return Backends(
        access=AccessServiceStub(control),
        artifacts=ArtifactServiceStub(control),
        control_admin=ControlAdminServiceStub(control),
        operations=OperationServiceStub(control),
        resources=ResourceServiceStub(control),
        support=SupportServiceStub(control),
        admin=RuntimeAdminServiceStub(runtime),
        feed=EventFeedServiceStub(runtime),
        invocations=InvocationServiceStub(runtime),
        workflows=WorkflowServiceStub(runtime),
    )


async def answer_of(call: Awaitable[T]) -> T:
    """The response of a unary call; its failure as a SaiseiError."""
    try:
        return await call
    except grpc.aio.AioRpcError as error:
        raise from_rpc_error(error) from None
