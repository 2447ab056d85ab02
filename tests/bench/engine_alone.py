"""How fast the engine alone is: one-step instances per second over scripted contexts, without Node and gRPC.

python tests/bench/engine_alone.py [--seconds 5] [--in-flight 50] [--steps 1] [--url sqlite:////tmp/x.db]
"""

from __future__ import annotations

import argparse
import asyncio
import secrets
import shutil
import sys
import tempfile
import time
from pathlib import Path

import uvloop

sys.path.insert(0, str(Path(__file__).parent.parent / "engine"))

from engine_fakes import Host

from saisei_runtime.store import migrate_runtime
from saisei_service.database import open_database


async def measure(url: str, seconds: float, in_flight: int, steps: int) -> None:
    database = open_database(url)
    migrate_runtime(database)
    host = Host(database)

    def program(event, step):
        for number in range(steps):
            yield step.do(f"step-{number}", lambda: b'{"ok":true}')
        return b'{"done":true}'

    host.define(program)
    await host.start()
    watch = host.engine.watch("wf")
    ended: dict[str, asyncio.Event] = {}

    async def follow() -> None:
        async for changes in watch:
            for instance_id, status, _ in changes:
                if status == "complete":
                    ended.pop(instance_id).set()

    follower = asyncio.create_task(follow())
    latencies: list[float] = []
    until = time.perf_counter() + seconds
    number = 0
    life = secrets.token_hex(4)

    async def one_after_the_other() -> None:
        nonlocal number
        while time.perf_counter() < until:
            number += 1
            instance_id = f"{life}-{number}"
            done = ended[instance_id] = asyncio.Event()
            began = time.perf_counter()
            await host.engine.create("wf", instance_id, None)
            await done.wait()
            latencies.append(time.perf_counter() - began)

    began, cpu, loop_cpu = time.perf_counter(), time.process_time(), time.thread_time()
    await asyncio.gather(*(one_after_the_other() for _ in range(in_flight)))
    took, used = time.perf_counter() - began, time.process_time() - cpu
    in_loop = time.thread_time() - loop_cpu
    latencies.sort()
    count = len(latencies)
    print(
        f"{count / took:,.0f} instances/s ({steps} steps, {in_flight} in flight), "
        f"p50 {latencies[count // 2] * 1000:.1f} ms, p99 {latencies[count * 99 // 100] * 1000:.1f} ms, "
        f"{used / count * 1e6:,.0f} µs CPU each ({in_loop / count * 1e6:,.0f} in the event loop), "
        f"{used / took:.2f} cores"
    )
    follower.cancel()
    await host.stop()
    database.close()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=5)
    parser.add_argument("--in-flight", type=int, default=50)
    parser.add_argument("--steps", type=int, default=1)
    parser.add_argument("--url")
    chosen = parser.parse_args()
    folder = tempfile.mkdtemp(prefix="saisei-bench-")
    try:
        url = chosen.url or f"sqlite:///{folder}/bench.db"
        uvloop.run(measure(url, chosen.seconds, chosen.in_flight, chosen.steps))
    finally:
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()
