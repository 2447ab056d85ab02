"""The supervisor of `saisei dev`: starts the services, says when they are ready, restarts what dies, ends them all.

It holds no state of the Host: killing it kills the services, and the next one goes on from the data folder.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from saisei_cli.access import Access, SpaceGrant
from saisei_cli.dev import children
from saisei_cli.dev.certificates import Certificates, ensure_certificates
from saisei_cli.dev.layout import (
    DataFolder,
    choose_listen,
    free_port,
    join_listen,
    only_one,
    socket_folder,
    write_description,
    write_private,
)
from saisei_cli.dev.readiness import DISCOVERY_PATH, until_discovered, until_serving
from saisei_cli.failures import CommandFailure
from saisei_service.credentials import load_or_create_service_credential

READY_WITHIN_SECONDS = 60.0
FIRST_DELAY_SECONDS = 0.1
LONGEST_DELAY_SECONDS = 5.0
# A service that ran this long was well: the next restart is quick again.
STEADY_SECONDS = 2.0
DRAIN_SECONDS = 10.0
# A service that ends this often before the Host was ever ready will not come up by itself.
FAILED_STARTS = 3
SWEEP_SECONDS = 1.0
LOG_TAIL_LINES = 15

# The gateway first, so that no new request meets a service that is going away.
_STOP_ORDER = ("gateway", "runtime", "control")


@dataclass(frozen=True, slots=True)
class DevOptions:
    """What the command line says."""

    data: DataFolder
    listen: str
    virtual_clock: bool
    preview_forms: bool
    workers_domain: str
    log_level: str


def restart_delay(failures: int) -> float:
    """Seconds before restart number `failures` (1-based) of a service that does not stay up."""
    return float(min(LONGEST_DELAY_SECONDS, FIRST_DELAY_SECONDS * 2 ** min(failures - 1, 16)))


def say(text: str) -> None:
    """For people, on stderr; stdout has the ready line only."""
    print(f"saisei dev: {text}", file=sys.stderr, flush=True)


class Supervisor:
    """One run of `saisei dev`. `plans` are started together: services wait for each other by themselves."""

    def __init__(self, plans: tuple[children.ServicePlan, ...], on_pids: Any) -> None:
        self._plans = plans
        self._on_pids = on_pids
        self._processes: dict[str, asyncio.subprocess.Process] = {}
        # Between fork and registration a new child looks like an orphan: starting and sweeping exclude each other.
        self._spawning = asyncio.Lock()
        self._stopping = False
        self._ready = False
        self._tasks: list[asyncio.Task[None]] = []

    @property
    def pids(self) -> dict[str, int]:
        return {plan.name: self._processes[plan.name].pid for plan in self._plans if plan.name in self._processes}

    async def start(self) -> None:
        children.adopt_orphans()
        for plan in self._plans:
            await self._start(plan)
        self._tasks = [asyncio.create_task(self._keep(plan)) for plan in self._plans]
        self._tasks.append(asyncio.create_task(self._sweep_forever()))

    def ready(self) -> None:
        """From now on a service that ends is restarted without limit."""
        self._ready = True

    async def failed(self) -> None:
        """Never returns by itself; raises what ended a keeper: CommandFailure when a service does not come up."""
        done, _ = await asyncio.wait(
            self._tasks, return_when=asyncio.FIRST_EXCEPTION
        )  # cancels no keeper, as gather would
        for task in done:
            task.result()

    async def stop(self) -> None:
        """Ends all services and everything below them."""
        self._stopping = True
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for name in _STOP_ORDER:
            if name in self._processes:
                await children.stop(self._processes[name], DRAIN_SECONDS)
        while children.sweep_orphans(()):  # noqa: ASYNC110 - nobody tells of an orphan's end
            await asyncio.sleep(0.02)

    async def _start(self, plan: children.ServicePlan) -> None:
        async with self._spawning:
            self._processes[plan.name] = await children.start(plan)

    async def _sweep(self) -> None:
        async with self._spawning:
            children.sweep_orphans(self.pids.values())

    async def _sweep_forever(self) -> None:
        while True:
            await asyncio.sleep(SWEEP_SECONDS)
            await self._sweep()

    async def _keep(self, plan: children.ServicePlan) -> None:
        failures = 0
        while True:
            started = time.monotonic()
            process = self._processes[plan.name]
            returncode = await process.wait()
            await self._sweep()
            failures = 1 if time.monotonic() - started > STEADY_SECONDS else failures + 1
            how = children.ending(returncode)
            if not self._ready and failures >= FAILED_STARTS:
                raise CommandFailure(
                    f"the {plan.name} service does not start: it ended with {how}", _log_tail(plan.log)
                )
            delay = restart_delay(failures)
            say(f"{plan.name} (pid {process.pid}) ended with {how}; starting it again in {delay:g} s")
            await asyncio.sleep(delay)
            await self._start(plan)
            self._on_pids(self.pids)


def _log_tail(log: Path) -> str:
    lines = log.read_text(errors="replace").splitlines()[-LOG_TAIL_LINES:]
    return "\n".join([f"the end of {log}:", *lines])


async def run(options: DevOptions) -> None:
    """Runs until SIGINT or SIGTERM; returns after everything has ended. CommandFailure when it cannot start."""
    options.data.prepare()
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        loop.add_signal_handler(number, stop.set)
    with only_one(options.data), socket_folder(options.data) as run_folder:
        await _run(options, run_folder, stop)


async def _run(options: DevOptions, run_folder: Path, stop: asyncio.Event) -> None:
    data = options.data
    host, port = choose_listen(data, options.listen)
    public_host = "localhost" if host in ("127.0.0.1", "::1", "0.0.0.0", "::", "localhost") else host  # noqa: S104
    origin = f"https://{join_listen(public_host, port)}"
    names = ["localhost", f"*.{options.workers_domain}", "127.0.0.1", "::1"]
    if public_host not in names:
        names.append(public_host)
    certificates = ensure_certificates(data.tls, tuple(names))
    admin = f"127.0.0.1:{free_port('127.0.0.1', but=port)}"
    load_or_create_service_credential(data.service_credential)
    addresses = {name: f"unix:{run_folder / f'{name}.sock'}" for name in ("control", "runtime")}

    description: dict[str, Any] = {
        "origin": origin,
        "discoveryUrl": origin + DISCOVERY_PATH,
        "baseUrl": "",
        "caFile": str(certificates.ca_file),
        "token": "",
        "adminUrl": f"http://{admin}",
        "pids": {},
        "grpc": addresses,
    }

    def publish(pids: dict[str, int]) -> None:
        description["pids"] = pids
        if description["baseUrl"]:
            write_description(data, description)

    environment = _environment(options, addresses, origin, join_listen(host, port), admin, certificates)
    plans = tuple(
        children.ServicePlan(name, f"saisei_{name}", environment, data.log(name))
        for name in ("control", "runtime", "gateway")
    )
    supervisor = Supervisor(plans, publish)
    try:
        await supervisor.start()
        say(f"starting on {data.root}")
        if not await _first_of(_ready(description, data, certificates), supervisor.failed(), stop):
            return
        supervisor.ready()
        publish(supervisor.pids)
        print(json.dumps(description), flush=True)
        say(f"ready at {origin} (logs: {data.root / 'logs'}; stop with Ctrl-C)")
        say(f"the line above and {data.root} hold the token and the keys of this Host: keep them to yourself")
        await _first_of(stop.wait(), supervisor.failed(), stop)
        say("stopping")
    finally:
        await supervisor.stop()
        data.description.unlink(missing_ok=True)
        say("stopped")


async def _first_of(work: Any, failure: Any, stop: asyncio.Event) -> bool:
    """Waits for `work`; False when `stop` came first. Raises what `failure` raises."""
    tasks = [asyncio.ensure_future(each) for each in (work, failure, stop.wait())]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        if tasks[0] not in done and tasks[1] in done:
            tasks[1].result()
        if tasks[0] in done:
            tasks[0].result()
            return True
        return False
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _ready(description: dict[str, Any], data: DataFolder, certificates: Certificates) -> None:
    try:
        async with asyncio.timeout(READY_WITHIN_SECONDS):
            await asyncio.gather(*(until_serving(address) for address in description["grpc"].values()))
            description["token"] = await asyncio.to_thread(_dev_token, data, description["grpc"]["control"])
            description["baseUrl"] = await until_discovered(description["origin"], certificates.ca_file)
    except TimeoutError as error:
        raise CommandFailure(
            f"the services were not ready within {READY_WITHIN_SECONDS:.0f} s", f"see the logs in {data.root / 'logs'}"
        ) from error


def _dev_token(data: DataFolder, control: str) -> str:
    """The token of principal "dev", which may do everything everywhere; the kept one as long as the Host knows it."""
    with Access(control, data.service_credential) as access:
        if data.token.exists():
            kept = data.token.read_text().strip()
            if access.is_valid(kept):
                return kept
        token = access.create_token("dev", (SpaceGrant("*", read=True, write=True),))
    write_private(data.token, token + "\n")
    return token


def _environment(
    options: DevOptions, addresses: dict[str, str], origin: str, listen: str, admin: str, certificates: Certificates
) -> dict[str, str]:
    """The caller's environment (so that any SAISEI_ setting can be given) with what `dev` decides on top."""
    database_folder = options.data.root
    return {
        "SAISEI_CONTROL_DATABASE_URL": f"sqlite:///{database_folder / 'control.db'}",
        "SAISEI_RUNTIME_DATABASE_URL": f"sqlite:///{database_folder / 'runtime.db'}",
        # Services start Node processes; gRPC's handlers around fork would only be in the way, and say so in the log.
        "GRPC_ENABLE_FORK_SUPPORT": "false",
        **os.environ,
        "SAISEI_DATA_DIR": str(options.data.root),
        "SAISEI_SERVICE_CREDENTIAL_FILE": str(options.data.service_credential),
        "SAISEI_CONTROL_ADDRESS": addresses["control"],
        "SAISEI_CONTROL_LISTEN": addresses["control"],
        "SAISEI_RUNTIME_ADDRESS": addresses["runtime"],
        "SAISEI_RUNTIME_LISTEN": addresses["runtime"],
        "SAISEI_GATEWAY_LISTEN": listen,
        "SAISEI_ADMIN_LISTEN": admin,
        "SAISEI_PUBLIC_ORIGIN": origin,
        "SAISEI_TLS_CERT_FILE": str(certificates.certificate_file),
        "SAISEI_TLS_KEY_FILE": str(certificates.key_file),
        "SAISEI_WORKERS_DOMAIN": options.workers_domain,
        "SAISEI_VIRTUAL_CLOCK": "true" if options.virtual_clock else "false",
        "SAISEI_PREVIEW_FORMS": "true" if options.preview_forms else "false",
        "SAISEI_LOG_LEVEL": options.log_level,
    }


def main(options: DevOptions) -> None:
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(run(options))
