"""Delivery through a service Binding: who may call whom, and what becomes of it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace

import pytest

from saisei.control.v1 import assignments_pb2 as pb
from saisei_contract.errors import SaiseiError
from saisei_runtime.bindings.service import ServiceBindings
from saisei_runtime.code import Binding, BindingKind
from saisei_runtime.hosting.state import HostedState
from saisei_runtime.isolates.port import BindingError, FetchHead, FetchResult, ServiceCall, Unanswered

SERVICE = Binding("SVC", BindingKind.SERVICE, "callee")
CALL = ServiceCall("caller", "v-caller", "scope", SERVICE, FetchHead("GET", "https://a/", ()))


class Delivery:
    def __init__(self) -> None:
        self.to: list[str] = []
        self.fails: Exception | None = None

    async def deliver(self, worker_uid: str, request: FetchHead) -> FetchResult:
        self.to.append(worker_uid)
        if self.fails is not None:
            raise self.fails
        return FetchResult(200, [], _none())


async def _none() -> AsyncIterator[bytes]:
    return
    yield b""


def version(uid: str, worker: str, space: str = "main", *bindings: Binding) -> pb.Assignment:
    body = pb.VersionAssignment(
        worker_uid=worker,
        bindings=[
            pb.BindingAssignment(name=one.name, kind=pb.BINDING_KIND_SERVICE, resource_uid=one.resource_uid)
            for one in bindings
        ],
    )
    return pb.Assignment(revision=1, resource_uid=uid, space=space, version=body)


def deployment(worker: str, *versions: str) -> pb.Assignment:
    weighted = [pb.WeightedVersion(version_uid=uid, weight=10_000 // len(versions)) for uid in versions]
    body = pb.DeploymentAssignment(worker_uid=worker, versions=weighted)
    return pb.Assignment(revision=2, resource_uid=f"d-{worker}", space="main", deployment=body)


@pytest.fixture
def state() -> HostedState:
    state = HostedState()
    for message in (version("v-caller", "caller", "main", SERVICE), version("v-callee", "callee")):
        state.apply(message)
    state.apply(deployment("callee", "v-callee"))
    return state


@pytest.fixture
def delivery() -> Delivery:
    return Delivery()


@pytest.fixture
def services(state: HostedState, delivery: Delivery) -> ServiceBindings:
    return ServiceBindings(state, delivery)


async def refusal(services: ServiceBindings, call: ServiceCall = CALL) -> str:
    with pytest.raises(BindingError) as refused:
        await services.fetch(call)
    return refused.value.name


async def test_a_call_reaches_the_logical_worker(services: ServiceBindings, delivery: Delivery) -> None:
    """MW-40: the Worker by its UID; which Version answers is for its Deployment to say."""
    assert (await services.fetch(CALL)).status == 200
    assert delivery.to == ["callee"]


async def test_what_may_not_be_called(services: ServiceBindings, state: HostedState, delivery: Delivery) -> None:
    """F-13, WV-11: a Version that is gone, a Binding that it does not have, and a Worker of another Space."""
    other = replace(CALL, binding=Binding("SVC", BindingKind.SERVICE, "another"))
    assert await refusal(services, other) == "backend_unavailable"
    state.apply(version("v-callee", "callee", "elsewhere"))
    assert await refusal(services) == "backend_unavailable"
    state.apply(version("v-callee", "callee"))
    state.apply(pb.Assignment(revision=3, resource_uid="v-caller", removed=True))
    assert await refusal(services) == "backend_unavailable"
    assert delivery.to == []


async def test_without_a_deployment(services: ServiceBindings, state: HostedState, delivery: Delivery) -> None:
    """MW-41, WD-09: nothing starts without an active Deployment."""
    state.apply(pb.Assignment(revision=3, resource_uid="d-callee", removed=True))
    assert await refusal(services) == "backend_unavailable"
    assert delivery.to == []


async def test_what_became_of_a_delivery(services: ServiceBindings, delivery: Delivery) -> None:
    """MW-41: what could not start rejects by that one name; what began and was stopped is a 500."""
    for error in (SaiseiError("backend_unavailable", "no"), SaiseiError("not_found", "no"), OSError("/secret")):
        delivery.fails = error
        assert await refusal(services) == "backend_unavailable"
    delivery.fails = Unanswered("backend_unavailable", "stopped")
    result = await services.fetch(CALL)
    assert (result.status, b"".join([part async for part in result.body])) == (500, b"Internal Server Error")
