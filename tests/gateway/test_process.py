"""The gateway as a process, and its admin port."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys
from pathlib import Path

import httpx
import pytest
from tests.gateway.certificates import Certificates
from tests.gateway.conftest import HostFactory, free_port
from tests.gateway.waiting import eventually

from saisei_gateway.settings import GatewaySettings, hostname_of, split_address


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_signals_end_with_status_0(tmp_path: Path, certificates: Certificates, number: signal.Signals) -> None:
    """Design 6: Ctrl-C and SIGTERM end with status 0; a gateway starts although nothing is behind it yet."""
    port, admin = free_port(), free_port()
    environment = os.environ | {
        "SAISEI_DATA_DIR": str(tmp_path),
        "SAISEI_GATEWAY_LISTEN": f"127.0.0.1:{port}",
        "SAISEI_PUBLIC_ORIGIN": f"https://localhost:{port}",
        "SAISEI_ADMIN_LISTEN": f"127.0.0.1:{admin}",
        "SAISEI_TLS_CERT_FILE": str(certificates.cert_file),
        "SAISEI_TLS_KEY_FILE": str(certificates.key_file),
    }
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "saisei_gateway", env=environment, stderr=asyncio.subprocess.PIPE
    )
    try:
        async with httpx.AsyncClient(trust_env=False, timeout=30) as client:
            await eventually(lambda: _listens(admin), seconds=60)
            response = await client.get(f"http://127.0.0.1:{admin}/healthz")
            assert response.json() == {"status": "ok"}
            ready = await client.get(f"http://127.0.0.1:{admin}/readyz")
            assert ready.status_code == 503
            assert ready.json()["services"] == {"control": False, "runtime": False}
        process.send_signal(number)
        assert await asyncio.wait_for(process.wait(), 30) == 0
    finally:
        if process.returncode is None:
            process.kill()


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


async def test_admin_port(run_host: HostFactory) -> None:
    """Design 5: readiness asks both services; metrics count by route and never by what a client sent."""
    port = free_port()
    async with (
        run_host(admin_listen=f"127.0.0.1:{port}") as host,
        httpx.AsyncClient(trust_env=False, timeout=30) as client,
    ):
        assert (await client.get(f"http://127.0.0.1:{port}/readyz")).json() == {
            "ready": True,
            "services": {"control": True, "runtime": True},
        }
        await host.client.get("/secret-path-of-a-client")
        await host.client.get("/.well-known/takoform/v2")
        text = (await client.get(f"http://127.0.0.1:{port}/metrics")).text
        assert 'saisei_gateway_requests_total{method="GET",route="unrouted",status="404"} 1.0' in text
        assert 'saisei_gateway_response_seconds_bucket{le="+Inf",route="/.well-known/takoform/v2"} 1.0' in text
        assert "secret" not in text
        await host.servers["control"].stop(0)
        assert (await client.get(f"http://127.0.0.1:{port}/readyz")).status_code == 503


async def test_stop_lets_exchanges_finish(run_host: HostFactory) -> None:
    """Design 6: a stop takes no new connection and lets an open exchange come to its end."""
    async with run_host(shutdown_seconds=30) as host:
        response = await host.worker("GET", "/hang")
        chunks = response.aiter_raw()
        await anext(chunks)
        host.server.stop()
        await eventually(host.gateway.draining.is_set)
        host.runtime.release.set()
        assert [chunk async for chunk in chunks] == [b"last"]


def test_origin_setting(tmp_path: Path) -> None:
    """H-041: an origin is https://host[:port] in lower case, without a path."""
    files = {"tls_cert_file": tmp_path, "tls_key_file": tmp_path}
    good = GatewaySettings(public_origin="https://a.example:8443", **files)
    assert good.base_url == "https://a.example:8443/apis/forms.takoform.com/v2"
    assert good.origin_hostname == "a.example"
    for bad in ("http://a", "https://A.example", "https://a/", "https://a/b", "https://u@a", "https://", "a"):
        with pytest.raises(ValueError, match="public_origin"):
            GatewaySettings(public_origin=bad, **files)


def test_addresses() -> None:
    """EP-03: hostnames are compared in lower case, without port and root dot."""
    assert hostname_of("Hello.Example.:443") == "hello.example"
    assert hostname_of("[::1]:8443") == "[::1]"
    assert split_address("[::1]:8443") == ("::1", 8443)
    for bad in ("localhost", "a:b", "a:70000", "a:٣"):
        with pytest.raises(ValueError, match="not host:port"):
            split_address(bad)
