"""V1 to V4: a Worker's `fetch` and its static assets through the TLS gateway (`python -m tests.bench.serving`).

Starts a Host of its own with `saisei dev` on SQLite, deploys a small Worker with an Endpoint and prints a table and one
JSON object:

V1  hello-world requests a second, 32 keep-alive connections: p50, p99, and CPU per request of each process
V2  streamed responses of 1 MB, 4 connections: MB a second summed, and CPU per MB of each process
V3  static assets of 1 to 200 KB, 32 connections: requests a second, latencies, and CPU per request of each process
V4  one asset of 16 MiB, 4 connections: MB a second summed, and CPU per MB of each process

The clients are connections of one process: its CPU has a line of its own, since it shares the cores. `--profile FOLDER`
also records gateway and runtime with py-spy during V1, as speedscope files.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing
import os
import ssl
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import uvloop

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.bench.measure import own_cpu_ms, percentile
from tests.support.dev_host import DevHost

MEGABYTE = 1_000_000
CHUNK = 62_500
WORKER = f"""
const chunk = new Uint8Array({CHUNK}).fill(120);
export default {{
  fetch(request) {{
    if (!request.url.endsWith("/stream")) return new Response("hello");
    let left = {MEGABYTE // CHUNK};
    return new Response(new ReadableStream({{
      pull(controller) {{
        controller.enqueue(chunk.slice());
        if (--left === 0) controller.close();
      }},
    }}));
  }},
}};
"""
PROJECT = 'space = "bench"\nname = "serving"\nmain = "main.mjs"\nendpoint = true\n'
SITE = PROJECT.replace("serving", "site") + 'assets = "public"\n'
# Sizes of a site's files in bytes: pages, styles, scripts, pictures.
ASSET_SIZES = (1_000, 2_000, 4_000, 8_000, 12_000, 20_000, 60_000, 200_000)
LARGE_BYTES = 16 * 1024 * 1024


@dataclass(frozen=True)
class Target:
    """What a client process needs to know; it crosses to it pickled."""

    port: int
    hostname: str
    ca_file: str
    # Asked for in turn.
    paths: tuple[str, ...]


async def _exchange(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, request: bytes) -> int:
    """One request on a keep-alive connection; bytes of its body."""
    writer.write(request)
    head = (await reader.readuntil(b"\r\n\r\n")).lower()
    if not head.startswith(b"http/1.1 200"):
        raise AssertionError(head)
    if b"transfer-encoding: chunked" not in head:
        length = int(head.partition(b"content-length:")[2].partition(b"\r\n")[0])
        return len(await reader.readexactly(length))
    total = 0
    while size := int(await reader.readline(), 16):
        total += size
        await reader.readexactly(size + 2)
    await reader.readline()
    return total


def _clients(target: Target, connections: int, count: int) -> tuple[list[float], float, int]:
    """`count` exchanges over the connections: latencies and this process' CPU in milliseconds, and bytes received."""
    latencies: list[float] = []
    received = 0
    numbers = iter(range(count))
    requests = [f"GET {path} HTTP/1.1\r\nhost: {target.hostname}\r\n\r\n".encode() for path in target.paths]

    async def connection() -> None:
        nonlocal received
        context = ssl.create_default_context(cafile=target.ca_file)
        reader, writer = await asyncio.open_connection(
            "127.0.0.1", target.port, ssl=context, server_hostname=target.hostname.partition(":")[0], limit=2**20
        )
        for number in numbers:
            began = time.perf_counter()
            received += await _exchange(reader, writer, requests[number % len(requests)])
            latencies.append((time.perf_counter() - began) * 1000)
        writer.close()

    async def run() -> None:
        await asyncio.gather(*(connection() for _ in range(connections)))

    began = time.process_time()
    uvloop.run(run())
    return latencies, (time.process_time() - began) * 1000, received


class Bench:
    def __init__(self, dev: DevHost, pool: ProcessPoolExecutor, hostname: str) -> None:
        self._dev = dev
        self._pool = pool
        self._port = int(dev.ready["origin"].rpartition(":")[2])
        self._hostname = hostname

    def drive(self, paths: tuple[str, ...], connections: int, count: int) -> tuple[float, list[float], float, int]:
        """Seconds, latencies, the clients' CPU in milliseconds, bytes."""
        target = Target(self._port, self._hostname, self._dev.ready["caFile"], paths)
        began = time.perf_counter()
        latencies, cpu, received = self._pool.submit(_clients, target, connections, count).result()
        return time.perf_counter() - began, latencies, cpu, received

    def cpu_ms(self) -> dict[str, float]:
        """Of each process of the Host that takes part."""
        spent = {name: own_cpu_ms(self._dev.service_pid(name)) for name in ("gateway", "runtime")}
        return spent | {"node": sum(own_cpu_ms(pid) for pid in self._dev.node_pids())}

    def small(self, paths: tuple[str, ...], count: int, profile: Path | None) -> dict[str, Any]:
        """V1 and V3."""
        self.drive(paths, 32, max(64, count // 10))
        recorders = [] if profile is None else [self._record(name, profile) for name in ("gateway", "runtime")]
        before = self.cpu_ms()
        seconds, latencies, client, _ = self.drive(paths, 32, count)
        cpu = {name: ms - before[name] for name, ms in self.cpu_ms().items()} | {"clients": client}
        for recorder in recorders:
            recorder.wait()
        return {
            "requests": count,
            "requests_per_second": round(count / seconds, 1),
            "p50_ms": round(percentile(latencies, 0.5), 2),
            "p99_ms": round(percentile(latencies, 0.99), 2),
            "cpu_us_per_request": {name: round(ms * 1000 / count) for name, ms in cpu.items()},
            "host_cpu_us_per_request": round((sum(cpu.values()) - client) * 1000 / count),
        }

    def stream(self, path: str, count: int) -> dict[str, Any]:
        """V2 and V4."""
        self.drive((path,), 4, max(4, count // 10))
        before = self.cpu_ms()
        seconds, _, client, received = self.drive((path,), 4, count)
        cpu = {name: ms - before[name] for name, ms in self.cpu_ms().items()} | {"clients": client}
        megabytes = received / MEGABYTE
        return {
            "responses": count,
            "mb_per_second": round(megabytes / seconds, 1),
            "cpu_us_per_mb": {name: round(ms * 1000 / megabytes) for name, ms in cpu.items()},
            "host_cpu_us_per_mb": round((sum(cpu.values()) - client) * 1000 / megabytes),
        }

    def _record(self, service: str, folder: Path) -> subprocess.Popen[bytes]:
        folder.mkdir(parents=True, exist_ok=True)
        command = ["py-spy", "record", "--nonblocking", "--duration", "6", "--rate", "200", "--format", "speedscope"]
        pid = str(self._dev.service_pid(service))
        output = str(folder / f"{service}.speedscope.json")
        return subprocess.Popen([*command, "--output", output, "--pid", pid], stdout=subprocess.DEVNULL)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=10_000)
    parser.add_argument("--streams", type=int, default=1_000)
    parser.add_argument("--profile", type=Path)
    given = parser.parse_args()
    spawning = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, mp_context=spawning) as pool, DevHost() as dev, tempfile.TemporaryDirectory() as folder:
        worker = Bench(dev, pool, _deploy(dev, Path(folder), PROJECT))
        results = {
            "V1": worker.small(("/",), given.requests, given.profile),
            "V2": worker.stream("/stream", given.streams),
        }
        public = Path(folder, "public")
        public.mkdir()
        for size in ASSET_SIZES:
            Path(public, f"{size}.bin").write_bytes(os.urandom(size))
        Path(public, "large.bin").write_bytes(os.urandom(LARGE_BYTES))
        site = Bench(dev, pool, _deploy(dev, Path(folder), SITE))
        assets = None if given.profile is None else given.profile / "assets"
        results["V3"] = site.small(tuple(f"/{size}.bin" for size in ASSET_SIZES), 2 * given.requests, assets)
        results["V4"] = site.stream("/large.bin", max(4, given.streams // 16))
    for name, figures in results.items():
        print(f"{name}  " + "  ".join(f"{key} {value}" for key, value in figures.items()), file=sys.stderr)
    print(json.dumps(results))


def _deploy(dev: DevHost, folder: Path, project: str) -> str:
    """The Endpoint's hostname, with the port."""
    Path(folder, "main.mjs").write_text(WORKER)
    Path(folder, "saisei.toml").write_text(project)
    deployed = dev.deploy(folder)
    assert deployed.hostname is not None
    return f"{deployed.hostname}:{dev.ready['origin'].rpartition(':')[2]}"


if __name__ == "__main__":
    main()
