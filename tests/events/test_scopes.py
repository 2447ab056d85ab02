"""Subscriptions of a scope in the runtime's Binding, at moments that a whole Host cannot be brought to."""

from __future__ import annotations

import asyncio
from typing import Any

from saisei_contract.errors import SaiseiError
from saisei_runtime.bindings.workflow import SUBSCRIPTIONS_PER_SCOPE, WorkflowBindings
from saisei_runtime.code import Binding, BindingKind
from saisei_runtime.isolates.calls import BindingCalls
from saisei_runtime.isolates.port import BindingCall


class Subscription:
    def __init__(self) -> None:
        self.closed = False

    async def next(self) -> None:
        return None

    def close(self) -> None:
        self.closed = True


class Engine:
    """Answers `subscribe` once `go` is set."""

    def __init__(self) -> None:
        self.go = asyncio.Event()
        self.opened: list[Subscription] = []

    async def subscribe(self, *_: Any) -> Subscription:
        await self.go.wait()
        self.opened.append(Subscription())
        return self.opened[-1]


class Hosted:
    def __init__(self) -> None:
        self.there = True

    def workflow(self, _uid: str) -> tuple[str, str, str] | None:
        return ("worker", "Class", "space") if self.there else None


BINDING = Binding("FLOW", BindingKind.WORKFLOW, "wf")


def _call(method: str, **arguments: Any) -> BindingCall:
    return BindingCall("worker", "version", "scope", BINDING, method, arguments, None)


async def test_open_subscriptions_outlive_the_assignment() -> None:
    """S-13: when its Workflow is gone an open subscription is done, and can be disposed of; a new one is refused."""
    engine, hosted = Engine(), Hosted()
    engine.go.set()
    bindings = WorkflowBindings(engine, hosted)  # type: ignore[arg-type]
    name = (await bindings.call(_call("subscribe", id="i"))).value["subscription"]
    hosted.there = False
    assert (await bindings.call(_call("next", subscription=name))).value == {"done": True}
    try:
        await bindings.call(_call("subscribe", id="i"))
    except SaiseiError as error:
        assert error.reason == "backend_unavailable"
    await bindings.call(_call("dispose", subscription=name))
    assert engine.opened[0].closed


async def test_what_has_ended_does_not_count() -> None:
    """S-07, S-11: an invocation may watch any number of instances to their ends, and hold so many at once."""
    engine = Engine()
    engine.go.set()
    bindings = WorkflowBindings(engine, Hosted())  # type: ignore[arg-type]
    for _ in range(2 * SUBSCRIPTIONS_PER_SCOPE):
        name = (await bindings.call(_call("subscribe", id="i"))).value["subscription"]
        for _ in range(2):
            assert (await bindings.call(_call("next", subscription=name))).value == {"done": True}
    for _ in range(SUBSCRIPTIONS_PER_SCOPE):
        await bindings.call(_call("subscribe", id="i"))
    try:
        await bindings.call(_call("subscribe", id="i"))
    except SaiseiError as error:
        assert error.reason == "backend_unavailable"
    else:
        raise AssertionError("one too many was opened")
    bindings.close_scope("scope")
    assert all(one.closed for one in engine.opened[2 * SUBSCRIPTIONS_PER_SCOPE :])


class Code:
    worker_uid, version_uid, bindings = "worker", "version", (BINDING,)


class Frame:
    call, binding, method, has = 1, "FLOW", "subscribe", False
    arguments = {"id": "i"}  # noqa: RUF012


async def test_a_subscription_that_opens_after_its_scope_is_freed() -> None:
    """S-11: `subscribe` was under way when the invocation ended: nothing stays open and nothing is answered."""
    engine = Engine()
    answers: list[Any] = []
    calls = BindingCalls(WorkflowBindings(engine, Hosted()), Code(), "scope", lambda *sent: answers.append(sent))  # type: ignore[arg-type]
    calls.begin(Frame(), b"")  # type: ignore[arg-type]
    await asyncio.sleep(0)
    calls.close()
    engine.go.set()
    async with asyncio.timeout(5):
        while not (engine.opened and engine.opened[0].closed):
            await asyncio.sleep(0)
    assert answers == []
