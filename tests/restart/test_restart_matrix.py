"""SIGKILL of each service at each point of an Operation's life: the same Operation goes on by itself and succeeds.

A round is 3 points × 3 services × create, update and delete of a DurableWorkflow, whose Operations reach the runtime.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest
from tests.conformance.kit import (
    BUNDLE,
    DEPLOYMENT,
    MODULE_WORKER,
    PLAIN,
    VERSION,
    WORKFLOW,
    Address,
    Json,
    Principal,
    accepted,
    fresh_key,
    fresh_name,
    reference,
)
from tests.support.dev_host import DevHost, eventually
from tests.support.postgres import host_databases

POINTS = ("accepted", "dispatched", "done")
SERVICES = ("control", "runtime", "gateway")
LONG_ROUNDS = 20
# For what never comes, on a machine of any speed.
WITHIN_SECONDS = 240.0


class Stage:
    """A Host with failpoints, and a Worker whose class `Report` a workflow may name."""

    def __init__(self, dev: DevHost, folder: Path) -> None:
        self.dev = dev
        self.folder = folder
        self.user = Principal(Address(dev.ready["origin"], dev.ready["caFile"]), dev.token, "restart")
        worker = reference(self.user.made(MODULE_WORKER))
        bundle = reference(self.user.made(BUNDLE, self.user.bundle_spec(PLAIN)))
        version = self.user.made(VERSION, {"worker": worker, "bundle": bundle, "handlers": ["fetch"]})
        versions = [{"workerVersion": reference(version), "weight": 10000}]
        self.user.made(DEPLOYMENT, {"worker": worker, "versions": versions})
        self.spec = {"worker": worker, "className": "Report"}

    def arm(self, point: str) -> None:
        """Control will halt there. Before acceptance it does so at once."""
        (self.folder / point).touch()
        if point == "accepted":
            # An idle claim loop comes by within a second.
            self.reached(point)

    def reached(self, point: str) -> None:
        eventually((self.folder / f"{point}.reached").exists, within_seconds=WITHIN_SECONDS, every_seconds=0.01)

    def release(self) -> None:
        for path in self.folder.iterdir():
            path.unlink()

    def kill(self, service: str) -> None:
        """SIGKILL; returns when the supervisor has started the next one."""
        pid = self.dev.service_pid(service)
        os.kill(pid, signal.SIGKILL)
        eventually(lambda: self._pid(service) not in (None, pid), within_seconds=WITHIN_SECONDS)

    def _pid(self, service: str) -> int | None:
        with contextlib.suppress(KeyError, FileNotFoundError):
            return self.dev.service_pid(service)
        return None

    @staticmethod
    def patiently(request: Callable[[], httpx.Response]) -> httpx.Response:
        """Repeats while nobody answers or the Host says that it cannot now."""
        deadline = time.monotonic() + WITHIN_SECONDS
        while True:
            try:
                response = request()
                if response.status_code < 500 or time.monotonic() > deadline:
                    return response
            except httpx.HTTPError:
                if time.monotonic() > deadline:
                    raise
            time.sleep(0.05)

    def survive(self, point: str, service: str, mutate: Callable[[], httpx.Response]) -> Json:
        """Brings a mutation to the point, kills the service there, and follows the same Operation to its end."""
        self.arm(point)
        operation = accepted(self.user, self.patiently(mutate))
        self.reached(point)
        status = self.user.operation(operation["id"])["status"]
        assert status in (("queued",) if point == "accepted" else ("running", "reconciling")), status
        self.kill(service)
        self.release()
        replay = accepted(self.user, self.patiently(mutate))
        assert replay["id"] == operation["id"]

        def ended() -> Json:
            found: Json = self.patiently(lambda: self.user.get(f"/operations/{operation['id']}")).json()
            assert found["status"] in ("succeeded", "failed"), found
            return found

        last: Json = eventually(ended, within_seconds=WITHIN_SECONDS)
        assert last["status"] == "succeeded", last
        for fixed in ("id", "resourceUid", "action", "generation", "createdAt"):
            assert last[fixed] == operation[fixed]
        again = self.patiently(mutate)
        assert again.status_code == 200
        assert accepted(self.user, again) == last
        return last


@pytest.fixture(scope="module", params=["sqlite", pytest.param("postgresql", marks=pytest.mark.long)])
def stage(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    folder = tmp_path_factory.mktemp("failpoints")
    modules = str(Path(__file__).parent / "failpoints")
    path = os.pathsep.join(filter(None, (modules, os.environ.get("PYTHONPATH"))))
    environment = {"SAISEI_TEST_FAILPOINTS": str(folder), "PYTHONPATH": path}
    with contextlib.ExitStack() as stack:
        if request.param == "postgresql":
            environment |= stack.enter_context(host_databases(request.getfixturevalue("postgres_url")))
        yield Stage(stack.enter_context(DevHost(environment=environment)), folder)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "round_number" in metafunc.fixturenames:
        rounds = LONG_ROUNDS if metafunc.config.getoption("--long") else 1
        metafunc.parametrize("round_number", range(rounds))


@pytest.mark.parametrize("service", SERVICES)
@pytest.mark.parametrize("point", POINTS)
def test_an_operation_survives_a_kill(stage: Stage, point: str, service: str, round_number: int) -> None:
    """H-193, H-119, H-145, H-111, H-112, H-118: create, update and delete each go on as the same Operation."""
    user, key = stage.user, [fresh_key() for _ in range(3)]
    body = user.envelope(WORKFLOW, stage.spec, fresh_name("restart"))
    created = stage.survive(point, service, lambda: user.post(body, key[0]))
    uid = created["resourceUid"]
    assert [item["uid"] for item in user.walk(space=user.space, name=body["name"])] == [uid]
    assert (user.resource(uid)["generation"], user.resource(uid)["phase"]) == (1, "idle")
    updated = stage.survive(point, service, lambda: user.put(uid, {"spec": stage.spec}, 1, key[1]))
    assert (updated["resourceUid"], updated["generation"]) == (uid, 2)
    resource = user.resource(uid)
    assert (resource["generation"], resource["observedGeneration"], resource["phase"]) == (2, 2, "idle")
    deleted = stage.survive(point, service, lambda: user.delete(uid, 2, key[2]))
    assert (deleted["resourceUid"], deleted["generation"]) == (uid, 3)
    assert user.get(f"/resources/{uid}").status_code in (404, 410)
    assert user.walk(space=user.space, name=body["name"]) == []
