"""W1 … W6: throughput, latency, CPU and memory of whole workflows through gRPC (`python -m tests.bench.workflows`).

Starts a Host of its own with `saisei dev` on SQLite (`synchronous=FULL`), deploys `tests/bench/app`, runs the
workloads named on the command line (all by default), and prints one JSON object and a table. See README.md beside
this file.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import sys
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import uvloop

from saisei.common.v1.common_pb2 import Document
from saisei.runtime.v1 import workflows_pb2 as pb
from saisei.runtime.v1.workflows_pb2_grpc import WorkflowServiceStub
from saisei_service.credentials import user_metadata
from saisei_service.rpc import open_channel

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.bench.host import BenchHost
from tests.bench.measure import percentile, process_tree, usage

IN_FLIGHT = 50
_TERMINAL = (pb.INSTANCE_STATUS_COMPLETE, pb.INSTANCE_STATUS_ERRORED, pb.INSTANCE_STATUS_TERMINATED)


@dataclass
class Result:
    """One workload's figures; seconds, milliseconds and kilobytes as the names say."""

    name: str
    figures: dict[str, float] = field(default_factory=dict)

    def set(self, **figures: float) -> None:
        self.figures.update({key: round(value, 3) for key, value in figures.items()})


class Driver:
    """A gRPC client that creates instances and learns of status changes from one watch per workflow."""

    def __init__(self, host: BenchHost) -> None:
        self._host = host
        self._metadata = user_metadata(host.token)
        self.stub = WorkflowServiceStub(open_channel(host.grpc_runtime))
        self._waiting: dict[tuple[str, pb.InstanceStatus | None], asyncio.Future[pb.InstanceChange]] = {}
        self._watches: list[asyncio.Task[None]] = []

    async def watch(self, workflow_uid: str) -> None:
        established = asyncio.Event()
        self._watches.append(asyncio.create_task(self._follow(workflow_uid, established)))
        await established.wait()

    async def _follow(self, workflow_uid: str, established: asyncio.Event) -> None:
        call = self.stub.WatchInstances(pb.WatchInstancesRequest(workflow_uid=workflow_uid), metadata=self._metadata)
        async for message in call:
            established.set()
            for change in message.changes:
                self._note(change)

    def _note(self, change: pb.InstanceChange) -> None:
        wanted = self._waiting.pop((change.id, change.status), None)
        if wanted is None and change.status in _TERMINAL:
            wanted = self._waiting.pop((change.id, None), None)
        if wanted is not None and not wanted.done():
            wanted.set_result(change)

    def reaches(self, instance_id: str, status: pb.InstanceStatus | None = None) -> asyncio.Future[pb.InstanceChange]:
        """Settles when the instance gets the status; None: any terminal one."""
        future: asyncio.Future[pb.InstanceChange] = asyncio.get_running_loop().create_future()
        self._waiting[(instance_id, status)] = future
        return future

    async def create(self, workflow_uid: str, instance_id: str, params: dict[str, Any] | None = None) -> None:
        request = pb.CreateInstanceRequest(workflow_uid=workflow_uid, id=instance_id)
        if params is not None:
            request.params.CopyFrom(Document(canonical_json=json.dumps(params).encode()))
        await self.stub.CreateInstance(request, metadata=self._metadata)

    async def send(self, workflow_uid: str, instance_id: str, event_type: str) -> None:
        payload = Document(canonical_json=b'{"approved":true}')
        await self.stub.SendEvent(
            pb.SendEventRequest(workflow_uid=workflow_uid, id=instance_id, type=event_type, payload=payload),
            metadata=self._metadata,
        )

    async def get(self, workflow_uid: str, instance_id: str) -> pb.Instance:
        return await self.stub.GetInstance(
            pb.GetInstanceRequest(workflow_uid=workflow_uid, id=instance_id), metadata=self._metadata
        )

    async def due_ms(self, workflow_uid: str, instance_id: str, seconds: int) -> int:
        """When the sleep of `seconds`, the instance's newest step, is or was due."""
        request = pb.ListStepsRequest(workflow_uid=workflow_uid, id=instance_id)
        steps = (await self.stub.ListSteps(request, metadata=self._metadata)).steps
        return steps[-1].created_at_ms + seconds * 1000

    def close(self) -> None:
        for task in self._watches:
            task.cancel()


async def in_flight(count: int, at_once: int, work: Callable[[int], Awaitable[None]]) -> None:
    """Runs work(0) … work(count-1), never more than `at_once` at a time."""
    numbers = iter(range(count))

    async def worker() -> None:
        for number in numbers:
            await work(number)

    await asyncio.gather(*(worker() for _ in range(min(at_once, count))))


class Bench:
    def __init__(self, host: BenchHost, driver: Driver, scale: float) -> None:
        self.host = host
        self.driver = driver
        self.scale = scale
        self._run = f"{time.time_ns():x}"

    def count(self, full: int) -> int:
        return max(10, int(full * self.scale))

    async def run_to_end(self, name: str, class_name: str, count: int, steps: int) -> Result:
        """`count` instances of a class, IN_FLIGHT at once, each followed to its terminal status."""
        uid = self.host.workflows[class_name]
        await self.driver.watch(uid)
        latencies: list[float] = []

        async def one(number: int, label: str = name) -> None:
            instance_id = f"{label}-{self._run}-{number}"
            done = self.driver.reaches(instance_id)
            began = time.perf_counter()
            await self.driver.create(uid, instance_id)
            change = await done
            latencies.append((time.perf_counter() - began) * 1000)
            if change.status != pb.INSTANCE_STATUS_COMPLETE:
                raise AssertionError(f"{instance_id} ended as {change.status}")

        await in_flight(min(200, count), IN_FLIGHT, lambda number: one(number, f"{name}-warm"))
        latencies.clear()
        before, began = usage(process_tree(self.host.pid)), time.perf_counter()
        await in_flight(count, IN_FLIGHT, one)
        seconds, after = time.perf_counter() - began, usage(process_tree(self.host.pid))
        result = Result(name)
        result.set(
            instances=count,
            instances_per_second=count / seconds,
            steps_per_second=count * steps / seconds,
            p50_ms=percentile(latencies, 0.50),
            p99_ms=percentile(latencies, 0.99),
            cpu_ms_per_instance=(after.cpu_ms - before.cpu_ms) / count,
            rss_mb=after.rss_bytes / 1e6,
        )
        return result

    async def park(self, name: str, class_name: str, status: pb.InstanceStatus, count: int, params: Any) -> list[str]:
        uid = self.host.workflows[class_name]
        await self.driver.watch(uid)
        ids = [f"{name}-{self._run}-{number}" for number in range(count)]

        async def one(number: int) -> None:
            parked = self.driver.reaches(ids[number], status)
            await self.driver.create(uid, ids[number], params)
            await parked

        await in_flight(count, IN_FLIGHT, one)
        return ids

    async def w1(self) -> Result:
        return await self.run_to_end("W1", "OneStep", self.count(2000), 1)

    async def w2(self) -> Result:
        return await self.run_to_end("W2", "TenSteps", self.count(500), 10)

    async def w3(self) -> Result:
        """Sleepers of 5 s: how late they wake, and what a parked one costs in memory."""
        uid, count, seconds = self.host.workflows["Sleeper"], self.count(1000), 5
        # Threads, code and caches of the pool are there before the memory of parked instances is measured.
        await self.park("W3-warm", "Sleeper", pb.INSTANCE_STATUS_SLEEPING, count, {"seconds": 3600})
        before = usage(process_tree(self.host.pid))
        done = {}
        ids = [f"W3-{self._run}-{number}" for number in range(count)]
        for instance_id in ids:
            done[instance_id] = self.driver.reaches(instance_id)
        began = time.perf_counter()
        await self.park("W3", "Sleeper", pb.INSTANCE_STATUS_SLEEPING, count, {"seconds": seconds})
        parked_in = time.perf_counter() - began
        parked = usage(process_tree(self.host.pid))
        due = {}

        async def read_due(number: int) -> None:
            due[ids[number]] = await self.driver.due_ms(uid, ids[number], seconds)

        await in_flight(count, IN_FLIGHT, read_due)
        changes = await asyncio.gather(*done.values())
        lateness = [float(change.at_ms - due[change.id]) for change in changes]
        after = usage(process_tree(self.host.pid))
        result = Result("W3")
        result.set(
            instances=count,
            parked_per_second=count / parked_in,
            lateness_p50_ms=percentile(lateness, 0.50),
            lateness_p99_ms=percentile(lateness, 0.99),
            earliest_ms=min(lateness),
            cpu_ms_per_instance=(after.cpu_ms - before.cpu_ms) / count,
            rss_kb_per_sleeper=(parked.rss_bytes - before.rss_bytes) / 1000 / count,
            rss_mb=after.rss_bytes / 1e6,
        )
        return result

    async def w4(self) -> Result:
        """Waiting instances, one event each: from the first send to the last completion."""
        uid, count = self.host.workflows["Waiter"], self.count(500)
        ids = await self.park("W4", "Waiter", pb.INSTANCE_STATUS_WAITING, count, None)
        latencies: list[float] = []

        async def one(number: int) -> None:
            done = self.driver.reaches(ids[number])
            began = time.perf_counter()
            await self.driver.send(uid, ids[number], "go")
            await done
            latencies.append((time.perf_counter() - began) * 1000)

        before, began = usage(process_tree(self.host.pid)), time.perf_counter()
        await in_flight(count, IN_FLIGHT, one)
        seconds, after = time.perf_counter() - began, usage(process_tree(self.host.pid))
        result = Result("W4")
        result.set(
            instances=count,
            events_per_second=count / seconds,
            p50_ms=percentile(latencies, 0.50),
            p99_ms=percentile(latencies, 0.99),
            cpu_ms_per_instance=(after.cpu_ms - before.cpu_ms) / count,
            rss_mb=after.rss_bytes / 1e6,
        )
        return result

    async def w5(self) -> Result:
        """A long history: 1,000 steps, a 1 s sleep, done; how long from the wake to the end."""
        uid, rounds = self.host.workflows["ManySteps"], 5
        await self.driver.watch(uid)
        wake_to_end: list[float] = []
        began = time.perf_counter()
        for number in range(rounds):
            instance_id = f"W5-{self._run}-{number}"
            done = self.driver.reaches(instance_id)
            await self.driver.create(uid, instance_id, {"steps": 1000})
            change = await done
            wake_to_end.append(float(change.at_ms - await self.driver.due_ms(uid, instance_id, 1)))
        seconds = time.perf_counter() - began
        result = Result("W5")
        result.set(
            instances=rounds,
            steps_per_second=rounds * 1000 / (seconds - rounds),
            wake_to_complete_p50_ms=percentile(wake_to_end, 0.5),
            wake_to_complete_max_ms=max(wake_to_end),
        )
        return result

    async def w6(self) -> Result:
        """SIGKILL of the runtime under 200 ten-step instances: seconds from the kill until all are complete."""
        uid, count = self.host.workflows["TenSteps"], self.count(200)
        ids = [f"W6-{self._run}-{number}" for number in range(count)]
        await in_flight(count, IN_FLIGHT, lambda number: self.driver.create(uid, ids[number]))
        os.kill(self.host.service_pid("runtime"), signal.SIGKILL)
        killed = time.perf_counter()
        await self.host.wait_until_serving()
        back = time.perf_counter()

        async def one(number: int) -> None:
            while (await self.driver.get(uid, ids[number])).status not in _TERMINAL:
                await asyncio.sleep(0.02)

        await in_flight(count, 20, one)
        result = Result("W6")
        result.set(
            instances=count,
            restart_seconds=back - killed,
            complete_after_restart_seconds=time.perf_counter() - back,
        )
        return result


def table(results: list[Result]) -> str:
    lines = []
    for result in results:
        lines.append(result.name)
        lines.extend(f"  {key:<32} {value:>12,.2f}" for key, value in result.figures.items())
    return "\n".join(lines)


async def run(names: list[str], scale: float) -> list[Result]:
    with BenchHost() as host:
        driver = Driver(host)
        bench = Bench(host, driver, scale)
        results = [await getattr(bench, name.lower())() for name in names]
        driver.close()
    return results


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("workloads", nargs="*", default=["W1", "W2", "W3", "W4", "W5", "W6"])
    parser.add_argument("--scale", type=float, default=1.0, help="share of the full instance counts (default 1.0)")
    arguments = parser.parse_args()
    results = uvloop.run(run(arguments.workloads, arguments.scale))
    print(table(results), file=sys.stderr)
    print(json.dumps({result.name: result.figures for result in results}))


if __name__ == "__main__":
    main()
