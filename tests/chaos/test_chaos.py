"""Whatever dies, stands still or restarts: nothing is lost, done twice or stuck, and one story is told of it."""

from __future__ import annotations

import contextlib
import os
import random
from collections.abc import Iterator
from typing import Any

import pytest
from tests.chaos.story import HOLDS, KINDS, Size, Story, tell
from tests.support.dev_host import DevHost
from tests.support.postgres import host_databases

QUICK = Size(instances=80, faults=12, rounds=5)
# 200 waiting instances of ten rounds each: 2,000 races between an event and its wait.
LONG = Size(instances=1_000, faults=120, rounds=10, watched=100)
END = {"complete": "workflow_completed", "terminated": "workflow_terminated"}


@pytest.fixture(
    scope="module",
    params=[
        pytest.param(("sqlite", QUICK), id="sqlite"),
        pytest.param(("postgresql", QUICK), id="postgresql"),
        pytest.param(("sqlite", LONG), id="sqlite-1000", marks=pytest.mark.long),
        pytest.param(("postgresql", LONG), id="postgresql-1000", marks=pytest.mark.long),
    ],
)
def story(request: pytest.FixtureRequest) -> Iterator[Story]:
    """SAISEI_TEST_SEED repeats a story."""
    kind, size = request.param
    seed = int(os.environ.get("SAISEI_TEST_SEED", random.randrange(2**32)))
    print("seed", seed)
    with contextlib.ExitStack() as stack:
        url = request.getfixturevalue("postgres_url") if kind == "postgresql" else None
        environment = stack.enter_context(host_databases(url)) if url is not None else {}
        host = stack.enter_context(DevHost(environment=environment))
        yield tell(host, seed, size, url)


def named(events: list[Any], kind: str) -> list[str]:
    return [event["stepName"] for event in events if event["type"] == kind]


def test_none_is_stuck_and_none_is_lost(story: Story) -> None:
    """W-005, W-155, W-060, W-066: each instance has the end that it must have, and each event met its wait."""
    assert len(story.faults) == story.size.faults + 1
    for instance_id in story.of(*KINDS):
        assert story.instances[instance_id]["status"] == "complete"
    for instance_id in story.of("wait"):
        output = story.instances[instance_id]["output"]
        assert [output[f"wait {number}"] for number in range(story.size.rounds)] == list(range(story.size.rounds))
    for instance_id in story.of(*HOLDS):
        assert story.instances[instance_id]["status"] == "terminated"


def test_outputs_are_what_the_journal_committed(story: Story) -> None:
    """W-098, W-005: output, recorded results and events are the same nonces."""
    for instance_id in story.of(*KINDS):
        committed = {
            event["stepName"]: event["output"]["nonce"]
            for event in story.events[instance_id]
            if event["type"] == "step_completed" and event["stepName"].startswith("do ")
        }
        output = story.instances[instance_id]["output"]
        assert {name: value for name, value in output.items() if name.startswith("do ")} == committed
        assert list(committed) == [f"do {number}" for number in range(story.size.rounds)]
        assert {step["state"] for step in story.steps[instance_id]} == {"complete"}


def test_no_committed_step_ran_again(story: Story) -> None:
    """W-094, W-107, W-150: an effect may repeat until it is committed: nothing of a step runs after its commit."""
    for instance_id, events in story.events.items():
        for event in events:
            if event["type"] != "step_completed" or not event["stepName"].startswith("do "):
                continue
            nonces = story.effects[instance_id, event["stepName"]]
            assert len(nonces) == len(set(nonces))
            # A kill may take the last lines of a log with it; those that are there must be in order.
            if event["output"]["nonce"] in nonces:
                assert nonces[-1] == event["output"]["nonce"], (instance_id, event["stepName"])


def test_event_logs_are_dense_and_tell_each_fact_once(story: Story) -> None:
    """S-04, S-14, S-16, S-30: ids dense from 1, time never goes back, each fact once, the one terminal event last."""
    for instance_id, events in story.events.items():
        assert [event["eventId"] for event in events] == list(range(1, len(events) + 1))
        assert [event["timestamp"] for event in events] == sorted(event["timestamp"] for event in events)
        types = [event["type"] for event in events]
        assert types[-1] == END[story.instances[instance_id]["status"]]
        assert [kind for kind in types if kind in END.values()] == [types[-1]]
        assert types[0] == "workflow_queued"
        for fact in ("step_started", "step_completed", "sleep_started", "sleep_completed", "wait_started"):
            assert len(named(events, fact)) == len(set(named(events, fact))), (instance_id, fact)
        for fact in ("attempt_started", "attempt_completed", "attempt_errored"):
            attempts = [(event["stepName"], event["attempt"]) for event in events if event["type"] == fact]
            assert len(attempts) == len(set(attempts)), (instance_id, fact)


def test_attempts_are_counted_without_a_gap(story: Story) -> None:
    """W-104, W-107, W-102: killed in the middle of its attempts, a step goes on at the right number and ends once."""
    for instance_id in story.of(*KINDS):
        events = story.events[instance_id]
        for name in named(events, "step_started"):
            mine = [event for event in events if event.get("stepName") == name and "attempt" in event]
            last = max(event["attempt"] for event in mine)
            told = [(event["type"], event["attempt"]) for event in mine]
            expected: list[tuple[str, int]] = []
            for attempt in range(1, last + 1):
                end = "attempt_completed" if attempt == last else "attempt_errored"
                expected += [("attempt_started", attempt), (end, attempt)]
            assert told == expected, (instance_id, name)


def test_nothing_follows_a_termination(story: Story) -> None:
    """W-070, W-073, S-30: once `terminate` had answered, no event, attempt or step was added."""
    assert set(story.terminated_at) == set(story.of(*HOLDS))
    for instance_id, count in story.terminated_at.items():
        assert len(story.events[instance_id]) == count


def test_readers_saw_the_same_story(story: Story) -> None:
    """S-01, S-02, S-05: readers that were attached all the while, cut and resumed, saw each event once, in order."""
    assert len(story.watched) == story.size.watched
    for instance_id, seen in story.watched.items():
        assert seen == story.events[instance_id]
