"""Event streams over HTTPS: framing, where they begin, how they end, and what a client that goes leaves behind."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator

import httpx
import pytest
from tests.gateway.conftest import Host, HostFactory
from tests.gateway.test_host_api import assert_problem
from tests.gateway.waiting import eventually, within_a_second
from tests.support.stopwatch import Stopwatch

from saisei.runtime.v1 import workflows_pb2 as pb

EVENTS = "/apis/saisei/v1/workflows/w-1/instances/i/events"
LINES = {"accept": "application/x-ndjson"}


async def with_history(host: Host, *types: str, ended: bool = False) -> None:
    host.runtime.add(pb.Instance(id="i", status=pb.INSTANCE_STATUS_RUNNING))
    for number, name in enumerate(types, 1):
        await host.runtime.emit("i", name, last=ended and number == len(types))


async def records(response: httpx.Response) -> AsyncIterator[bytes]:
    """Server-sent events as blocks, JSON lines as lines."""
    separator = b"\n\n" if response.headers["content-type"].startswith("text/event-stream") else b"\n"
    buffer = b""
    async for chunk in response.aiter_raw():
        buffer += chunk
        while separator in buffer:
            record, _, buffer = buffer.partition(separator)
            yield record
    assert buffer == b""


async def test_server_sent_events(host: Host) -> None:
    """S-02, S-07, design 6: id, event and data of each record, then an explicit end."""
    await with_history(host, "workflow_queued", "workflow_started", "workflow_completed", ended=True)
    response = await host.client.get(EVENTS, headers={"accept": "text/event-stream"})
    assert response.headers["content-type"].split(";")[0] == "text/event-stream"
    assert response.headers["cache-control"] == "no-store"
    blocks = response.text.split("\n\n")
    assert blocks[0].split("\n")[:2] == ["id: 1", "event: workflow_queued"]
    data = json.loads(blocks[0].split("\n")[2].removeprefix("data: "))
    assert data == {"instanceId": "i", "eventId": 1, "timestamp": 1, "type": "workflow_queued"}
    assert blocks[2].startswith("id: 3\nevent: workflow_completed\n")
    assert blocks[3] == 'event: end\ndata: {"type":"end"}'
    assert blocks[4] == ""


async def test_json_lines(host: Host) -> None:
    """S-02, S-07, design 6: one event a line, then {"type":"end"}."""
    await with_history(host, "workflow_queued", "workflow_terminated", ended=True)
    response = await host.client.get(EVENTS, headers=LINES)
    assert response.headers["content-type"] == "application/x-ndjson"
    lines = [json.loads(line) for line in response.text.splitlines()]
    assert [line["type"] for line in lines] == ["workflow_queued", "workflow_terminated", "end"]


@pytest.mark.parametrize(
    ("accept", "media_type"),
    [
        (None, "text/event-stream"),
        ("*/*", "text/event-stream"),
        ("application/x-ndjson, */*", "application/x-ndjson"),
        ("text/event-stream;q=0.5, application/x-ndjson", "application/x-ndjson"),
        ("application/x-ndjson;q=0.5, text/event-stream;q=0.9", "text/event-stream"),
        ("Application/X-NDJSON", "application/x-ndjson"),
        ("application/*", "application/x-ndjson"),
        ("text/html", "text/event-stream"),
    ],
)
async def test_framing_by_accept(host: Host, accept: str | None, media_type: str) -> None:
    """Design 5: NDJSON for a client that prefers it, else server-sent events."""
    await with_history(host, "workflow_terminated", ended=True)
    request = host.client.build_request("GET", EVENTS)
    del request.headers["accept"]
    if accept is not None:
        request.headers["accept"] = accept
    response = await host.client.send(request)
    assert response.headers["content-type"].split(";")[0] == media_type


async def test_history_then_live(host: Host) -> None:
    """S-02, S-05, S-12: the recorded comes at once, the rest as it happens; readers are independent."""
    await with_history(host, "workflow_queued")
    client = host.client
    async with client.stream("GET", EVENTS, headers=LINES) as one, client.stream("GET", EVENTS) as two:
        first, second = records(one), records(two)
        assert json.loads(await anext(first))["eventId"] == 1
        assert b"id: 1\n" in await anext(second)
        await host.runtime.emit("i", "workflow_started")
        assert json.loads(await anext(first))["eventId"] == 2
        assert b"id: 2\n" in await anext(second)
        await host.runtime.emit("i", "workflow_completed", last=True)
        assert [json.loads(line)["type"] async for line in first] == ["workflow_completed", "end"]


async def test_cursor(host: Host) -> None:
    """S-05, S-08: the cursor is exclusive; Last-Event-ID wins over it; after the last event only end comes."""
    await with_history(host, "workflow_queued", "workflow_started", "workflow_completed", ended=True)

    async def ids(query: str = "", **headers: str) -> list[int]:
        response = await host.client.get(EVENTS + query, headers=LINES | headers)
        return [line["eventId"] for line in map(json.loads, response.text.splitlines()) if line["type"] != "end"]

    assert await ids("?cursor=0") == [1, 2, 3]
    assert await ids("?cursor=1") == [2, 3]
    assert await ids("?cursor=0", **{"last-event-id": "2"}) == [3]
    assert await ids("?cursor=3") == []
    assert await ids("?cursor=9007199254740991") == []


async def test_filter(host: Host) -> None:
    """S-06, S-07: only the named types, ids as they are; an empty filter matches nothing and ends all the same."""
    await with_history(host, "workflow_queued", "step_started", "workflow_completed", ended=True)
    response = await host.client.get(EVENTS + "?filter=step_started,rollback_errored,step_started", headers=LINES)
    assert [json.loads(line).get("eventId") for line in response.text.splitlines()] == [2, None]
    assert list(host.runtime.last("FeedOpen").filter.types) == ["rollback_errored", "step_started"]
    assert (await host.client.get(EVENTS + "?filter=", headers=LINES)).text == '{"type":"end"}\n'
    assert host.runtime.last("FeedOpen").HasField("filter")


@pytest.mark.parametrize(
    ("query", "headers"),
    [
        ("?cursor=-1", {}),
        ("?cursor=1.0", {}),
        ("?cursor=x", {}),
        ("?cursor=", {}),
        ("?cursor=9007199254740992", {}),
        ("?cursor=1&cursor=2", {}),
        ("?filter=unknown", {}),
        ("?filter=step_started,", {}),
        ("?limit=1", {}),
        ("", {"last-event-id": "abc"}),
        ("", {"last-event-id": "-1"}),
    ],
)
async def test_bad_options(host: Host, query: str, headers: dict[str, str]) -> None:
    """S-09: bad options are refused before anything is subscribed."""
    await with_history(host, "workflow_queued")
    assert_problem(await host.client.get(EVENTS + query, headers=headers), 400, "invalid_request")
    assert host.runtime.count("FeedOpen") == 0


async def test_unknown_instance(host: Host) -> None:
    """W-027, S-13: an unknown instance is a 404 problem and not a broken stream."""
    assert_problem(await host.client.get(EVENTS), 404, "unknown_instance")


async def test_heartbeats(run_host: HostFactory) -> None:
    """Design 5, 6: a silent stream shows that it is alive, with comments or empty lines, before its first event too."""
    async with run_host(heartbeat_seconds=0.05) as host:
        await with_history(host)
        async with host.client.stream("GET", EVENTS) as one, host.client.stream("GET", EVENTS, headers=LINES) as two:
            comments, lines = records(one), records(two)
            for _ in range(2):
                assert await anext(comments) == b": heartbeat"
                assert await anext(lines) == b""
            await host.runtime.emit("i", "workflow_terminated", last=True)
            seen = [block async for block in comments if not block.startswith(b":")]
            assert seen[-1].startswith(b"event: end")


async def test_cut_stream_has_no_end(host: Host) -> None:
    """S-13, design 5: a stream that the runtime breaks off stops without the end record."""
    await with_history(host, "workflow_queued")
    async with host.client.stream("GET", EVENTS, headers=LINES) as response:
        lines = records(response)
        assert json.loads(await anext(lines))["eventId"] == 1
        await host.runtime.cut("i")
        assert [line async for line in lines] == []


async def test_disconnect_frees_the_stream(host: Host) -> None:
    """S-11: when the client goes, its stream at the runtime ends within a second, though no event comes."""
    await with_history(host, "workflow_queued")
    async with host.client.stream("GET", EVENTS) as response:
        await anext(records(response))
        assert host.runtime.open_streams == 1
        assert host.gateway.metrics.open_streams("events") == 1
    await within_a_second(lambda: host.runtime.open_streams == 0)
    await within_a_second(lambda: host.gateway.metrics.open_streams("events") == 0)


async def test_stop_ends_streams_at_once(run_host: HostFactory) -> None:
    """S-13, design 6: a stop cuts event streams without waiting for their end, and says no end."""
    async with run_host(shutdown_seconds=30) as host:
        await with_history(host, "workflow_queued")
        async with host.client.stream("GET", EVENTS, headers=LINES) as response:
            lines = records(response)
            await anext(lines)
            stopwatch = Stopwatch()
            host.server.stop()
            assert [line async for line in lines] == []
            assert stopwatch.seconds() < 1
        await eventually(lambda: host.runtime.open_streams == 0)


async def test_slow_reader_blocks_nobody(host: Host) -> None:
    """S-12: a reader that does not read holds up neither the instance nor another reader."""
    await with_history(host, "workflow_queued")
    async with host.client.stream("GET", EVENTS) as slow:
        assert slow.status_code == 200
        for _ in range(3000):
            await host.runtime.emit("i", "step_started")
        await host.runtime.emit("i", "workflow_completed", last=True)
        response = await host.client.get(EVENTS + "?cursor=2999", headers=LINES)
        assert len(response.text.splitlines()) == 4
