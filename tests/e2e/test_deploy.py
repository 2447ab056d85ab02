"""`saisei deploy`: the report example from its folder to its output, and what a second deploy does."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import uuid
from pathlib import Path
from typing import Any

import pytest
from tests.house.regenerate import ROOT
from tests.support.dev_host import DevHost, eventually

EXAMPLE = ROOT / "deploy" / "examples" / "report"


def saisei(host: DevHost, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "saisei_cli", *arguments, "--data-dir", str(host.data_dir)]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)


def deploy(host: DevHost, folder: Path, *options: str) -> dict[str, Any]:
    done = saisei(host, "deploy", str(folder), "--json", *options)
    assert done.returncode == 0, done.stderr
    deployed: dict[str, Any] = json.loads(done.stdout)
    return deployed


def verbs(deployed: dict[str, Any]) -> dict[str, str]:
    return {change["form"]: change["verb"] for change in deployed["changes"]}


@pytest.fixture(scope="module")
def penguins(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The data set, from its package."""
    folder = tmp_path_factory.mktemp("penguins")
    command = [
        sys.executable,
        "-m",
        "pip",
        "install",
        "--quiet",
        "--no-deps",
        "--target",
        str(folder),
        "palmerpenguins",
    ]
    subprocess.run(command, check=True)
    return folder / "palmerpenguins" / "data" / "penguins.csv"


@pytest.fixture(scope="module")
def report(penguins: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The example, made quick."""
    folder = tmp_path_factory.mktemp("example") / "report"
    subprocess.run([sys.executable, str(EXAMPLE / "prepare.py"), str(folder), str(penguins)], check=True)
    project = folder / "saisei.toml"
    project.write_text(re.sub(r"_SECONDS = \d", "_SECONDS = 0", project.read_text()))
    return folder


def small_project(folder: Path, name: str, source: str, *classes: str) -> Path:
    folder.mkdir(exist_ok=True)
    workflows = "".join(
        f'[[workflows]]\nname = "{name}-{each}"\nclass = "{each}"\nbinding = "{each}"\n' for each in classes
    )
    (folder / "saisei.toml").write_text(f'space = "tests"\nname = "{name}"\nmain = "main.mjs"\n{workflows}')
    (folder / "main.mjs").write_text(source)
    return folder


def test_the_example_runs_to_its_report(host: DevHost, report: Path) -> None:
    """MW-11, MW-15, W-042, W-104, W-119: text and wasm modules, retries, an approval, the output document."""
    deployed = deploy(host, report)
    assert set(deployed["workflows"]) == {"reports", "effects"}
    uid, name = deployed["workflows"]["reports"], f"report-{uuid.uuid4().hex[:8]}"
    created = host.client.fetch(deployed["hostname"], f"/?id={name}", "POST", json={"by": "species", "group": "Gentoo"})
    assert created.status == 202, created.body
    eventually(lambda: host.client.instance(uid, name)["status"] == "waiting", within_seconds=30)
    sent = saisei(host, "workflows", "send-event", "reports", name, "approval", "--payload", '{"by": "Ada"}')
    assert sent.returncode == 0, sent.stderr
    output = host.client.wait_instance(uid, name)["output"]
    assert output["approvedBy"] == "Ada"
    assert output["measures"]["body_mass_g"]["n"] == 123
    assert output["measures"]["body_mass_g"]["mean"] == pytest.approx(5076.016)
    tail = saisei(host, "workflows", "tail", "reports", name, "--json")
    types = [json.loads(line)["type"] for line in tail.stdout.splitlines()]
    assert types.count("attempt_errored") == 2
    assert (types[0], types[-1]) == ("workflow_queued", "workflow_completed")


def test_an_equal_deploy_changes_nothing(host: DevHost, report: Path) -> None:
    """Design 6: content that the Host has already makes no new Resource, Operation or generation."""
    first = deploy(host, report)
    second = deploy(host, report)
    assert set(verbs(second).values()) == {"unchanged"}
    assert second["versionUid"] == first["versionUid"]


def test_a_change_makes_a_version_and_prune_takes_the_old_one(host: DevHost, tmp_path: Path) -> None:
    """WD-08, DW-10: new content is a new Bundle and Version; the Deployment moves to it; the old ones can go."""
    source = "export class A { async run() { return { n: %d }; } }\nexport default {};"
    folder = small_project(tmp_path, f"changing-{uuid.uuid4().hex[:6]}", source % 1, "A")
    old = deploy(host, folder)
    (folder / "main.mjs").write_text(source % 2)
    new = deploy(host, folder, "--prune")
    assert new["versionUid"] != old["versionUid"]
    assert new["deploymentUid"] == old["deploymentUid"]
    assert new["workflows"] == old["workflows"]
    versions = [each["uid"] for each in host.client.resources(space="tests") if "/WorkerVersion/" in each["form"]]
    assert new["versionUid"] in versions
    assert old["versionUid"] not in versions
    (uid,) = new["workflows"].values()
    created = host.client.create_instance(uid)
    assert host.client.wait_instance(uid, created["id"])["output"] == {"n": 2}


def test_a_class_can_be_added_later(host: DevHost, tmp_path: Path) -> None:
    """DW-03, DW-10: a Workflow whose class the present allocation lacks is made after the Version that has it."""
    name = f"growing-{uuid.uuid4().hex[:6]}"
    one = "export class A { async run() { return {}; } }\n"
    b = "constructor(env) { this.env = env; }\n  async run() { return { has: Object.keys(this.env) }; }"
    two = f"{one}export class B {{ {b} }}\n"
    deploy(host, small_project(tmp_path, name, one + "export default {};", "A"))
    grown = deploy(host, small_project(tmp_path, name, two + "export default {};", "A", "B"))
    uid = grown["workflows"][f"{name}-B"]
    created = host.client.create_instance(uid)
    assert sorted(host.client.wait_instance(uid, created["id"])["output"]["has"]) == ["A", "B"]


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("export default {};\nconst = 1;\nexport class A { run() {} }", r"main\.mjs line 2"),
        ('import "./missing.mjs";\nexport class A { run() {} }\nexport default {};', r"missing\.mjs"),
    ],
)
def test_a_module_that_does_not_load_is_named(host: DevHost, tmp_path: Path, source: str, said: str) -> None:
    """MW-14: the Version never becomes Ready; the command ends with status 1 and names module and line."""
    folder = small_project(tmp_path, f"broken-{uuid.uuid4().hex[:6]}", source, "A")
    done = saisei(host, "deploy", str(folder))
    assert done.returncode == 1
    assert re.search(said, done.stderr), done.stderr
    # Repaired, the same project deploys.
    (folder / "main.mjs").write_text("export default {};\nexport class A { run() {} }")
    deploy(host, folder)


def test_a_class_without_run_is_named(host: DevHost, tmp_path: Path) -> None:
    """W-080, DW-03: a class without `run` is refused where it would be selected, by its name."""
    folder = small_project(tmp_path, f"idle-{uuid.uuid4().hex[:6]}", "export class A {}\nexport default {};", "A")
    done = saisei(host, "deploy", str(folder))
    assert done.returncode == 1
    assert re.search(r"\bA\b", done.stderr), done.stderr
