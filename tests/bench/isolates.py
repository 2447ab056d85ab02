"""The isolates alone: contexts a second, kills, boots and memory, with a listener that answers at once.

    python -m tests.bench.isolates [--contexts 5000] [--in-flight 50] [--steps 1]

Prints one JSON object and a table: `recycled` contexts leave their thread as they found it; `restored` ones extend
builtins and globals as polyfills do, which is taken back; `killed` ones change the
realm, so each costs its thread, which is replaced; `cold` is the first context of a process that is not there yet.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import sys
import time
from pathlib import Path
from typing import Any

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

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.bench.measure import percentile

SOURCE = """
export class Report {
  async run(event, step) {
    %s
    let last;
    for (let i = 0; i < %d; i++) last = await step.do(`step-${i}`, async () => ({ n: event.params.n + i }));
    return last;
  }
}
export default {};
"""
POLLUTES = "Object.setPrototypeOf(Map.prototype, Set.prototype);"
POLYFILLS = "Array.prototype.sum = function () { return this.length; }; globalThis.app = {};"
IDLE_THREADS = 8
COLD_STARTS = 5


class InstantEngine:
    """Answers each step at once, as if every commit took no time."""

    def __init__(self) -> None:
        self.handles: dict[str, ContextHandle] = {}
        self.ends: dict[str, asyncio.Future[ContextEnd]] = {}

    def on_step(self, context_id: str, call_id: int, call: StepCall) -> None:
        if isinstance(call, DoSucceeded):
            self.handles[context_id].reply(call_id, Resolve(call.result))

    def on_ended(self, context_id: str, end: ContextEnd) -> None:
        self.ends.pop(context_id).set_result(end)


class Contexts:
    """Runs contexts of one Worker in a pool of its own; keeps how long each took and how long its stop proof, in ms."""

    def __init__(self, settings: IsolateSettings, steps: int, before: str = "") -> None:
        source = (SOURCE % (before, steps)).encode()
        module = Module("application/javascript+module", source)
        self._code = WorkerCode("v1", "w1", "main.mjs", {"main.mjs": module})
        self._engine = InstantEngine()
        self._count = 0
        self.pool = IsolatePool(settings)
        self.took: list[float] = []
        self.proofs: list[float] = []

    async def one(self) -> None:
        self._count += 1
        name = f"c{self._count}"
        began = time.perf_counter()
        self._engine.ends[name] = end = asyncio.get_running_loop().create_future()
        start = WorkflowStart(name, self._code, "Report", name, b'{"n":1}')
        self._engine.handles[name] = await self.pool.start_workflow(start, self._engine)
        ended = await end
        del self._engine.handles[name]
        assert isinstance(ended.outcome, Completed), ended
        self.took.append((time.perf_counter() - began) * 1000)
        self.proofs.append(ended.proof.milliseconds)

    async def many(self, count: int, in_flight: int) -> float:
        """Seconds for `count` contexts, so many at once; what was noted before is forgotten."""
        self.took.clear()
        self.proofs.clear()
        numbers = iter(range(count))

        async def client() -> None:
            for _ in numbers:
                await self.one()

        began = time.perf_counter()
        await asyncio.gather(*(client() for _ in range(min(in_flight, count))))
        return time.perf_counter() - began

    @property
    def pid(self) -> int:
        return next(iter(self.pool._isolates.values())).process.pid


def resident_mb(pid: int) -> float:
    """Proportional share of memory, in MB."""
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
        if line.startswith("Pss:"):
            return int(line.split()[1]) * 1024 / 1e6
    raise AssertionError("no Pss line")


def cpu_ms(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) * 1000 / os.sysconf("SC_CLK_TCK")


async def rate(count: int, in_flight: int, steps: int, before: str = "") -> dict[str, float]:
    contexts = Contexts(IsolateSettings(), steps, before)
    await contexts.many(min(400, count), in_flight)
    node, python = cpu_ms(contexts.pid), time.process_time()
    seconds = await contexts.many(count, in_flight)
    result = {
        "contexts": count,
        "contexts_per_second": count / seconds,
        "p50_ms": percentile(contexts.took, 0.5),
        "p99_ms": percentile(contexts.took, 0.99),
        "stop_proof_p50_ms": percentile(contexts.proofs, 0.5),
        "node_cpu_ms_each": (cpu_ms(contexts.pid) - node) / count,
        "python_cpu_ms_each": (time.process_time() - python) * 1000 / count,
    }
    await contexts.pool.close()
    return result


async def cold() -> dict[str, float]:
    took = []
    for _ in range(COLD_STARTS):
        contexts = Contexts(IsolateSettings(), 1)
        await contexts.one()
        took.append(contexts.took[0])
        await contexts.pool.close()
    return {"starts": COLD_STARTS, "p50_ms": statistics.median(took), "max_ms": max(took)}


async def memory() -> dict[str, float]:
    """A process with one idle thread, and each further one, after they have run contexts."""
    sizes = []
    for threads in (1, IDLE_THREADS):
        contexts = Contexts(IsolateSettings(warm_threads=threads, max_threads=threads), 1)
        await contexts.many(threads * 100, threads)
        sizes.append(resident_mb(contexts.pid))
        await contexts.pool.close()
    return {"process_with_one_thread_mb": sizes[0], "further_thread_mb": (sizes[1] - sizes[0]) / (IDLE_THREADS - 1)}


async def measure(contexts: int, in_flight: int, steps: int) -> dict[str, Any]:
    parts = {
        "recycled": await rate(contexts, in_flight, steps),
        "restored": await rate(contexts, in_flight, steps, POLYFILLS),
        "killed": await rate(max(50, contexts // 25), in_flight, steps, POLLUTES),
        "cold": await cold(),
        "memory": await memory(),
    }
    return {name: {key: round(value, 3) for key, value in figures.items()} for name, figures in parts.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--contexts", type=int, default=5000)
    parser.add_argument("--in-flight", type=int, default=50)
    parser.add_argument("--steps", type=int, default=1)
    given = parser.parse_args()
    figures = uvloop.run(measure(given.contexts, given.in_flight, given.steps))
    for name, part in figures.items():
        print(name, file=sys.stderr)
        for key, value in part.items():
            print(f"  {key:<32} {value:>12,.2f}", file=sys.stderr)
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
