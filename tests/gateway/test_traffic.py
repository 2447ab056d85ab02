"""Requests for Workers by Host header, over HTTPS."""

from __future__ import annotations

import asyncio
import ssl
from typing import Any

import httpx
import pytest
from tests.gateway.conftest import Host
from tests.gateway.test_host_api import assert_problem
from tests.gateway.waiting import eventually, within_a_second

from saisei_contract.errors import SaiseiError


async def test_request_head(host: Host) -> None:
    """EP-03, MW-20: method, absolute URL, lower-case hostname and the client's own headers reach the runtime."""
    headers = {
        "x-a": "1",
        "authorization": "Basic abc",
        "te": "trailers",
        "connection": "keep-alive, x-hop",
        "x-hop": "1",
    }
    forged = {"x-forwarded-for": "10.0.0.1", "forwarded": "for=10.0.0.1"}
    request = host.client.build_request(
        "POST",
        "/a%2Fb?q=%20x&q=2",
        content=b"hi",
        headers={"host": f"Hello.Workers.localhost:{host.port}", **headers, **forged},
    )
    response = await host.client.send(request)
    assert (response.status_code, response.text) == (201, "made")
    head = host.runtime.last("Fetch")
    assert (head.hostname, head.method, head.has_body) == ("hello.workers.localhost", "POST", True)
    assert head.url == f"https://hello.workers.localhost:{host.port}/a%2Fb?q=%20x&q=2"
    seen = [(header.name, header.value) for header in head.headers]
    assert ("x-a", "1") in seen
    assert ("authorization", "Basic abc") in seen
    assert ("host", f"Hello.Workers.localhost:{host.port}") in seen
    assert [value for name, value in seen if name == "x-forwarded-for"] == ["127.0.0.1"]
    assert ("x-forwarded-proto", "https") in seen
    assert not {"te", "connection", "x-hop", "forwarded", "keep-alive"} & {name for name, _ in seen}
    assert host.runtime.metadata[-1]["authorization"].startswith("Service ")


async def test_response_head(host: Host) -> None:
    """MW-23: repeated headers stay apart, those of one connection are dropped; one Date is written."""
    response = await host.worker("GET", "/")
    await response.aread()
    assert response.status_code == 201
    assert response.headers.get_list("set-cookie") == ["a=1", "b=2"]
    assert "x-private" not in response.headers
    assert "keep-alive" not in response.headers
    assert len(response.headers.get_list("date")) == 1
    assert "server" not in response.headers
    assert not host.runtime.last("Fetch").has_body


async def test_both_bodies_stream(host: Host) -> None:
    """MW-23: the response begins while the request is still being sent; nothing waits for the whole body."""
    echoed: asyncio.Queue[bytes] = asyncio.Queue()

    async def body() -> Any:
        yield b"one"
        await eventually(lambda: host.runtime.received == b"one")
        yield b"two" * 100_000

    response = await host.worker("POST", "/echo", content=body())
    async for chunk in response.aiter_raw():
        echoed.put_nowait(chunk)
    assert b"".join(echoed.get_nowait() for _ in range(echoed.qsize())) == b"one" + b"two" * 100_000


async def test_response_is_not_buffered(host: Host) -> None:
    """MW-23: what the Worker has written is at the client before the rest exists."""
    response = await host.worker("GET", "/hang")
    chunks = response.aiter_raw()
    assert await anext(chunks) == b"first"
    host.runtime.release.set()
    assert [chunk async for chunk in chunks] == [b"last"]


@pytest.mark.parametrize("hostname", ["other.workers.localhost", "127.0.0.1", "example.com", "localhost.evil"])
async def test_unknown_hostname(host: Host, hostname: str) -> None:
    """EP-03: a hostname without an Endpoint is a 404 problem."""
    response = await host.worker("GET", "/", hostname=hostname)
    await response.aread()
    assert_problem(response, 404, "not_found")


async def test_origin_in_any_spelling(host: Host) -> None:
    """H-041: the origin's host is the Host's own, in any case, with and without port and root dot."""
    for spelling in ("LOCALHOST", f"localhost.:{host.port}", "localhost:1"):
        response = await host.client.get("/.well-known/takoform/v2", headers={"host": spelling})
        assert response.status_code == 200


async def test_malformed_host(host: Host) -> None:
    """RFC 9112 3.2, H-001: a request with a bad, missing or second Host is a 400 problem."""
    for lines in (b"host: a/b\r\n", b"", b"host: localhost\r\nhost: localhost\r\n", b"host: a@b\r\n"):
        answer = await raw(host, b"GET / HTTP/1.1\r\n" + lines + b"connection: close\r\n\r\n")
        assert answer.startswith(b"HTTP/1.1 400 ")
        assert b"application/problem+json" in answer


async def raw(host: Host, request: bytes, until: bytes | None = None) -> bytes:
    """What the gateway answers to these bytes: up to `until`, or up to the end of the connection."""
    reader, writer = await asyncio.open_connection("127.0.0.1", host.port, ssl=host.tls, server_hostname="localhost")
    writer.write(request)
    answer = await asyncio.wait_for(reader.read() if until is None else reader.readuntil(until), 30)
    writer.close()
    return answer


async def test_no_http(host: Host) -> None:
    """H-001, H-180: bytes that are no HTTP get a problem, too."""
    answer = await raw(host, b"\x16\x03 not http\r\n\r\n")
    assert answer.startswith(b"HTTP/1.1 400 ")
    assert b'"code":"invalid_request"' in answer


async def test_large_head(host: Host) -> None:
    """H-180: heads are bounded; the refusal is a problem."""
    answer = await raw(host, b"GET / HTTP/1.1\r\nhost: localhost\r\nx: " + b"a" * 70_000 + b"\r\n\r\n")
    assert answer.startswith(b"HTTP/1.1 400 ")
    assert b"65,536" in answer


async def test_old_tls_is_refused(host: Host) -> None:
    """H-001: nothing below TLS 1.2."""
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    with pytest.warns(DeprecationWarning):
        context.minimum_version = ssl.TLSVersion.TLSv1
        context.maximum_version = ssl.TLSVersion.TLSv1_1
    with pytest.raises((ssl.SSLError, ConnectionError)):
        await asyncio.open_connection("127.0.0.1", host.port, ssl=context)


async def test_disconnect_cancels_the_call(host: Host) -> None:
    """MW-23: when the client goes, the runtime's call is cancelled within a second, before and after the head."""
    response = await host.worker("GET", "/hang")
    await anext(response.aiter_raw())
    assert host.runtime.open_fetches == 1
    await response.aclose()
    await within_a_second(lambda: host.runtime.open_fetches == 0)

    asking = asyncio.create_task(host.worker("GET", "/silent"))
    await eventually(lambda: host.runtime.open_fetches == 1)
    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking
    await within_a_second(lambda: host.runtime.open_fetches == 0)


async def test_disconnect_while_uploading(host: Host) -> None:
    """MW-23: a client that goes in the middle of its body ends the call, too."""
    reader, writer = await asyncio.open_connection("127.0.0.1", host.port, ssl=host.tls, server_hostname="localhost")
    writer.write(b"POST /echo HTTP/1.1\r\nhost: hello.workers.localhost\r\ncontent-length: 100\r\n\r\nabc")
    await reader.readuntil(b"abc")
    assert host.runtime.open_fetches == 1
    writer.transport.abort()
    await within_a_second(lambda: host.runtime.open_fetches == 0)


async def test_a_wrong_length_of_the_worker_harms_nobody(host: Host) -> None:
    """MW-23: the body goes out as it was streamed, whatever Content-Length the Worker claimed."""
    response = await host.worker("GET", "/wrong-length")
    assert (response.status_code, await response.aread()) == (200, b"longer than two")
    assert "content-length" not in response.headers


async def test_broken_response_is_cut(host: Host) -> None:
    """MW-23, H-181: a response that breaks off is not passed off as a whole one."""
    response = await host.worker("GET", "/broken")
    assert response.status_code == 200
    with pytest.raises(httpx.RemoteProtocolError):
        await response.aread()


async def test_bodiless_responses(host: Host) -> None:
    """RFC 9110 6.4.1, MW-23: HEAD and 304 have no body, whatever length the Worker states."""
    for method, path, status in (("GET", "/not-modified", 304), ("HEAD", "/", 201)):
        response = await host.worker(method, path)
        assert (response.status_code, await response.aread()) == (status, b"")
    assert (await host.client.get("/.well-known/takoform/v2")).status_code == 200


async def test_unavailable_runtime(host: Host) -> None:
    """H-180: delivery that cannot start is 503 with Retry-After."""
    host.runtime.refusals["Fetch"] = SaiseiError("backend_unavailable", "no context")
    response = await host.worker("GET", "/")
    await response.aread()
    assert_problem(response, 503, "temporarily_unavailable")
    assert int(response.headers["retry-after"]) > 0


@pytest.mark.parametrize("method", ["TRACE", "CONNECT"])
async def test_methods_that_no_worker_takes(host: Host, method: str) -> None:
    """MW-20: Request objects cannot carry these methods."""
    answer = await raw(
        host, f"{method} / HTTP/1.1\r\nhost: hello.workers.localhost\r\nconnection: close\r\n\r\n".encode()
    )
    assert answer.startswith((b"HTTP/1.1 405 ", b"HTTP/1.1 400 "))
