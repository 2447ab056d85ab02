"""From the metadata of a call to its caller: every request is authenticated anew (H-044)."""

from __future__ import annotations

from typing import Any, TypeAlias

import grpc

from saisei_contract.clock import Clock
from saisei_control.access.rights import Caller
from saisei_control.access.tokens import authenticate
from saisei_control.store.store import Store
from saisei_service.credentials import bearer_token

Context: TypeAlias = "grpc.aio.ServicerContext[Any, Any]"


class Callers:
    def __init__(self, store: Store, clock: Clock) -> None:
        self._store = store
        self._clock = clock

    async def of(self, context: Context) -> Caller:
        """SaiseiError unauthenticated unless the call carries one valid token."""
        return await self.authenticate(bearer_token(context))

    async def authenticate(self, token: str) -> Caller:
        now = self._clock.now_ms()
        return await self._store.read(lambda connection: authenticate(connection, token, now))
