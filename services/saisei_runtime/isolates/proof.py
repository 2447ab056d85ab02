"""The proof that code has stopped, logged with the context id before anyone may act on it (W-014)."""

from __future__ import annotations

import logging

from saisei_runtime.isolates.port import ProofKind, StopProof

_log = logging.getLogger(__name__)


def prove(kind: ProofKind, context_id: str, milliseconds: float, why: str) -> StopProof:
    """`milliseconds` from the decision to stop until now. A quiescent end is the rule and logged at DEBUG only."""
    level = logging.DEBUG if kind is ProofKind.QUIESCENT else logging.INFO
    if _log.isEnabledFor(level):
        extra = {"context": context_id, "proof": kind.value, "stop_ms": round(milliseconds, 3), "why": why}
        _log.log(level, "context stopped", extra=extra)
    return StopProof(kind, context_id, milliseconds)
