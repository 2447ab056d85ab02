"""Stopping: whatever a context does, it ends within two seconds, with proof, and disturbs no other."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from saisei_runtime.isolates.port import Completed, DoStarted, Lost, ProofKind, Stop, Stopped
from saisei_runtime.isolates.protocol import KillThread

pytestmark = pytest.mark.asyncio(loop_scope="session")

STUBBORN = {
    "busy loop": "for (;;) {}",
    "busy loop in an effect": 'await step.do("a", () => { for (;;) {} });',
    "catastrophic regular expression": 'return {m: /^(a+)+$/.test("a".repeat(60) + "!")};',
    "endless microtasks": "for (;;) await null;",
    "never settling": "await new Promise(() => {});",
    "never settling effect": 'await step.do("a", () => new Promise(() => {}));',
    "timer loop": "for (;;) await new Promise((r) => setTimeout(r, 0));",
    "Atomics.wait": "Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0);",
    # The engine stops no sort in the middle: one that takes longer than a join may costs the process (below).
    "sorting arrays": "for (;;) Array.from({length: 2e4}, Math.random).sort();",
    "catching everything": "for (;;) { try { for (;;) {} } catch {} finally { for (;;) {} } }",
    "wasm loop": """new WebAssembly.Instance(new WebAssembly.Module(new Uint8Array([
        0,97,115,109,1,0,0,0,1,4,1,96,0,0,3,2,1,0,7,5,1,1,102,0,0,10,9,1,7,0,3,64,12,0,11,11]))).exports.f();""",
}


async def until(condition: Callable[[], bool], seconds: float = 30.0) -> None:
    limit = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < limit, "the condition did not become true"
        await asyncio.sleep(0.005)


@pytest.mark.parametrize("kind", STUBBORN)
async def test_stop_ends_whatever_runs(lab: Any, make_workflow: Any, kind: str) -> None:
    """W-070, W-014: `stop()` ends any code within 2 s with a joined thread, while another context goes on."""
    loads = 'await step.do("started", () => {});\n'
    stubborn = await lab.start(make_workflow(loads + STUBBORN[kind]))
    other = await lab.start(make_workflow('await step.do("slow", () => new Promise((r) => setTimeout(r, 60)));'))
    await until(lambda: len(stubborn.calls) >= 2)
    stopwatch = lab.stopwatch()
    stubborn.handle.stop()
    stubborn.handle.stop()
    end = await asyncio.wait_for(stubborn.ended, 30)
    assert stopwatch.seconds() < 2
    assert isinstance(end.outcome, Stopped)
    assert end.proof.kind is ProofKind.JOINED
    assert end.proof.context_id.startswith("context-")
    assert end.proof.milliseconds > 0
    assert isinstance((await asyncio.wait_for(other.ended, 30)).outcome, Completed)


async def test_stop_runs_no_application_code(lab: Any, make_workflow: Any) -> None:
    """W-075, W-121: neither `catch` nor `finally` of a stopped context runs."""
    run = await lab.start(
        make_workflow(
            """try { await step.do("a", () => new Promise(() => {})); }
            catch { await step.do("caught", () => {}); } finally { await step.do("finally", () => {}); }"""
        )
    )
    await until(lambda: run.calls != [])
    run.handle.stop()
    await run.ended
    assert [call.name for call in run.calls] == ["a"]


async def test_an_end_is_reported_once_and_nothing_follows(lab: Any, make_workflow: Any) -> None:
    """W-014: exactly one end, after the proof; replies and stops that come later are ignored."""
    end, run = await lab.run(make_workflow("return {a: 1};"))
    run.handle.stop()
    run.handle.reply(1, Stop())
    end_again, _ = await lab.run(make_workflow("return {a: 2};"))
    assert run.ends == 1
    assert end.outcome == Completed(b'{"a":1}')
    assert end_again.outcome == Completed(b'{"a":2}')


async def test_busy_after_park_is_joined(lab: Any, make_workflow: Any) -> None:
    """W-014, W-111: code that goes on next to a parked step is terminated before the end is reported."""
    end, run = await lab.run(
        make_workflow('setTimeout(() => { for (;;) {} }, 0); const p = step.sleep("s", 5); for (;;) await null;')
    )
    assert end.proof.kind is ProofKind.JOINED
    assert type(end.outcome).__name__ == "Parked"
    assert run.took < 2.5


async def test_endless_microtasks_after_the_return(lab: Any, make_workflow: Any) -> None:
    """W-014, W-085: the output is known, but the context only ends once its left-over code is proven stopped."""
    end, _ = await lab.run(make_workflow("(async () => { for (;;) await null; })(); return {a: 1};"))
    assert end.outcome == Completed(b'{"a":1}')
    assert end.proof.kind is ProofKind.JOINED


async def test_out_of_memory_ends_the_context_only(own_lab: Any, make_workflow: Any) -> None:
    """Design 3: a thread over its heap limit is lost, with proof; the next context of the Worker runs."""
    lab = own_lab(thread_heap=48)
    end, _ = await lab.run(make_workflow("const a = []; for (;;) a.push(new Array(10000).fill(Math.random()));"))
    assert isinstance(end.outcome, Lost)
    assert end.proof.kind in (ProofKind.JOINED, ProofKind.REAPED)
    end, _ = await lab.run(make_workflow("return {a: 1};"))
    assert isinstance(end.outcome, Completed)


def _pid(lab: Any) -> int:
    return int(lab.pool._isolates["worker"].process.pid)


async def test_killed_process(own_lab: Any, make_workflow: Any) -> None:
    """Design 3, W-154: a killed process loses its contexts, proven by `waitpid`; the next start works."""
    lab = own_lab()
    first = await lab.start(make_workflow('await step.do("a", () => new Promise(() => {}));'))
    second = await lab.start(make_workflow('await step.do("a", () => new Promise(() => {}));'))
    await until(lambda: bool(first.calls and second.calls))
    pid = _pid(lab)
    os.kill(pid, signal.SIGKILL)
    for run in (first, second):
        end = await asyncio.wait_for(run.ended, 30)
        assert isinstance(end.outcome, Lost)
        assert end.proof.kind is ProofKind.REAPED
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
    end, _ = await lab.run(make_workflow("return {a: 1};"))
    assert end.outcome == Completed(b'{"a":1}')


async def test_frozen_process_is_killed(own_lab: Any, make_workflow: Any) -> None:
    """Design 3: a process that misses its heartbeats is killed and reaped."""
    lab = own_lab(heartbeat_every=0.1, heartbeat_missed_after=2)
    run = await lab.start(make_workflow('await step.do("a", () => new Promise(() => {}));'))
    await until(lambda: run.calls != [])
    os.kill(_pid(lab), signal.SIGSTOP)
    end = await asyncio.wait_for(run.ended, 30)
    assert isinstance(end.outcome, Lost)
    assert "heartbeats" in end.outcome.why
    assert end.proof.kind is ProofKind.REAPED


async def test_unjoinable_thread_costs_the_process(own_lab: Any, make_workflow: Any) -> None:
    """W-070, Design 3: when a join does not come in time the whole process is killed, and that is the proof."""
    lab = own_lab(join_within=0.2, heartbeat_missed_after=60)
    run = await lab.start(make_workflow('await step.do("a", () => new Promise(() => {}));'))
    await until(lambda: run.calls != [])
    os.kill(_pid(lab), signal.SIGSTOP)  # its supervisor cannot even hear the order
    run.handle.stop()
    end = await asyncio.wait_for(run.ended, 30)
    assert isinstance(end.outcome, Stopped)
    assert end.proof.kind is ProofKind.REAPED


def _deafen(lab: Any) -> None:
    """From now on the Worker's process hears no order to end a thread."""
    process = lab.pool._isolates["worker"].process
    order = process.order
    process.order = lambda frame: None if isinstance(frame, KillThread) else order(frame)


async def test_neighbours_of_an_unjoinable_thread_may_finish(own_lab: Any, make_workflow: Any) -> None:
    """W-154, Design 3: while there is time, a process that must be killed is spared for its other contexts."""
    lab = own_lab(join_within=0.05, join_spared=60, max_threads=4)
    stuck = await lab.start(make_workflow('await step.do("a", () => new Promise(() => {}));'))
    other = await lab.start(
        make_workflow("""for (const n of [1, 2, 3]) {
          await step.do(`s${n}`, () => new Promise((r) => setTimeout(() => r({}), 200)));
        } return {done: true};""")
    )
    await until(lambda: bool(stuck.calls and other.calls))
    _deafen(lab)
    stuck.handle.stop()
    late = asyncio.create_task(lab.run(make_workflow("return {late: true};")))
    assert (await asyncio.wait_for(asyncio.shield(other.ended), 60)).outcome == Completed(b'{"done":true}')
    end = await asyncio.wait_for(stuck.ended, 60)
    assert isinstance(end.outcome, Stopped) and end.proof.kind is ProofKind.REAPED
    # What was asked for meanwhile began in another process, instead of being lost in this one.
    assert (await asyncio.wait_for(late, 60))[0].outcome == Completed(b'{"late":true}')


async def test_an_unjoinable_thread_is_not_spared_for_ever(own_lab: Any, make_workflow: Any) -> None:
    """W-070, Design 3: the stop is proven in time although a neighbour never ends; that one is lost."""
    lab = own_lab(join_within=0.05, join_spared=0.3, max_threads=4)
    endless = make_workflow('await step.do("a", () => new Promise(() => {}));')
    stuck, other = await lab.start(endless), await lab.start(endless)
    await until(lambda: bool(stuck.calls and other.calls))
    _deafen(lab)
    stuck.handle.stop()
    assert (await asyncio.wait_for(stuck.ended, 60)).proof.kind is ProofKind.REAPED
    assert isinstance((await asyncio.wait_for(other.ended, 60)).outcome, Lost)


async def test_a_context_alone_takes_nobody_along(own_lab: Any, make_workflow: Any) -> None:
    """W-154, Issue 5: a context whose instance was lost again and again has a process to itself, which ends with it."""
    lab = own_lab(processes_alone=1, max_threads=4)
    endless = make_workflow('await step.do("a", () => new Promise(() => {}));')
    neighbour = await lab.start(endless)
    alone = await lab.start(endless, alone=True)
    third = await lab.start(endless, alone=True)  # there is room for one only
    await until(lambda: bool(neighbour.calls and alone.calls and third.calls))
    processes = {key: isolate.process for key, isolate in lab.pool._isolates.items()}
    assert len(processes) == 2
    (key,) = set(processes) - {"worker"}
    os.kill(processes[key].pid, signal.SIGKILL)
    assert isinstance((await asyncio.wait_for(alone.ended, 60)).outcome, Lost)
    assert not neighbour.ended.done() and not third.ended.done()
    end, _ = await lab.run(make_workflow("return {a: 1};"), alone=True)
    assert end.outcome == Completed(b'{"a":1}')
    await until(lambda: set(lab.pool._isolates) == {"worker"})
    alone = await lab.start(endless, alone=True)
    assert await lab.pool.drain("worker") == 3
    assert isinstance((await alone.ended).outcome, Stopped)


async def test_memory_of_the_process_is_limited(own_lab: Any, make_workflow: Any) -> None:
    """Design 3: memory outside the heap counts too; a process over its limit is killed."""
    lab = own_lab(process_memory=400, heartbeat_every=0.05)
    end, _ = await lab.run(
        make_workflow(
            """const all = []; for (;;) { const b = new Uint8Array(1 << 24); b.fill(1); all.push(b);
            await new Promise((r) => setTimeout(r, 5)); }"""
        )
    )
    assert isinstance(end.outcome, Lost)
    assert end.proof.kind is ProofKind.REAPED


async def test_drain_stops_all_contexts_of_a_version(own_lab: Any, make_workflow: Any) -> None:
    """W-087, W-088: draining a Version proves its contexts stopped, leaves other Versions alone and counts."""
    lab = own_lab()
    one = make_workflow('await step.do("one", () => new Promise(() => {}));')
    two = make_workflow('await step.do("two", () => new Promise(() => {}));')
    runs = [await lab.start(source) for source in (one, one, two)]
    await until(lambda: all(run.named(DoStarted) for run in runs))
    assert await lab.pool.drain("worker", lab.code(one).version_uid) == 2
    assert [run.ended.done() for run in runs] == [True, True, False]
    assert await lab.pool.drain("worker") == 1
    assert isinstance(runs[2].ended.result().outcome, Stopped)
    assert await lab.pool.drain("nobody") == 0


async def test_close_reaps_every_process(own_lab: Any, make_workflow: Any) -> None:
    """Design 3: closing the pool stops everything, reports each end and leaves no process."""
    lab = own_lab()
    run = await lab.start(make_workflow('await step.do("a", () => new Promise(() => {}));'))
    pid = _pid(lab)
    await lab.pool.close()
    assert isinstance(run.ended.result().outcome, Stopped)
    assert run.ended.result().proof.kind is ProofKind.REAPED
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


async def test_node_dies_with_the_runtime(tmp_path: Any) -> None:
    """W-150: a killed runtime takes its Node processes with it, also while a context spins."""
    script = tmp_path / "runtime.py"
    script.write_text(
        """
import asyncio
from saisei_runtime.code import Module, WorkerCode
from saisei_runtime.isolates.pool import IsolatePool
from saisei_runtime.isolates.port import WorkflowStart

class Engine:
    def on_step(self, *_): print(pool._isolates["w"].process.pid, flush=True)
    def on_ended(self, *_): pass

async def main():
    global pool
    pool = IsolatePool()
    source = b"export class W { run(e, s) { return s.do('a', () => { for (;;) {} }); } } export default {};"
    code = WorkerCode("v", "w", "m.js", {"m.js": Module("application/javascript+module", source)})
    await pool.start_workflow(WorkflowStart("c", code, "W", "i", None), Engine())
    await asyncio.sleep(600)

asyncio.run(main())
"""
    )
    runtime = await asyncio.create_subprocess_exec(sys.executable, str(script), stdout=asyncio.subprocess.PIPE)
    assert runtime.stdout is not None
    pid = int(await asyncio.wait_for(runtime.stdout.readline(), 60))
    os.kill(pid, 0)
    runtime.kill()
    await runtime.wait()

    def gone() -> bool:
        try:
            return Path(f"/proc/{pid}/stat").read_text("ascii").rpartition(")")[2].split()[0] in "ZX"
        except OSError:
            return True

    await until(gone)
