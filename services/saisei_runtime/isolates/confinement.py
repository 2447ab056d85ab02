"""What the kernel takes from a Node process before its first instruction, as far as it can: its network, other system
calls than it needs, and its life without the runtime (design 3)."""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import functools
import logging
import os
import re
import resource
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from saisei_runtime.isolates.syscalls import AT_EMPTY_PATH, MACHINES, PR_SET_PDEATHSIG, Machine, filter_program

_log = logging.getLogger(__name__)

_CLONE_NEWUSER = 0x10000000
_CLONE_NEWNET = 0x40000000
_PR_SET_NO_NEW_PRIVS = 38
_SECCOMP_SET_MODE_FILTER = 1
# Without it older kernels slow a filtered process down for the sake of secrets that this one does not hold.
_SECCOMP_FILTER_FLAG_SPEC_ALLOW = 4
_CLOSE_RANGE_CLOEXEC = 4
_LAST_DESCRIPTOR = 0xFFFFFFFF
# So many descriptors a process may have; the one of its program is numbered with this, where none can come afterwards.
_DESCRIPTORS = 4095
_FILTERS = re.compile(r"^Seccomp_filters:\s*(\d+)$", re.MULTILINE)


@functools.cache
def _kernel() -> ctypes.CDLL | None:
    return ctypes.CDLL(None, use_errno=True) if sys.platform == "linux" else None


class _Program(ctypes.Structure):
    """The kernel's `sock_fprog`."""

    _fields_ = (("length", ctypes.c_ushort), ("code", ctypes.c_void_p))


class _Exec:
    """A program with its arguments and its filter, laid out before the fork: between fork and exec there are only
    system calls."""

    def __init__(self, machine: Machine, command: Sequence[str], env: Mapping[str, str], kept: Sequence[int]) -> None:
        self._machine = machine
        self._path = command[0]
        self._kept = kept
        self._arguments = (ctypes.c_char_p * (len(command) + 1))(*(part.encode() for part in command), None)
        self._environment = (ctypes.c_char_p * (len(env) + 1))(*(f"{k}={v}".encode() for k, v in env.items()), None)
        _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
        self._last = _DESCRIPTORS if most == resource.RLIM_INFINITY else min(_DESCRIPTORS, most - 1)

    def run(self, kernel: ctypes.CDLL) -> None:
        """Does not return when it succeeds. When it does, the process has no filter, or cannot execute anything."""
        opened = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC)
        if fcntl.fcntl(opened, fcntl.F_DUPFD_CLOEXEC, self._last) != self._last:
            return
        numbers = self._machine.numbers
        if kernel.syscall(numbers["close_range"], 3, _LAST_DESCRIPTOR, _CLOSE_RANGE_CLOEXEC) != 0:
            return
        for descriptor in self._kept:
            os.set_inheritable(descriptor, True)
        resource.setrlimit(resource.RLIMIT_NOFILE, (self._last, self._last))
        code = filter_program(self._machine, pid=os.getpid(), program_fd=self._last)
        program = _Program(len(code) // 8, ctypes.cast(ctypes.c_char_p(code), ctypes.c_void_p))
        if kernel.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0:
            return
        for flags in (_SECCOMP_FILTER_FLAG_SPEC_ALLOW, 0):
            if kernel.syscall(numbers["seccomp"], _SECCOMP_SET_MODE_FILTER, flags, ctypes.byref(program)) == 0:
                break
        else:
            return
        kernel.syscall(numbers["execveat"], self._last, b"", self._arguments, self._environment, AT_EMPTY_PATH)


def _confine(parent: int, kernel: ctypes.CDLL, program: _Exec | None) -> None:
    """Runs in the child. It gets an empty network of its own, for which it may need users of its own, and is killed
    when the thread that forked it ends (after that: new users take it away)."""
    if kernel.unshare(_CLONE_NEWNET) != 0:
        kernel.unshare(_CLONE_NEWUSER | _CLONE_NEWNET)
    kernel.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)
    if program is not None:
        with contextlib.suppress(OSError, ValueError):
            program.run(kernel)


def launch(
    command: Sequence[str], *, line: int, env: Mapping[str, str], kept: Sequence[int] = (), filtered: bool = True
) -> subprocess.Popen[bytes]:
    """Starts a program in a session of its own, its standard input being the descriptor `line`, its errors piped. It
    inherits the descriptors `kept` and no other. Call it in the main thread: the child dies with the thread that forked
    it. OSError when it cannot be started."""
    kernel = _kernel()
    program = _program(command, env, kept) if filtered and kernel is not None else None

    def start(program: _Exec | None) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            command,
            stdin=line,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            cwd="/",
            env=env,
            start_new_session=True,
            pass_fds=kept,
            preexec_fn=None if kernel is None else functools.partial(_confine, os.getpid(), kernel, program),  # noqa: PLW1509 - system calls, no locks
        )

    try:
        return start(program)
    except OSError:
        if program is None:
            raise
        # A kernel that takes the filter, but cannot execute a program by its descriptor.
        return start(None)


def _program(command: Sequence[str], env: Mapping[str, str], kept: Sequence[int]) -> _Exec | None:
    """None on machines whose calls are not known, also when this process makes those of another one."""
    machine = MACHINES.get(os.uname().machine)
    return None if machine is None or sys.maxsize < 2**32 else _Exec(machine, command, env, kept)


def has_own_network(pid: int) -> bool:
    """False also when the kernel does not tell."""
    try:
        return Path(f"/proc/{pid}/ns/net").readlink() != Path("/proc/self/ns/net").readlink()
    except OSError:
        return False


def has_filter(pid: int) -> bool:
    """Whether the kernel filters the system calls of a process more than this one's. False also when it does not
    tell."""
    return _filters(pid) > _filters(os.getpid())


def _filters(pid: int) -> int:
    try:
        found = _FILTERS.search(Path(f"/proc/{pid}/status").read_text("ascii", "replace"))
    except OSError:
        return 0
    return 0 if found is None else int(found[1])


@functools.cache
def _tell(what: str) -> None:
    _log.warning(what)


def tell_what_is_missing(*, own_network: bool, filtered: bool) -> None:
    """A line in the log, once, for each thing that this kernel does not give."""
    rest = "only the runtime's egress policy and Node's own limits count"
    if not own_network:
        _tell(f"the kernel gives Node no network of its own: {rest}")
    if not filtered:
        _tell(f"the kernel filters no system calls of Node: {rest}")
