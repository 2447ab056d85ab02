"""A connection beside and after its event streams: what is kept of it, and that HTTP/1.1 goes on where it was."""

from __future__ import annotations

import asyncio
import gc
import itertools
import json
import os
import random
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from tests.gateway.conftest import Host, HostFactory
from tests.gateway.test_events import EVENTS, with_history
from tests.gateway.waiting import eventually, within_a_second
from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

END = b'{"type":"end"}\n'


class Client:
    """Bytes over TLS."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    def ask(self, path: str, *headers: str, method: str = "GET", body: bytes = b"") -> None:
        self.writer.write(request(path, *headers, method=method) + body)

    async def answer(self) -> tuple[int, bytes]:
        """Status and whole body of the next response."""
        head = (await self._until(b"\r\n\r\n")).lower()
        status = int(head.split()[1])
        if b"transfer-encoding: chunked" not in head:
            length = int(head.partition(b"content-length: ")[2].partition(b"\r\n")[0])
            return status, await asyncio.wait_for(self.reader.readexactly(length), 30)
        body = b""
        while chunk := await self.chunk():
            body += chunk
        return status, body

    async def chunk(self) -> bytes:
        size = int(await self._until(b"\r\n"), 16)
        data = await asyncio.wait_for(self.reader.readexactly(size + 2), 30)
        return data[:-2]

    async def head(self) -> bytes:
        return await self._until(b"\r\n\r\n")

    async def closed(self) -> bool:
        return await asyncio.wait_for(self.reader.read(), 30) == b""

    async def _until(self, end: bytes) -> bytes:
        return await asyncio.wait_for(self.reader.readuntil(end), 30)


def request(path: str, *headers: str, method: str = "GET") -> bytes:
    lines = [f"{method} {path} HTTP/1.1", "host: localhost", "authorization: Bearer writer", *headers]
    return "\r\n".join([*lines, "accept: application/x-ndjson", "", ""]).encode()


@asynccontextmanager
async def connected(host: Host) -> AsyncIterator[Client]:
    connection = socket.create_connection(("127.0.0.1", host.port))
    # Who does not read is noticed after kilobytes and not after megabytes.
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65_536)
    connection.setblocking(False)
    reader, writer = await asyncio.open_connection(sock=connection, ssl=host.tls, server_hostname="localhost")
    try:
        yield Client(reader, writer)
    finally:
        writer.transport.abort()


def kept() -> tuple[int, int]:
    """Requests, and tasks that answer one, in this process."""
    gc.collect()
    requests = sum(isinstance(one, RequestResponseCycle) for one in gc.get_objects())
    return requests, sum("run_asgi" in repr(task.get_coro()) for task in asyncio.all_tasks())


async def nothing_kept() -> None:
    """A look at all objects takes long in a process that has run many tests: few looks, and time for them."""
    async with asyncio.timeout(60):
        while (found := kept()) != (0, 0):
            print("requests and tasks", found)
            await asyncio.sleep(0.1)


async def test_what_is_kept_of_a_waiting_client(host: Host) -> None:
    """Issue 6: of an event stream that waits, and of a connection that has had its answer, neither request nor task."""
    await with_history(host, "workflow_queued")
    await nothing_kept()
    async with connected(host) as one, connected(host) as two, connected(host) as three:
        for client in (one, two):
            client.ask(EVENTS, "x-large: " + "x" * 10_000)
            await client.head()
            await client.chunk()
        three.ask("/openapi.json")
        assert (await three.answer())[0] == 200
        await nothing_kept()
        assert host.gateway.metrics.open_streams("events") == 2
        await host.runtime.emit("i", "workflow_completed", last=True)
        for client in (one, two):
            assert json.loads(await client.chunk())["type"] == "workflow_completed"
            assert await client.chunk() == END
    await eventually(host.is_idle)


async def test_requests_after_a_stream(host: Host) -> None:
    """Design 6, S-07: a connection whose stream has ended takes the next request, a stream or another one."""
    await with_history(host, "workflow_queued", "workflow_completed", ended=True)
    async with connected(host) as client:
        for _ in range(3):
            client.ask(EVENTS)
            status, body = await client.answer()
            assert (status, body.count(b"\n"), body.endswith(END)) == (200, 3, True)
            client.ask(EVENTS + "?cursor=x")
            assert (await client.answer())[0] == 400
            client.ask("/artifacts/v1/sha256/x", "content-length: 5", method="PUT", body=b"12345")
            assert (await client.answer())[0] >= 400
    await eventually(host.is_idle)


async def test_requests_in_one_piece(host: Host) -> None:
    """Design 6: requests that come together are answered in order, those behind a live stream when it has ended."""
    await with_history(host, "workflow_queued")
    async with connected(host) as client:
        client.writer.write(request(EVENTS) + request("/openapi.json") + request(EVENTS + "?cursor=1"))
        await client.head()
        assert json.loads(await client.chunk())["eventId"] == 1
        await host.runtime.emit("i", "workflow_terminated", last=True)
        assert json.loads(await client.chunk())["eventId"] == 2
        assert [await client.chunk(), await client.chunk()] == [END, b""]
        assert (await client.answer())[0] == 200
        status, body = await client.answer()
        assert (status, body.count(b"\n"), body.endswith(END)) == (200, 2, True)
        client.ask("/nowhere")
        assert (await client.answer())[0] == 404
    await eventually(host.is_idle)


async def test_a_head_that_comes_in_parts(host: Host) -> None:
    """Design 6: the end of one response takes nothing from a request whose head has begun to come."""
    await with_history(host, "workflow_queued")
    async with connected(host) as client:
        later = request(EVENTS + "?filter=", "x-later: yes")
        client.writer.write(request(EVENTS) + later[:60])
        await client.head()
        await client.chunk()
        await host.runtime.emit("i", "workflow_terminated", last=True)
        assert [len(await client.chunk()) > 0 for _ in range(3)] == [True, True, False]
        client.writer.write(later[60:])
        assert await client.answer() == (200, END)


async def test_any_requests_in_any_pieces(host: Host) -> None:
    """Design 6, H-001: streams, refusals before a body has come, chunked bodies with trailers: each has its answer."""
    await with_history(host, "workflow_queued", "workflow_completed", ended=True)
    seed = int(os.environ.get("SAISEI_TEST_SEED", random.randrange(2**32)))
    print("seed", seed)
    rng = random.Random(seed)
    chunked = b"".join(b"5\r\n12345\r\n" for _ in range(9)) + b"0\r\nx-trailer: yes\r\n\r\n"
    put, instances = "/artifacts/v1/sha256/x", EVENTS.removesuffix("/i/events")
    kinds: list[tuple[bytes, int, bytes]] = [
        (request(EVENTS), 200, END),
        (request(EVENTS, "content-length: 5") + b"12345", 200, END),
        (request(EVENTS, "transfer-encoding: chunked") + chunked, 200, END),
        (request(EVENTS + "?cursor=1&filter="), 200, END),
        (request(EVENTS.replace("/i/", "/nobody/")), 404, b""),
        (request(put, "transfer-encoding: chunked", method="PUT") + chunked, 400, b""),
        (request(instances, "content-length: 2", "content-type: application/json", method="POST") + b"[]", 400, b""),
        (request("/openapi.json"), 200, b""),
    ]
    for _ in range(25):
        async with connected(host) as client:
            wanted = [rng.choice(kinds) for _ in range(rng.randint(1, 8))]
            whole = b"".join(one[0] for one in wanted)
            cuts = sorted(rng.sample(range(1, len(whole)), rng.randint(0, 5)))

            async def ask(client: Client = client, whole: bytes = whole, cuts: list[int] = cuts) -> None:
                for first, last in itertools.pairwise([0, *cuts, len(whole)]):
                    client.writer.write(whole[first:last])
                    for _ in range(rng.randint(0, 30)):
                        await asyncio.sleep(0)

            asking = asyncio.create_task(ask())
            for _, status, end in wanted:
                found, body = await client.answer()
                assert (found, body.endswith(end)) == (status, True), body
            await asking
    await eventually(host.is_idle)


async def test_a_connection_that_is_to_close(host: Host) -> None:
    """Design 6: `Connection: close` ends with the stream."""
    await with_history(host, "workflow_terminated", ended=True)
    async with connected(host) as client:
        client.ask(EVENTS, "connection: close")
        assert (await client.answer())[1].endswith(END)
        assert await client.closed()


async def test_a_body_that_nobody_wants(host: Host) -> None:
    """S-11, Design 6: what a client sends in the middle of its stream is not kept, and its going is seen anyway."""
    await with_history(host, "workflow_queued")
    async with connected(host) as client:
        client.ask(EVENTS, "content-length: 4000000")
        await client.head()
        await client.chunk()
        client.writer.write(b"x" * 3_000_000)
        await asyncio.wait_for(client.writer.drain(), 30)
        assert host.gateway.metrics.open_streams("events") == 1
    await within_a_second(host.is_idle)


async def _stand_still(host: Host, client: Client) -> int:
    """A reader of the instance that stops to read until the gateway has noticed; the id of the newest event."""
    client.ask(EVENTS)
    await client.head()
    await client.chunk()
    client.writer.transport.pause_reading()  # type: ignore[attr-defined]
    count = 1
    while not any(getattr(one, "paused", False) for one in host.server.server_state.connections):
        for _ in range(200):
            await host.runtime.emit("i", "step_started")
        count += 200
        # The fake does not give way by itself.
        await asyncio.sleep(0.002)
    return count


@pytest.fixture
def narrow(run_host: HostFactory) -> HostFactory:
    """A Host that notices after kilobytes, and not after megabytes, who does not read."""

    @asynccontextmanager
    async def run(**settings: Any) -> AsyncIterator[Host]:
        async with run_host(**settings) as host:
            listening = host.server.servers[0].sockets[0]
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 65_536)
            await with_history(host, "workflow_queued")
            yield host

    return run


async def test_the_end_waits_for_a_client_that_reads_late(narrow: HostFactory) -> None:
    """S-07, S-12: whoever stands still while its stream ends gets the whole rest, the end, and its next answer."""
    async with narrow() as host:
        async with connected(host) as client:
            count = await _stand_still(host, client)
            await host.runtime.emit("i", "workflow_completed", last=True)
            # Another reader has it all: the end has been here.
            async with connected(host) as other:
                other.ask(f"{EVENTS}?cursor={count - 10}")
                assert (await other.answer())[1].endswith(END)
            client.ask("/openapi.json")
            client.writer.transport.resume_reading()  # type: ignore[attr-defined]
            rest = b""
            while chunk := await client.chunk():
                rest += chunk
            lines = rest.splitlines()
            assert [json.loads(line)["eventId"] for line in lines[:-1]] == list(range(2, count + 2))
            assert lines[-1] + b"\n" == END
            assert (await client.answer())[0] == 200
        await eventually(host.is_idle)


async def test_a_stop_does_not_wait_for_who_stands_still(narrow: HostFactory) -> None:
    """S-13, Design 6: a client that does not read holds up a stop no longer than the grace for any exchange."""
    async with asyncio.timeout(60), narrow(shutdown_seconds=1) as host, connected(host) as client:
        await _stand_still(host, client)
        host.server.stop()
        await eventually(lambda: host.gateway.metrics.open_streams("events") == 0)
        # The block ends once the server has stopped, with the connection still there.


async def test_a_client_that_goes_with_requests_waiting(host: Host, caplog: pytest.LogCaptureFixture) -> None:
    """S-11: requests that wait behind one another end with their connection, and none is a fault of the Host."""
    await with_history(host, "workflow_queued", "workflow_completed", ended=True)
    for turns in range(30):
        async with connected(host) as client:
            client.writer.write(request(EVENTS) * 5 + request("/openapi.json") * 3)
            for _ in range(turns):
                await asyncio.sleep(0)
    await nothing_kept()
    await within_a_second(host.is_idle)
    assert [record.getMessage() for record in caplog.records if record.levelname == "ERROR"] == []


async def test_clients_that_go_at_every_moment(host: Host) -> None:
    """S-11: a connection that breaks off around the head, the first event, or the end leaves nothing behind."""
    for ended in (False, True):
        await eventually(host.is_idle)
        host.runtime.reset()
        await with_history(host, "workflow_queued", "workflow_completed" if ended else "step_started", ended=ended)
        for turns in range(40):
            async with connected(host) as client:
                client.ask(EVENTS)
                for _ in range(turns):
                    await asyncio.sleep(0)
        await within_a_second(host.is_idle)
    await nothing_kept()
