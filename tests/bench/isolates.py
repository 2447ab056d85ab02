"""How many trivial one-step contexts the pool alone runs in a second, with a listener that answers at once.

    python tests/bench/isolates.py [--contexts 5000] [--in-flight 50] [--steps 1]

Prints one JSON object: rate, latency of a context in ms, how its stop was proven.
"""

from __future__ import annotations

import argparse
import asyncio
import collections
import json
import os
import statistics
import time

import uvloop

from saisei_runtime.code import Module, WorkerCode
from saisei_runtime.isolates.pool import IsolatePool, IsolateSettings
from saisei_runtime.isolates.port import (
    Completed,
    ContextEnd,
    ContextHandle,
    DoSucceeded,
    Resolve,
    StepCall,
    WorkflowStart,
)

SOURCE = """
export class Report {
  async run(event, step) {
    let last;
    for (let i = 0; i < %d; i++) last = await step.do(`step-${i}`, async () => ({ n: event.params.n + i }));
    return last;
  }
}
export default {};
"""


class InstantEngine:
    """Answers each step at once, as if every commit took no time."""

    def __init__(self) -> None:
        self.handles: dict[str, ContextHandle] = {}
        self.early: dict[str, list[tuple[int, Resolve]]] = {}
        self.ends: dict[str, asyncio.Future[ContextEnd]] = {}

    def on_step(self, context_id: str, call_id: int, call: StepCall) -> None:
        if isinstance(call, DoSucceeded):
            self.handles[context_id].reply(call_id, Resolve(call.result))

    def on_ended(self, context_id: str, end: ContextEnd) -> None:
        self.ends.pop(context_id).set_result(end)


async def measure(contexts: int, in_flight: int, steps: int) -> dict[str, object]:
    source = (SOURCE % steps).encode()
    code = WorkerCode("v1", "w1", "main.mjs", {"main.mjs": Module("application/javascript+module", source)})
    pool = IsolatePool(IsolateSettings())
    engine = InstantEngine()
    took: list[float] = []
    proofs: collections.Counter[str] = collections.Counter()
    numbers = iter(range(contexts + 400))

    async def one(number: int) -> None:
        name = f"c{number}"
        begun = time.perf_counter()
        engine.ends[name] = end = asyncio.get_running_loop().create_future()
        start = WorkflowStart(name, code, "Report", name, b'{"n":1}')
        engine.handles[name] = await pool.start_workflow(start, engine)
        ended = await end
        del engine.handles[name]
        assert isinstance(ended.outcome, Completed), ended
        took.append((time.perf_counter() - begun) * 1000)
        proofs[ended.proof.kind.value] += 1

    async def client(until: int) -> None:
        for number in numbers:
            await one(number)
            if number >= until:
                return

    await asyncio.gather(*(client(400 - in_flight) for _ in range(in_flight)))  # warm up
    took.clear()
    begun, cpu = time.perf_counter(), time.process_time()
    await asyncio.gather(*(client(contexts + 400) for _ in range(in_flight)))
    seconds, cpu_seconds = time.perf_counter() - begun, time.process_time() - cpu
    await pool.close()
    took.sort()
    return {
        "contexts": len(took),
        "steps_each": steps,
        "in_flight": in_flight,
        "contexts_per_second": round(len(took) / seconds, 1),
        "latency_ms": {
            "p50": round(statistics.median(took), 2),
            "p99": round(took[int(len(took) * 0.99) - 1], 2),
            "max": round(took[-1], 2),
        },
        "python_cpu_ms_each": round(cpu_seconds * 1000 / len(took), 3),
        "proofs": dict(proofs),
        "cores": os.cpu_count(),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--contexts", type=int, default=5000)
    parser.add_argument("--in-flight", type=int, default=50)
    parser.add_argument("--steps", type=int, default=1)
    given = parser.parse_args()
    print(json.dumps(uvloop.run(measure(given.contexts, given.in_flight, given.steps))))


if __name__ == "__main__":
    main()
