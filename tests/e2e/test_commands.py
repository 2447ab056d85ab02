"""The commands about instances, Resources and Operations, as a user types them."""

from __future__ import annotations

import json
import subprocess
import sys
import uuid
from typing import Any

import pytest
from tests.support.dev_host import DevHost, eventually

from saisei_cli.deploy.apply import Deployed

SOURCE = """
export class Ask {
  async run(event, step) {
    const first = await step.do("first", () => ({ of: event.params?.name ?? null }));
    const answer = await step.waitForEvent("answer", { type: "answer", timeoutSeconds: 600 });
    return { ...first, answer };
  }
}
export default {};
"""


@pytest.fixture(scope="module")
def name() -> str:
    return f"asking-{uuid.uuid4().hex[:6]}"


@pytest.fixture(scope="module")
def deployed(host: DevHost, name: str, tmp_path_factory: pytest.TempPathFactory) -> Deployed:
    folder = tmp_path_factory.mktemp("asking")
    (folder / "main.mjs").write_text(SOURCE)
    (folder / "saisei.toml").write_text(
        f'space = "tests"\nname = "{name}"\nmain = "main.mjs"\n[[workflows]]\nname = "{name}-ask"\nclass = "Ask"\n'
    )
    return host.deploy(folder)


class Commands:
    """`saisei …` against the Host; each call must succeed unless it says otherwise."""

    def __init__(self, host: DevHost) -> None:
        self._host = host

    def run(self, *arguments: str, status: int = 0) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "saisei_cli", *arguments, "--data-dir", str(self._host.data_dir)]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
        assert done.returncode == status, done.stderr
        return done

    def json(self, *arguments: str) -> Any:
        return json.loads(self.run(*arguments).stdout)


@pytest.fixture(scope="module")
def commands(host: DevHost) -> Commands:
    return Commands(host)


def test_an_instance_by_commands_alone(commands: Commands, deployed: Deployed, name: str) -> None:
    """Design 6: create, list, show, send-event and tail, by the workflow's name or its UID."""
    workflow, uid = f"{name}-ask", deployed.workflows[f"{name}-ask"]
    created = commands.json("workflows", "create", workflow, "--id", "one", "--params", '{"name": "Ada"}')
    assert created == {"id": "one", "status": "queued"}

    def status() -> str:
        return str(commands.json("workflows", "show", uid, "one", "--json")["status"])

    eventually(lambda: status() == "waiting")
    shown = commands.json("workflows", "show", workflow, "one", "--json")
    assert [(step["name"], step["kind"], step["state"]) for step in shown["steps"]] == [
        ("first", "do", "complete"),
        ("answer", "wait", "waiting"),
    ]
    assert [each["id"] for each in commands.json("workflows", "list", workflow, "--status", "waiting", "--json")] == [
        "one"
    ]
    assert commands.json("workflows", "list", workflow, "--status", "complete", "--json") == []
    commands.run("workflows", "send-event", workflow, "one", "answer", "--payload", '{"yes": true}')
    lines = commands.run("workflows", "tail", workflow, "one", "--filter", "workflow_completed", "--json").stdout
    (last,) = [json.loads(line) for line in lines.splitlines()]
    assert last["output"] == {"of": "Ada", "answer": {"yes": True}}
    plain = commands.run("workflows", "tail", workflow, "one", "--cursor", "2").stdout.splitlines()
    assert plain[0].split()[:2] == ["3", "workflow_running"]


def test_terminate(commands: Commands, deployed: Deployed, name: str) -> None:
    """W-072: the command answers with the terminal status, and repeating it changes nothing."""
    workflow = f"{name}-ask"
    commands.run("workflows", "create", workflow, "--id", "two")
    for _ in range(2):
        assert commands.json("workflows", "terminate", workflow, "two") == {"id": "two", "status": "terminated"}


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("create", "{}", "--params", "[1]"), "--params must be a JSON object"),
        (("create", "{}", "--params", "{x"), "--params is not JSON"),
        (("list", "{}", "--status", "done"), "'done' is not a status"),
        (("show", "{}", "nobody"), "unknown_instance (404)"),
        (("send-event", "{}", "nobody", "answer"), "unknown_instance (404)"),
    ],
)
def test_mistakes(commands: Commands, deployed: Deployed, name: str, arguments: tuple[str, ...], said: str) -> None:
    """Issue 2: each mistake ends with status 1 and one clear sentence."""
    named = [f"{name}-ask" if each == "{}" else each for each in arguments]
    done = commands.run("workflows", *named, status=1)
    assert said in done.stderr
    assert "Traceback" not in done.stderr


def test_resources_and_operations(commands: Commands, deployed: Deployed, name: str) -> None:
    """H-106, WD-12: what is referred to is refused by name; in the order of clean-up everything goes."""
    listed = {each["name"]: each for each in commands.json("resources", "list", "--space", "tests", "--json")}
    worker = listed[name]
    assert json.loads(commands.run("resources", "show", name).stdout) == worker
    operation = json.loads(commands.run("operations", "show", worker["lastOperation"]).stdout)
    assert (operation["status"], operation["resourceUid"]) == ("succeeded", worker["uid"])
    refused = commands.run("resources", "delete", name, status=1)
    assert "dependency_conflict (409)" in refused.stderr
    versions = [each for each in listed if each.startswith(f"{name}.version.")]
    bundles = [each for each in listed if each.startswith(f"{name}.bundle.")]
    for each in (f"{name}.deployment", *versions, f"{name}-ask", *bundles, name):
        commands.run("resources", "delete", each)
    left = commands.json("resources", "list", "--space", "tests", "--json")
    assert not [each["name"] for each in left if each["name"].startswith(name)]
