"""Binding calls from Workers, sent on to the room of their kind."""

from __future__ import annotations

from saisei_contract.errors import SaiseiError
from saisei_runtime.bindings.service import ServiceBindings
from saisei_runtime.bindings.workflow import WorkflowBindings
from saisei_runtime.code import BindingKind
from saisei_runtime.isolates.port import BindingCall, BindingError, BindingResult, FetchResult, ServiceCall


class Bindings:
    """Implements `BindingHost`. The Resource of a call was pinned by UID when its Version was created (F-02, F-13)."""

    def __init__(self, workflows: WorkflowBindings, services: ServiceBindings) -> None:
        self._workflows = workflows
        self._services = services

    async def call(self, call: BindingCall) -> BindingResult:
        try:
            if call.binding.kind is BindingKind.WORKFLOW:
                return await self._workflows.call(call)
        except SaiseiError as error:
            raise BindingError(error.reason, error.detail) from None
        raise BindingError("backend_unavailable", f"this Host does not serve {call.binding.kind.value} Bindings yet")

    async def fetch(self, call: ServiceCall) -> FetchResult:
        return await self._services.fetch(call)

    def close_scope(self, scope_id: str) -> None:
        self._workflows.close_scope(scope_id)
