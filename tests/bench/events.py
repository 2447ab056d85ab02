"""E1 … E4: what event subscriptions cost (`python -m tests.bench.events`).

Starts a Host of its own with `saisei dev` on SQLite, deploys `tests/bench/app`, measures what is named on the command
line (all by default), and prints one JSON object and a table. See README.md beside this file.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import ssl
import sys
import time
import uuid
from collections.abc import AsyncIterator, Callable, Coroutine
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

IDLE = 2000
ACTIVE = 200
IDLE_SECONDS = 5.0
Figures = dict[str, float]


class Bench:
    """One Host and its clients: gRPC to the runtime, and plain HTTPS/1.1 to the gateway with next to no cost here."""

    def __init__(self, host: BenchHost) -> None:
        self._host = host
        self._metadata = user_metadata(host.token)
        self._stub = WorkflowServiceStub(open_channel(host.grpc_runtime))
        self._tls = ssl.create_default_context(cafile=str(host.ready["caFile"]))
        authority = str(host.ready["origin"]).removeprefix("https://")
        self._server, _, port = authority.partition(":")
        self._port = int(port)

    # --- instances ---

    async def create(self, class_name: str, params: Any = None) -> str:
        instance_id = uuid.uuid4().hex
        document = None if params is None else Document(canonical_json=json.dumps(params).encode())
        request = pb.CreateInstanceRequest(
            workflow_uid=self._host.workflows[class_name], id=instance_id, params=document
        )
        await self._stub.CreateInstance(request, metadata=self._metadata)
        return instance_id

    async def waiters(self, count: int) -> list[str]:
        """Instances that wait, one for each subscription, until all are parked."""
        ids = [await self.create("Waiter") for _ in range(count)]
        await asyncio.gather(*(self._parked(instance_id) for instance_id in ids))
        return ids

    async def _parked(self, instance_id: str) -> None:
        call = self._grpc("Waiter", instance_id, ["workflow_waiting"])
        async for _ in call:
            break
        call.cancel()

    # --- subscriptions ---

    def _grpc(self, class_name: str, instance_id: str, types: list[str] | None = None) -> Any:
        request = pb.SubscribeEventsRequest(
            workflow_uid=self._host.workflows[class_name],
            id=instance_id,
            filter=None if types is None else pb.EventFilter(types=types),
        )
        return self._stub.SubscribeEvents(request, metadata=self._metadata)

    async def grpc(self, class_name: str, instance_id: str) -> AsyncIterator[bytes]:
        """Each event as JSON, through the runtime's gRPC."""
        async for event in self._grpc(class_name, instance_id):
            yield event.event_json

    async def http(self, class_name: str, instance_id: str) -> AsyncIterator[bytes]:
        """Each event as JSON, as JSON lines over HTTPS from the gateway."""
        reader, writer = await asyncio.open_connection(
            "127.0.0.1", self._port, ssl=self._tls, server_hostname=self._server
        )
        path = f"/apis/saisei/v1/workflows/{self._host.workflows[class_name]}/instances/{instance_id}/events"
        writer.write(
            f"GET {path} HTTP/1.1\r\nhost: {self._server}:{self._port}\r\naccept: application/x-ndjson\r\n"
            f"authorization: Bearer {self._host.token}\r\n\r\n".encode()
        )
        try:
            status = await reader.readuntil(b"\r\n\r\n")
            assert b" 200 " in status.split(b"\r\n")[0], status
            while line := await reader.readline():
                if line.startswith(b'{"type":"end"}'):
                    return
                if line.startswith(b"{"):
                    yield line.rstrip()
        finally:
            writer.close()

    # --- costs ---

    def pid(self, service: str) -> int:
        return self._host.service_pid(service)

    def rss(self, service: str) -> int:
        return usage([self.pid(service)]).rss_bytes

    def cpu_ms(self) -> float:
        """Of every process of the Host."""
        return usage(process_tree(self._host.pid)).cpu_ms


Face = Callable[[str, str], AsyncIterator[bytes]]


async def _settle(bench: Bench) -> None:
    """Until the Host has been quiet for a second."""
    before = bench.cpu_ms()
    for _ in range(30):
        await asyncio.sleep(1)
        now = bench.cpu_ms()
        if now - before < 60:
            return
        before = now


# --- E1: fan-out --------------------------------------------------------------------------------------------------


async def _drain(face: Face, instance_id: str, class_name: str = "ManySteps") -> int:
    return len([event async for event in face(class_name, instance_id)])


async def fan_out(bench: Bench) -> Figures:
    """Events a second: history to one reader, and one live instance to 200."""
    figures: Figures = {}
    recorded = await bench.create("ManySteps", {"steps": 1000})
    await _drain(bench.grpc, recorded)
    for name, face in (("grpc", bench.grpc), ("http", bench.http)):
        began = time.perf_counter()
        events = await _drain(face, recorded)
        figures[f"{name}_history_per_s"] = events / (time.perf_counter() - began)
        hot = await bench.create("ManySteps", {"steps": 50})
        began = time.perf_counter()
        counts = await asyncio.gather(*(_drain(face, hot) for _ in range(ACTIVE)))
        # The instance sleeps for its last second.
        figures[f"{name}_fan_out_per_s"] = sum(counts) / (time.perf_counter() - began - 1)
    return figures


# --- E2: from commit to client ------------------------------------------------------------------------------------


async def latency(bench: Bench) -> Figures:
    """Milliseconds from the event's timestamp, taken before its commit, until a client over HTTPS has it."""
    figures: Figures = {}
    for name, face in (("grpc", bench.grpc), ("http", bench.http)):
        late = []
        instance_id = await bench.create("PacedSteps", {"steps": 250, "pause": 10})
        async for event in face("PacedSteps", instance_id):
            late.append(time.time() * 1000 - json.loads(event)["timestamp"])
        # The first ones are history.
        late = late[8:]
        figures |= {f"{name}_p50_ms": percentile(late, 0.5), f"{name}_p99_ms": percentile(late, 0.99)}
    return figures


# --- E3: idle subscriptions -----------------------------------------------------------------------------------


class Idle:
    """Many open subscriptions that have their history and wait."""

    def __init__(self) -> None:
        self._tasks: list[asyncio.Task[None]] = []
        self._ready = asyncio.Semaphore(0)

    async def open(self, face: Face, ids: list[str]) -> None:
        for first in range(0, len(ids), 100):
            part = ids[first : first + 100]
            self._tasks += [asyncio.create_task(self._hold(face, instance_id)) for instance_id in part]
            for _ in part:
                await self._ready.acquire()

    async def _hold(self, face: Face, instance_id: str) -> None:
        seen = 0
        async for _ in face("Waiter", instance_id):
            seen += 1
            if seen == 5:
                self._ready.release()

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


async def idle(bench: Bench) -> Figures:
    """Resident kilobytes of runtime and gateway for each of 2,000 idle subscriptions, and their CPU."""
    figures: Figures = {}
    ids = await bench.waiters(IDLE)
    for name, face in (("grpc", bench.grpc), ("http", bench.http)):
        # A few before, for caches and code paths; allocators keep what they once had, so each face is measured once.
        few = Idle()
        await few.open(face, ids[:100])
        await few.close()
        await _settle(bench)
        before = {service: bench.rss(service) for service in ("runtime", "gateway")}
        quiet = bench.cpu_ms()
        await asyncio.sleep(IDLE_SECONDS)
        quiet = bench.cpu_ms() - quiet
        held = Idle()
        await held.open(face, ids)
        await _settle(bench)
        for service, size in before.items():
            figures[f"{name}_{service}_kb_each"] = (bench.rss(service) - size) / IDLE / 1024
        busy = bench.cpu_ms()
        await asyncio.sleep(IDLE_SECONDS)
        busy = bench.cpu_ms() - busy
        await held.close()
        figures[f"{name}_cpu_percent"] = max(0.0, busy - quiet) / IDLE_SECONDS / 10
    return figures


# --- E4: a hot instance -------------------------------------------------------------------------------------------


async def hot(bench: Bench) -> Figures:
    """Milliseconds of steps of 20 and of 100 ms, alone and with 200 active subscribers, whose own CPU is in it too."""
    figures: Figures = {}
    for pause in (20, 100):
        figures |= {f"{key}_{pause}": value for key, value in (await _hot(bench, pause)).items()}
    return figures


async def _hot(bench: Bench, pause: int) -> Figures:
    figures: Figures = {}
    for name, face in (("alone", None), ("grpc", bench.grpc), ("http", bench.http)):
        times = []
        for _ in range(3):
            instance_id = await bench.create("PacedSteps", {"steps": 40, "pause": pause})
            readers = [
                asyncio.create_task(_drain(face, instance_id, "PacedSteps")) for _ in range(ACTIVE if face else 0)
            ]
            stamps = [json.loads(event)["timestamp"] async for event in bench.grpc("PacedSteps", instance_id)]
            await asyncio.gather(*readers)
            # The second half, when all have attached.
            half = stamps[len(stamps) // 2 : -1]
            times.append((half[-1] - half[0]) / (len(half) - 1) * 4)
        figures[f"{name}_step_ms"] = min(times)
    for name in ("grpc", "http"):
        figures[f"{name}_added_percent"] = (figures[f"{name}_step_ms"] / figures["alone_step_ms"] - 1) * 100
    return figures


Workload = Callable[[Bench], Coroutine[Any, Any, Figures]]
WORKLOADS: dict[str, Workload] = {"E1": fan_out, "E2": latency, "E3": idle, "E4": hot}


async def run(names: list[str]) -> dict[str, Figures]:
    with BenchHost() as host:
        bench = Bench(host)
        found = {}
        for name in names:
            found[name] = {key: round(value, 2) for key, value in (await WORKLOADS[name](bench)).items()}
            print(name, (WORKLOADS[name].__doc__ or "").splitlines()[0], file=sys.stderr)
            for key, value in found[name].items():
                print(f"  {key:28} {value:12,.2f}", file=sys.stderr)
        return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("workloads", nargs="*", metavar="E1 … E4", help="default: all")
    names = parser.parse_args().workloads or list(WORKLOADS)
    unknown = [name for name in names if name not in WORKLOADS]
    if unknown:
        parser.error(f"no workload {unknown[0]}: choose from {', '.join(WORKLOADS)}")
    found = uvloop.run(run(names))
    print(json.dumps({"cores": os.cpu_count(), "load": os.getloadavg()[0], **found}))


if __name__ == "__main__":
    main()
