"""Which system calls a Node process may make: a filter for the kernel's seccomp (design 3).

It names what is refused, for what Node needs differs between versions and machines: other programs and processes,
signals to others, every socket but those of this machine's own kind, changes to files, other identities, and the kernel
itself. Pure: `filter_program` gives the filter's bytes.
"""

from __future__ import annotations

import errno
import struct
from dataclasses import dataclass
from enum import IntEnum

# Each call with its number on x86_64 and on aarch64 (-: it has none there).
_REFUSED = """
    # programs and processes
    execve 59 221, fork 57 -, vfork 58 -, ptrace 101 117, process_vm_readv 310 270, process_vm_writev 311 271,
    process_madvise 440 440, kcmp 312 272, pidfd_open 434 434, pidfd_getfd 438 438,
    # signals to others
    tkill 200 130, rt_sigqueueinfo 129 138, rt_tgsigqueueinfo 297 240, pidfd_send_signal 424 424,
    # being connected to
    bind 49 200, listen 50 201, accept 43 202, accept4 288 242,
    # changing files
    creat 85 -, unlink 87 -, unlinkat 263 35, rename 82 -, renameat 264 38, renameat2 316 276, mkdir 83 -,
    mkdirat 258 34, rmdir 84 -, link 86 -, linkat 265 37, symlink 88 -, symlinkat 266 36, mknod 133 -,
    mknodat 259 33, truncate 76 45, fallocate 285 47, chmod 90 -, fchmod 91 52, fchmodat 268 53, fchmodat2 452 452,
    chown 92 -, fchown 93 55, lchown 94 -, fchownat 260 54, utime 132 -, utimes 235 -, utimensat 280 88,
    futimesat 261 -, setxattr 188 5, lsetxattr 189 6, fsetxattr 190 7, removexattr 197 14, lremovexattr 198 15,
    fremovexattr 199 16, name_to_handle_at 303 -, open_by_handle_at 304 -, fanotify_init 300 262, inotify_init 253 -,
    inotify_init1 294 26,
    # mounts, namespaces, roots
    mount 165 40, umount2 166 39, pivot_root 155 41, chroot 161 51, fsopen 430 430, fsconfig 431 431,
    fsmount 432 432, fspick 433 433, open_tree 428 428, move_mount 429 429, mount_setattr 442 442, unshare 272 97,
    setns 308 268, quotactl 179 60, quotactl_fd 443 443, swapon 167 224, swapoff 168 225, acct 163 89,
    # who it is, and its limits
    setuid 105 146, setgid 106 144, setreuid 113 145, setregid 114 143, setresuid 117 147, setresgid 119 149,
    setfsuid 122 151, setfsgid 123 152, setgroups 116 159, capset 126 91, setrlimit 160 164,
    # memory and messages of others
    shmget 29 194, shmat 30 196, shmctl 31 195, semget 64 190, semop 65 193, semctl 66 191, msgget 68 186,
    msgsnd 69 189, msgrcv 70 188, msgctl 71 187, mq_open 240 180, mq_unlink 241 181, move_pages 279 239,
    migrate_pages 256 238, memfd_secret 447 447,
    # the kernel itself
    bpf 321 280, perf_event_open 298 241, userfaultfd 323 282, keyctl 250 219, add_key 248 217, request_key 249 218,
    init_module 175 105, finit_module 313 273, delete_module 176 106, kexec_load 246 104, kexec_file_load 320 294,
    reboot 169 142, syslog 103 116, sethostname 170 161, setdomainname 171 162, settimeofday 164 170,
    clock_settime 227 112, clock_adjtime 305 266, adjtimex 159 171, iopl 172 -, ioperm 173 -, modify_ldt 154 -,
    personality 135 92, vhangup 153 58, lookup_dcookie 212 18,
"""
# Programs do without these when the kernel does not have them, so it has not: what they do cannot be looked at.
_UNKNOWN = """
    clone3 435 435, openat2 437 437, io_uring_setup 425 425, io_uring_enter 426 426, io_uring_register 427 427,
"""
_LOOKED_AT = """
    clone 56 220, kill 62 129, tgkill 234 131, socket 41 198, socketpair 53 199, open 2 -, openat 257 56,
    prlimit64 302 261, execveat 322 281, prctl 157 167, seccomp 317 277, close_range 436 436,
"""


@dataclass(frozen=True, slots=True)
class Machine:
    """`audit`: how the kernel calls the architecture (AUDIT_ARCH_…); `numbers` of the calls above by name."""

    audit: int
    numbers: dict[str, int]
    refused: tuple[int, ...]
    unknown: tuple[int, ...]


def _column(table: str, column: int) -> dict[str, int]:
    lines = [line for line in table.splitlines() if not line.strip().startswith("#")]
    rows = [entry.split() for line in lines for entry in line.split(",")]
    return {row[0]: int(row[column]) for row in rows if row and row[column] != "-"}


def _machine(audit: int, column: int) -> Machine:
    refused, unknown = (tuple(_column(table, column).values()) for table in (_REFUSED, _UNKNOWN))
    return Machine(audit, _column(_LOOKED_AT, column), refused, unknown)


MACHINES = {"x86_64": _machine(0xC000003E, 1), "aarch64": _machine(0xC00000B7, 2)}
"""By `os.uname().machine`. On others there is no filter."""

CLONE_THREAD = 0x10000
AF_UNIX = 1
AT_EMPTY_PATH = 0x1000
PR_SET_PDEATHSIG = 1
# O_WRONLY, O_RDWR, O_CREAT, O_TRUNC, O_TMPFILE
_WRITES = 0x1 | 0x2 | 0x40 | 0x200 | 0x400000
# Numbers from here on are those of x32, another way into the same calls.
_X32 = 0x40000000


class _Op(IntEnum):
    """BPF: load a word of the call, jump if equal, greater or equal, any bit set; end."""

    LOAD = 0x20
    EQUAL = 0x15
    AT_LEAST = 0x35
    ANY = 0x45
    END = 0x06


_ALLOW = 0x7FFF0000
_KILL = 0x80000000
_REFUSE = 0x00050000 | errno.EPERM
_ABSENT = 0x00050000 | errno.ENOSYS
_NUMBER, _ARCHITECTURE = 0, 4

_Instruction = tuple[_Op, int, int, int]


def _argument(index: int, *, high: bool = False) -> _Instruction:
    return (_Op.LOAD, 0, 0, 16 + 8 * index + (4 if high else 0))


def _end(what: int) -> _Instruction:
    return (_Op.END, 0, 0, what)


def filter_program(machine: Machine, *, pid: int, program_fd: int) -> bytes:
    """The `sock_filter`s for the process `pid`. The one program that may be executed is that behind the descriptor
    `program_fd`, which must be out of its reach afterwards."""
    only = [_end(_ALLOW), _end(_REFUSE)]
    looks: dict[str, list[_Instruction]] = {
        # Threads, but no processes.
        "clone": [_argument(0), (_Op.ANY, 0, 1, CLONE_THREAD), *only],
        "kill": [_argument(0), (_Op.EQUAL, 0, 1, pid), *only],
        "tgkill": [_argument(0), (_Op.EQUAL, 0, 1, pid), *only],
        "socket": [_argument(0), (_Op.EQUAL, 0, 1, AF_UNIX), *only],
        "socketpair": [_argument(0), (_Op.EQUAL, 0, 1, AF_UNIX), *only],
        "open": [_argument(1), (_Op.ANY, 1, 0, _WRITES), *only],
        "openat": [_argument(2), (_Op.ANY, 1, 0, _WRITES), *only],
        # Limits may be read.
        "prlimit64": [_argument(2), (_Op.EQUAL, 0, 3, 0), _argument(2, high=True), (_Op.EQUAL, 0, 1, 0), *only],
        "execveat": [
            _argument(0),
            (_Op.EQUAL, 0, 3, program_fd),
            _argument(4),
            (_Op.EQUAL, 0, 1, AT_EMPTY_PATH),
            *only,
        ],
        # It dies with its parent.
        "prctl": [_argument(0), (_Op.EQUAL, 1, 0, PR_SET_PDEATHSIG), *only],
    }
    code: list[_Instruction] = [
        (_Op.LOAD, 0, 0, _ARCHITECTURE),
        (_Op.EQUAL, 1, 0, machine.audit),
        _end(_KILL),
        (_Op.LOAD, 0, 0, _NUMBER),
        (_Op.AT_LEAST, 0, 1, _X32),
        _end(_REFUSE),
    ]
    for numbers, what in ((machine.refused, _REFUSE), (machine.unknown, _ABSENT)):
        for number in numbers:
            code += [(_Op.EQUAL, 0, 1, number), _end(what)]
    for name, look in looks.items():
        if name in machine.numbers:
            code += [(_Op.EQUAL, 0, len(look), machine.numbers[name]), *look]
    code.append(_end(_ALLOW))
    return b"".join(struct.pack("=HBBI", op, true, false, value) for op, true, false, value in code)
