"""Histories that are larger than the heap of the thread that replays them: real Node, results in a real database."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
from engine_fakes import Host

from saisei_runtime.code import Module, WorkerCode
from saisei_runtime.isolates.pool import IsolatePool, IsolateSettings
from saisei_runtime.workflow.engine import PAGE_BYTES
from saisei_runtime.workflow.replay_check import Findings, Replayable, ReplayCheck
from saisei_service.clock import VirtualClock
from saisei_service.database import Database

# Together more than a thread's heap, which is given small here: 1,024 steps of 1 MiB are more than any.
STEPS, LENGTH, HEAP = 90, 1_000_000, 64

SOURCE = f"""
export class Flow {{
  async run(event, step) {{
    const take = async (round) => {{
      let total = 0;
      for (let n = 0; n < {STEPS}; n++) {{
        const found = await step.do(`step ${{n}}`, () => {{
          if (round > 0) throw new Error("an effect ran twice");
          return {{ n, text: "x".repeat({LENGTH}) }};
        }});
        if (found.n !== n || found.text.length !== {LENGTH}) throw new Error(`step ${{n}} gave another result`);
        total += found.text.length;
      }}
      return total;
    }};
    await take(event.params.resumed);
    // Once more, in the same context: what it was given already.
    const again = await take(1);
    await step.sleep("rest", 3600);
    return {{ again }};
  }}
}}
export default {{}};
"""


class OneCode:
    def __init__(self) -> None:
        module = Module("application/javascript+module", SOURCE.encode())
        self.code = WorkerCode("worker-v1", "worker", "main.mjs", {"main.mjs": module})

    async def load(self, version_uid: str) -> WorkerCode:
        return self.code


@pytest.fixture
async def real(database: Database) -> AsyncIterator[Host]:
    pool = IsolatePool(
        IsolateSettings(
            egress=False,
            warm_threads=1,
            max_threads=1,
            thread_heap=HEAP,
            heartbeat_missed_after=120.0,
            orphaned_after=600.0,
            quiet_within=30.0,
            join_within=30.0,
        )
    )
    pool.programs = {}  # type: ignore[attr-defined] - Host.define names scripts, which there are none of
    host = Host(database, VirtualClock(), pool=pool)
    host.deployments.load = OneCode().load  # type: ignore[method-assign]
    host.define(None, "wf")  # type: ignore[arg-type]
    host.deployments.workflows["wf"] = ("worker", "Flow", "space")
    await host.start()
    yield host
    await host.stop()
    await pool.close()


async def _until(host: Host, status: str) -> Any:
    """The view; a context that is lost meanwhile is what the test is about."""
    async with asyncio.timeout(300):
        while True:
            row = await host.engine._reads.instance("wf", "i")
            assert row is not None and row.losses == 0, "its context was lost"
            if row.status == status:
                return await host.engine.get("wf", "i")
            assert not row.terminal, (row.status, row.error_reason, row.error_message)
            await asyncio.sleep(0.02)


async def test_a_history_larger_than_the_heap(real: Host) -> None:
    """W-094, W-041, W-096, Issue 5: its context is never lost; results are given when the code asks for them.

    Neither the run that makes them holds them all, nor the replay, nor the one before a switch (WD-10).
    """
    await real.engine.create("wf", "i", b'{"resumed":0}')
    await _until(real, "sleeping")
    check = ReplayCheck(real.engine._reads, real.deployments, _small_pool)
    found = await check.check([Replayable("wf", "Flow")], ["worker-v1"], 300, 300)
    assert found == Findings((), 1, ())
    real.clock.advance(3600)
    view = await _until(real, "complete")
    assert json.loads(view.output) == {"again": STEPS * LENGTH}
    # Callers read it in pages that fit their memory.
    names: list[str] = []
    cursor = None
    while True:
        steps, cursor, _ = await real.engine.steps("wf", "i", cursor)
        assert sum(len(step.result or b"") for step in steps) <= PAGE_BYTES
        names += [step.name for step in steps]
        if cursor is None:
            break
    assert names == [f"step {n}" for n in range(STEPS)] + ["rest"]


def _small_pool(bindings: Any) -> IsolatePool:
    settings = IsolateSettings(
        egress=False, warm_threads=1, max_threads=1, thread_heap=HEAP, heartbeat_missed_after=120.0
    )
    return IsolatePool(settings, bindings)
