"""`GET /.well-known/takoform/v2`, and the Host's terms that other routes need (H-040 … H-043)."""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING

from starlette.responses import Response

from saisei.control.v1 import resources_pb2
from saisei_contract.errors import SaiseiError
from saisei_contract.records import DiscoveryRecord
from saisei_contract.wire import discovery_json
from saisei_gateway.backends import answer_of
from saisei_gateway.host_api.respond import json_response
from saisei_gateway.settings import GatewaySettings
from saisei_service.shared import Shared

if TYPE_CHECKING:
    from saisei.control.v1.resources_pb2_grpc import SupportServiceAsyncStub

log = logging.getLogger(__name__)

REFRESH_SECONDS = 5.0
TIMEOUT_SECONDS = 5.0


class Terms:
    """Limits and capabilities as the control service states them, asked again after 5 s, else the last known."""

    def __init__(self, stub: SupportServiceAsyncStub, settings: GatewaySettings) -> None:
        self._stub = stub
        self._settings = settings
        self._known: DiscoveryRecord | None = None
        self._fresh_until = 0.0
        self._asking = Shared[None, DiscoveryRecord](lambda _: self._ask())

    async def current(self) -> DiscoveryRecord:
        """SaiseiError backend_unavailable when the control service was never heard of."""
        if self._known is not None and time.monotonic() < self._fresh_until:
            return self._known
        try:
            self._known = await self._asking.of(None)
        except SaiseiError as error:
            if self._known is None:
                raise
            log.warning("the terms of the Host could not be refreshed", extra={"reason": error.reason})
        self._fresh_until = time.monotonic() + REFRESH_SECONDS
        return self._known

    async def _ask(self) -> DiscoveryRecord:
        answer = await answer_of(
            self._stub.GetDiscovery(
                resources_pb2.GetDiscoveryRequest(),
                timeout=TIMEOUT_SECONDS,
                # With terms at hand nobody needs to wait for a service that is away.
                wait_for_ready=self._known is None,
            )
        )
        return DiscoveryRecord(
            base_url=self._settings.base_url,
            documentation=self._settings.documentation,
            authentication_schemes=tuple(answer.authentication_schemes) or ("Bearer",),
            authentication_documentation=self._settings.documentation,
            offerings=answer.offerings,
            previews=answer.previews,
            private_inputs=answer.private_inputs,
            max_request_bytes=answer.max_request_bytes,
            max_page_size=answer.max_page_size,
            replay_window_seconds=answer.replay_window_seconds,
        )


async def discovery_response(terms: Terms) -> Response:
    return json_response(discovery_json(await terms.current()))
