"""What a Worker sees of its workflows through `env`, over real HTTPS to its Endpoint."""

from __future__ import annotations

import json
import uuid
from pathlib import Path
from typing import Any

import pytest
from tests.support.dev_host import DevHost, eventually

from saisei_cli.deploy.apply import Deployed

APPS = Path(__file__).parent / "apps"


@pytest.fixture(scope="module")
def caller(host: DevHost) -> Deployed:
    return host.deploy(APPS / "caller")


class Worker:
    """Requests to the caller app, and one fresh instance id."""

    def __init__(self, host: DevHost, deployed: Deployed) -> None:
        assert deployed.hostname is not None
        self._host = host
        self._hostname = deployed.hostname
        self.workflow_uid = deployed.workflows["greetings"]
        self.id = f"greeting-{uuid.uuid4().hex[:8]}"

    def call(self, path: str, **options: Any) -> Any:
        answer = self._host.client.fetch(self._hostname, path, **options)
        assert answer.status == 200, (path, answer.status, answer.body[:500])
        return json.loads(answer.body)

    def raw(self, path: str, **options: Any) -> Any:
        return self._host.client.fetch(self._hostname, path, **options)

    def status(self) -> dict[str, Any]:
        return dict(self.call(f"/status?id={self.id}"))


@pytest.fixture
def worker(host: DevHost, caller: Deployed) -> Worker:
    return Worker(host, caller)


def test_worker_creates_signals_and_reads_its_instance(worker: Worker) -> None:
    """W-022, W-031, W-060, W-112, W-119: create, park in a wait, the payload is the result, a 0 s sleep goes on."""
    created = worker.call(f"/create?id={worker.id}&name=Ada")
    assert created == {"id": worker.id, "keys": ["id", "sendEvent", "status", "subscribe", "terminate"]}
    eventually(lambda: worker.status()["status"] == "waiting")
    assert worker.call(f"/send?id={worker.id}", method="POST", json={"yes": True}) == {"sent": True}
    eventually(lambda: worker.status()["status"] == "complete")
    assert worker.status() == {
        "status": "complete",
        "output": {"greeting": "Hello, Ada", "answer": {"yes": True}},
    }


def test_worker_terminates_its_instance(worker: Worker) -> None:
    """W-070, W-072: terminate resolves with the instance terminal, and repeating it changes nothing."""
    worker.call(f"/create?id={worker.id}&name=Ada")
    for _ in range(2):
        assert worker.call(f"/terminate?id={worker.id}") == {"terminated": True}
        assert worker.status() == {"status": "terminated"}


def test_worker_subscribes_to_its_instance(host: DevHost, worker: Worker) -> None:
    """S-02, S-03, S-07: `using` a subscription gives the whole history and ends after the terminal event."""
    worker.call(f"/create?id={worker.id}&name=Ada")
    host.client.send_event(worker.workflow_uid, worker.id, "answer", {"yes": True})
    types = worker.call(f"/events?id={worker.id}")["types"]
    assert types[:3] == ["workflow_queued", "workflow_started", "workflow_running"]
    assert types[-1] == "workflow_completed"
    assert types.count("step_completed") == 1


def test_binding_refuses_by_name(worker: Worker) -> None:
    """W-021, W-024, W-025, W-027, W-041, W-043, W-045: each refusal is an Error of the contract's name."""
    worker.call(f"/create?id={worker.id}&name=Ada")
    refusals = worker.call(f"/refusals?id={worker.id}")
    assert refusals.pop("key")["name"] in ("TypeError", "invalid_params")
    assert refusals == {
        "exists": {"name": "instance_exists", "isError": True},
        "unknown": {"name": "unknown_instance", "isError": True},
        "getter": {"name": "invalid_params", "isError": True},
        "bigint": {"name": "invalid_params", "isError": True},
        "large": {"name": "document_too_large", "isError": True},
    }


def test_env_has_exactly_what_was_declared(worker: Worker) -> None:
    """MW-21: the own enumerable keys of env are the variables and Bindings of the Version, nothing else."""
    assert worker.call("/env") == {"keys": ["GREETING", "GREETINGS"], "greeting": "Hello"}


def test_bodies_pass_through_unchanged(worker: Worker) -> None:
    """MW-23: request and response bodies stream through the handler byte for byte."""
    body = bytes(range(256)) * 1024
    answer = worker.raw("/echo", method="POST", content=body)
    assert (answer.status, answer.headers["x-method"]) == (201, "POST")
    assert answer.body == body
    assert worker.raw("/stream?chunks=64").body == b"\x07" * (64 * 65536)


def test_failed_handler_is_a_500_without_secrets(worker: Worker) -> None:
    """MW-23: a throw and a result that is no Response become a Host-made 500 that tells nothing of the application."""
    for path in ("/throw", "/wrong"):
        answer = worker.raw(path)
        assert answer.status == 500
        assert b"42" not in answer.body
        assert b"not a Response" not in answer.body
