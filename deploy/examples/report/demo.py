"""The demo: a Host starts, a workflow Worker is deployed, five instances run, their runtime is killed, all five finish.

`python demo.py --penguins penguins.csv` (see deploy/demo.sh). Ends with status 0 only if each promise was kept.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from checks import check_all, effect_table
from prepare import prepare
from rich.console import Console
from rich.table import Table

from saisei_cli.client import HostClient
from saisei_cli.connection import connect_to
from saisei_cli.workflows import describe_event

# What each instance reports about, and the colour of its lines.
REPORTS = {
    "adelie": ({"by": "species", "group": "Adelie"}, "cyan"),
    "chinstrap": ({"by": "species", "group": "Chinstrap"}, "magenta"),
    "gentoo": ({"by": "species", "group": "Gentoo"}, "green"),
    "biscoe": ({"by": "island", "group": "Biscoe"}, "yellow"),
    "dream": ({"by": "island", "group": "Dream"}, "blue"),
}
KILLED_STEP = "correlate"
PATIENCE_SECONDS = 60.0

console = Console(highlight=False, soft_wrap=True)
Event = dict[str, Any]


class DemoError(Exception):
    """A promise was not kept."""


@dataclass
class Times:
    """Where the time went: (what, seconds), in order."""

    rows: list[tuple[str, float]] = field(default_factory=list)

    @contextmanager
    def measure(self, what: str) -> Iterator[None]:
        began = time.monotonic()
        yield
        self.rows.append((what, time.monotonic() - began))


class Board:
    """The events of all instances as they arrive, and a way to wait until they say something."""

    def __init__(self) -> None:
        self.events: dict[str, list[Event]] = {name: [] for name in REPORTS}
        self.failures: list[BaseException] = []
        self._changed = threading.Condition()

    def add(self, name: str, event: Event) -> None:
        colour = REPORTS[name][1]
        with self._changed:
            self.events[name].append(event)
            console.print(f"[{colour}]{name:>10}[/] {describe_event(event)}")
            self._changed.notify_all()

    def fail(self, error: BaseException) -> None:
        with self._changed:
            self.failures.append(error)
            self._changed.notify_all()

    def wait(self, what: str, reached: Callable[[list[Event]], bool]) -> None:
        """Until `reached` holds for the events of each instance; DemoError after a minute."""
        with self._changed:
            settled = self._changed.wait_for(
                lambda: bool(self.failures) or all(reached(events) for events in self.events.values()), PATIENCE_SECONDS
            )
        if self.failures:
            raise DemoError(f"an event stream failed: {self.failures[0]}")
        if not settled:
            late = [name for name, events in self.events.items() if not reached(events)]
            raise DemoError(f"{what}: not within {PATIENCE_SECONDS:.0f} s for {', '.join(late)}")


def watch(client: HostClient, workflow: str, name: str, board: Board) -> None:
    try:
        for event in client.events(workflow, name):
            board.add(name, event)
    except Exception as error:
        board.fail(error)


def has(event_type: str, step: str | None = None) -> Callable[[list[Event]], bool]:
    """A condition over an instance's events: one of this type (and step) is there."""

    def reached(events: list[Event]) -> bool:
        return any(each["type"] == event_type and step in (None, each.get("stepName")) for each in events)

    return reached


def descendants(pid: int) -> list[int]:
    """Every process below `pid`, as the kernel tells."""
    parents: dict[int, int] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                parents[int(entry.name)] = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            except OSError:
                continue
    found: list[int] = []
    for candidate in parents:
        above = candidate
        while above in parents and above != pid:
            above = parents[above]
        if above == pid and candidate != pid:
            found.append(candidate)
    return found


def kill_runtime(data: Path) -> None:
    """SIGKILL to the runtime service and to each Node process below it: no goodbye, nothing flushed."""
    runtime = int(json.loads((data / "dev.json").read_text())["pids"]["runtime"])
    nodes = descendants(runtime)
    if not nodes:
        raise DemoError("no Node process runs below the runtime service")
    for pid in [runtime, *nodes]:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            continue
    console.rule(f"[bold red]SIGKILL: runtime (pid {runtime}) and {len(nodes)} Node process(es), in mid-step")


@contextmanager
def host(data: Path) -> Iterator[dict[str, Any]]:
    """A `saisei dev` on a free port; ended again whatever happens."""
    command = [sys.executable, "-m", "saisei_cli", "dev", "--data-dir", str(data), "--listen", "127.0.0.1:0"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True)
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        if not line:
            raise DemoError("saisei dev did not start")
        yield json.loads(line)
    finally:
        process.terminate()
        try:
            status = process.wait(PATIENCE_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            status = process.wait()
    if status != 0:
        raise DemoError(f"saisei dev ended with status {status}")


def take_time(project: Path) -> None:
    """Keeps the step that is to be killed running until all five are in it, on the slowest machine, too."""
    settings = project / "saisei.toml"
    settings.write_text(re.sub(r"(?m)^CORRELATION_SECONDS = .*", "CORRELATION_SECONDS = 300", settings.read_text()))


def deploy(project: Path, data: Path) -> dict[str, Any]:
    command = [sys.executable, "-m", "saisei_cli", "deploy", str(project), "--data-dir", str(data), "--json"]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode != 0:
        raise DemoError("saisei deploy failed")
    deployed: dict[str, Any] = json.loads(done.stdout)
    return deployed


def run(client: HostClient, deployed: dict[str, Any], data: Path, board: Board, times: Times) -> None:
    """The five instances, from create to their ends."""
    workflow, effects = deployed["workflows"]["reports"], deployed["workflows"]["effects"]
    with times.measure("run: five instances up to the killed step"):
        for name, (params, _) in REPORTS.items():
            client.create_instance(workflow, name, params)
            threading.Thread(target=watch, args=(client, workflow, name, board), daemon=True).start()
        board.wait(f"step {KILLED_STEP}", has("attempt_started", KILLED_STEP))
        for name in REPORTS:
            wait_for_mark(client, effects, f"{name}.{KILLED_STEP}.1")
    kill_runtime(data)
    before = {name: len(events) for name, events in board.events.items()}
    with times.measure("recovery: from the kill to each instance running again"):
        board.wait("running again", lambda events: len(events) > before[events[0]["instanceId"]])
    with times.measure("the killed step once more, and the sleep"):
        board.wait("waiting for approval", lambda events: has("wait_started")(events) and waits(events))
    console.rule("[bold]approving")
    with times.measure("approvals, and the last step"):
        for name in REPORTS:
            client.send_event(workflow, name, "approval", {"by": f"reviewer of {name}"})
        board.wait("completed", has("workflow_completed"))


def waits(events: list[Event]) -> bool:
    return bool(events) and events[-1]["type"] == "workflow_waiting"


def wait_for_mark(client: HostClient, effects: str, mark: str) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not any(instance["id"] == mark for instance in client.instances(effects)):
        if time.monotonic() > deadline:
            raise DemoError(f"the effect {mark} did not run")
        time.sleep(0.05)


def report(client: HostClient, deployed: dict[str, Any], board: Board, penguins: Path) -> list[str]:
    """Prints outputs and counters; returns what is wrong, which should be nothing."""
    workflow, effects = deployed["workflows"]["reports"], deployed["workflows"]["effects"]
    statuses = {name: client.instance(workflow, name) for name in REPORTS}
    marks = [instance["id"] for instance in client.instances(effects)]
    console.rule("[bold]the five outputs")
    for name, status in statuses.items():
        console.print(f"[{REPORTS[name][1]}]{name:>10}[/] {json.dumps(status.get('output'))}", markup=True)
    answer = client.fetch(deployed["hostname"], "/?id=gentoo")
    console.print(f"\nGET {deployed['url']}?id=gentoo → {answer.status}, {len(answer.body)} bytes")
    console.rule("[bold]effects: how often each ran, and how it was journaled")
    table = Table("instance", "step", "runs", "failed attempts", "cut off by the kill", "committed")
    for row in effect_table(board.events, marks, KILLED_STEP):
        table.add_row(*(str(cell) for cell in row))
    console.print(table)
    wrong = check_all({name: params for name, (params, _) in REPORTS.items()}, statuses, board.events, marks, penguins)
    if answer.status != 200 or json.loads(answer.body).get("status") != "complete":
        wrong.append(f"the Worker answered its Endpoint with {answer.status}")
    return wrong


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--penguins", type=Path, required=True, help="penguins.csv of the Palmer Penguins data set")
    parser.add_argument("--install-seconds", type=float, default=0.0)
    arguments = parser.parse_args()
    times = Times()
    if arguments.install_seconds:
        times.rows.append(("install", arguments.install_seconds))
    board = Board()
    wrong: list[str] = []
    with tempfile.TemporaryDirectory(prefix="saisei-demo-") as folder:
        data, project = Path(folder, "data"), Path(folder, "report")
        try:
            take_time(prepare(project, arguments.penguins))
            with times.measure("all of it on the Host"), host_timed(data, times):
                console.rule("[bold]saisei deploy")
                with times.measure("deploy"):
                    deployed = deploy(project, data)
                with HostClient(connect_to(data), PATIENCE_SECONDS) as client:
                    console.rule("[bold]five instances")
                    run(client, deployed, data, board, times)
                    wrong = report(client, deployed, board, arguments.penguins)
        except Exception as error:
            wrong = [str(error) or repr(error)]
            for log in sorted(data.glob("logs/*.log")):
                console.print(f"the end of {log.name}:\n" + "".join(log.open().readlines()[-15:]), markup=False)
    console.rule("[bold]where the time went")
    table = Table("what", "seconds")
    for what, seconds in times.rows:
        table.add_row(what, f"{seconds:.1f}")
    console.print(table)
    for fault in wrong:
        console.print(f"[bold red]not as promised:[/] {fault}")
    if not wrong:
        console.print("[bold green]All five finished with the right output, and no committed step ran twice.")
    return 1 if wrong else 0


@contextmanager
def host_timed(data: Path, times: Times) -> Iterator[dict[str, Any]]:
    console.rule("[bold]saisei dev")
    began = time.monotonic()
    with host(data) as ready:
        times.rows.append(("start: three services, until ready", time.monotonic() - began))
        console.print(f"ready at {ready['origin']}, services {ready['pids']}")
        yield ready


if __name__ == "__main__":
    sys.exit(main())
