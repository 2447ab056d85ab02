"""Readers of event streams in a process of their own, as cheap as they can be: they stand for other machines.

`python -m tests.bench.event_clients CONNECT` takes a JSON object with how to reach the Host; then each line of stdin is
a job `{face, workflow, instance, count}`. It prints `{"attached": count}` once each reader has its first event, and
`{"events", "messages", "cpu_ms"}` when all streams have said that they are done.
"""

from __future__ import annotations

import asyncio
import json
import os
import resource
import ssl
import sys
from dataclasses import dataclass
from typing import Any

import uvloop

from saisei.runtime.v1 import workflows_pb2 as pb
from saisei.runtime.v1.workflows_pb2_grpc import WorkflowServiceStub
from saisei_service.credentials import user_metadata
from saisei_service.rpc import open_channel

END = b'{"type":"end"}'


@dataclass(frozen=True, slots=True)
class Connect:
    """How to reach a Host: the runtime's gRPC address, and the gateway on this machine."""

    grpc: str
    server: str
    port: int
    ca_file: str
    token: str


class LinesProtocol(asyncio.Protocol):
    """Counts the JSON lines of one stream. `attached` after the first, `done` after the end record."""

    def __init__(self, head: bytes) -> None:
        loop = asyncio.get_running_loop()
        self.attached: asyncio.Future[None] = loop.create_future()
        self.done: asyncio.Future[None] = loop.create_future()
        self.events = 0
        self.reads = 0
        self._head = head
        self._tail = b""
        self.transport: Any = None

    def connection_made(self, transport: Any) -> None:
        self.transport = transport
        transport.write(self._head)

    def data_received(self, data: bytes) -> None:
        self.reads += 1
        self.events += data.count(b"\n{")
        if not self.attached.done() and b"eventId" in data:
            self.attached.set_result(None)
        self._tail = self._tail[-len(END) :] + data if len(data) < len(END) else data
        if END in self._tail:
            # The end is a line too.
            self.events -= 1
            self.done.set_result(None)
            self.transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        for future in (self.attached, self.done):
            if not future.done():
                future.set_exception(ConnectionError("a stream was cut"))


def events_request(connect: Connect, workflow: str, instance: str) -> bytes:
    path = f"/apis/saisei/v1/workflows/{workflow}/instances/{instance}/events"
    return (
        f"GET {path} HTTP/1.1\r\nhost: {connect.server}:{connect.port}\r\naccept: application/x-ndjson\r\n"
        f"authorization: Bearer {connect.token}\r\n\r\n"
    ).encode()


class Clients:
    def __init__(self, connect: Connect) -> None:
        self._connect = connect
        self._tls = ssl.create_default_context(cafile=connect.ca_file)
        self._stub = WorkflowServiceStub(open_channel(connect.grpc))

    async def run(self, job: dict[str, Any]) -> None:
        began = _cpu_ms()
        await (self._http(job) if job["face"] == "http" else self._grpc(job))
        self._result |= {"cpu_ms": _cpu_ms() - began}
        _say(self._result)

    async def _http(self, job: dict[str, Any]) -> None:
        connect, loop = self._connect, asyncio.get_running_loop()
        head = events_request(connect, job["workflow"], job["instance"])
        streams = []
        for _ in range(job["count"]):
            _, stream = await loop.create_connection(
                lambda: LinesProtocol(head), "127.0.0.1", connect.port, ssl=self._tls, server_hostname=connect.server
            )
            streams.append(stream)
        await asyncio.gather(*(stream.attached for stream in streams))
        _say({"attached": len(streams)})
        await asyncio.gather(*(stream.done for stream in streams))
        self._result = {
            "events": sum(stream.events for stream in streams),
            "messages": sum(stream.reads for stream in streams),
        }

    async def _grpc(self, job: dict[str, Any]) -> None:
        attached = asyncio.Semaphore(0)
        counts = [0, 0]

        async def read() -> None:
            request = pb.SubscribeEventsRequest(workflow_uid=job["workflow"], id=job["instance"], max_batch=256)
            first = True
            async for event in self._stub.SubscribeEvents(request, metadata=user_metadata(self._connect.token)):
                counts[0] += 1 + len(event.following)
                counts[1] += 1
                if first:
                    first = False
                    attached.release()

        readers = [asyncio.create_task(read()) for _ in range(job["count"])]
        for _ in readers:
            await attached.acquire()
        _say({"attached": len(readers)})
        await asyncio.gather(*readers)
        self._result = {"events": counts[0], "messages": counts[1]}


def _cpu_ms() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return (used.ru_utime + used.ru_stime) * 1000


def _say(value: dict[str, Any]) -> None:
    print(json.dumps(value), flush=True)


async def serve(connect: Connect) -> None:
    clients = Clients(connect)
    loop = asyncio.get_running_loop()
    while line := await loop.run_in_executor(None, sys.stdin.readline):
        await clients.run(json.loads(line))


if __name__ == "__main__":
    # They would not be on the Host's machine: whatever the Host has to do comes first.
    os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
    uvloop.run(serve(Connect(**json.loads(sys.argv[1]))))
