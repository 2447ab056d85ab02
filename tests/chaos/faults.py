"""What is done to a Host, at random moments: processes killed and frozen, and its database restarted under it."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import threading
import time
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

from tests.support.dev_host import DevHost, eventually

PROCESSES = ("control", "runtime", "gateway", "node")
# Longer than the lease of what a runtime runs, and than the silence after which its children end themselves.
LONG_FREEZE_SECONDS = 11.0


class Faults(threading.Thread):
    """`count` faults, each kind as often as the others, in the order that `rng` gives; `done` says what was done."""

    def __init__(self, host: DevHost, rng: random.Random, count: int, postgres_url: str | None) -> None:
        super().__init__(name="faults")
        self._host = host
        self._rng = rng
        self._postgres_url = postgres_url
        kinds = [(verb, target) for verb in ("kill", "freeze") for target in PROCESSES]
        if postgres_url is not None:
            kinds.append(("restart", "postgresql"))
        self._plan = [kinds[number % len(kinds)] for number in range(count)]
        rng.shuffle(self._plan)
        self._plan.insert(rng.randrange(count), ("freeze for long", "runtime"))
        self.done: list[str] = []
        self.failure: BaseException | None = None

    def run(self) -> None:
        try:
            for verb, target in self._plan:
                time.sleep(self._rng.uniform(0.05, 0.7))
                self._do(verb, target)
                self.done.append(f"{verb} {target}")
        except BaseException as error:
            self.failure = error

    def finish(self) -> None:
        """Waits for the last fault; fails when one could not be done."""
        self.join()
        if self.failure is not None:
            raise self.failure

    def _do(self, verb: str, target: str) -> None:
        if verb == "restart":
            assert self._postgres_url is not None
            restart_cluster(self._postgres_url)
        elif verb == "kill":
            for pid in self._pids(target):
                _signal(pid, signal.SIGKILL)
        else:
            pids = self._pids(target)
            seconds = LONG_FREEZE_SECONDS if verb == "freeze for long" else self._rng.uniform(0.1, 1.5)
            for pid in pids:
                _signal(pid, signal.SIGSTOP)
            time.sleep(seconds)
            for pid in pids:
                _signal(pid, signal.SIGCONT)

    def _pids(self, target: str) -> list[int]:
        def found() -> list[int]:
            with contextlib.suppress(FileNotFoundError, ProcessLookupError, ValueError):
                return self._host.node_pids() if target == "node" else [self._host.service_pid(target)]
            return []

        # A runtime that has just been restarted has no Node process yet.
        pids: list[int] = eventually(found, within_seconds=120)
        return pids


def _signal(pid: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)


def restart_cluster(url: str) -> None:
    """Ends PostgreSQL without a word to its clients, as a crash would, and starts it again with the same options."""
    folder = Path(parse_qs(urlsplit(url).query)["host"][0])
    data = folder / "data"
    program = Path((data / "postmaster.opts").read_text().split()[0])
    owner = data.stat()
    account = {"user": owner.st_uid, "group": owner.st_gid, "extra_groups": []} if os.geteuid() == 0 else {}
    subprocess.run(
        [program.with_name("pg_ctl"), "-D", data, "-w", "-m", "immediate", "-l", folder / "log", "restart"],
        check=True,
        cwd=folder,
        stdout=subprocess.DEVNULL,
        timeout=120,
        **account,  # type: ignore[call-overload]
    )
