"""From the metadata of a call to its caller: every request is authenticated anew (H-044), and counted."""

from __future__ import annotations

import hashlib
import time
from dataclasses import dataclass
from typing import Any, TypeAlias

import grpc

from saisei_contract.clock import Clock
from saisei_contract.errors import SaiseiError
from saisei_contract.rate import RateLimit
from saisei_control.access.oidc import Oidc
from saisei_control.access.rights import Caller
from saisei_control.access.tokens import TOKEN_PREFIX, find_token
from saisei_control.store.store import Store
from saisei_service.clock import SystemClock
from saisei_service.credentials import bearer_token

Context: TypeAlias = "grpc.aio.ServicerContext[Any, Any]"

# A token that another replica revokes is refused here after at most this; one that this process revokes, at once.
REMEMBER_SECONDS = 1.0
_REMEMBERED = 10_000


@dataclass(frozen=True, slots=True)
class _Known:
    caller: Caller
    until: float
    # On `clock`, None for never.
    expires_at_ms: int | None
    clock: Clock


class Callers:
    def __init__(self, store: Store, clock: Clock, limit: RateLimit, oidc: Oidc | None = None) -> None:
        self._store = store
        self._clock = clock
        self._system = SystemClock()
        self._limit = limit
        self._oidc = oidc
        self._known: dict[bytes, _Known] = {}

    @property
    def schemes(self) -> tuple[str, ...]:
        """What discovery calls them (H-042)."""
        return ("Bearer",) if self._oidc is None else ("Bearer", "OIDC")

    async def of(self, context: Context) -> Caller:
        """SaiseiError unauthenticated unless the call carries one valid token; rate_limited when it comes too often."""
        caller = await self.authenticate(bearer_token(context))
        self._limit.require(caller.principal, time.monotonic())
        return caller

    async def authenticate(self, token: str) -> Caller:
        digest = hashlib.sha256(token.encode("utf-8", "surrogatepass")).digest()
        known = self._known.get(digest)
        if known is None or known.until <= time.monotonic():
            known = await self._ask(token)
            if len(self._known) >= _REMEMBERED:
                self._known.clear()
            self._known[digest] = known
        if known.expires_at_ms is not None and known.expires_at_ms <= known.clock.now_ms():
            raise _refusal()
        return known.caller

    def forget(self) -> None:
        """After a revocation."""
        self._known.clear()

    async def _ask(self, token: str) -> _Known:
        until = time.monotonic() + REMEMBER_SECONDS
        if self._oidc is not None and not token.startswith(TOKEN_PREFIX) and token.count(".") == 2:
            caller, expires_at_ms = await self._oidc.authenticate(token)
            return _Known(caller, until, expires_at_ms, self._system)
        stored = await self._store.peek(lambda connection: find_token(connection, token))
        if stored is None or not stored.is_valid(self._clock.now_ms()):
            raise _refusal()
        return _Known(Caller(stored.principal, stored.rights), until, stored.expires_at_ms, self._clock)


def _refusal() -> SaiseiError:
    """One message for unknown, expired and revoked ones."""
    return SaiseiError("unauthenticated", "the token is not valid here, or no longer")
