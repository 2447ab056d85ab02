"""What a process can do that runs machine code of a hostile Worker: a program of ours tries it, freely and confined."""

from __future__ import annotations

import ctypes
import dataclasses
import json
import logging
import os
import platform
import socket
import struct
import sys
import sysconfig
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from saisei_runtime.isolates import confinement
from saisei_runtime.isolates.confinement import has_filter, has_own_network, launch
from saisei_runtime.isolates.syscalls import MACHINES, filter_program

# Each attempt is an expression; what it raises is its result, "done" otherwise. `number` calls the kernel by number.
ATTEMPTS = {
    "a program": "os.execv('/bin/true', ['true'])",
    "a program by descriptor": "number('execveat', os.open('/bin/true', os.O_RDONLY), b'', 0, 0, 0x1000)",
    "a process": "os._exit(0) if os.fork() == 0 else None",
    "a process with clone": "number('clone', 17, 0, 0, 0, 0)",
    "a process with clone3": "number('clone3', ctypes.create_string_buffer(88), 88)",
    "a signal to the runtime": "os.kill(os.getppid(), 0)",
    "a signal to everybody": "os.kill(-1, 0)",
    "a signal to a thread of the runtime": "number('tgkill', os.getppid(), os.getppid(), 0)",
    "a signal by descriptor": "signal.pidfd_send_signal(os.pidfd_open(os.getppid()), 0)",
    "memory of the runtime": "number('process_vm_readv', os.getppid(), 0, 0, 0, 0, 0)",
    "tracing the runtime": "number('ptrace', 0x4206, os.getppid(), 0, 0)",
    "a limit of the runtime": "resource.prlimit(os.getppid(), resource.RLIMIT_CPU, (9999, 9999))",
    "a limit of its own": "number('prlimit64', 0, 0, (ctypes.c_ulong * 2)(9999, 9999), 0)",
    "a TCP socket": "socket.socket(socket.AF_INET)",
    "an IPv6 socket": "socket.socket(socket.AF_INET6)",
    "a netlink socket": "socket.socket(socket.AF_NETLINK, socket.SOCK_RAW)",
    "the kernel's ciphers": "socket.socket(38, socket.SOCK_SEQPACKET)",
    "a socket that listens": "socket.socket(socket.AF_UNIX).bind('')",
    "a file": "open(folder + '/new', 'w')",
    "a longer file": "open(folder + '/there', 'a')",
    "a file by openat2": "number('openat2', -100, b'/etc/hostname', ctypes.create_string_buffer(24), 24)",
    "no file": "os.unlink(folder + '/there')",
    "another name": "os.rename(folder + '/there', folder + '/here')",
    "other rights": "os.chmod(folder + '/there', 0o777)",
    "a link": "os.symlink('/etc/passwd', folder + '/link')",
    "a folder": "os.mkdir(folder + '/folder')",
    "a name space": "number('unshare', 0x10000000)",
    "io_uring": "number('io_uring_setup', 1, ctypes.create_string_buffer(120))",
    "BPF": "number('bpf', 0, 0, 0)",
    "performance counters": "number('perf_event_open', ctypes.create_string_buffer(128), 0, -1, -1, 0)",
    "page faults": "number('userfaultfd', 0)",
    "keys": "number('keyctl', 0, -3, 0)",
    "to outlive the runtime": "number('prctl', 1, 0)",
}
# What any program may do, on any machine that tests run on.
COMMON = (
    *("a signal to the runtime", "a signal to a thread of the runtime", "a TCP socket", "a limit of its own"),
    *("a file", "a longer file", "other rights", "another name", "a link"),
)
ABSENT = ("a process with clone3", "io_uring", "a file by openat2")
ALLOWED = {
    "threads": "(lambda t: (t.start(), t.join()))(threading.Thread(target=lambda: None))",
    "code made at run time": "mmap.mmap(-1, 4096, prot=7)[0]",
    "sockets of this machine": "socket.socketpair()",
    "reading": "open('/proc/self/status').read()",
    "its own end": "os.kill(os.getpid(), 0)",
    "limits, read": "resource.getrlimit(resource.RLIMIT_NOFILE)",
    "random bytes": "os.urandom(8)",
    "a pipe": "os.pipe()",
}
PROGRAM = """
import ctypes, errno, json, mmap, os, resource, signal, socket, sys, threading
folder, attempts, numbers = json.loads(sys.argv[1])
def number(name, *arguments):
    if kernel.syscall(numbers[name], *arguments) < 0:
        raise OSError(ctypes.get_errno(), "")
kernel = ctypes.CDLL(None, use_errno=True)
found = {}
for name, attempt in attempts.items():
    try:
        eval(attempt)
        found[name] = "done"
    except OSError as error:
        found[name] = errno.errorcode.get(error.errno, str(error.errno))
    except BaseException as error:
        found[name] = repr(error)
os.write(0, json.dumps(found).encode())
"""
NUMBERS = {
    "x86_64": (302, 322, 56, 435, 234, 310, 101, 437, 272, 425, 321, 298, 323, 250, 157),
    "aarch64": (261, 281, 220, 435, 131, 270, 117, 437, 97, 425, 280, 241, 282, 219, 167),
}
NAMES = (
    *("prlimit64", "execveat", "clone", "clone3", "tgkill", "process_vm_readv", "ptrace", "openat2", "unshare"),
    *("io_uring_setup", "bpf", "perf_event_open", "userfaultfd", "keyctl", "prctl"),
)


def python() -> str:
    """The interpreter itself: a virtual environment's is a link."""
    return str(Path(sys.executable).resolve())


def tried(folder: Path, attempts: dict[str, str], *, filtered: bool) -> tuple[dict[str, str], bool]:
    """What became of the attempts, and whether the kernel filtered them all along."""
    (folder / "there").write_text("x")
    numbers = dict(zip(NAMES, NUMBERS[platform.machine()], strict=True))
    command = [python(), "-I", "-S", "-B", "-c", PROGRAM, json.dumps([str(folder), attempts, numbers])]
    ours, theirs = socket.socketpair()
    with ours:
        with theirs:
            child = launch(command, line=theirs.fileno(), env={"PATH": "", **stdlib()}, filtered=filtered)
        was = has_filter(child.pid)
        told = b""
        while chunk := ours.recv(65_536):
            told += chunk
    _, complaints = child.communicate(timeout=60)
    assert told, complaints.decode()
    found: dict[str, str] = json.loads(told)
    return found, was


def stdlib() -> dict[str, str]:
    """Where an interpreter that was built to be shared finds its own library."""
    folder = sysconfig.get_config_var("LIBDIR")
    return {"LD_LIBRARY_PATH": folder} if folder else {}


def kernel_filters() -> bool:
    """Whether this kernel has what a filter needs, and lets programs use it."""
    actions = Path("/proc/sys/kernel/seccomp/actions_avail")
    if platform.machine() not in MACHINES or not actions.exists() or "errno" not in actions.read_text():
        return False
    kernel, numbers = ctypes.CDLL(None), MACHINES[platform.machine()].numbers
    available = kernel.syscall(numbers["seccomp"], 2, 0, ctypes.byref(ctypes.c_uint32(0x00050000))) == 0
    return available and kernel.syscall(numbers["close_range"], 0x7FFFFFF0, 0x7FFFFFF1, 4) == 0


def test_what_a_confined_process_cannot_do(tmp_path: Path) -> None:
    """Design 3, Issue 4: no program, process, network, signal, file or kernel interface is left to hostile machine
    code, which keeps what Node needs; without the filter it has them all."""
    freely, filtered = tried(tmp_path, {**ALLOWED, **{name: ATTEMPTS[name] for name in COMMON}}, filtered=False)
    assert not filtered
    assert freely == dict.fromkeys((*ALLOWED, *COMMON), "done")
    for left in tmp_path.iterdir():
        left.unlink()
    if not kernel_filters():
        return
    confined, filtered = tried(tmp_path, {**ALLOWED, **ATTEMPTS}, filtered=True)
    expected = dict.fromkeys(ALLOWED, "done") | dict.fromkeys(ATTEMPTS, "EPERM") | dict.fromkeys(ABSENT, "ENOSYS")
    assert confined == expected and filtered
    assert sorted(path.name for path in tmp_path.iterdir()) == ["there"]


@pytest.mark.asyncio(loop_scope="session")
async def test_node_runs_under_the_filter(lab: Any, make_workflow: Callable[..., str]) -> None:
    """Design 3, Issue 4: threads, WebAssembly, compiled loops, timers, digests and fetches work as without it."""
    statements = """
      const wasm = new Uint8Array([0,97,115,109,1,0,0,0,1,5,1,96,0,1,127,3,2,1,0,7,5,1,1,102,0,0,10,6,1,4,0,65,42,11]);
      const { instance } = await WebAssembly.instantiate(wasm);
      let sum = 0; for (let i = 0; i < 1e6; i++) sum = (sum * 31 + i) | 0;
      await new Promise((done) => setTimeout(done, 1));
      const digest = new Uint8Array(await crypto.subtle.digest("SHA-256", new Uint8Array(3)));
      return {f: instance.exports.f(), sum: typeof sum, digest: digest.length};"""
    end, _ = await lab.run(make_workflow(statements))
    assert json.loads(end.outcome.output) == {"f": 42, "sum": "number", "digest": 32}
    assert has_filter(lab.pool._isolates["worker"].process.pid) or not kernel_filters()


def test_nothing_else_is_inherited(tmp_path: Path) -> None:
    """Design 3: a confined process holds its line, the descriptors meant for it, and no other."""
    kept, other = os.open(tmp_path, os.O_RDONLY), os.open(tmp_path, os.O_RDONLY)
    os.set_inheritable(other, True)
    program = "import json, os; os.write(0, json.dumps(sorted(map(int, os.listdir('/proc/self/fd')))).encode())"
    for filtered in (True, False):
        ours, theirs = socket.socketpair()
        with ours, theirs:
            command = [python(), "-I", "-S", "-B", "-c", program]
            child = launch(command, line=theirs.fileno(), env=stdlib(), kept=(kept,), filtered=filtered)
            theirs.close()
            held = json.loads(ours.recv(65_536))
        child.communicate(timeout=60)
        # The folder that is being listed has one too.
        assert {0, 1, 2, kept} <= set(held) and other not in held and len(held) == 5
    os.close(kept)
    os.close(other)


def test_a_program_that_is_not_there() -> None:
    """Design 3: what cannot be started says so, with a filter as without."""
    for filtered in (True, False):
        ours, theirs = socket.socketpair()
        with ours, theirs, pytest.raises(OSError):
            launch(["/nowhere/node"], line=theirs.fileno(), env={}, filtered=filtered)


def test_a_kernel_that_executes_no_descriptors(monkeypatch: pytest.MonkeyPatch) -> None:
    """Design 3, Issue 4: where the filter is taken and the program then cannot be started, it is started without."""
    machine = MACHINES[platform.machine()]
    without = dataclasses.replace(machine, numbers={**machine.numbers, "execveat": 2000})
    monkeypatch.setitem(confinement.MACHINES, platform.machine(), without)
    ours, theirs = socket.socketpair()
    with ours, theirs:
        command = [python(), "-I", "-S", "-B", "-c", "import os; os.write(0, os.read(0, 1))"]
        child = launch(command, line=theirs.fileno(), env=stdlib())
        assert not has_filter(child.pid)
        ours.sendall(b"x")
        assert ours.recv(1) == b"x"
    child.communicate(timeout=60)


@pytest.mark.asyncio(loop_scope="session")
async def test_an_operator_may_do_without(own_lab: Any, make_workflow: Callable[..., str]) -> None:
    """Design 3: a setting turns the filter off."""
    lab = own_lab(filtered=False)
    end, _ = await lab.run(make_workflow("return {a: 1};"))
    assert json.loads(end.outcome.output) == {"a": 1}
    assert not has_filter(lab.pool._isolates["worker"].process.pid)


def test_the_log_says_what_the_kernel_does_not_give(caplog: pytest.LogCaptureFixture) -> None:
    """Design 3, Issue 4: a line, once, for each thing that is missing."""
    confinement._tell.cache_clear()
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            confinement.tell_what_is_missing(own_network=False, filtered=False)
        confinement.tell_what_is_missing(own_network=True, filtered=True)
    confinement._tell.cache_clear()
    assert [record.message.split(":")[0] for record in caplog.records] == [
        "the kernel gives Node no network of its own",
        "the kernel filters no system calls of Node",
    ]
    assert not has_own_network(os.getpid()) and has_filter(2**22 + 1) is False


def test_filters_are_well_formed() -> None:
    """Design 3: within the kernel's limit, every jump forward and inside, the same for each machine but for numbers."""
    for name, machine in MACHINES.items():
        code = filter_program(machine, pid=7, program_fd=4095)
        count = len(code) // 8
        assert len(code) % 8 == 0 and count < 4096, name
        for index in range(count):
            operation, true, false, _ = struct.unpack("=HBBI", code[index * 8 : index * 8 + 8])
            if operation in (0x15, 0x35, 0x45):
                assert index + 1 + max(true, false) < count
        assert len(set(machine.refused)) == len(machine.refused)
        assert not set(machine.refused) & (set(machine.unknown) | set(machine.numbers.values()))


def test_only_confined_programs_are_started() -> None:
    """Design 3: the runtime starts programs in one place only."""
    folder = Path(confinement.__file__).parents[1]
    ways = ("Popen(", "subprocess_exec(", "subprocess_shell(", "subprocess.run(", "os.system(", "posix_spawn")
    texts = {path.name: path.read_text() for path in folder.rglob("*.py")}
    assert [name for name, text in texts.items() if any(way in text for way in ways)] == ["confinement.py"]
