"""A new Version under instances that run and that are parked: real services, on a clock that the test moves."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.support.dev_host import DevHost, eventually

from saisei_cli.client import HostError
from saisei_cli.deploy.apply import Deployed
from saisei_cli.failures import CommandFailure

MINUTE = 60
PROJECT = """
space = "tests"
name = "{name}"
main = "main.mjs"
[[workflows]]
name = "{name}-flow"
class = "Flow"
"""
SOURCE = "export class Flow {{ async run(event, step) {{ {body} }} }}\nexport default {{}};\n"
VERSION = "https://edge.forms.takoform.com/forms/WorkerVersion/0.5.0/"


@pytest.fixture(scope="module")
def virtual() -> Iterator[DevHost]:
    with DevHost("--virtual-clock") as running:
        yield running


class App:
    """One Worker with one workflow, whose `run` is deployed again and again."""

    def __init__(self, host: DevHost, folder: Path, name: str) -> None:
        self.host, self.client, self.folder, self.name = host, host.client, folder, name
        (folder / "saisei.toml").write_text(PROJECT.format(name=name))

    def deploy(self, body: str) -> Deployed:
        (self.folder / "main.mjs").write_text(SOURCE.format(body=body))
        self.deployed = self.host.deploy(self.folder)
        self.uid = self.deployed.workflows[f"{self.name}-flow"]
        return self.deployed

    def create(self, instance_id: str, *statuses: str) -> None:
        self.client.create_instance(self.uid, instance_id)
        self.until(instance_id, *statuses)

    def status(self, instance_id: str) -> Any:
        return self.client.instance(self.uid, instance_id)["status"]

    def until(self, instance_id: str, *statuses: str) -> None:
        eventually(lambda: self.status(instance_id) in statuses, within_seconds=30)

    def types(self, instance_id: str) -> list[str]:
        return [event["type"] for event in self.client.events(self.uid, instance_id)]


@pytest.fixture
def app(virtual: DevHost, tmp_path: Path, request: pytest.FixtureRequest) -> App:
    return App(virtual, tmp_path, "switch-" + request.node.name.removeprefix("test_").replace("_", "-")[:30])


def test_a_running_context_keeps_its_version_for_fifteen_minutes(virtual: DevHost, app: App) -> None:
    """WD-08, W-088, W-084, WV-13: the old Version runs on, is kept, and is retired without costing an attempt."""
    client = virtual.client
    old = app.deploy('return await step.do("work", () => new Promise(() => {}));')
    app.create("i", "running")
    eventually(lambda: [step["state"] for step in client.steps(app.uid, "i")] == ["pending"])
    new = app.deploy('return await step.do("work", () => ({ by: "new" }));')
    assert new.version_uid != old.version_uid
    client.advance_clock(15 * MINUTE - 1)
    with pytest.raises(HostError) as kept:
        client.delete_resource(old.version_uid, 1)
    assert (kept.value.status, kept.value.code) == (409, "dependency_conflict")
    assert app.status("i") == "running"
    client.advance_clock(1)
    app.until("i", "complete")
    assert client.instance(app.uid, "i")["output"] == {"by": "new"}
    types = app.types("i")
    assert types.count("attempt_started") == 1 and "attempt_errored" not in types
    operation = client.delete_resource(old.version_uid, 1)
    assert client.wait_operation(operation)["status"] == "succeeded"
    assert old.version_uid not in [item["uid"] for item in client.resources(space="tests", form=VERSION)]


def test_a_known_contradiction_is_not_activated(virtual: DevHost, app: App) -> None:
    """WD-10: the step that an instance sleeps in is now called with another method: refused, with the instance's id.

    Nothing of the new code has done anything; the old code goes on; a fitting Version is taken.
    """
    client = virtual.client
    first = 'await step.do("first", () => ({}));'
    app.deploy(first + 'await step.sleep("grace", 3600); return { by: "old" };')
    app.create("order-1", "sleeping")
    app.create("order-2", "sleeping")
    effects = 'console.log("replayed code"); await step.do("first", () => { throw new Error("an effect ran"); });'
    with pytest.raises(CommandFailure) as refused:
        app.deploy(effects + 'await step.do("grace", () => ({}));')
    said = str(refused.value)
    for word in ("step_history_incompatible", "'order-1'", "'order-2'", "'grace'", "step.sleep", "step.do"):
        assert word in said
    assert {app.status("order-1"), app.status("order-2")} == {"sleeping"}
    assert "replayed code" not in str(list(virtual.log_lines("runtime")))
    # An edit between and after the steps that were reached is no contradiction.
    app.deploy(first + 'await step.sleep("grace", 3600); await step.do("more", () => ({})); return { by: "new" };')
    client.advance_clock(3600)
    for instance_id in ("order-1", "order-2"):
        app.until(instance_id, "complete")
        assert client.instance(app.uid, instance_id)["output"] == {"by": "new"}
        assert app.types(instance_id).count("sleep_completed") == 1


def test_code_that_replays_for_ever_holds_nothing_up(virtual: DevHost, app: App) -> None:
    """WD-10, W-154: a Version whose replay hangs says nothing, and is activated all the same."""
    app.deploy('await step.sleep("grace", 3600);')
    app.create("i", "sleeping")
    deployed = app.deploy("for (;;) {}")
    assert app.status("i") == "sleeping"
    (warning,) = deployed.warnings
    assert "'i'" in warning and "'grace'" in warning and "ran out" in warning
    virtual.client.terminate(app.uid, "i")


def test_a_renamed_step_is_activated_with_a_warning(virtual: DevHost, app: App) -> None:
    """WD-10: "can't tell" is never shown as compatible: Operation and command name the instances and both names.

    A step in between looks the same to a replay, and is safe: so it is told and not refused.
    """
    app.deploy('await step.sleep("grace", 3600); return { by: "old" };')
    app.create("order-1", "sleeping")
    app.create("order-2", "sleeping")
    renamed = app.deploy('await step.sleep("grace period", 60); return { by: "new" };')
    (warning,) = renamed.warnings
    for said in (
        "2 parked instances",
        "'order-1'",
        "'order-2'",
        "'grace'",
        "'grace period'",
        "step_definition_mismatch",
    ):
        assert said in warning
    client = virtual.client
    operation = client.operation(client.resource(renamed.deployment_uid)["lastOperation"])
    assert operation["status"] == "succeeded"
    assert operation["warnings"] == [{"code": "step_history_unconfirmed", "message": warning}]
    # What has the step fits, and says nothing of it.
    fits = app.deploy('await step.sleep("grace", 1); await step.do("new", () => ({})); return { by: "newer" };')
    assert fits.warnings == []
    client.advance_clock(3600)
    for instance_id in ("order-1", "order-2"):
        app.until(instance_id, "complete")
        assert client.instance(app.uid, instance_id)["output"] == {"by": "newer"}
