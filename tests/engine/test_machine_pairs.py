"""The machine: the beginning and the outcome of an attempt in one command."""

from __future__ import annotations

import pytest
from machine_kit import Rows
from msgspec.structs import replace

from saisei_runtime.isolates.port import DoFailed, DoStarted, DoSucceeded, Parked, RetryPolicy, Stop
from saisei_runtime.workflow.commands import StepCalled


@pytest.mark.parametrize("failed", [0, 1, 2])
@pytest.mark.parametrize("outcome", ["succeeds", "fails"])
def test_beginning_and_outcome_in_one_command(failed: int, outcome: str) -> None:
    """W-098, W-103, S-14: an attempt whose beginning and outcome arrive together leaves what two commands leave."""
    policy = RetryPolicy(3, 0)
    together, apart = Rows().started(), Rows().started()
    for rows in (together, apart):
        for attempt in range(1, failed + 1):
            rows.attempt_fails("a", attempt, policy)
            rows.end(Parked())
            rows.claim()
    begun = DoStarted("a", failed + 1, policy)
    call = (
        DoSucceeded("a", failed + 1, b'{"r":1}')
        if outcome == "succeeds"
        else DoFailed("a", failed + 1, policy, "Error", "boom")
    )
    apart.call(begun)
    expected = apart.call(call)
    assert together.apply(StepCalled(*together.fence(), call, begun)) == expected
    assert (together.instance, together.steps, together.log) == (apart.instance, apart.steps, apart.log)


def test_a_refused_beginning_refuses_the_outcome() -> None:
    """W-004, W-096, W-121: together as apart, a fenced owner, a mismatch and a step too many end as Stop."""
    for spoil in ("fence", "kind", "limit"):
        rows = Rows().started()
        fence = rows.fence()
        if spoil == "fence":
            fence = (fence[0], fence[1], "somebody else")
        elif spoil == "kind":
            rows.wait("a")
        else:
            assert rows.instance is not None
            rows.instance = replace(rows.instance, step_count=1024)
        before = (rows.steps.copy(), list(rows.log))
        command = StepCalled(*fence, DoSucceeded("a", 1, b"{}"), DoStarted("a", 1, RetryPolicy()))
        assert rows.apply(command) == Stop()
        assert (rows.steps, rows.log) == before
