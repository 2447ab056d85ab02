"""What users of comparable systems report of their code, and what must not happen here."""

from __future__ import annotations

import json
from typing import Any

import pytest
from tests.isolates.conftest import answer

from saisei_runtime.isolates.port import Completed, DoFailed, Failed, Park, StepCall, StepReply

pytestmark = pytest.mark.asyncio(loop_scope="session")

THROWN = {
    "a string": ("throw 'text';", "text"),
    "nothing": ("throw undefined;", None),
    "null": ("throw null;", None),
    "a number": ("throw 7;", None),
    "a symbol": ("throw Symbol('s');", None),
    "a frozen object": ("throw Object.freeze({ message: 'cold' });", None),
    "a frozen error": ("throw Object.freeze(new Error('cold'));", "cold"),
    "a function": ("throw () => {};", None),
    "a proxy that throws": (
        "throw new Proxy({}, { get() { throw 1; }, getOwnPropertyDescriptor() { throw 2; } });",
        None,
    ),
    "a revoked proxy": ("const { proxy, revoke } = Proxy.revocable({}, {}); revoke(); throw proxy;", None),
    "a cyclic cause": ("const e = new Error('round'); e.cause = e; throw e;", "round"),
    "a deep cause": (
        "let e = new Error('0'); for (let i = 1; i <= 10000; i++) e = new Error(`${i}`, { cause: e }); throw e;",
        "10000",
    ),
    "a cyclic aggregate": ("const e = new AggregateError([], 'all'); e.errors = [e]; throw e;", "all"),
    "a huge message": ("throw new Error('x'.repeat(2000000));", "x" * 8192),
    "a stack that throws": ("throw Object.defineProperty(new Error('s'), 'stack', { get() { throw 1; } });", "s"),
    "a message that throws": ("throw Object.defineProperty(new Error('m'), 'message', { get() { throw 1; } });", None),
    "a name of another kind": ("throw Object.assign(new Error('n'), { name: Symbol('n') });", "n"),
}


@pytest.mark.parametrize("what", THROWN)
async def test_whatever_is_thrown_ends_the_run_quickly(lab: Any, what: str) -> None:
    """W-086, W-013, Issue 5: `run_threw` within moments, thrown from `run` and out of a step's last attempt alike."""
    statement, message = THROWN[what]
    end, run = await lab.body(statement)
    assert isinstance(end.outcome, Failed), end.outcome
    assert end.outcome.reason == "run_threw"
    if message is not None:
        assert end.outcome.message == message
    assert run.took < 5
    end, run = await lab.body(f'await step.do("a", () => {{ {statement} }});')
    assert isinstance(end.outcome, Failed) and end.outcome.reason == "step_failed"
    assert len(run.named(DoFailed)) == 1
    assert run.took < 5


async def test_a_step_error_thrown_out_of_an_effect_fails_that_attempt_only(lab: Any) -> None:
    """W-134, W-131: an earlier step's Host Error, thrown again in another effect, is an attempt like any other."""
    end, run = await lab.body(
        """let failure; try { await step.do("first", () => { throw 1; }); } catch (error) { failure = error; }
        let caught; try { await step.do("second", () => { throw failure; }); } catch (error) { caught = error; }
        return { same: caught === failure, name: caught.name };"""
    )
    assert isinstance(end.outcome, Completed), end.outcome
    assert json.loads(end.outcome.output or b"") == {"same": False, "name": "step_failed"}
    assert [call.error_name for call in run.named(DoFailed)] == ["Error", "step_failed"]


async def test_a_step_error_thrown_out_of_an_effect_is_retried(lab: Any) -> None:
    """W-134, W-104: with an attempt left it is retried, and ends nothing."""
    replies: list[StepReply | None] = []

    def reply(call: StepCall) -> StepReply | None:
        replies.append(answer(call))
        return replies[-1]

    end, _ = await lab.body(
        """let failure; try { await step.do("first", () => { throw 1; }); } catch (error) { failure = error; }
        await step.do("second", () => { throw failure; }, { maxAttempts: 2 });""",
        reply=reply,
    )
    assert isinstance(replies[-1], Park)
    assert type(end.outcome).__name__ == "Parked"


async def test_run_that_does_nothing_completes_once(lab: Any) -> None:
    """W-085, Issue 5: `run() {}` is one end without output, and nothing else."""
    end, run = await lab.body("")
    assert end.outcome == Completed(None)
    assert run.calls == [] and run.ends == 1
