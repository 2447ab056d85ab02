"""Results of finished steps that are too large to be given at the start of a context."""

from __future__ import annotations

import json
from typing import Any

import pytest

from saisei_runtime.isolates.port import (
    Completed,
    DoSucceeded,
    Failed,
    HistoryStep,
    Recall,
    Resolve,
    StepReply,
    Stop,
    Stopped,
)

pytestmark = pytest.mark.asyncio(loop_scope="session")


def output(end: Any) -> Any:
    assert isinstance(end.outcome, Completed), end.outcome
    return None if end.outcome.output is None else json.loads(end.outcome.output)


def is_mismatch(end: Any) -> bool:
    return isinstance(end.outcome, Failed) and end.outcome.reason == "step_definition_mismatch"


async def test_a_result_that_is_asked_for_when_needed(lab: Any) -> None:
    """W-094, W-048, W-099: a large result comes when the code calls its name, each time as a clone; for no `sleep`."""

    def reply(call: Any) -> StepReply | None:
        if isinstance(call, Recall):
            return Resolve(b'{"n":1}' if call.name == "large" else b'{"__proto__":{"n":2}}')
        return Resolve(call.result) if isinstance(call, DoSucceeded) else None

    end, run = await lab.body(
        """const out = {};
        out.slept = (await step.sleep("large", 5)) === undefined;
        let later = false;
        const promise = step.do("large", () => { throw 1; });
        queueMicrotask(() => { later = true; });
        const a = await promise;
        out.later = later;
        const b = await step.waitForEvent("large", null);
        a.n = 9;
        out.b = b.n;
        out.own = Object.hasOwn(await step.do("other", 5), "__proto__");
        out.next = await step.do("next", () => ({ok: 1}));
        return out;""",
        history=[
            HistoryStep("large", "do", "complete", deferred=True),
            HistoryStep("other", "wait", "complete", deferred=True),
        ],
        reply=reply,
    )
    assert output(end) == {"slept": True, "later": True, "b": 1, "own": True, "next": {"ok": 1}}
    recalled = [call.name for call in run.calls if isinstance(call, Recall)]
    assert recalled == ["large", "large", "other"]


async def test_a_call_while_a_result_is_awaited(lab: Any) -> None:
    """W-120, W-121: a finished name whose result is on its way is unsettled like any other."""
    end, _ = await lab.body(
        """const p = step.do("large", 1); step.do("other", () => {}); await p; return {};""",
        history=[HistoryStep("large", "do", "complete", deferred=True)],
        reply=lambda call: None,
    )
    assert is_mismatch(end)
    end, _ = await lab.body(
        """step.do("large", 1); return {};""",
        history=[HistoryStep("large", "do", "complete", deferred=True)],
        reply=lambda call: None,
    )
    assert is_mismatch(end)


async def test_a_context_that_waits_for_a_result_is_stopped(lab: Any) -> None:
    """W-089, W-070: when the Host cannot read it, the Promise stays pending and the context is stopped."""
    end, run = await lab.body(
        'try { await step.do("large", 1); } catch {} finally { await step.do("more", () => ({})); }',
        history=[HistoryStep("large", "do", "complete", deferred=True)],
        reply=lambda call: Stop(),
    )
    assert isinstance(end.outcome, Stopped)
    assert run.calls == [Recall("large")]
