"""`env.NAME` of a workflowBindings entry: create, get, and the instance's status, sendEvent, terminate, subscribe."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from saisei_contract.errors import SaiseiError
from saisei_runtime.isolates.port import BindingCall, BindingError, BindingResult
from saisei_runtime.workflow.engine import WorkflowEngine
from saisei_runtime.workflow.subscriptions import Subscription

# One invocation that opens more is a leak of the Worker, not a need (S-11).
SUBSCRIPTIONS_PER_SCOPE = 256


class HostedWorkflows(Protocol):
    def workflow(self, workflow_uid: str) -> tuple[str, str, str] | None: ...


class WorkflowBindings:
    """The shim has validated shapes and documents; names of errors are the engine's reasons (contract 3.4)."""

    def __init__(self, engine: WorkflowEngine, hosted: HostedWorkflows) -> None:
        self._engine = engine
        self._hosted = hosted
        self._open: dict[str, dict[str, Subscription]] = {}
        self._count = 0

    async def call(self, call: BindingCall) -> BindingResult:
        # What is open goes on and ends by itself, whatever became of the Workflow (S-13).
        match call.method:
            case "next":
                return await self._next(call)
            case "dispose":
                subscription = self._open.get(call.scope_id, {}).pop(call.arguments["subscription"], None)
                if subscription is not None:
                    subscription.close()
                return BindingResult()
        uid = call.binding.resource_uid
        # Checked again at run time (F-13): a Workflow that is no longer assigned admits nobody.
        if self._hosted.workflow(uid) is None:
            raise SaiseiError("backend_unavailable", "the DurableWorkflow behind this Binding is not ready")
        arguments = call.arguments
        match call.method:
            case "create":
                created = await self._engine.create(uid, arguments.get("id"), call.body)
                return BindingResult({"id": created})
            case "get":
                view = await self._engine.get(uid, arguments["id"])
                return BindingResult({"id": view.id})
            case "status":
                return await self._status(uid, arguments)
            case "sendEvent":
                payload = call.body if arguments.get("hasPayload") else None
                await self._engine.send_event(uid, arguments["id"], arguments["type"], payload)
                return BindingResult()
            case "terminate":
                await self._engine.terminate(uid, arguments["id"])
                return BindingResult()
            case "subscribe":
                return await self._subscribe(call, uid)
            case _:
                raise BindingError("TypeError", f"a workflow Binding has no method {call.method!r}")

    def close_scope(self, scope_id: str) -> None:
        for subscription in self._open.pop(scope_id, {}).values():
            subscription.close()

    async def _status(self, uid: str, arguments: Mapping[str, Any]) -> BindingResult:
        view = await self._engine.get(uid, arguments["id"])
        value: dict[str, Any] = {"status": view.status}
        if view.error_reason is not None:
            value["error"] = {"reason": view.error_reason}
            if view.error_message is not None:
                value["error"]["message"] = view.error_message
        return BindingResult(value, view.output)

    async def _subscribe(self, call: BindingCall, uid: str) -> BindingResult:
        wanted = call.arguments.get("filter")
        types = None if wanted is None else frozenset(wanted)
        subscription = await self._engine.subscribe(
            uid, call.arguments["id"], int(call.arguments.get("cursor") or 0), types
        )
        # Only now: a scope that was closed meanwhile is closed once more after this call, and finds it here.
        scope = self._open.setdefault(call.scope_id, {})
        if len(scope) >= SUBSCRIPTIONS_PER_SCOPE:
            subscription.close()
            raise SaiseiError("backend_unavailable", f"one invocation may hold {SUBSCRIPTIONS_PER_SCOPE} subscriptions")
        self._count += 1
        name = f"s{self._count}"
        scope[name] = subscription
        return BindingResult({"subscription": name})

    async def _next(self, call: BindingCall) -> BindingResult:
        name = call.arguments["subscription"]
        subscription = self._open.get(call.scope_id, {}).get(name)
        event = None if subscription is None else await subscription.next()
        if event is None:
            if subscription is not None:
                # Done for ever, and no longer among those that the invocation holds.
                subscription.close()
                self._open.get(call.scope_id, {}).pop(name, None)
            return BindingResult({"done": True})
        return BindingResult({"done": False}, event.json)
