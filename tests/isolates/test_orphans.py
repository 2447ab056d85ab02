"""A Node process whose runtime is silent: it ends before the lease of what it runs does."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from tests.support.stopwatch import Stopwatch

from saisei_runtime.isolates.settings import IsolateSettings
from saisei_runtime.workflow.engine import EngineSettings

pytestmark = pytest.mark.asyncio(loop_scope="session")

SILENCE = 2.0
RUNTIME = f"""
import asyncio, json
from saisei_runtime.code import Module, WorkerCode
from saisei_runtime.isolates.pool import IsolatePool, IsolateSettings
from saisei_runtime.isolates.port import WorkflowStart

def say(**facts): print(json.dumps(facts), flush=True)

class Engine:
    def on_step(self, *_): say(node=pool._isolates["w"].process.pid)
    def on_ended(self, name, end): say(name=name, outcome=type(end.outcome).__name__, proof=end.proof.kind.value)

async def start(name, body):
    source = ("export class W {{ run(e, step) {{ " + body + " }} }} export default {{}};").encode()
    code = WorkerCode(name, "w", "m.js", {{"m.js": Module("application/javascript+module", source)}})
    await pool.start_workflow(WorkflowStart(name, code, "W", "i", None), Engine())

async def main():
    global pool
    pool = IsolatePool(IsolateSettings(orphaned_after={SILENCE}, heartbeat_every=0.2))
    await start("spin", "return step.do('a', () => {{ for (;;) {{}} }});")
    await asyncio.get_running_loop().run_in_executor(None, input)
    await start("next", "return {{a: 1}};")
    await asyncio.sleep(600)

asyncio.run(main())
"""


class Runtime:
    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process

    async def hear(self) -> Any:
        assert self.process.stdout is not None
        return json.loads(await asyncio.wait_for(self.process.stdout.readline(), 60))


@pytest_asyncio.fixture(loop_scope="session")
async def runtime(tmp_path: Path) -> AsyncIterator[Runtime]:
    script = tmp_path / "runtime.py"
    script.write_text(RUNTIME)
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(sys.executable, str(script), stdin=pipe, stdout=pipe)
    yield Runtime(process)
    process.kill()
    await process.wait()


def _state(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/stat").read_text("ascii").rpartition(")")[2].split()[0]
    except OSError:
        return "X"


async def _gone(pid: int, seconds: float) -> None:
    stopwatch = Stopwatch([pid])
    while _state(pid) not in "ZX":
        assert stopwatch.seconds() < seconds, "the Node process is still there"
        await asyncio.sleep(0.01)


async def test_a_silent_runtime_loses_its_processes(runtime: Runtime) -> None:
    """W-150: Node kills itself while its runtime is stopped, also while a context spins; the runtime then goes on."""
    pid = (await runtime.hear())["node"]
    runtime.process.send_signal(signal.SIGSTOP)
    await _gone(pid, SILENCE + 1)
    runtime.process.send_signal(signal.SIGCONT)
    assert await runtime.hear() == {"name": "spin", "outcome": "Lost", "proof": "reaped"}
    assert runtime.process.stdin is not None
    runtime.process.stdin.write(b"\n")
    assert await runtime.hear() == {"name": "next", "outcome": "Completed", "proof": "quiescent"}


async def test_a_stopped_process_does_not_come_back(runtime: Runtime) -> None:
    """W-150: when both were stopped for longer than the limit, Node ends before it hears anything new."""
    pid = (await runtime.hear())["node"]
    runtime.process.send_signal(signal.SIGSTOP)
    os.kill(pid, signal.SIGSTOP)
    await asyncio.sleep(SILENCE + 0.2)  # the time itself is what is tested
    assert _state(pid) == "T"
    os.kill(pid, signal.SIGCONT)
    await _gone(pid, 0.5)
    runtime.process.send_signal(signal.SIGCONT)
    assert await runtime.hear() == {"name": "spin", "outcome": "Lost", "proof": "reaped"}


async def test_limits_are_shorter_than_the_lease() -> None:
    """W-150: with one heartbeat to spare, in both directions."""
    settings = IsolateSettings()
    lease = EngineSettings(runtime_id="r").lease_ms / 1000
    assert settings.orphaned_after + 2 * settings.heartbeat_every < lease
    assert settings.heartbeat_missed_after + 2 * settings.heartbeat_every < lease
