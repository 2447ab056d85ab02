"""What a route handler works with: the gateway's ports, and one authenticated request."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field

from starlette.requests import Request

from saisei_contract.errors import SaiseiError
from saisei_contract.grammar import is_uid
from saisei_gateway.access import Authenticator, Caller
from saisei_gateway.assets import AssetServer
from saisei_gateway.backends import Backends
from saisei_gateway.event_readers import Readers
from saisei_gateway.host_api.discovery import Terms
from saisei_gateway.host_api.request import decode_component
from saisei_gateway.locate import Locator
from saisei_gateway.metrics import Metrics
from saisei_gateway.settings import GatewaySettings
from saisei_service.credentials import Metadata


@dataclass(frozen=True, slots=True)
class Gateway:
    """Made once in a process. `drain` is called when it is told to stop: event streams end then."""

    settings: GatewaySettings
    backends: Backends
    authenticator: Authenticator
    terms: Terms
    metrics: Metrics
    readers: Readers
    locator: Locator
    assets: AssetServer
    service_metadata: Metadata = field(repr=False)
    draining: asyncio.Event = field(default_factory=asyncio.Event)

    def drain(self) -> None:
        self.draining.set()
        self.readers.cut()


@dataclass(frozen=True, slots=True)
class Call:
    """One request of a known route. `segments` holds the path's variable parts as they came, percent-encoded."""

    gateway: Gateway
    request: Request
    segments: Mapping[str, str]
    signed_in: Caller | None

    @property
    def backends(self) -> Backends:
        return self.gateway.backends

    @property
    def caller(self) -> Caller:
        assert self.signed_in is not None, "only public routes have no caller"
        return self.signed_in

    @property
    def metadata(self) -> Metadata:
        return self.caller.metadata

    def identifier(self, name: str) -> str:
        """A variable of grammar H-006; SaiseiError not_found, since nothing with another spelling can exist."""
        try:
            value = decode_component(self.segments[name])
        except ValueError:
            value = ""
        if not is_uid(value):
            raise SaiseiError("not_found", "Nothing has such an identifier.")
        return value

    def text(self, name: str) -> str:
        """A variable that may hold any Unicode text; SaiseiError invalid_request for a broken escape."""
        try:
            return decode_component(self.segments[name])
        except ValueError as error:
            raise SaiseiError("invalid_request", f"The path is not well-formed: {error}.") from None
