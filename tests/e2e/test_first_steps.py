"""What someone meets in the first hour: ids of dots, failures and their causes, wrong classes, names that are taken."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import uuid
from pathlib import Path

import pytest
from tests.support.dev_host import DevHost, eventually

SOURCE = """
export class Pay {
  async run(event, step) {
    const item = event.params?.item ?? "tea";
    console.log("paying for", item);
    await step.do("charge", () => { if (item === "gold") throw new RangeError("no funds"); }, { maxAttempts: 2 });
    await step.waitForEvent("approval", { type: "approval", timeoutSeconds: 3600 });
    return { item, note: "x".repeat(300) };
  }
}
export class Idle {}
export default {};
"""


class App:
    """A project of its own, and the commands on it."""

    def __init__(self, host: DevHost, folder: Path) -> None:
        self.host = host
        self.folder = folder
        self.name = f"first-{uuid.uuid4().hex[:6]}"
        (folder / "main.mjs").write_text(SOURCE)
        self.write("Pay")

    def write(self, class_name: str, more: str = "", workflow: str = "") -> None:
        workflow = workflow or f"{self.name}-pay"
        head = f'space = "first"\nname = "{self.name}"\nmain = "main.mjs"\n{more}\n'
        text = f'{head}[[workflows]]\nname = "{workflow}"\nclass = "{class_name}"\n'
        (self.folder / "saisei.toml").write_text(text)

    def run(self, *arguments: str, status: int = 0) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "saisei_cli", *arguments, "--data-dir", str(self.host.data_dir)]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=90)
        assert done.returncode == status, done.stderr
        assert "Traceback" not in done.stderr
        return done

    @property
    def workflow(self) -> str:
        return f"{self.name}-pay"


@pytest.fixture
def app(host: DevHost, tmp_path: Path) -> App:
    return App(host, tmp_path)


def test_an_instance_from_its_first_event_to_its_last(app: App) -> None:
    """W-020, Design 6: ids of dots are reachable; show says what is waited for; nothing is cut in a pipe."""
    app.run("deploy", str(app.folder / "saisei.toml"))
    for instance_id in (".", ".."):
        app.run("workflows", "create", app.workflow, "--id", instance_id)
        shown = eventually(lambda one=instance_id: _waiting(app, one), within_seconds=30)
        assert "event approval; timeout 20" in shown
        sent = json.loads(app.run("workflows", "send-event", app.workflow, instance_id, "approval").stdout)
        assert sent == {"id": instance_id, "event": "approval", "accepted": True}
        assert "x" * 300 in app.run("workflows", "tail", app.workflow, instance_id).stdout


def _waiting(app: App, instance_id: str) -> str:
    shown = app.run("workflows", "show", app.workflow, instance_id).stdout
    return shown if "waiting" in shown.splitlines()[0] else ""


def test_a_failure_tells_its_step_its_cause_and_its_place(app: App) -> None:
    """W-013, S-22, Design 6: show, the last event and the log name the step and the last attempt's error."""
    app.run("deploy", str(app.folder))
    app.run("workflows", "create", app.workflow, "--id", "one", "--params", '{"item": "gold"}')
    lines = app.run("workflows", "tail", app.workflow, "one", "--json").stdout.splitlines()
    said = 'step "charge" failed 2 times, the last time with RangeError: no funds'
    assert json.loads(lines[-1])["error"] == {"name": "step_failed", "message": said}
    shown = app.run("workflows", "show", app.workflow, "one").stdout
    assert said in shown
    assert "charge\tdo\terrored\t2\tRangeError: no funds" in shown
    logged = app.run("logs", "--worker", app.name).stdout
    assert f"{app.name}/{app.workflow}/one  paying for gold" in logged
    assert 'attempt 1 of step "charge" failed: RangeError: no funds' in logged
    assert "(main.mjs:6:" in logged
    assert str(Path(sys.prefix)) not in logged


def test_a_create_before_any_deploy(app: App) -> None:
    """W-026, Design 6: the refusal says what is missing, and how to make it."""
    app.run("deploy", str(app.folder))
    app.run("resources", "delete", f"{app.name}.deployment")
    refused = app.run("workflows", "create", app.workflow, status=1)
    assert "no active Deployment" in refused.stderr
    assert "saisei deploy DIR" in refused.stderr


def test_wrong_classes_are_told_apart(app: App) -> None:
    """DW-03, Design 6: the entry, the class, what is exported; what was left, and how to remove it."""
    app.write("Missing")
    refused = app.run("deploy", str(app.folder), status=1)
    assert f"[[workflows]] '{app.workflow}' with class = 'Missing'" in refused.stderr
    assert "(those that it exports: Pay)" in refused.stderr
    assert "write `export class Missing" in refused.stderr
    assert f"remove everything with: saisei destroy {app.folder} --data-dir" in refused.stderr
    app.run("destroy", str(app.folder), "--yes")
    app.write("Idle")
    assert (
        "main.mjs exports Idle: it must be a class with a method run"
        in app.run("deploy", str(app.folder), status=1).stderr
    )
    app.run("destroy", str(app.folder), "--yes")


def test_handlers_in_terms_of_the_project_file(app: App) -> None:
    """MW-10, Design 6: a handler that is declared and missing is told with the key that declared it."""
    app.write("Pay", 'handlers = ["fetch"]')
    refused = app.run("deploy", str(app.folder), status=1)
    assert "handlers_mismatch" in refused.stderr
    assert 'saisei.toml declares the handlers ["fetch"] (endpoint = true declares fetch' in refused.stderr


def test_a_workflow_of_another_worker(app: App, host: DevHost, tmp_path_factory: pytest.TempPathFactory) -> None:
    """H-084, Design 6: a taken name is told with its owner; a class that would change, with what it is."""
    app.run("deploy", str(app.folder))
    other = App(host, tmp_path_factory.mktemp("other"))
    other.write("Pay", workflow=app.workflow)
    assert f"belongs to the Worker '{app.name}'" in other.run("deploy", str(other.folder), status=1).stderr
    app.write("Idle")
    assert (
        "is made of the class 'Pay', which cannot change to 'Idle'"
        in app.run("deploy", str(app.folder), status=1).stderr
    )


def test_destroy_leaves_nothing_of_the_app(app: App) -> None:
    """WD-12, DW-07: everything of the app goes, in the order that works, after a yes; then there is nothing."""
    app.run("deploy", str(app.folder))
    app.run("workflows", "create", app.workflow, "--id", "one")
    assert "say --yes" in app.run("destroy", str(app.folder), status=1).stderr
    app.run("destroy", str(app.folder), "--yes")
    assert not [each["name"] for each in app.host.client.resources(space="first") if each["name"].startswith(app.name)]
    assert "nothing of" in app.run("destroy", str(app.folder), "--yes").stderr


def test_a_tail_outlives_a_restart_of_the_gateway(app: App, host: DevHost) -> None:
    """S-05, Design 6: a tail goes on by itself when the Host was away, without a gap or a duplicate."""

    app.run("deploy", str(app.folder))
    app.run("workflows", "create", app.workflow, "--id", "one")
    eventually(lambda: _waiting(app, "one"), within_seconds=30)
    command = [sys.executable, "-m", "saisei_cli", "workflows", "tail", app.workflow, "one", "--json"]
    tail = subprocess.Popen(
        [*command, "--data-dir", str(host.data_dir)], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    assert tail.stdout is not None
    ids = [json.loads(tail.stdout.readline())["eventId"]]
    os.kill(host.service_pid("gateway"), signal.SIGKILL)
    app.run("workflows", "send-event", app.workflow, "one", "approval")
    ids += [json.loads(line)["eventId"] for line in tail.stdout]
    assert tail.wait(timeout=60) == 0
    assert ids == list(range(1, len(ids) + 1))
