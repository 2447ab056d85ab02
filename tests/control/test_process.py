"""The control service as a process of its own: signals and sudden death."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import grpc
import pytest
from grpc_health.v1.health_pb2 import HealthCheckRequest
from grpc_health.v1.health_pb2_grpc import HealthStub
from tests.control.kit import Client, Kit, Refused, artifact, eventually, manifest_of

from saisei.control.v1 import resources_pb2 as pb
from saisei_contract.forms import urls

WORKER = urls.MODULE_WORKER


class Process:
    """`python -m saisei_control` over the kit's settings; the kit's own app stays stopped."""

    def __init__(self, kit: Kit) -> None:
        self._environment = os.environ | {
            "SAISEI_DATA_DIR": str(kit.folder),
            "SAISEI_CONTROL_DATABASE_URL": kit.settings.control_database_url,
            "SAISEI_CONTROL_LISTEN": kit.settings.control_listen,
            "SAISEI_RUNTIME_ADDRESS": kit.runtime_address,
            "SAISEI_PUBLIC_ORIGIN": kit.settings.public_origin,
            "SAISEI_PREVIEW_FORMS": "true",
        }
        self._kit = kit
        self._log = kit.folder / "control.log"
        self._process: asyncio.subprocess.Process | None = None

    async def start(self) -> None:
        with self._log.open("ab") as log:
            self._process = await asyncio.create_subprocess_exec(
                sys.executable, "-m", "saisei_control", env=self._environment, stderr=log
            )
        await eventually(self._serving, seconds=60)

    async def _serving(self) -> bool:
        """The channel learns only by a call that its old peer is gone: that call is this one."""
        try:
            await HealthStub(self._kit.channel).Check(HealthCheckRequest(), wait_for_ready=True, timeout=10)
        except grpc.aio.AioRpcError as error:
            raise AssertionError(str(error)) from error
        return True

    async def end(self, number: signal.Signals) -> int:
        assert self._process is not None
        self._process.send_signal(number)
        return await self._process.wait()

    async def close(self) -> None:
        if self._process is not None and self._process.returncode is None:
            await self.end(signal.SIGKILL)

    def log(self) -> str:
        return self._log.read_text()


@pytest.fixture
async def process(tmp_path: Path, database_url: str) -> AsyncIterator[tuple[Kit, Process]]:
    kit = Kit(tmp_path, database_url)
    process = Process(kit)
    try:
        await process.start()
        await kit.runtime.start(kit.runtime_address)
        yield kit, process
    finally:
        await process.close()
        await kit.close()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_a_signal_ends_it_well(process: tuple[Kit, Process], number: signal.Signals) -> None:
    """Design 6: Ctrl-C and SIGTERM end with status 0, also while a replica watches and an Operation waits."""
    kit, running = process
    client = await kit.client()
    worker = await client.made(WORKER, "one", {})
    kit.runtime.acknowledges = False
    spec = {"worker": {"resourceUid": worker}, "className": "Flow"}
    await client.create(urls.DURABLE_WORKFLOW, "flow", spec)
    assert await running.end(number) == 0
    assert "Traceback" not in running.log()


async def test_sudden_death_loses_and_doubles_nothing(process: tuple[Kit, Process]) -> None:
    """H-145, H-181, H-193: killed amid a burst; requests sent again have one Operation each, and all succeed."""
    kit, running = process
    client = await kit.client()
    keys = {f"n{number}": client.key() for number in range(60)}
    first: dict[str, str] = {}

    async def create(name: str) -> None:
        first[name] = (await client.create(WORKER, name, {}, key=keys[name])).id

    burst = [asyncio.create_task(create(name)) for name in keys]
    await asyncio.wait(burst, return_when=asyncio.FIRST_COMPLETED)
    assert await running.end(signal.SIGKILL) == -signal.SIGKILL
    # What was not sent yet waits for the next process.
    await running.start()
    outcomes = await asyncio.gather(*burst, return_exceptions=True)
    assert all(outcome is None or isinstance(outcome, Refused) for outcome in outcomes)
    again = {name: await client.create(WORKER, name, {}, key=key) for name, key in keys.items()}
    assert {name: again[name].id for name in first} == first
    for operation in again.values():
        assert (await client.settled(operation)).status == pb.OPERATION_STATUS_SUCCEEDED
    assert sorted(item.name for item in (await client.list()).items) == sorted(keys)


async def test_death_during_the_effect_continues_it(process: tuple[Kit, Process]) -> None:
    """H-119, H-193: killed while the runtime inspects; the same Operation succeeds after the restart."""
    kit, running = process
    client = await kit.client()
    code = b'{"handlers": [], "classes": []}'
    manifest = manifest_of({"main.js": code})
    await client.put(code)
    await client.put(manifest)
    worker = await client.made(WORKER, "worker", {})
    bundle = await client.made(urls.WORKER_BUNDLE, "bundle", artifact(manifest))
    hold = kit.runtime.holds["InspectVersion"] = asyncio.Event()
    spec = {"worker": {"resourceUid": worker}, "bundle": {"resourceUid": bundle}, "handlers": []}
    operation = await client.create(urls.WORKER_VERSION, "version", spec)

    async def inspected() -> bool:
        return bool(kit.runtime.called("InspectVersion"))

    await eventually(inspected)
    await running.end(signal.SIGKILL)
    hold.set()
    await running.start()
    assert (await client.settled(operation)).status == pb.OPERATION_STATUS_SUCCEEDED
    assert (await client.get(operation.resource_uid)).generation == 1


async def test_the_log_says_nothing_secret(process: tuple[Kit, Process]) -> None:
    """H-153, H-182, AR-13: neither tokens nor private inputs nor artifact URLs reach the log."""
    kit, running = process
    token = await kit.token()
    client = Client(kit.channel, token)
    worker = await client.made(WORKER, "worker", {})
    await client.create(urls.WORKER_BUNDLE, "bundle", artifact(b"none"))
    spec = {"worker": {"resourceUid": worker}, "bundle": {"resourceUid": worker}, "handlers": []}
    with pytest.raises(Refused):
        await client.create(
            urls.WORKER_VERSION, "v", spec | {"requiredSensitiveVars": ["A"]}, secrets={"A": "hushhush"}
        )
    assert await running.end(signal.SIGTERM) == 0
    log = running.log()
    assert "ready" in log
    for secret in (token, "hushhush", "artifacts/v1", kit.credential):
        assert secret not in log
