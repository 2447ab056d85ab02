"""Outbound `fetch`: the policy of addresses, bodies both ways, redirects, codings, aborts."""

from __future__ import annotations

import asyncio
import gzip
import json
import os
import time
import zlib
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
import pytest_asyncio

from saisei_runtime.isolates.port import Completed, ProofKind
from saisei_service.egress import EgressPolicy, is_public

pytestmark = pytest.mark.asyncio(loop_scope="session")


@dataclass
class Seen:
    """A request as the server met it."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes


@dataclass
class Server:
    """A small HTTP/1.1 server; `routes` write raw responses."""

    origin: str = ""
    seen: list[Seen] = field(default_factory=list)
    routes: dict[str, Callable[[Seen, asyncio.StreamWriter], Awaitable[None]]] = field(default_factory=dict)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await self._one(reader, writer)
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()

    async def _one(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        method, path, _ = head[0].split(" ")
        headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in head[1:] if line)}
        body = b""
        if "content-length" in headers:
            body = await reader.readexactly(int(headers["content-length"]))
        elif headers.get("transfer-encoding") == "chunked":
            while size := int(await reader.readline(), 16):
                body += (await reader.readexactly(size + 2))[:-2]
        seen = Seen(method, path, headers, body)
        self.seen.append(seen)
        await self.routes.get(path, echo)(seen, writer)
        await writer.drain()


async def echo(seen: Seen, writer: asyncio.StreamWriter) -> None:
    body = json.dumps({"method": seen.method, "headers": seen.headers, "size": len(seen.body)}).encode()
    respond(writer, body, "content-type: application/json")


def respond(writer: asyncio.StreamWriter, body: bytes, *headers: str, status: str = "200 OK") -> None:
    lines = [f"HTTP/1.1 {status}", f"content-length: {len(body)}", "connection: close", *headers]
    writer.write("\r\n".join(lines).encode("latin-1") + b"\r\n\r\n" + body)


@pytest_asyncio.fixture(loop_scope="session")
async def server() -> AsyncIterator[Server]:
    made = Server()
    listening = await asyncio.start_server(made.serve, "127.0.0.1", 0)
    made.origin = f"http://127.0.0.1:{listening.sockets[0].getsockname()[1]}"
    yield made
    listening.close()


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def open_lab(make_lab: Callable[..., Any]) -> AsyncIterator[Any]:
    """A pool whose operator allows 127.0.0.1 by name."""
    made = make_lab(egress_allowed_hosts=frozenset({"127.0.0.1"}))
    yield made
    await made.pool.close()


async def value(lab: Any, statements: str, server: Server | None = None) -> Any:
    end, _ = await lab.body(f"const at = {json.dumps(server.origin if server else '')};\n{statements}")
    assert isinstance(end.outcome, Completed), end.outcome
    return json.loads(end.outcome.output)


@pytest.mark.parametrize(
    ("address", "public"),
    [
        ("93.184.216.34", True),
        ("2606:4700::1111", True),
        ("127.0.0.1", False),
        ("127.9.9.9", False),
        ("10.0.0.1", False),
        ("172.16.0.1", False),
        ("192.168.1.1", False),
        ("169.254.169.254", False),
        ("100.64.0.1", False),
        ("0.0.0.0", False),
        ("224.0.0.1", False),
        ("255.255.255.255", False),
        ("240.0.0.1", False),
        ("192.0.2.1", False),
        ("::1", False),
        ("::", False),
        ("fe80::1", False),
        ("fc00::1", False),
        ("fd00:ec2::254", False),
        ("ff02::1", False),
        ("::ffff:127.0.0.1", False),
        ("::ffff:8.8.8.8", True),
        ("64:ff9b::7f00:1", False),
        ("64:ff9b::808:808", True),
        ("2002:7f00:1::", False),
        ("2002:a9fe:a9fe::1", False),
    ],
)
async def test_public_addresses(address: str, public: bool) -> None:
    """MW-26, Design 6: loopback, private and metadata addresses are refused, in every way of writing them."""
    assert is_public(address) is public
    assert EgressPolicy(frozenset({"inner.example"})).permits("inner.example.", address)
    assert EgressPolicy(frozenset({"inner.example"})).permits("other.example", address) is public


@pytest.mark.parametrize(
    "url",
    [
        "http://127.0.0.1:9/",
        "http://localhost:9/",
        "http://[::1]:9/",
        "http://0.0.0.0:9/",
        "http://169.254.169.254/latest/meta-data/",
        "http://2130706433:9/",
        "http://127.1:9/",
        "http://[::ffff:127.0.0.1]:9/",
    ],
)
async def test_inner_addresses_are_refused(lab: Any, url: str) -> None:
    """MW-26: the Worker gets a TypeError that names the reason; nothing is connected."""
    got = await value(
        lab, f"return await fetch('{url}').catch((e) => ({{type: e instanceof TypeError, m: e.message}}));"
    )
    assert got["type"] is True
    assert "refused" in got["m"]


async def test_closed_egress(own_lab: Any) -> None:
    """MW-26: an operator can let nothing out at all."""
    got = await value(own_lab(egress=False), "return await fetch('http://8.8.8.8/').catch((e) => ({m: e.message}));")
    assert got == {"m": "fetch failed: this Host lets no request out"}


@pytest.mark.parametrize(
    "url", ["/relative", "data:,x", "ftp://a.example/", "blob:x", "nonsense", "http://u:p@a.example/"]
)
async def test_other_urls(lab: Any, url: str) -> None:
    """MW-40, MW-26: only absolute http and https URLs without credentials; the Promise rejects, nothing throws."""
    got = await value(
        lab,
        f"let p; try {{ p = fetch('{url}'); }} catch {{ return {{}}; }} return await p.catch((e) => ({{n: e.name}}));",
    )
    assert got == {"n": "TypeError"}


async def test_request_and_response(open_lab: Any, server: Server) -> None:
    """MW-22, MW-26: method, headers and a body with its length; status, headers, url and json come back."""
    got = await value(
        open_lab,
        """const headers = {"x-y": "z", host: "evil.example", "transfer-encoding": "chunked", connection: "upgrade",
          "accept-encoding": "br"};
        const r = await fetch(at + "/a?b=c#d", {method: "POST", body: JSON.stringify({x: "é"}), headers});
        return {status: r.status, ok: r.ok, type: r.headers.get("content-type"), url: r.url, redirected: r.redirected,
          real: r instanceof Response, json: await r.json()};""",
        server,
    )
    headers = got["json"].pop("headers")
    assert got == {
        "status": 200,
        "ok": True,
        "type": "application/json",
        "url": f"{server.origin}/a?b=c#d",
        "redirected": False,
        "real": True,
        "json": {"method": "POST", "size": 10},
    }
    assert headers["host"] == server.origin.removeprefix("http://")
    assert headers["content-length"] == "10"
    assert headers["x-y"] == "z"
    assert headers["accept-encoding"] == "gzip, deflate"
    assert "connection" not in headers
    assert "transfer-encoding" not in headers


async def test_requests_without_a_body(open_lab: Any, server: Server) -> None:
    """MW-26: GET and HEAD send none; an empty POST says so."""
    got = await value(
        open_lab,
        """const head = await fetch(at, {method: "HEAD"});
        const post = await (await fetch(at, {method: "POST"})).json();
        return {head: [head.status, head.body === null], post: post.headers["content-length"],
          get: "content-length" in (await (await fetch(new Request(at))).json()).headers};""",
        server,
    )
    assert got == {"head": [200, True], "post": "0", "get": False}


async def test_streams_both_ways(open_lab: Any, server: Server) -> None:
    """MW-23, MW-26: megabytes as a stream go out chunked and come back whole."""

    async def big(_seen: Seen, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\nconnection: close\r\n\r\n")
        for _ in range(64):
            writer.write(b"10000\r\n" + b"y" * 65536 + b"\r\n")
            await writer.drain()
        writer.write(b"0\r\n\r\n")

    server.routes["/big"] = big
    got = await value(
        open_lab,
        """let n = 0; const chunk = new Uint8Array(65536);
        const up = new ReadableStream({pull(c) { if (n++ === 64) c.close(); else c.enqueue(chunk.slice()); }});
        const sent = await (await fetch(at + "/up", {method: "PUT", body: up, duplex: "half"})).json();
        let size = 0; for await (const chunk of (await fetch(at + "/big")).body) size += chunk.byteLength;
        return {sent: sent.size, coding: sent.headers["transfer-encoding"], size};""",
        server,
    )
    assert got == {"sent": 64 * 65536, "coding": "chunked", "size": 64 * 65536}


@pytest.mark.parametrize("coding", ["gzip", "deflate", "raw deflate"])
async def test_content_codings(open_lab: Any, server: Server, coding: str) -> None:
    """MW-26: coded responses arrive decoded, without the headers that no longer hold."""
    plain = b"compress me " * 50000

    async def coded(_seen: Seen, writer: asyncio.StreamWriter) -> None:
        packed = gzip.compress(plain) if coding == "gzip" else zlib.compress(plain)
        if coding == "raw deflate":
            packed = packed[2:-4]
        respond(writer, packed, f"content-encoding: {coding.removeprefix('raw ')}")

    server.routes["/coded"] = coded
    got = await value(
        open_lab,
        """const r = await fetch(at + "/coded"); const text = await r.text();
        return {n: text.length, start: text.slice(0, 11), coding: r.headers.get("content-encoding"),
          length: r.headers.get("content-length")};""",
        server,
    )
    assert got == {"n": len(plain), "start": "compress me", "coding": None, "length": None}


async def test_codings_to_their_end(open_lab: Any, server: Server) -> None:
    """MW-26: gzip's members are one body, also in pieces; what follows them is passed over; a body that ends before its
    coding does has broken off; an empty one is empty."""
    members = gzip.compress(b"one ") + gzip.compress(b"two ") + gzip.compress(b"three")
    raw = zlib.compressobj(wbits=-15)
    bodies = {
        "members": (members, "gzip"),
        "tail": (gzip.compress(b"text") + b"\0\0tail", "gzip"),
        "cut": (gzip.compress(os.urandom(5000))[:-20], "gzip"),
        "cut inside": (gzip.compress(b"text")[:9], "gzip"),
        "empty": (b"", "gzip"),
        "bare": (raw.compress(b"bare") + raw.flush() + b"tail", "deflate"),
    }

    async def coded(seen: Seen, writer: asyncio.StreamWriter) -> None:
        body, coding = bodies[seen.path.removeprefix("/").replace("%20", " ")]
        writer.write(f"HTTP/1.1 200 OK\r\ncontent-encoding: {coding}\r\ncontent-length: {len(body)}\r\n\r\n".encode())
        for at in range(len(body)):
            writer.write(body[at : at + 1])
            if at % 7 == 0:
                await writer.drain()

    server.routes |= {f"/{name.replace(' ', '%20')}": coded for name in bodies}
    names = json.dumps(list(bodies))
    got = await value(
        open_lab,
        f"""const out = {{}}; for (const name of {names})
          out[name] = await fetch(`${{at}}/${{name}}`).then((r) => r.text()).catch((e) => e.name);
        return out;""",
        server,
    )
    broken = "AbortError"
    texts = {"members": "one two three", "tail": "text", "empty": "", "bare": "bare"}
    assert got == {**texts, "cut": broken, "cut inside": broken}


async def test_redirects(open_lab: Any, server: Server) -> None:
    """MW-26: redirects are followed as the Fetch standard says, each hop under the policy."""

    def to(status: str, location: str) -> Callable[[Seen, asyncio.StreamWriter], Awaitable[None]]:
        async def route(_seen: Seen, writer: asyncio.StreamWriter) -> None:
            respond(writer, b"", f"location: {location}", status=status)

        return route

    server.routes |= {
        "/302": to("302 Found", "/end"),
        "/303": to("303 See Other", "/end"),
        "/307": to("307 Temporary Redirect", "/end"),
        "/loop": to("302 Found", "/loop"),
        "/inside": to("302 Found", "http://127.0.0.2:9/"),
        "/file": to("302 Found", "file:///etc/passwd"),
    }
    got = await value(
        open_lab,
        """const post = {method: "POST", body: "abc", headers: {"content-type": "text/x"}}; const out = {};
        for (const n of ["302", "303", "307"]) { const r = await fetch(at + "/" + n, post); const j = await r.json();
          out[n] = [r.redirected, r.url === at + "/end", j.method, j.size, j.headers["content-type"] ?? ""]; }
        const m = await fetch(at + "/302", {redirect: "manual"}); out.manual = [m.status, m.headers.get("location")];
        const fails = {error: [at + "/302", {redirect: "error"}], loop: [at + "/loop"], inside: [at + "/inside"],
          file: [at + "/file"]};
        for (const n in fails) out[n] = await fetch(...fails[n]).then(() => "went", (e) => e.name);
        const body = new ReadableStream({async start(c) { await new Promise((r) => setTimeout(r, 200)); c.close(); }});
        out.stream = await fetch(at + "/307", {method: "POST", duplex: "half", body}).then(() => "went", (e) => e.name);
        return out;""",
        server,
    )
    assert got == {
        "302": [True, True, "GET", 0, ""],
        "303": [True, True, "GET", 0, ""],
        "307": [True, True, "POST", 3, "text/x"],
        "manual": [302, "/end"],
        "error": "TypeError",
        "loop": "TypeError",
        "inside": "TypeError",
        "file": "TypeError",
        "stream": "TypeError",
    }


async def test_credentials_stay_with_their_origin(open_lab: Any, server: Server) -> None:
    """MW-26: a redirect to another origin takes no Authorization or Cookie along."""
    other = Server()
    listening = await asyncio.start_server(other.serve, "127.0.0.1", 0)
    target = f"http://127.0.0.1:{listening.sockets[0].getsockname()[1]}/x"

    async def away(_seen: Seen, writer: asyncio.StreamWriter) -> None:
        respond(writer, b"", f"location: {target}", status="302 Found")

    server.routes["/away"] = away
    await value(
        open_lab,
        "await fetch(at + '/away', {headers: {authorization: 'secret', cookie: 'c', 'x-kept': '1'}}); return {};",
        server,
    )
    listening.close()
    assert server.seen[0].headers["authorization"] == "secret"
    assert "authorization" not in other.seen[0].headers
    assert "cookie" not in other.seen[0].headers
    assert other.seen[0].headers["x-kept"] == "1"


async def test_abort(open_lab: Any, server: Server) -> None:
    """MW-22: an AbortSignal ends a fetch before its head and in the middle of its body."""
    gone = asyncio.Event()

    async def hang(_seen: Seen, writer: asyncio.StreamWriter) -> None:
        await gone.wait()

    async def drip(_seen: Seen, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\nabc")
        await writer.drain()
        await gone.wait()

    server.routes |= {"/hang": hang, "/drip": drip}
    got = await value(
        open_lab,
        """const name = (p) => p.then(() => "went", (e) => e.name); const c = new AbortController();
        const head = name(fetch(at + "/hang", {signal: AbortSignal.timeout(50)}));
        const r = await fetch(at + "/drip", {signal: c.signal}); const body = name(r.text()); c.abort();
        return {head: await head, body: await body, early: await name(fetch(at, {signal: AbortSignal.abort()}))};""",
        server,
    )
    gone.set()
    assert got == {"head": "TimeoutError", "body": "AbortError", "early": "AbortError"}


async def test_broken_exchanges(open_lab: Any, server: Server) -> None:
    """MW-26: no server, no HTTP and a cut body are errors with a message, not an end of the body."""

    async def nonsense(_seen: Seen, writer: asyncio.StreamWriter) -> None:
        writer.write(b"this is not HTTP\r\n\r\n")

    async def cut(_seen: Seen, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\nconnection: close\r\n\r\nabc")

    server.routes |= {"/nonsense": nonsense, "/cut": cut}
    got = await value(
        open_lab,
        """const name = (p) => p.then(() => "went", (e) => e.name + (e.message.startsWith("fetch failed") ? "" : "?"));
        const r = await fetch(at + "/cut");
        return {refused: await name(fetch("http://127.0.0.1:9/")), nonsense: await name(fetch(at + "/nonsense")),
          cut: (await name(r.text())).slice(0, 10)};""",
        server,
    )
    assert got == {"refused": "TypeError", "nonsense": "TypeError", "cut": "AbortError"}


async def test_a_silent_server_is_given_up(make_lab: Callable[..., Any], server: Server) -> None:
    """MW-26, Issue 4: a server that says nothing, before its answer or in the middle of a body, does not hold a fetch
    for ever."""
    over = asyncio.Event()

    async def never(_seen: Seen, _writer: asyncio.StreamWriter) -> None:
        await over.wait()

    async def begun(_seen: Seen, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nx")
        await writer.drain()
        await over.wait()

    server.routes.update({"/never": never, "/begun": begun})
    lab = make_lab(egress_allowed_hosts=frozenset({"127.0.0.1"}), egress_silent_after=0.5)
    got = await value(
        lab,
        """const failed = (p) => p.then(() => "went", (e) => e);
        const first = await failed(fetch(at + "/never"));
        const response = await fetch(at + "/begun"); const second = await failed(response.text());
        return {first: [first.name, first.message], second: second.name};""",
        server,
    )
    assert got["first"] == ["TypeError", "fetch failed: 127.0.0.1 was silent for 0.5 seconds"]
    assert got["second"] == "AbortError"
    over.set()
    await lab.pool.close()


async def test_a_fetch_does_not_outlive_its_context(open_lab: Any, server: Server) -> None:
    """Design 3, W-083: a fetch without an answer is dropped with its context, which ends quiescent."""
    closed = asyncio.Event()

    async def hang(_seen: Seen, writer: asyncio.StreamWriter) -> None:
        while not writer.is_closing():
            writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
            try:
                await writer.drain()
            except ConnectionError:
                break
            await asyncio.sleep(0.01)
        closed.set()

    server.routes["/hang"] = hang
    end, run = await open_lab.body(f"fetch('{server.origin}/hang').then(() => {{ for (;;) {{}} }}); return {{}};")
    assert end.proof.kind is ProofKind.QUIESCENT
    assert run.took < 5
    limit = time.monotonic() + 30
    while server.seen and not closed.is_set():
        assert time.monotonic() < limit
        await asyncio.sleep(0.01)


async def test_fetch_in_an_effect(open_lab: Any, server: Server) -> None:
    """MW-26, W-100: the usual way: an effect fetches and returns what it found."""
    end, _ = await open_lab.body(
        f"return await step.do('get', async () => {{ const r = await fetch('{server.origin}/'); "
        "return {status: r.status, method: (await r.json()).method}; });"
    )
    assert end.outcome == Completed(b'{"method":"GET","status":200}')
    assert end.proof.kind is ProofKind.QUIESCENT
