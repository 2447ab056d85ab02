"""C1 … C3: the Host API through the gateway, over HTTPS (`python -m tests.bench.control`).

Starts a Host of its own with `saisei dev` on SQLite (`synchronous=FULL`) and prints a table and one JSON object:

C1  accepted mutations a second (creates, updates and deletes of ModuleWorkers), 16 clients
C2  reads a second (Resources, Operations, small pages), 16 clients
C3  resident memory of control and gateway over N Operations (`--operations`, 5,000 unless said)

The clients are connections of two processes: their CPU has a line of its own, since it shares the cores.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing
import secrets
import ssl
import sys
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import uvloop

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.bench.measure import percentile, usage
from tests.support.dev_host import DevHost

FORM = "https://edge.forms.takoform.com/forms/ModuleWorker/0.3.0/"
SPACE = "bench"
CLIENTS = 16
CLIENT_PROCESSES = 2
# Resources of one client that live at the same time.
LITTER = 20
SERVICES = ("control", "gateway", "runtime")


@dataclass(frozen=True)
class Target:
    """What a client process needs to know; it crosses to it pickled."""

    host: str
    port: int
    ca_file: str
    token: str
    root: str


class Connection:
    """One keep-alive HTTPS connection: a few bytes of HTTP/1.1, so that the client costs little."""

    def __init__(self, target: Target) -> None:
        self._target = target
        self.latencies: list[float] = []

    async def open(self) -> Connection:
        context = ssl.create_default_context(cafile=self._target.ca_file)
        self._reader, self._writer = await asyncio.open_connection(self._target.host, self._target.port, ssl=context)
        return self

    async def call(self, method: str, path: str, body: Any = None, **headers: str) -> tuple[int, Any]:
        """Status and body of one exchange; its latency is kept."""
        content = b"" if body is None else json.dumps(body).encode()
        lines = [
            f"{method} {self._target.root}{path} HTTP/1.1",
            f"host: {self._target.host}:{self._target.port}",
            f"authorization: Bearer {self._target.token}",
            *(f"{name.replace('_', '-')}: {value}" for name, value in headers.items()),
        ]
        if body is not None:
            lines += ["content-type: application/json", f"content-length: {len(content)}"]
        began = time.perf_counter()
        self._writer.write("\r\n".join(lines).encode() + b"\r\n\r\n" + content)
        head = await self._reader.readuntil(b"\r\n\r\n")
        length = next(
            int(line.partition(b":")[2]) for line in head.split(b"\r\n") if line.lower().startswith(b"content-length:")
        )
        answer = await self._reader.readexactly(length)
        self.latencies.append((time.perf_counter() - began) * 1000)
        return int(head[9:12]), json.loads(answer)

    async def mutate(self, method: str, path: str, body: Any = None, generation: int | None = None) -> Any:
        """An accepted mutation's Operation. Waits out an earlier one that is not settled yet, which is not counted."""
        headers = {"idempotency_key": secrets.token_hex(16)}
        if generation is not None:
            headers["takoform_expected_generation"] = str(generation)
        while True:
            status, answer = await self.call(method, path, body, **headers)
            if status in (200, 202):
                return answer
            # The same key makes the request the same one, whatever became of it (H-181).
            if answer.get("code") not in ("resource_busy", "temporarily_unavailable"):
                raise AssertionError((status, answer))
            self.latencies.pop()
            await asyncio.sleep(0.005)


async def _mutations(connection: Connection, count: int) -> list[str]:
    """Lives of Resources, a litter at a time: all created, all updated, all deleted, so that none is waited for."""
    done = 0
    while done < count:
        uids = await _creates(connection, LITTER)
        for uid in uids:
            await connection.mutate("PUT", f"/resources/{uid}", {"spec": {}}, 1)
        for uid in uids:
            await connection.mutate("DELETE", f"/resources/{uid}", None, 2)
        done += 3 * LITTER
    return []


async def _creates(connection: Connection, count: int) -> list[str]:
    uids = []
    for _ in range(count):
        body = {"form": FORM, "space": SPACE, "name": f"c-{secrets.token_hex(8)}", "spec": {}}
        uids.append((await connection.mutate("POST", "/resources", body))["resourceUid"])
    return uids


async def _reads(connection: Connection, count: int) -> list[str]:
    """Mostly single Resources and Operations, and a page of ten now and then."""
    _, page = await connection.call("GET", f"/resources?space={SPACE}&limit=50")
    items = page["items"]
    for number in range(count):
        item = items[number % len(items)]
        match number % 10:
            case 0:
                path = f"/resources?space={SPACE}&limit=10"
            case 1 | 2 | 3:
                path = f"/operations/{item['lastOperation']}"
            case _:
                path = f"/resources/{item['uid']}"
        status, answer = await connection.call("GET", path)
        if status != 200:
            raise AssertionError((status, answer))
    return []


_WORK: dict[str, Callable[[Connection, int], Awaitable[list[str]]]] = {
    "mutations": _mutations,
    "creates": _creates,
    "reads": _reads,
}


def _client(target: Target, work: str, connections: int, count: int) -> tuple[list[float], float]:
    """One client process: `count` calls on each of its connections; all latencies, and its own CPU, in milliseconds."""

    async def run() -> list[float]:
        opened = await asyncio.gather(*(Connection(target).open() for _ in range(connections)))
        await asyncio.gather(*(_WORK[work](connection, count) for connection in opened))
        return [latency for connection in opened for latency in connection.latencies]

    began = time.process_time()
    latencies = uvloop.run(run())
    return latencies, (time.process_time() - began) * 1000


@dataclass
class Result:
    name: str
    figures: dict[str, float] = field(default_factory=dict)

    def set(self, **figures: float) -> None:
        self.figures.update({key: round(value, 3) for key, value in figures.items()})


class Bench:
    def __init__(self, dev: DevHost, pool: ProcessPoolExecutor) -> None:
        self.dev = dev
        self._pool = pool
        host, _, port = dev.ready["origin"].removeprefix("https://").rpartition(":")
        root = dev.ready["baseUrl"].removeprefix(dev.ready["origin"])
        self.target = Target(host, int(port), dev.ready["caFile"], dev.token, root)

    def drive(self, work: str, calls: int, clients: int = CLIENTS) -> tuple[float, list[float], float]:
        """Seconds, latencies and the clients' CPU milliseconds of about `calls` calls, spread over the clients."""
        each, connections = max(1, calls // clients), clients // CLIENT_PROCESSES
        began = time.perf_counter()
        futures = [self._pool.submit(_client, self.target, work, connections, each) for _ in range(CLIENT_PROCESSES)]
        ended = [future.result() for future in futures]
        seconds = time.perf_counter() - began
        return seconds, [latency for latencies, _ in ended for latency in latencies], sum(cpu for _, cpu in ended)

    def cpu_ms(self) -> dict[str, float]:
        return {service: usage([self.dev.service_pid(service)]).cpu_ms for service in SERVICES}

    def measure(self, name: str, work: str, calls: int) -> Result:
        self.drive(work, calls // 10)
        before = self.cpu_ms()
        seconds, latencies, client_ms = self.drive(work, calls)
        spent = {service: cpu - before[service] for service, cpu in self.cpu_ms().items()} | {"clients": client_ms}
        result = Result(name)
        result.set(
            calls=len(latencies),
            calls_per_second=len(latencies) / seconds,
            p50_ms=percentile(latencies, 0.50),
            p99_ms=percentile(latencies, 0.99),
            cpu_ms_per_call=sum(spent.values()) / len(latencies),
            **{f"cpu_ms_{process}": cpu / len(latencies) for process, cpu in spent.items()},
        )
        return result

    def memory(self, operations: int) -> Result:
        """Resident memory after each tenth of the Operations; flat when the last tenths add nothing."""
        result, sizes = Result("C3"), []
        self.drive("mutations", max(300, operations // 10))
        for _ in range(10):
            self.drive("mutations", operations // 10)
            sizes.append({name: usage([self.dev.service_pid(name)]).rss_bytes / 1e6 for name in ("control", "gateway")})
        for name in ("control", "gateway"):
            result.set(
                **{
                    f"{name}_rss_first_mb": sizes[0][name],
                    f"{name}_rss_middle_mb": sizes[4][name],
                    f"{name}_rss_last_mb": sizes[-1][name],
                }
            )
        result.set(operations=operations)
        return result


def table(results: list[Result]) -> str:
    lines = []
    for result in results:
        lines.append(result.name)
        lines.extend(f"  {key:<32} {value:>12,.2f}" for key, value in result.figures.items())
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--calls", type=int, default=6000, help="calls of C1; C2 makes twice as many")
    parser.add_argument("--operations", type=int, default=5000, help="Operations of C3 (50,000 for the real thing)")
    arguments = parser.parse_args()
    with (
        DevHost(environment={"SAISEI_RATE_PER_SECOND": "0"}) as dev,
        ProcessPoolExecutor(CLIENT_PROCESSES, mp_context=multiprocessing.get_context("spawn")) as pool,
    ):
        bench = Bench(dev, pool)
        results = [bench.measure("C1", "mutations", arguments.calls)]
        bench.drive("creates", 100)
        results.append(bench.measure("C2", "reads", arguments.calls * 2))
        results.append(bench.memory(arguments.operations))
    print(table(results), file=sys.stderr)
    print(json.dumps({result.name: result.figures for result in results}))


if __name__ == "__main__":
    main()
