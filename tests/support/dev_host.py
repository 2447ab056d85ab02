"""A real Host for tests and benchmarks: `saisei dev` as a child process on a data folder of its own."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import TracebackType
from typing import Any

from tests.support.stopwatch import Stopwatch

from saisei_cli.client import HostClient
from saisei_cli.connection import Connection
from saisei_cli.deploy.apply import Deployed, deploy
from saisei_cli.deploy.project import read_project

STOP_SECONDS = 60.0


class DevHost:
    """`with DevHost() as host:` starts it and stops it; `host.client` talks to it.

    Services that are killed come back by the supervisor; `service_pid` reads the present ones.
    """

    def __init__(
        self, *arguments: str, data_dir: Path | None = None, environment: dict[str, str] | None = None
    ) -> None:
        self._own_folder = data_dir is None
        self.data_dir = data_dir or Path(tempfile.mkdtemp(prefix="saisei-"))
        self._arguments = arguments
        self._environment = environment or {}
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> DevHost:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()
        if kind is not None:
            self.print_logs()
        if self._own_folder:
            shutil.rmtree(self.data_dir, ignore_errors=True)

    def start(self) -> None:
        command = [sys.executable, "-m", "saisei_cli", "dev", "--data-dir", str(self.data_dir)]
        self._process = subprocess.Popen(
            [*command, "--listen", "127.0.0.1:0", *self._arguments],
            stdout=subprocess.PIPE,
            stderr=(self.data_dir / "dev.stderr").open("wb"),
            env=os.environ | self._environment,
        )
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            self.print_logs()
            raise AssertionError("saisei dev ended early: " + (self.data_dir / "dev.stderr").read_text()[-4000:])
        self.ready: dict[str, Any] = json.loads(line)
        self.token: str = self.ready["token"]
        self.client = HostClient(
            Connection(self.ready["origin"], self.token, Path(self.ready["caFile"])), patience_seconds=30
        )

    def stop(self) -> int:
        """Ends it as Ctrl-C would and returns the exit status."""
        if self._process is None:
            return 0
        self.client.close()
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
        try:
            return self._process.wait(timeout=STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            raise

    def wait(self) -> int:
        """The exit status, once it has ended for another reason than `stop`."""
        assert self._process is not None
        return self._process.wait(timeout=STOP_SECONDS)

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    @property
    def grpc_runtime(self) -> str:
        return str(self.ready["grpc"]["runtime"])

    def service_pid(self, service: str) -> int:
        return int(json.loads((self.data_dir / "dev.json").read_text())["pids"][service])

    def node_pids(self) -> list[int]:
        """The Node processes below the runtime service."""
        found = []
        for task in Path(f"/proc/{self.service_pid('runtime')}/task").glob("*/children"):
            try:
                children = task.read_text().split()
            except (FileNotFoundError, ProcessLookupError):
                continue
            for child in children:
                try:
                    if Path(f"/proc/{child}/comm").read_text().startswith(("node", "MainThread")):
                        found.append(int(child))
                except (FileNotFoundError, ProcessLookupError):
                    continue
        return found

    def stopwatch(self) -> Stopwatch:
        """For promises of this Host: waits of its services and Node processes for a CPU do not count."""
        services = [self.service_pid(service) for service in ("control", "runtime", "gateway")]
        return Stopwatch([*services, *self.node_pids()])

    def deploy(self, folder: Path, secrets: dict[str, str] | None = None) -> Deployed:
        return deploy(self.client, read_project(folder), secrets or {}, lambda change: None)

    def log_lines(self, service: str) -> Iterator[dict[str, Any]]:
        """The structured log of a service so far."""
        for line in (self.data_dir / "logs" / f"{service}.log").read_text(errors="replace").splitlines():
            if line.startswith("{"):
                try:
                    yield json.loads(line)
                except ValueError:
                    continue  # a line that a kill has cut

    def print_logs(self) -> None:
        for path in sorted((self.data_dir / "logs").glob("*.log")):
            print(f"--- {path.name}\n{path.read_text(errors='replace')[-6000:]}")


def eventually(check: Callable[[], Any], within_seconds: float = 30.0, every_seconds: float = 0.05) -> Any:
    """Polls until `check()` returns something true and returns it; the last AssertionError, or one of our own, else.

    The limit is for what never comes, on a machine of any speed; a promise of time is measured with a Stopwatch.
    """
    deadline = time.monotonic() + within_seconds
    while True:
        try:
            value = check()
            if value:
                return value
            failure: AssertionError = AssertionError(f"still {value!r} after {within_seconds} s")
        except AssertionError as error:
            failure = error
        if time.monotonic() > deadline:
            raise failure
        time.sleep(every_seconds)
