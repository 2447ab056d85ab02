"""Limits and times of the isolates. The defaults suit a machine of two cores and a few GiB."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class IsolateSettings:
    """All times in seconds, all sizes in MiB.

    `inherit_fd` is a file descriptor that each Node process holds open for its life (-1: none): a lock on it is held
    until the last process that could run tenant code is gone.
    """

    inherit_fd: int = -1
    # Whether the kernel filters the system calls of Node, where it can.
    filtered: bool = True
    # Outbound fetch: whether any, and the hosts that may be private, loopback or metadata addresses all the same.
    egress: bool = True
    egress_allowed_hosts: frozenset[str] = frozenset()
    # A server that says or takes nothing for so long is given up: the fetch rejects, or its body breaks off.
    egress_silent_after: float = 300.0
    # Workflow threads of one Worker: kept ready, and at most.
    warm_threads: int = 12
    max_threads: int = 40
    # A thread is replaced after so many contexts or so much heap: whatever leaks in the engine ends with its thread.
    contexts_per_thread: int = 20_000
    thread_recycle_heap: int = 144
    # A thread over `thread_heap` is ended by the engine, a process over `process_memory` is killed.
    thread_heap: int = 192
    process_memory: int = 2048
    # How long a context may need to fall silent once its outcome is known, before its thread is terminated.
    quiet_within: float = 0.75
    # How long a terminated thread may need to be joined, before its process is killed; and at most, while other
    # contexts are under way that the kill would take with it. Shorter than what the engine leaves of a lease.
    join_within: float = 1.5
    join_spared: float = 3.0
    # Contexts of one Worker that have a process to themselves, because they were lost again and again.
    processes_alone: int = 4
    heartbeat_every: float = 1.0
    # Both are shorter than the lease of an instance, less one heartbeat: a process that the runtime hears nothing of is
    # killed, and one that hears nothing of its runtime kills itself, before another runtime may own what it runs.
    heartbeat_missed_after: float = 6.0
    orphaned_after: float = 6.0
    process_start_within: float = 30.0
    thread_idle_after: float = 30.0
    process_idle_after: float = 120.0
    inspection_within: float = 5.0
    # A serving thread that has not answered for so long is terminated, and its invocations fail.
    serve_stalled_after: float = 30.0
