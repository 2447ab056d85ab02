"""Holds a control service at a named point, so that a test can kill something exactly there.

Python imports this module in each process that has its folder on PYTHONPATH; it does nothing but in a control service
with SAISEI_TEST_FAILPOINTS, a folder. A file named like a point arms it. The control service that gets there renames it
to `{point}.reached` and goes on when that file is gone. Nothing of this is in the product.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any


async def _hold(folder: Path, point: str) -> None:
    reached = folder / f"{point}.reached"
    try:
        (folder / point).rename(reached)
    except FileNotFoundError:
        return
    while reached.exists():
        await asyncio.sleep(0.005)


def _install(folder: Path) -> None:
    from saisei_control.assignments.watch import Replicas  # noqa: PLC0415
    from saisei_control.operations.executor import Executor  # noqa: PLC0415
    from saisei_control.operations.outcome import Done  # noqa: PLC0415

    claim, settle, wait = Executor._claim_due, Executor._settle, Replicas.wait_effective

    async def claim_due(self: Executor) -> float:
        # Whatever is accepted from here on stays queued.
        await _hold(folder, "accepted")
        return await claim(self)

    async def wait_effective(self: Replicas, *arguments: Any) -> bool:
        # The assignment is committed: a runtime may have it by now.
        await _hold(folder, "dispatched")
        return await wait(self, *arguments)

    async def settle_attempt(self: Executor, found: Any, outcome: Any) -> None:
        # The backend has done its part; the Operation does not say so yet.
        if isinstance(outcome, Done):
            await _hold(folder, "done")
        await settle(self, found, outcome)

    replacements: list[tuple[type, str, Callable[..., Awaitable[Any]]]] = [
        (Executor, "_claim_due", claim_due),
        (Executor, "_settle", settle_attempt),
        (Replicas, "wait_effective", wait_effective),
    ]
    for owner, name, replacement in replacements:
        setattr(owner, name, replacement)


if os.environ.get("SAISEI_TEST_FAILPOINTS") and "saisei_control" in sys.orig_argv:
    _install(Path(os.environ["SAISEI_TEST_FAILPOINTS"]))
