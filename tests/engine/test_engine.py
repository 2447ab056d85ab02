"""The engine on both databases: what callers see."""

from __future__ import annotations

import asyncio
import contextlib

from engine_fakes import Host, StepError, holds, refused, returns_nothing, sleeps

from saisei_contract.errors import SaiseiError

# --- callers ----------------------------------------------------------------------------------------------------------


async def test_ids_are_issued_checked_and_taken(host: Host) -> None:
    """W-020, W-021, W-024: 1-256 scalars, also 256 emoji or U+0000; none given: a unique one; taken: refused."""
    host.define(returns_nothing)
    for good in ("x", "😀" * 256, "a\0b\\0c", "é/ ?"):
        assert await host.engine.create("wf", good, None) == good
        assert (await host.until(good, "complete")).id == good
        assert (await host.events(good))[0].instance_id == good
    issued = {await host.engine.create("wf", None, None) for _ in range(3)}
    assert len(issued) == 3
    for bad in ("", "x" * 257, "\ud800"):
        assert await refused(host.engine.create("wf", bad, None)) == "invalid_request"
    assert await refused(host.engine.create("wf", "x", b'{"other":1}')) == "instance_exists"


async def test_of_concurrent_creates_of_one_id_one_wins(host: Host) -> None:
    """W-021: exactly one of twenty."""
    host.define(returns_nothing)
    outcomes = await host.engine.create_batch("wf", [("same", None)] * 20)
    assert outcomes.count("same") == 1
    assert {one.reason for one in outcomes if isinstance(one, SaiseiError)} == {"instance_exists"}


async def test_a_batch_has_an_outcome_for_each_item(host: Host) -> None:
    """W-020, W-021: in input order; a bad item takes no other down."""
    host.define(returns_nothing)
    outcomes = await host.engine.create_batch("wf", [("a", None), ("", None), ("a", None), ("b", b"{}")])
    assert [one if isinstance(one, str) else one.reason for one in outcomes] == [
        "a",
        "invalid_request",
        "instance_exists",
        "b",
    ]


async def test_without_a_deployment_nothing_is_created(host: Host) -> None:
    """W-026: backend_unavailable, and the id is free afterwards."""
    host.define(returns_nothing)
    host.deploy("worker", None)
    assert await refused(host.engine.create("wf", "i", None)) == "backend_unavailable"
    assert await refused(host.engine.create("unheard-of", "i", None)) == "backend_unavailable"
    host.deploy("worker", "v1")
    await host.engine.create("wf", "i", None)


async def test_unknown_instances(host: Host) -> None:
    """W-027, W-028: every call on an id that is not there."""
    host.define(returns_nothing)
    engine = host.engine
    for call in (
        engine.get("wf", "no"),
        engine.steps("wf", "no"),
        engine.send_event("wf", "no", "t", None),
        engine.terminate("wf", "no"),
        engine.subscribe("wf", "no"),
        engine.get("wf", "x" * 300),
    ):
        assert await refused(call) == "unknown_instance"
    await engine.create("wf", "i", None)
    assert await refused(engine.send_event("wf", "i", "", None)) == "invalid_request"
    assert await refused(engine.send_event("wf", "i", "t" * 257, None)) == "invalid_request"


async def test_workflows_have_separate_id_spaces(host: Host) -> None:
    """DW-02: the same id in two workflows of one Worker are two instances."""
    host.define(returns_nothing, "wf")
    host.define(sleeps, "other")
    await host.engine.create("wf", "i", None)
    await host.engine.create("other", "i", None)
    await host.until("i", "complete")
    await host.until("i", "sleeping", workflow="other")


async def test_reads_follow_writes(host: Host) -> None:
    """W-015: after create resolves get sees it; after terminate resolves the status is terminal."""
    host.define(holds)
    for number in range(20):
        await host.engine.create("wf", f"i{number}", None)
        assert (await host.engine.get("wf", f"i{number}")).status in ("queued", "running")
        await host.engine.terminate("wf", f"i{number}")
        assert (await host.engine.get("wf", f"i{number}")).status == "terminated"


async def test_lists_pages_and_counts(host: Host) -> None:
    """DW-05, W-015: ascending by creation, filtered by status, continued by cursor; all seven counts."""
    host.define(sleeps)
    for number in range(5):
        await host.engine.create("wf", f"i{number}", None)
        await host.until(f"i{number}", "sleeping")
    await host.engine.terminate("wf", "i2")
    page, cursor = await host.engine.list("wf", None, 3, None)
    assert [view.id for view in page] == ["i0", "i1", "i2"] and cursor is not None
    page, cursor = await host.engine.list("wf", None, 3, cursor)
    assert [view.id for view in page] == ["i3", "i4"] and cursor is None
    page, _ = await host.engine.list("wf", "terminated", 10, None)
    assert [view.id for view in page] == ["i2"]
    assert await host.engine.counts("wf") == {
        "queued": 0,
        "running": 0,
        "sleeping": 4,
        "waiting": 0,
        "complete": 0,
        "errored": 0,
        "terminated": 1,
    }
    assert await refused(host.engine.list("wf", "done", 10, None)) == "invalid_request"
    assert await refused(host.engine.list("wf", None, 10, "x")) == "invalid_request"


async def test_the_step_journal_is_readable(host: Host) -> None:
    """W-002: kinds, states, attempts, results, due times, in order of first registration."""

    def program(event, step):
        yield step.do("z\0first", lambda: b'{"r":1}')
        with contextlib.suppress(StepError):
            yield step.do("bad", lambda: 1 / 0)
        yield step.wait("w", "go", 60)

    host.define(program)
    await host.engine.create("wf", "i", None)
    await host.until("i", "waiting")
    (first, bad, wait), cursor, _ = await host.engine.steps("wf", "i")
    assert cursor is None
    assert (first.name, first.kind, first.state, first.result) == ("z\0first", "do", "complete", b'{"r":1}')
    assert (bad.state, bad.failed_attempts, bad.error) == ("errored", 1, "step_failed")
    assert (wait.kind, wait.state, wait.due_at_ms) == ("wait", "waiting", host.clock.now_ms() + 60_000)


async def test_large_documents_come_back_unchanged(host: Host) -> None:
    """W-041, W-048: a megabyte of params, result and output, byte for byte."""
    big = b'{"x":"' + b"y" * 1_048_568 + b'"}'
    seen = []

    def program(event, step):
        seen.append(event.params)
        yield step.do("big", lambda: big)
        yield step.sleep("rest", 1)
        seen.append((yield step.do("big", lambda: b"{}")))
        return big

    host.define(program)
    await host.engine.create("wf", "i", big)
    await host.until("i", "sleeping")
    host.clock.advance(1)
    assert (await host.until("i", "complete")).output == big
    assert seen == [big, big, big]


# --- events -----------------------------------------------------------------------------------------------------------


async def test_events_before_the_wait_are_kept_in_order(host: Host) -> None:
    """W-060, W-064, W-116: sent while sleeping, consumed oldest first, the other type left alone."""

    def program(event, step):
        yield step.sleep("rest", 10)
        first = yield step.wait("one", "go", 60)
        second = yield step.wait("two", "go", 60)
        return b"[%b,%b]" % (first, second)

    host.define(program)
    await host.engine.create("wf", "i", None)
    await host.until("i", "sleeping")
    for kind, n in (("go", 1), ("no", 2), ("go", 3)):
        await host.engine.send_event("wf", "i", kind, b'{"n":%d}' % n)
    host.clock.advance(10)
    assert (await host.until("i", "complete")).output == b'[{"n":1},{"n":3}]'
    assert await refused(host.engine.send_event("wf", "i", "go", None)) == "instance_terminal"


async def test_a_storm_of_events_feeds_each_wait_once(host: Host) -> None:
    """W-064, W-066: events race with parking; every one is consumed exactly once and in order."""
    total = 40

    def program(event, step):
        got = []
        for number in range(total):
            got.append((yield step.wait(f"w{number}", "tick", 600)))
        return b"[" + b",".join(got) + b"]"

    host.define(program)
    await host.engine.create("wf", "i", None)
    for number in range(total):
        await host.engine.send_event("wf", "i", "tick", b'{"n":%d}' % number)
        if number % 7 == 0:
            await asyncio.sleep(0.005)
    view = await host.until("i", "complete")
    assert view.output == b"[" + b",".join(b'{"n":%d}' % number for number in range(total)) + b"]"


async def test_a_full_queue_refuses(host: Host) -> None:
    """W-062: the 1,025th unconsumed event."""
    host.define(holds)
    await host.engine.create("wf", "i", None)
    for _ in range(1024):
        await host.engine.send_event("wf", "i", "e", None)
    assert await refused(host.engine.send_event("wf", "i", "e", None)) == "event_queue_full"
    await host.engine.terminate("wf", "i")
    assert await refused(host.engine.send_event("wf", "i", "e", None)) == "instance_terminal"
