"""`env.NAME.fetch` of a serviceBindings entry: the Worker behind it, by its current Deployment (MW-40 … MW-42)."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Protocol

from saisei_contract.errors import SaiseiError
from saisei_runtime.hosting.state import HostedVersion
from saisei_runtime.isolates.bodies import plain_text
from saisei_runtime.isolates.port import BindingError, FetchHead, FetchResult, ServiceCall, Unanswered

_log = logging.getLogger(__name__)


class HostedWorkers(Protocol):
    def version(self, uid: str) -> HostedVersion | None: ...

    def allocation(self, worker_uid: str) -> Mapping[str, int] | None: ...


class Delivery(Protocol):
    async def deliver(self, worker_uid: str, request: FetchHead) -> FetchResult: ...


class ServiceBindings:
    def __init__(self, hosted: HostedWorkers, delivery: Delivery) -> None:
        self._hosted = hosted
        self._delivery = delivery

    async def fetch(self, call: ServiceCall) -> FetchResult:
        """BindingError backend_unavailable when delivery cannot start; whatever happens later is a Response (MW-41)."""
        if not self._may_call(call):
            raise BindingError("backend_unavailable", "the Worker behind this Binding is not ready")
        try:
            return await self._delivery.deliver(call.binding.resource_uid, call.request)
        except Unanswered:
            # It began: what the Worker did is done, and its end is its own failure.
            return plain_text(500, "Internal Server Error")
        except SaiseiError as error:
            raise BindingError("backend_unavailable", error.detail or error.kind.title) from None
        except Exception as error:
            _log.exception("a service call could not be delivered", extra={"version": call.version_uid})
            raise BindingError("backend_unavailable", "the Worker behind this Binding cannot be reached now") from error

    def _may_call(self, call: ServiceCall) -> bool:
        """Checked again at run time (F-13): the calling Version exists and has the Binding; one Space has both."""
        caller = self._hosted.version(call.version_uid)
        if caller is None or call.binding not in caller.bindings:
            return False
        answering = [self._hosted.version(uid) for uid in self._hosted.allocation(call.binding.resource_uid) or ()]
        return bool(answering) and all(one is not None and one.space == caller.space for one in answering)
