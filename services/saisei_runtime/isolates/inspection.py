"""What a Version exports, found in a process of its own that is killed afterwards (MW-10, MW-14, W-080)."""

from __future__ import annotations

import asyncio
import re
import socket
import subprocess

from saisei_runtime.code import WorkerCode
from saisei_runtime.isolates.code_frames import SUPPORTED_BINDINGS, code_frame
from saisei_runtime.isolates.confinement import launch
from saisei_runtime.isolates.port import CodeProblem, Inspection, ProofKind
from saisei_runtime.isolates.process import NodeProcess, ThreadRole, node_executable
from saisei_runtime.isolates.protocol import FromThread, Inspect, Inspected
from saisei_runtime.isolates.settings import IsolateSettings

_CHECK_SECONDS = 5.0
_WHERE = re.compile(rb"^\[stdin\]:(\d+)\r?\n(.*)\r?\n([ \t]*)\^", re.MULTILINE)


def _failed(code: str, message: str, module: str = "", line: int = 0, column: int = 0) -> Inspection:
    return Inspection(False, problems=(CodeProblem(code, message, module, line, column),))


async def inspect(settings: IsolateSettings, code: WorkerCode) -> Inspection:
    """Evaluates the modules without variables, secrets or Bindings. SaiseiError backend_unavailable: no process."""
    for binding in code.bindings:
        if binding.kind not in SUPPORTED_BINDINGS:
            what = f"the Binding {binding.name!r} is of kind {binding.kind.value}, which this Host does not serve yet"
            return _failed("unsupported_binding", what)
    process = await NodeProcess.start(settings, f"inspection of {code.version_uid}")
    try:
        found = await _ask(process, settings, code)
    finally:
        process.kill("its inspection is over")
        await process.reaped
    if isinstance(found, Inspection):
        return found
    if found.code == "syntax_error":
        line, column = await _locate(settings, code.modules[found.module].data)
        return _failed(found.code, found.message, found.module, line, column)
    problems = (CodeProblem(found.code, found.message, found.module or code.entrypoint),) if found.code else ()
    return Inspection(found.loads, frozenset(found.handlers), frozenset(found.classes), problems)


async def _ask(process: NodeProcess, settings: IsolateSettings, code: WorkerCode) -> Inspected | Inspection:
    thread = process.spawn(ThreadRole.INSPECT)
    result: asyncio.Future[Inspected | Inspection] = asyncio.get_running_loop().create_future()

    def receive(frame: FromThread, _body: bytes) -> None:
        if isinstance(frame, Inspected) and not result.done():
            result.set_result(frame)

    def gone(_kind: ProofKind, why: str) -> None:
        if not result.done():
            what = f"evaluating the modules ended the thread: {why or 'for an unknown reason'}"
            result.set_result(_failed("evaluation_threw", what, code.entrypoint))

    thread.on_frame, thread.on_gone = receive, gone
    await thread.ready
    thread.send(*code_frame(code, with_environment=False))
    thread.send(Inspect(code.version_uid, code.entrypoint))
    try:
        async with asyncio.timeout(settings.inspection_within):
            return await result
    except TimeoutError:
        what = f"evaluating the modules took longer than {settings.inspection_within:g} seconds"
        return _failed("inspection_timeout", what, code.entrypoint)


async def _locate(settings: IsolateSettings, source: bytes) -> tuple[int, int]:
    """Line and column of a syntax error, 1-based; 0 when unknown. The engine tells them only when it checks a file."""
    found = _WHERE.search(await asyncio.to_thread(_complaint, settings, source))
    return (int(found[1]), len(found[3]) + 1) if found else (0, 0)


def _complaint(settings: IsolateSettings, source: bytes) -> bytes:
    """What Node says about a module that it only parses; nothing when it takes too long."""
    command = [str(node_executable()), "--no-warnings", "--check", "--input-type=module", "-"]
    ours, theirs = socket.socketpair()
    with ours:
        with theirs:
            child = launch(command, line=theirs.fileno(), env={}, filtered=settings.filtered)
        ours.settimeout(_CHECK_SECONDS)
        try:
            ours.sendall(source)
            ours.shutdown(socket.SHUT_WR)
            return child.communicate(timeout=_CHECK_SECONDS)[1]
        except (OSError, subprocess.TimeoutExpired):
            child.kill()
            child.communicate()
            return b""
