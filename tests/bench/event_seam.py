"""E5: how soon a reader of a running instance is on its live tail, and what the events around that seam wait for."""

from __future__ import annotations

import asyncio
import json
import random
import time
from contextlib import aclosing
from typing import TYPE_CHECKING

from tests.bench.measure import percentile

if TYPE_CHECKING:
    from tests.bench.events import Bench

# Readers that attach to one instance, one after the other.
SEAMS = 40
# Events after the seam that are looked at.
AFTER = 8
CLASS = "PacedSteps"


async def seam(bench: Bench) -> dict[str, float]:
    """Milliseconds around the moment at which a reader of a running instance leaves its history for the live tail.

    `…_seam_…` is from asking for the stream until the last event has come that was written before; `…_after_…` is from
    the timestamps of the events that follow until they have come. `history_events` of them were read on the average.
    """
    figures: dict[str, float] = {}
    for name in ("grpc", "batched", "http"):
        instance_id = await bench.create(CLASS, {"steps": 1000, "pause": 10})
        seams: list[float] = []
        after: list[float] = []
        history = 0
        for _ in range(SEAMS):
            await asyncio.sleep(random.uniform(0.03, 0.1))
            read, took, late = await _attach(bench, name, instance_id)
            history += read
            seams.append(took)
            after += late
        await bench.terminate(CLASS, instance_id)
        figures[f"{name}_history_events"] = history / SEAMS
        for figure, found in (("seam", seams), ("after", after)):
            figures[f"{name}_{figure}_p50_ms"] = percentile(found, 0.5)
            figures[f"{name}_{figure}_p99_ms"] = percentile(found, 0.99)
    return figures


async def _attach(bench: Bench, name: str, instance_id: str) -> tuple[int, float, list[float]]:
    """How many events of history one reader got, the milliseconds until it had them, and the delays of those after."""
    # What a connection takes to be made is not meant.
    connection = await bench.connection() if name == "http" else None
    history = 0
    late: list[float] = []
    asked = caught_up = time.time() * 1000
    if connection is not None:
        events = bench.http_on(connection, CLASS, instance_id)
    else:
        events = bench.grpc(CLASS, instance_id, 256 if name == "batched" else 1)
    async with aclosing(events):  # type: ignore[type-var]
        async for line in events:
            now, written = time.time() * 1000, json.loads(line)["timestamp"]
            if written <= asked:
                history, caught_up = history + 1, now
            else:
                late.append(now - written)
            if len(late) == AFTER:
                break
    return history, caught_up - asked, late
