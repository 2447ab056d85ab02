"""E1 … E5: what event subscriptions cost (`python -m tests.bench.events`).

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
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator
from dataclasses import asdict
from itertools import islice
from pathlib import Path
from typing import Any

import uvloop

from saisei.common.v1.common_pb2 import Document
from saisei.runtime.v1 import feed_pb2 as feed_pb
from saisei.runtime.v1 import workflows_pb2 as pb
from saisei.runtime.v1.feed_pb2_grpc import EventFeedServiceStub
from saisei.runtime.v1.workflows_pb2_grpc import WorkflowServiceStub
from saisei_service.credentials import user_metadata
from saisei_service.rpc import open_channel

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.bench.event_clients import Connect, events_request
from tests.bench.event_seam import seam
from tests.bench.host import BenchHost
from tests.bench.measure import own_cpu_ms, percentile, process_tree, usage

IDLE = 2000
ACTIVE = 200
ROUNDS = 3
# A heartbeat of each stream is in it.
IDLE_SECONDS = 16.0
Figures = dict[str, float]
Connection = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class Bench:
    """One Host and its clients: gRPC to the runtime, and plain HTTPS/1.1 to the gateway with next to no cost here."""

    def __init__(self, host: BenchHost) -> None:
        self._host = host
        self._metadata = user_metadata(host.token)
        self._channel = open_channel(host.grpc_runtime)
        self._stub = WorkflowServiceStub(self._channel)
        self._tls = ssl.create_default_context(cafile=str(host.ready["caFile"]))
        authority = str(host.ready["origin"]).removeprefix("https://")
        server, _, port = authority.partition(":")
        self.connect = Connect(host.grpc_runtime, server, int(port), str(host.ready["caFile"]), host.token)
        self._clients: asyncio.subprocess.Process | None = None

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

    def _grpc(self, class_name: str, instance_id: str, types: list[str] | None = None, most: int = 1) -> Any:
        request = pb.SubscribeEventsRequest(
            workflow_uid=self._host.workflows[class_name],
            id=instance_id,
            filter=None if types is None else pb.EventFilter(types=types),
            max_batch=most,
        )
        return self._stub.SubscribeEvents(request, metadata=self._metadata)

    async def feed(self, class_name: str, ids: list[str], calls: list[Any]) -> None:
        """A reader of each instance, all in one call, until each has said that it has its history."""
        call = EventFeedServiceStub(self._channel).Feed(metadata=self._metadata)
        calls.append(call)
        workflow = self._host.workflows[class_name]
        opens = [
            feed_pb.FeedCommand(key=key, open=feed_pb.FeedOpen(workflow_uid=workflow, id=name))
            for key, name in enumerate(ids)
        ]
        await call.write(feed_pb.FeedRequest(commands=opens))
        live: set[int] = set()
        while len(live) < len(ids):
            for record in (await call.read()).records:
                live.add(record.key)
                # Asks for what is to come.
                pull = feed_pb.FeedCommand(key=record.key, pull=feed_pb.FeedPull())
                await call.write(feed_pb.FeedRequest(commands=[pull]))

    async def watch(self, class_name: str, count: int, calls: list[Any]) -> None:
        """Streams of WatchInstances that have said that they are established."""
        for _ in range(count):
            request = pb.WatchInstancesRequest(workflow_uid=self._host.workflows[class_name])
            call = self._stub.WatchInstances(request, metadata=self._metadata)
            await call.read()
            calls.append(call)

    async def grpc(self, class_name: str, instance_id: str, most: int = 1) -> AsyncIterator[bytes]:
        """Each event as JSON, through the runtime's gRPC, at most `most` of them in a message."""
        call = self._grpc(class_name, instance_id, most=most)
        try:
            async for first in call:
                for event in (first, *first.following):
                    yield event.event_json
        finally:
            call.cancel()

    async def batched(self, class_name: str, instance_id: str) -> AsyncIterator[bytes]:
        async for event in self.grpc(class_name, instance_id, 256):
            yield event

    async def http(self, class_name: str, instance_id: str) -> AsyncIterator[bytes]:
        """Each event as JSON, as JSON lines over HTTPS from the gateway."""
        async for line in self.http_on(await self.connection(), class_name, instance_id):
            yield line

    async def connection(self) -> Connection:
        """One that has had an answer, and is kept alive."""
        connect = self.connect
        reader, writer = await asyncio.open_connection(
            "127.0.0.1", connect.port, ssl=self._tls, server_hostname=connect.server
        )
        path = "/.well-known/takoform/v2"
        writer.write(f"GET {path} HTTP/1.1\r\nhost: {connect.server}:{connect.port}\r\n\r\n".encode())
        head = await reader.readuntil(b"\r\n\r\n")
        await reader.readexactly(int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0]))
        return reader, writer

    async def http_on(self, connection: Connection, class_name: str, instance_id: str) -> AsyncIterator[bytes]:
        reader, writer = connection
        writer.write(events_request(self.connect, self._host.workflows[class_name], instance_id))
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

    # --- many readers of one instance ---

    async def start(self) -> None:
        """The process of the clients, before gRPC has threads here."""
        self._clients = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "tests.bench.event_clients", json.dumps(asdict(self.connect))),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
        )

    async def attach(self, face: str, class_name: str, instance_id: str) -> None:
        """ACTIVE readers in the process of the clients, once each has its first event."""
        workflow = self._host.workflows[class_name]
        job = {"face": face, "workflow": workflow, "instance": instance_id, "count": ACTIVE}
        assert self._clients is not None and self._clients.stdin is not None
        self._clients.stdin.write(json.dumps(job).encode() + b"\n")
        assert await self._said() == {"attached": ACTIVE}

    async def done(self) -> Figures:
        """What the attached readers got: `events`, `messages` and their own `cpu_ms`, when their streams have ended."""
        return await self._said()

    async def _said(self) -> Figures:
        assert self._clients is not None and self._clients.stdout is not None
        said: Figures = json.loads(await self._clients.stdout.readline())
        return said

    async def go(self, class_name: str, instance_id: str) -> None:
        request = pb.SendEventRequest(workflow_uid=self._host.workflows[class_name], id=instance_id, type="go")
        await self._stub.SendEvent(request, metadata=self._metadata)

    async def terminate(self, class_name: str, instance_id: str) -> None:
        request = pb.TerminateRequest(workflow_uid=self._host.workflows[class_name], id=instance_id)
        await self._stub.Terminate(request, metadata=self._metadata)

    async def close(self) -> None:
        if self._clients is not None:
            self._clients.kill()
            await self._clients.wait()

    # --- costs ---

    def pid(self, service: str) -> int:
        return self._host.service_pid(service)

    def rss(self, service: str) -> int:
        return usage([self.pid(service)]).rss_bytes

    def cpu_ms(self) -> float:
        """Of every process of the Host."""
        return usage(process_tree(self._host.pid)).cpu_ms

    def cpu_of(self, service: str) -> float:
        """Milliseconds of one service, without its children."""
        return own_cpu_ms(self.pid(service))


Face = Callable[[str, str], AsyncIterator[bytes]]


async def _settle(bench: Bench) -> None:
    """Until the Host has been quiet for a second, in CPU and in memory."""
    before = None
    for _ in range(30):
        await asyncio.sleep(1)
        now = bench.cpu_ms(), bench.rss("runtime") + bench.rss("gateway")
        if before is not None and now[0] - before[0] < 60 and abs(now[1] - before[1]) < 200_000:
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
    for name, face in (("grpc", bench.grpc), ("batched", bench.batched), ("http", bench.http)):
        before, began = {service: bench.cpu_of(service) for service in ("runtime", "gateway")}, time.perf_counter()
        events = await _drain(face, recorded)
        figures[f"{name}_history_per_s"] = events / (time.perf_counter() - began)
        for service, used in before.items():
            figures[f"{name}_history_{service}_us"] = (bench.cpu_of(service) - used) / events * 1000
        if name == "batched":
            continue
        hot = await bench.create("PacedSteps", {"steps": 100, "pause": 0, "wait": True})
        await bench.attach(name, "PacedSteps", hot)
        began = time.perf_counter()
        await bench.go("PacedSteps", hot)
        got = await bench.done()
        figures[f"{name}_fan_out_per_s"] = got["events"] / (time.perf_counter() - began)
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

    async def open(self, streams: Iterator[AsyncIterator[bytes]]) -> None:
        while part := list(islice(streams, 100)):
            self._tasks += [asyncio.create_task(self._hold(stream)) for stream in part]
            for _ in part:
                await self._ready.acquire()

    async def _hold(self, stream: AsyncIterator[bytes]) -> None:
        seen = 0
        async for _ in stream:
            seen += 1
            if seen == 5:
                self._ready.release()

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


async def idle(bench: Bench) -> Figures:
    """Resident kilobytes of runtime and gateway for each of 2,000 idle subscriptions, and their CPU.

    `connection_gateway_kb` is a TLS connection that has had an answer and has no subscription; `http_…` is what one
    adds on the same connection. `call_runtime_kb` is a stream of the same server that says nothing, `grpc_runtime_kb`
    what a subscription takes beyond that; `feed_runtime_kb` is a reader of a feed, of which there are 1,000 in a call.
    Each is the growth by the second thousand: the first one fills what the allocators had left. Nothing is closed
    before all is measured.
    """
    figures: Figures = {}
    ids = await bench.waiters(IDLE)
    held = Idle()

    def sizes() -> Figures:
        return {service: bench.rss(service) / 1024 for service in ("runtime", "gateway")}

    async def growth(open_some: Callable[[int, int], Awaitable[None]]) -> Figures:
        await open_some(0, IDLE // 2)
        await _settle(bench)
        half = sizes()
        await open_some(IDLE // 2, IDLE)
        await _settle(bench)
        return {service: (size - half[service]) / (IDLE - IDLE // 2) for service, size in sizes().items()}

    async def cpu() -> float:
        before = bench.cpu_ms()
        await asyncio.sleep(IDLE_SECONDS)
        return bench.cpu_ms() - before

    connections: list[Connection] = []

    async def connect(first: int, last: int) -> None:
        for some in range(first, last, 50):
            connections.extend(await asyncio.gather(*(bench.connection() for _ in range(some, some + 50))))

    async def over_http(first: int, last: int) -> None:
        pairs = zip(connections[first:last], ids[first:last], strict=True)
        await held.open(bench.http_on(one, "Waiter", name) for one, name in pairs)

    async def over_grpc(first: int, last: int) -> None:
        await held.open(bench.grpc("Waiter", name) for name in ids[first:last])

    # Code paths, caches, and what the creation of the instances has left.
    for face in (bench.grpc, bench.http):
        warm = Idle()
        await warm.open(face("Waiter", name) for name in ids[:200])
        await warm.close()
    await _settle(bench)
    quiet = await cpu()
    figures["connection_gateway_kb"] = (await growth(connect))["gateway"]
    added = await growth(over_http)
    figures |= {f"http_{service}_kb": size for service, size in added.items()}
    figures["http_kb"] = sum(added.values())
    figures["http_cpu_percent"] = max(0.0, await cpu() - quiet) / IDLE_SECONDS / 10
    busy = await cpu()
    feeds: list[Any] = []
    figures["feed_runtime_kb"] = (await growth(lambda first, last: bench.feed("Waiter", ids[first:last], feeds)))[
        "runtime"
    ]
    figures["call_runtime_kb"] = (await growth(lambda first, last: bench.watch("Waiter", last - first, feeds)))[
        "runtime"
    ]
    whole = (await growth(over_grpc))["runtime"]
    figures["grpc_runtime_kb"] = whole - figures["call_runtime_kb"]
    figures["grpc_cpu_percent"] = max(0.0, await cpu() - busy) / IDLE_SECONDS / 10
    await held.close()
    for call in feeds:
        call.cancel()
    return figures


# --- E4: a hot instance -------------------------------------------------------------------------------------------


async def hot(bench: Bench) -> Figures:
    """Milliseconds of steps of 20 and of 100 ms, alone and with 200 active readers; and what an event costs.

    The readers are a process of the lowest priority, since they would be elsewhere: it delays its own events only.
    """
    figures: Figures = {}
    for pause, steps in ((20, 100), (100, 30)):
        figures |= {f"{key}_{pause}": value for key, value in (await _hot(bench, pause, steps)).items()}
    return figures


async def _hot(bench: Bench, pause: int, steps: int) -> Figures:
    times: dict[str, list[float]] = {"alone": [], "http": [], "grpc": []}
    cpu: dict[str, Figures] = {name: {"runtime": 0.0, "gateway": 0.0} for name in times}
    got: dict[str, Figures] = {name: {"events": 0.0, "messages": 0.0, "cpu_ms": 0.0} for name in times}
    # In turns: whatever else the machine does is in each of them.
    for _ in range(ROUNDS):
        for name, found in times.items():
            instance_id = await bench.create("PacedSteps", {"steps": steps, "pause": pause, "wait": True})
            if name != "alone":
                await bench.attach(name, "PacedSteps", instance_id)
            await _settle(bench)
            before = {service: bench.cpu_of(service) for service in cpu[name]}
            await bench.go("PacedSteps", instance_id)
            stamps = [
                event["timestamp"]
                for event in [json.loads(line) async for line in bench.grpc("PacedSteps", instance_id)]
                if event["type"] == "step_completed"
            ]
            if name != "alone":
                for key, value in (await bench.done()).items():
                    got[name][key] += value
            for service, used in before.items():
                cpu[name][service] += bench.cpu_of(service) - used
            found.append((stamps[-1] - stamps[0]) / (len(stamps) - 1))
    figures = {f"{name}_step_ms": min(found) for name, found in times.items()}
    for name in ("http", "grpc"):
        figures[f"{name}_added_percent"] = (figures[f"{name}_step_ms"] / figures["alone_step_ms"] - 1) * 100
        for service, used in cpu[name].items():
            figures[f"{name}_{service}_us_per_event"] = (used - cpu["alone"][service]) / got[name]["events"] * 1000
        figures[f"{name}_client_us_per_event"] = got[name]["cpu_ms"] / got[name]["events"] * 1000
        figures[f"{name}_events_per_message"] = got[name]["events"] / got[name]["messages"]
    return figures


Workload = Callable[[Bench], Coroutine[Any, Any, Figures]]
WORKLOADS: dict[str, Workload] = {"E1": fan_out, "E2": latency, "E3": idle, "E4": hot, "E5": seam}


async def run(names: list[str]) -> dict[str, Figures]:
    with BenchHost() as host:
        bench = Bench(host)
        await bench.start()
        found = {}
        for name in names:
            found[name] = {key: round(value, 2) for key, value in (await WORKLOADS[name](bench)).items()}
            print(name, (WORKLOADS[name].__doc__ or "").splitlines()[0], file=sys.stderr)
            for key, value in found[name].items():
                print(f"  {key:28} {value:12,.2f}", file=sys.stderr)
        await bench.close()
        return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("workloads", nargs="*", metavar="E1 … E5", help="default: all")
    names = parser.parse_args().workloads or list(WORKLOADS)
    unknown = [name for name in names if name not in WORKLOADS]
    if unknown:
        parser.error(f"no workload {unknown[0]}: choose from {', '.join(WORKLOADS)}")
    found = uvloop.run(run(names))
    print(json.dumps({"cores": os.cpu_count(), "load": os.getloadavg()[0], **found}))


if __name__ == "__main__":
    main()
