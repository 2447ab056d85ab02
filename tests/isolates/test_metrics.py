"""What the isolates count for Prometheus."""

from __future__ import annotations

import socket
import urllib.request
from typing import Any

import pytest

from saisei_runtime.isolates.metrics import IsolateMetrics, metrics, reason_of
from saisei_runtime.isolates.port import Completed, ProofKind
from saisei_runtime.settings import RuntimeSettings


def sample(name: str, **labels: str) -> float:
    return metrics.registry.get_sample_value(f"saisei_isolate_{name}", labels) or 0.0


def contexts(outcome: str, thread: str, reason: str = "") -> float:
    return sample("contexts_total", outcome=outcome, thread=thread, reason=reason)


CASES = {
    "return {};": ("completed", "recycled", ""),
    "throw new Error('x');": ("failed", "recycled", ""),
    "await step.sleep('s', 9);": ("parked", "recycled", ""),
    "globalThis.leak = 1; return {};": ("completed", "restored", ""),
    "Object.freeze(Array.prototype); return {};": ("completed", "killed", "realm changed"),
    "new CompressionStream('gzip'); return {};": ("completed", "killed", "uncounted work"),
    "queueMicrotask(() => { throw 1; }); await null; await null; return {};": ("completed", "killed", "uncaught error"),
}


@pytest.mark.parametrize("statements", CASES)
@pytest.mark.asyncio(loop_scope="session")
async def test_contexts_are_counted(lab: Any, statements: str) -> None:
    """Design 3, Issue 4: by outcome, and by what became of their thread and why."""
    expected = CASES[statements]
    before, checks = contexts(*expected), sample("check_seconds_count")
    end, _ = await lab.body(statements)
    assert contexts(*expected) == before + 1
    assert sample("check_seconds_count") == checks + 1
    assert sample("stop_seconds_count", proof=end.proof.kind.value) >= 1


@pytest.mark.asyncio(loop_scope="session")
async def test_boots_and_kills_are_counted(own_lab: Any) -> None:
    """Design 3, Issue 4: processes and threads that started, and those that were ended, with the reason."""
    lab = own_lab(quiet_within=0.5)
    boots, threads = sample("boot_seconds_count", what="process"), sample("boot_seconds_count", what="workflow")
    kills = sample("kills_total", what="thread", reason="not silent")
    end, _ = await lab.body(
        "Promise.resolve().then(function again() { return Promise.resolve().then(again); }); return {};"
    )
    assert end.proof.kind is ProofKind.JOINED
    assert sample("boot_seconds_count", what="process") == boots + 1
    assert sample("boot_seconds_count", what="workflow") > threads
    assert sample("kills_total", what="thread", reason="not silent") == kills + 1
    ended = sample("kills_total", what="process", reason="stopping")
    await lab.pool.close()
    assert sample("kills_total", what="process", reason="stopping") == ended + 1


def test_labels_are_a_closed_set() -> None:
    """Issue 4: no text of a Worker's becomes a label."""
    assert reason_of("TypeError: secret") == "other"
    assert reason_of("ZLIB") == "uncounted work"
    assert reason_of("it ended by itself with status 1") == "crashed"


def test_metrics_over_http() -> None:
    """Issue 4: the runtime answers `/metrics` where its setting says, and nowhere by default."""
    assert RuntimeSettings(runtime_metrics_listen="").metrics_address() is None
    assert RuntimeSettings(runtime_metrics_listen="[::1]:9000").metrics_address() == ("::1", 9000)
    with pytest.raises(ValueError, match="host:port"):
        RuntimeSettings(runtime_metrics_listen="9000").metrics_address()
    own = IsolateMetrics()
    own.context_ended(Completed(None), ProofKind.QUIESCENT, "", 0.001)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    own.serve("127.0.0.1", port)
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=30) as answer:
        text = answer.read().decode()
    assert 'saisei_isolate_contexts_total{outcome="completed",reason="",thread="recycled"} 1.0' in text
