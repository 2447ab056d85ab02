"""Code that does not stop by itself is stopped, with proof, and nobody else notices."""

from __future__ import annotations

import uuid
from pathlib import Path
from typing import Any

import pytest
from tests.support.dev_host import DevHost, eventually

from saisei_cli.deploy.apply import Deployed

APPS = Path(__file__).parent / "apps"
STOP_SECONDS = 2.0


@pytest.fixture(scope="module")
def stopping(host: DevHost) -> Deployed:
    return host.deploy(APPS / "stopping")


@pytest.mark.parametrize("workflow", ["loops", "backtracks", "hangs"])
def test_terminate_stops_code_that_never_ends(host: DevHost, stopping: Deployed, workflow: str) -> None:
    """W-014, W-070, W-154: terminate ends a busy loop, a catastrophic regex and a never-settling await within 2 s.

    The stop proof is recorded, and another instance of the same Worker goes on meanwhile.
    """
    client, uid, neighbours = host.client, stopping.workflows[workflow], stopping.workflows["goes-on"]
    instance_id, neighbour_id = f"stuck-{uuid.uuid4().hex}", f"neighbour-{uuid.uuid4().hex}"
    client.create_instance(neighbours, neighbour_id, {"steps": 60})
    client.create_instance(uid, instance_id)
    eventually(lambda: [step["state"] for step in client.steps(uid, instance_id)] == ["pending"])
    # The effect says so as the last thing before it never ends.
    eventually(lambda: any(_says_so(line, instance_id) for line in host.log_lines("runtime")))
    stopwatch = host.stopwatch()
    assert client.terminate(uid, instance_id)["status"] == "terminated"
    assert stopwatch.seconds() < STOP_SECONDS
    assert client.instance(uid, instance_id) == {"id": instance_id, "status": "terminated"}
    types = [event["type"] for event in client.events(uid, instance_id)]
    assert types[-1] == "workflow_terminated"
    assert "attempt_completed" not in types

    def proofs() -> list[str]:
        return [
            line["proof"]
            for line in host.log_lines("runtime")
            if line.get("instance_id") == instance_id and "proof" in line
        ]

    assert eventually(proofs)[-1] in ("joined", "reaped")
    assert client.wait_instance(neighbours, neighbour_id)["output"] == {"total": sum(range(60))}
    names = [
        event["stepName"] for event in client.events(neighbours, neighbour_id) if event["type"] == "attempt_started"
    ]
    assert len(names) == len(set(names)), "the neighbour lost its context"


def _says_so(line: dict[str, Any], instance_id: str) -> bool:
    return f"never ends: {instance_id}" in (line.get("text"), line.get("message"))
