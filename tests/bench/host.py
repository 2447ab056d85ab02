"""The Host under a benchmark: `saisei dev` on SQLite, with the benchmark's Worker deployed."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import TracebackType

import grpc
from tests.support.dev_host import DevHost

from saisei_service.rpc import open_channel

_CLASSES = {
    "one-step": "OneStep",
    "ten-steps": "TenSteps",
    "sleeper": "Sleeper",
    "waiter": "Waiter",
    "many-steps": "ManySteps",
    "paced-steps": "PacedSteps",
}


class BenchHost(DevHost):
    """`workflows` maps a class of tests/bench/app/main.mjs to the UID of its DurableWorkflow."""

    workflows: dict[str, str]

    def __enter__(self) -> BenchHost:
        super().__enter__()
        try:
            deployed = self.deploy(Path(__file__).parent / "app")
        except BaseException:
            self.stop()
            self.print_logs()
            raise
        self.workflows = {_CLASSES[name]: uid for name, uid in deployed.workflows.items()}
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        super().__exit__(kind, error, trace)

    async def wait_until_serving(self) -> None:
        """Until the runtime answers again after a kill."""
        while True:
            channel = open_channel(self.grpc_runtime)
            try:
                await asyncio.wait_for(channel.channel_ready(), 1)
                return
            except (TimeoutError, grpc.aio.AioRpcError):
                await asyncio.sleep(0.01)
            finally:
                await channel.close()
