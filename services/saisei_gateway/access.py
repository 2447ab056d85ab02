"""Who calls: the bearer token of a request and its principal (H-044, H-047)."""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, assert_never

import grpc

from saisei.common.v1.common_pb2 import Principal
from saisei.control.v1 import access_pb2
from saisei_contract.errors import SaiseiError
from saisei_service.credentials import Metadata, host_api_metadata, service_metadata
from saisei_service.rpc_errors import from_rpc_error
from saisei_service.shared import Shared

if TYPE_CHECKING:
    from saisei.control.v1.access_pb2_grpc import AccessServiceAsyncStub

REMEMBER_SECONDS = 2.0
REMEMBER_AT_MOST = 4096
# Long enough for a control service that restarts, short enough for a client that waits.
TIMEOUT_SECONDS = 5.0

_BEARER = re.compile(r"bearer +([A-Za-z0-9._~+/-]+=*)\Z", re.ASCII | re.IGNORECASE)


class Permission(Enum):
    """What a route asks a principal to hold in at least one Space (H-035). The Space itself is judged later."""

    NONE = "none"
    READ = "read"
    WRITE = "write"


@dataclass(frozen=True, slots=True)
class Caller:
    """An authenticated user. `metadata` carries the token on to the services, which judge it again."""

    token: str = field(repr=False)
    principal: Principal

    @property
    def metadata(self) -> Metadata:
        return host_api_metadata(self.token)

    def require(self, permission: Permission) -> None:
        """SaiseiError forbidden when the principal has the permission nowhere."""
        rights = self.principal.rights
        match permission:
            case Permission.NONE:
                return
            case Permission.READ:
                allowed = any(space.read for space in rights)
            case Permission.WRITE:
                allowed = any(space.write for space in rights)
            case _:
                assert_never(permission)
        if not allowed:
            raise SaiseiError("forbidden", f"This credential grants no {permission.value} right in any Space.")


def bearer_token(authorization: Sequence[str]) -> str:
    """The token among a request's Authorization values; SaiseiError unauthenticated unless there is one good one."""
    match = _BEARER.match(authorization[0].strip(" \t")) if len(authorization) == 1 else None
    if match is None:
        raise SaiseiError("unauthenticated", "Send one header Authorization: Bearer <token>.")
    return match.group(1)


class Authenticator:
    """Asks the control service, and remembers its answer for 2 s."""

    def __init__(self, stub: AccessServiceAsyncStub, credential: str) -> None:
        self._stub = stub
        self._metadata = service_metadata(credential)
        self._known: dict[str, tuple[float, Caller]] = {}
        self._asking = Shared[str, Caller](self._ask)

    async def caller(self, authorization: Sequence[str]) -> Caller:
        """SaiseiError unauthenticated, or backend_unavailable when the control service does not answer."""
        token = bearer_token(authorization)
        known = self._known.get(token)
        if known is not None and known[0] > time.monotonic():
            return known[1]
        return await self._asking.of(token)

    async def _ask(self, token: str) -> Caller:
        asked_at = time.monotonic()
        try:
            answer = await self._stub.Authenticate(
                access_pb2.AuthenticateRequest(token=token),
                metadata=self._metadata,
                timeout=TIMEOUT_SECONDS,
                wait_for_ready=True,
            )
        except grpc.aio.AioRpcError as error:
            self._known.pop(token, None)
            raise from_rpc_error(error) from None
        caller = Caller(token, answer.principal)
        if len(self._known) >= REMEMBER_AT_MOST:
            self._known.clear()
        self._known[token] = (asked_at + REMEMBER_SECONDS, caller)
        return caller
