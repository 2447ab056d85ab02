"""One Worker calls another through `env`, by saisei.toml alone, over real HTTPS to its Endpoint."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.support.dev_host import DevHost, eventually

from saisei_cli.client import HostError
from saisei_cli.deploy.apply import WORKER_DEPLOYMENT, Deployed
from saisei_cli.failures import CommandFailure

APPS = Path(__file__).parent / "apps"


@pytest.fixture(scope="module")
def front(host: DevHost) -> Iterator[Deployed]:
    host.deploy(APPS / "back")
    yield host.deploy(APPS / "front")


def get(host: DevHost, deployed: Deployed, path: str, method: str = "GET", **options: Any) -> Any:
    assert deployed.hostname is not None
    return host.client.fetch(deployed.hostname, path, method, **options)


def test_a_request_is_passed_on(host: DevHost, front: Deployed) -> None:
    """MW-21, MW-40, MW-42: the callee gets the request as it is and sees its own env only; front has no more keys."""
    assert json.loads(get(host, front, "/keys").body) == ["BACK", "SELF"]
    answer = get(host, front, "/a/b?c=d", headers={"x-mine": "1"})
    told = json.loads(answer.body)
    assert answer.status == 200
    assert told["url"] == f"https://{front.hostname}/a/b?c=d"
    assert told["keys"] == ["TONE"]
    assert (told["headers"]["x-mine"], told["headers"]["host"]) == ("1", front.hostname)


def test_a_large_upload_streams_through(host: DevHost, front: Deployed) -> None:
    """MW-41: 5 MB go through both Workers."""
    answer = get(host, front, "/sum", "POST", content=bytes(5_000_000))
    assert (answer.status, answer.body) == (200, b"5000000")


def test_the_callees_throw_is_its_500(host: DevHost, front: Deployed) -> None:
    """MW-41, MW-23: a resolved Response without details."""
    answer = get(host, front, "/throw")
    assert (answer.status, answer.body) == (500, b"Internal Server Error")


def test_a_loop_ends(host: DevHost, front: Deployed) -> None:
    """MW-40: a Worker that calls itself for ever is told backend_unavailable at the bottom."""
    answer = get(host, front, "/loop")
    assert (answer.status, json.loads(answer.body)) == (599, {"name": "backend_unavailable", "isError": True})


def test_a_step_calls(host: DevHost, front: Deployed) -> None:
    """MW-40: workflow contexts have the same Binding; what the callee answered is journaled."""
    uid = front.workflows["asking"]
    host.client.create_instance(uid, "asking-1")
    eventually(lambda: host.client.instance(uid, "asking-1")["status"] == "complete")
    assert host.client.instance(uid, "asking-1")["output"] == {"tone": "one"}


def test_the_binding_follows_the_deployment(host: DevHost, front: Deployed, tmp_path: Path) -> None:
    """MW-40, WD-04, F-02: the caller keeps its Version; what answers is what the callee's Deployment selects now."""
    assert get(host, front, "/tone").body == b"one"
    copy = shutil.copytree(APPS / "back", tmp_path / "back")
    toml = copy / "saisei.toml"
    toml.write_text(toml.read_text().replace('"one"', '"two"'))
    changed = host.deploy(copy)
    assert get(host, front, "/tone").body == b"two"
    # MW-41: without a Deployment nothing starts; with one again it does.
    found = host.client.resource(changed.deployment_uid)
    host.client.wait_operation(host.client.delete_resource(found["uid"], found["generation"]))
    answer = get(host, front, "/tone")
    assert (answer.status, json.loads(answer.body)["name"]) == (599, "backend_unavailable")
    host.deploy(APPS / "back")
    assert get(host, front, "/tone").body == b"one"
    unchanged = host.deploy(APPS / "front")
    assert unchanged.version_uid == front.version_uid


def test_a_called_worker_is_kept(host: DevHost, front: Deployed) -> None:
    """MW-03, WD-05: front's Version keeps back from being deleted, and from a Version that answers no HTTP."""
    back = host.client.find_resource("tests", "back")
    assert back is not None
    with pytest.raises(HostError, match="dependency_conflict"):
        host.client.delete_resource(back["uid"], back["generation"])
    deployment = host.client.find_resource("tests", "back.deployment")
    assert deployment is not None
    assert deployment["form"] == WORKER_DEPLOYMENT


def test_a_worker_that_does_not_exist_is_named(host: DevHost, tmp_path: Path) -> None:
    """Issue 2: the mistake, where it is, and what to do."""
    (tmp_path / "main.mjs").write_text("export default {};")
    (tmp_path / "saisei.toml").write_text(
        'space = "tests"\nname = "lonely"\nmain = "main.mjs"\n[[services]]\nbinding = "A"\nworker = "nobody"\n'
    )
    with pytest.raises(CommandFailure) as failure:
        host.deploy(tmp_path)
    assert "[[services]] 'A': the Space 'tests' has no Worker 'nobody'" in str(failure.value)
