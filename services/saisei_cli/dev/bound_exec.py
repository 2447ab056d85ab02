"""Run as a script: binds this process' life to its parent's, then becomes `python -m MODULE`.

`bound_exec.py PARENT_PID MODULE`. It is a program of its own and not a `preexec_fn`, for the supervisor has threads
(gRPC), and Python code between fork and exec of a threaded process can hang. The binding survives exec.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1


def main(parent: int, module: str) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    # SIGKILL: whoever kills the supervisor must find the folder free of services at once; the journal needs no
    # farewell.
    if libc.prctl(PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG) failed")
    if os.getppid() != parent:
        sys.exit(0)  # the parent died before the binding held
    os.execv(sys.executable, [sys.executable, "-m", module])  # noqa: S606 - no shell is the point


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2])
