"""Who calls: bearer tokens are judged by the control service; this runtime only remembers the answer for 2 s."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import grpc

from saisei.common.v1.common_pb2 import Principal
from saisei.control.v1 import access_pb2
from saisei_contract.errors import SaiseiError
from saisei_runtime.hosting.state import HostedState
from saisei_service.credentials import bearer_token, service_metadata
from saisei_service.rpc_errors import from_rpc_error
from saisei_service.shared import Shared

if TYPE_CHECKING:
    # Exists in the stubs only: what the generated stub class is on an asyncio channel.
    from saisei.control.v1.access_pb2_grpc import AccessServiceAsyncStub

REMEMBER_SECONDS = 2.0
REMEMBER_AT_MOST = 1024
ANY_SPACE = "*"


class Authenticator:
    def __init__(self, stub: AccessServiceAsyncStub, credential: str) -> None:
        self._stub = stub
        self._metadata = service_metadata(credential)
        self._known: dict[str, tuple[float, Principal]] = {}
        # Thousands of readers that come back together with one token are one question.
        self._asking = Shared[str, Principal](self._ask)

    async def principal(self, context: grpc.aio.ServicerContext[Any, Any]) -> Principal:
        """The caller; SaiseiError unauthenticated, or backend_unavailable when the control service is away."""
        return await self.holder(bearer_token(context))

    async def holder(self, token: str) -> Principal:
        """Whose token it is; fails as `principal` does."""
        known = self._known.get(token)
        if known is not None and known[0] > time.monotonic():
            return known[1]
        return await self._asking.of(token)

    async def _ask(self, token: str) -> Principal:
        asked_at = time.monotonic()
        try:
            answer = await self._stub.Authenticate(
                access_pb2.AuthenticateRequest(token=token), metadata=self._metadata, timeout=10, wait_for_ready=True
            )
        except grpc.aio.AioRpcError as error:
            self._known.pop(token, None)
            raise from_rpc_error(error) from None
        if len(self._known) >= REMEMBER_AT_MOST:
            self._known.clear()
        self._known[token] = (asked_at + REMEMBER_SECONDS, answer.principal)
        return answer.principal


def may_read(principal: Principal, space: str) -> bool:
    return any(rights.read for rights in principal.rights if rights.space in (space, ANY_SPACE))


def may_write(principal: Principal, space: str) -> bool:
    return any(rights.write for rights in principal.rights if rights.space in (space, ANY_SPACE))


def unknown_workflow(uid: str) -> SaiseiError:
    """One answer for "does not exist" and "not visible" (H-046)."""
    return SaiseiError("not_found", f"there is no DurableWorkflow {uid[:128]!r} here that this principal may use")


def admit(state: HostedState, principal: Principal, workflow_uid: str, *, write: bool = False) -> None:
    """SaiseiError unless the principal may use the Workflow; an unseen one is the same answer as none (H-046)."""
    workflow = state.hosted_workflow(workflow_uid)
    if workflow is None or not (may_read(principal, workflow.space) or may_write(principal, workflow.space)):
        raise state.missing(unknown_workflow(workflow_uid))
    if write and not may_write(principal, workflow.space):
        raise SaiseiError("forbidden", f"the principal has no write right in the Space {workflow.space!r}")
    if not write and not may_read(principal, workflow.space):
        raise SaiseiError("forbidden", f"the principal has no read right in the Space {workflow.space!r}")
