"""Child processes of the supervisor: start, stop, and sweep away what a dead service left behind."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
import signal
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

_BOUND_EXEC = Path(__file__).with_name("bound_exec.py")
_PR_SET_CHILD_SUBREAPER = 36


@dataclass(frozen=True, slots=True)
class ServicePlan:
    """How one service is started. `environment` is complete: nothing else is inherited."""

    name: str
    module: str
    environment: Mapping[str, str]
    log: Path


async def start(plan: ServicePlan) -> asyncio.subprocess.Process:
    """Starts the service in a session of its own (a terminal's Ctrl-C goes to the supervisor alone), logging to its
    file.
    """
    with plan.log.open("ab") as log:
        return await asyncio.create_subprocess_exec(
            sys.executable,
            "-S",
            str(_BOUND_EXEC),
            str(os.getpid()),
            plan.module,
            env=dict(plan.environment),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )


async def stop(process: asyncio.subprocess.Process, grace_seconds: float) -> None:
    """SIGTERM, then SIGKILL to the whole group after the grace."""
    if process.returncode is not None:
        return
    with contextlib.suppress(ProcessLookupError):
        process.terminate()
    try:
        async with asyncio.timeout(grace_seconds):
            await process.wait()
    except TimeoutError:
        kill_group(process.pid)
        await process.wait()


def kill_group(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)


def adopt_orphans() -> None:
    """Makes this process the parent of grandchildren whose parent died, so that `sweep_orphans` finds them."""
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def sweep_orphans(services: Iterable[int]) -> int:
    """Kills and reaps every child that is not one of `services`: a Node process, say, that outlived its runtime.

    Returns how many such processes were found. A process whose end is not yet visible is reaped by the next sweep.
    """
    known = set(services)
    swept = 0
    for pid in _children():
        if pid in known:
            continue
        swept += 1
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        with contextlib.suppress(ChildProcessError):
            os.waitpid(pid, os.WNOHANG)
    return swept


def _children() -> list[int]:
    found: list[int] = []
    for task in Path("/proc/self/task").iterdir():
        with contextlib.suppress(OSError):
            found.extend(int(pid) for pid in (task / "children").read_text().split())
    return found


def ending(returncode: int) -> str:
    """How a process ended, for people."""
    if returncode >= 0:
        return f"status {returncode}"
    try:
        return signal.Signals(-returncode).name
    except ValueError:
        return f"signal {-returncode}"
