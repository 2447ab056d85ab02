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

from saisei_cli.client import HostError

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

    def write(
        self, class_name: str, more: str = "", workflow: str = "", space: str = "first", binding: str = ""
    ) -> None:
        """With one workflow, or without any for the class ""."""
        workflow = workflow or f"{self.name}-pay"
        text = f'space = "{space}"\nname = "{self.name}"\nmain = "main.mjs"\n{more}\n'
        if class_name:
            text += f'[[workflows]]\nname = "{workflow}"\nclass = "{class_name}"\n'
            text += f'binding = "{binding}"\n' if binding else ""
        (self.folder / "saisei.toml").write_text(text)

    def run(self, *arguments: str, status: int = 0, folder: Path | None = None) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "saisei_cli", *arguments, "--data-dir", str(self.host.data_dir)]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=90, cwd=folder)
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
    eventually(lambda: _waiting(app, "one"), within_seconds=30)
    app.run("workflows", "create", app.workflow, "--id", "two")
    app.run("workflows", "terminate", app.workflow, "two")
    asked = app.run("destroy", str(app.folder), status=1).stderr
    assert "say --yes" in asked and "1 live instance would end" in asked
    assert "with 1 live instance (1 waiting) and 1 that has ended" in asked
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


def test_an_end_that_the_host_decided_is_logged(app: App) -> None:
    """W-012, W-121, Design 6: `logs` has a line also of an instance whose code has thrown nothing."""
    (app.folder / "main.mjs").write_text(
        """export class Pay { async run(event, step) {
          if (event.params?.how === "number") return 5;
          step.do("a", () => new Promise(() => {}));
          await step.sleep("b", 1);
        } }
        export default {};
        """
    )
    app.run("deploy", str(app.folder))
    for instance_id, how, said in (
        ("two-steps", "{}", "the instance ended as errored with step_definition_mismatch: step"),
        ("a-number", '{"how": "number"}', "run failed: run returned no document"),
    ):
        app.run("workflows", "create", app.workflow, "--id", instance_id, "--params", how)
        app.run("workflows", "tail", app.workflow, instance_id)
        lines = app.run("logs", "--worker", app.name, "--instance", instance_id).stdout.splitlines()
        (line,) = [line for line in lines if said in line]
        assert f"{app.name}/{app.workflow}/{instance_id}" in line and " error " in line


def test_a_space_that_is_mistyped(app: App) -> None:
    """H-071, Design 6: a second app of one name is said to be one; commands in an app's folder mean the app's Space."""
    app.run("deploy", str(app.folder))
    app.write("Pay", space="frist")
    said = app.run("deploy", str(app.folder)).stderr
    assert "new in the Space 'frist'" in said and "there is one of that name in first" in said
    assert f"saisei destroy {app.folder}" in said
    assert "Space" not in app.run("deploy", str(app.folder)).stderr
    app.run("workflows", "create", app.workflow, "--id", "here", folder=app.folder)
    (found,) = json.loads(app.run("workflows", "list", app.workflow, "--json", folder=app.folder).stdout)
    assert found["id"] == "here"
    assert "several Spaces" in app.run("workflows", "list", app.workflow, status=1).stderr
    assert json.loads(app.run("workflows", "list", app.workflow, "--json", "--space", "first").stdout) == []
    app.run("destroy", str(app.folder), "--yes")
    refused = app.run("workflows", "list", app.workflow, status=1, folder=app.folder).stderr
    assert f"no workflow '{app.workflow}' in the Space 'frist'" in refused and "--space: first" in refused
    assert app.run("workflows", "list", app.workflow).stdout


def test_events_that_no_wait_has_taken_are_shown(app: App) -> None:
    """W-060, W-064, Design 6: `show` counts queued events by type: one of a mistyped type waits for ever."""
    app.run("deploy", str(app.folder))
    app.run("workflows", "create", app.workflow, "--id", "one")
    eventually(lambda: _waiting(app, "one"), within_seconds=30)
    for kind in ("aproval", "aproval", "ünïcode \u2028"):
        app.run("workflows", "send-event", app.workflow, "one", kind)
    shown = app.run("workflows", "show", app.workflow, "one").stdout
    assert "queued: 2 events of the type aproval, taken by no wait yet" in shown
    queued = json.loads(app.run("workflows", "show", app.workflow, "one", "--json").stdout)["queuedEvents"]
    assert [event["type"] for event in queued] == ["aproval", "aproval", "ünïcode \u2028"]
    assert all(event["acceptedAt"].endswith("Z") for event in queued)
    app.run("workflows", "send-event", app.workflow, "one", "approval")
    app.run("workflows", "tail", app.workflow, "one")
    assert json.loads(app.run("workflows", "show", app.workflow, "one", "--json").stdout)["queuedEvents"] == []


def test_a_workflow_is_shown_as_it_is_now(app: App) -> None:
    """DW-05, H-090: by its name too, a workflow is shown ready once its class is deployed, with its counts."""
    app.write("Pay", binding="PAY")
    app.run("deploy", str(app.folder))
    app.run("workflows", "create", app.workflow, "--id", "one")

    def is_counted() -> bool:
        observed = json.loads(app.run("resources", "show", app.workflow, "--json").stdout)["observed"]
        return bool(observed["ready"] and observed["instanceCounts"]["waiting"] == 1)

    eventually(is_counted)


def test_a_class_is_given_up_as_advised(app: App) -> None:
    """DW-06, DW-07, DW-09, Design 6: what the refusal of another class advises can be done, step by step.

    The name then belongs to a workflow with another UID and without instances, whose ids are free.
    """
    app.write("Pay", binding="PAY")
    app.run("deploy", str(app.folder))
    before = json.loads(app.run("resources", "show", app.workflow).stdout)["uid"]
    app.run("workflows", "create", app.workflow, "--id", "one")
    (app.folder / "main.mjs").write_text(SOURCE.replace("class Idle {}", "class Idle { async run() {} }"))
    app.write("Idle", binding="PAY")
    advice = app.run("deploy", str(app.folder), status=1).stderr
    prune, remove = f"deploy {app.folder} --prune", f"resources delete {app.workflow} --space first"
    assert prune in advice and remove in advice
    app.write("")
    app.run(*prune.split())
    app.run(*remove.split())
    app.write("Idle", binding="PAY")
    app.run("deploy", str(app.folder))
    assert json.loads(app.run("resources", "show", app.workflow).stdout)["uid"] != before
    assert json.loads(app.run("workflows", "list", app.workflow, "--json").stdout) == []
    app.run("workflows", "create", app.workflow, "--id", "one")
    assert "workflow_completed" in app.run("workflows", "tail", app.workflow, "one").stdout


def test_a_deploy_that_failed_leaves_no_broken_code(app: App) -> None:
    """Design 6, F-09: Bundles and Versions that were made in vain are taken back; with --json the failure is JSON."""
    app.write("Pay", 'handlers = ["fetch"]')
    refused = app.run("deploy", str(app.folder), "--json", status=1)
    (line,) = refused.stdout.splitlines()
    error = json.loads(line)["error"]
    assert error["code"] == "handlers_mismatch" and "WorkerVersion" in error["message"] and "details" in error["hint"]
    assert "WorkerVersion" not in error["hint"].split("left so far")[-1]
    forms = [each["form"] for each in app.host.client.resources(space="first") if each["name"].startswith(app.name)]
    assert not [form for form in forms if "WorkerVersion" in form or "WorkerBundle" in form]
    # A Host that cannot go on is another matter, and so is a command that is wrong in itself.
    other = app.run("workflows", "show", app.workflow, "nobody", "--json", status=1)
    assert json.loads(other.stdout)["error"]["code"] == "unknown_instance"
    app.write("Pay")
    app.run("deploy", str(app.folder))
    app.write("Pay", 'handlers = ["fetch"]')
    app.run("deploy", str(app.folder), status=1)
    # The one that works is not among them.
    app.run("workflows", "create", app.workflow, "--id", "one")
    eventually(lambda: _waiting(app, "one"), within_seconds=30)
    assert {each["phase"] for each in app.host.client.resources(space="first") if app.name in each["name"]} == {"idle"}


def test_a_clock_that_cannot_be_advanced(app: App) -> None:
    """Design 6: without a virtual clock there is no such path, and the answer says how there would be."""
    with pytest.raises(HostError) as caught:
        app.host.client.advance_clock(1)
    assert caught.value.status == 404 and "--virtual-clock" in caught.value.message


def test_logs_of_nobody(app: App) -> None:
    """Design 6: a name that no Worker, workflow or line has is a mistake, and not an empty log."""
    app.run("deploy", str(app.folder))
    assert app.run("logs", "--worker", app.workflow).stdout == ""
    refused = app.run("logs", "--worker", "nosuch", status=1).stderr
    assert "'nosuch'" in refused and app.name in refused
