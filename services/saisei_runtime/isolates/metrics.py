"""Counts of the isolates for Prometheus. Labels come from closed sets: nothing that a Worker says becomes one."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Histogram, start_http_server

from saisei_runtime.isolates.port import Completed, ContextOutcome, Failed, Lost, Parked, ProofKind, Stopped

# Seconds. The check of a realm takes some 0.2 ms, a join up to 170 ms, the reaping of a process up to seconds.
_CHECK_BUCKETS = (0.0001, 0.0002, 0.0003, 0.0005, 0.001, 0.002, 0.005, 0.02, 0.1)
_STOP_BUCKETS = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.05, 0.2, 0.75, 1.5, 3.0)
_BOOT_BUCKETS = (0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 15.0)

# What the ends of threads and processes are told as, and how they are counted. Whatever is not here is "other".
_REASONS = {
    "": "asked",
    "the realm was changed for good": "realm changed",
    "native work is unfinished": "native work",
    "an uncaught error": "uncaught error",
    "out of memory": "out of memory",
    "it used too much memory": "out of memory",
    "it missed its heartbeats": "heartbeats",
    "a thread could not be joined in time": "not joined",
    "it was idle": "idle",
    "its inspection is over": "inspection over",
    "the runtime is stopping": "stopping",
    "its only context has ended": "asked",
    "its threads do not start": "did not start",
    "it did not start": "did not start",
    "its supervisor closed the line": "crashed",
    "worn out": "worn out",
    "it did not fall silent": "not silent",
    "stalled": "stalled",
}
_TAINTS = frozenset(
    {"FinalizationRegistry", "CompressionStream", "DecompressionStream", "Atomics.waitAsync", "MessagePort", "Blob"}
) | {"structuredClone with options", "compileStreaming", "instantiateStreaming"}
# What a thread says of a context after which it goes on.
_GOES_ON = {"": "recycled", "the realm was restored": "restored"}


def reason_of(why: str) -> str:
    """The label for why something was ended: one of a few dozen words."""
    known = _REASONS.get(why)
    if known is not None:
        return known
    if why in _TAINTS or (why.isupper() and why.isalpha()):
        return "uncounted work"
    return "crashed" if why.startswith("it ended by itself") else "other"


def outcome_of(outcome: ContextOutcome) -> str:
    match outcome:
        case Completed():
            return "completed"
        case Failed():
            return "failed"
        case Parked():
            return "parked"
        case Stopped():
            return "stopped"
        case Lost():
            return "lost"


class IsolateMetrics:
    """All of one process: there is one pool in it, and now and then another for a replay check."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._contexts = Counter(
            "saisei_isolate_contexts",
            "Workflow contexts that have ended: their outcome, and whether their thread went on (recycled, or restored"
            " first) or was killed, and why.",
            ("outcome", "thread", "reason"),
            registry=self.registry,
        )
        self._checks = Histogram(
            "saisei_isolate_check_seconds",
            "The check of a thread's realm after a context.",
            buckets=_CHECK_BUCKETS,
            registry=self.registry,
        )
        self._stops = Histogram(
            "saisei_isolate_stop_seconds",
            "From the decision to stop a context until the proof that it has stopped.",
            ("proof",),
            buckets=_STOP_BUCKETS,
            registry=self.registry,
        )
        self._boots = Histogram(
            "saisei_isolate_boot_seconds",
            "Starts of processes, and of threads by their role, until they were ready.",
            ("what",),
            buckets=_BOOT_BUCKETS,
            registry=self.registry,
        )
        self._kills = Counter(
            "saisei_isolate_kills",
            "Threads that were terminated and processes that were killed, and why.",
            ("what", "reason"),
            registry=self.registry,
        )

    def context_ended(self, outcome: ContextOutcome, proof: ProofKind, reason: str | None, seconds: float) -> None:
        """`reason`: what the thread said of it, or why it was ended. `seconds`: how long the stop took."""
        fate = "killed"
        if proof is ProofKind.QUIESCENT and reason in _GOES_ON:
            fate, reason = _GOES_ON[reason], None
        self._contexts.labels(outcome_of(outcome), fate, "" if reason is None else reason_of(reason)).inc()
        self._stops.labels(proof.value).observe(seconds)

    def checked(self, milliseconds: float) -> None:
        self._checks.observe(milliseconds / 1000)

    def booted(self, what: str, seconds: float) -> None:
        """`what`: process, or a thread's role."""
        self._boots.labels(what).observe(seconds)

    def killed(self, what: str, why: str) -> None:
        """`what`: process or thread."""
        self._kills.labels(what, reason_of(why)).inc()

    def serve(self, host: str, port: int) -> None:
        """Answers `GET /metrics` from a thread of its own, as long as the process lives. OSError: the port is taken."""
        start_http_server(port, host, registry=self.registry)


metrics = IsolateMetrics()
