"""The machine against a naive model: whatever happens in whatever order, the model foretells each answer."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from machine_kit import LEASE, Rows

from saisei_runtime.isolates.port import (
    Completed,
    Failed,
    Lost,
    Park,
    Parked,
    Reject,
    Resolve,
    RetryPolicy,
    SleepCalled,
    Stop,
    Stopped,
)
from saisei_runtime.workflow.commands import Claimed, Done, Ended, Stopping
from saisei_runtime.workflow.records import TERMINAL

NAMES = st.sampled_from(["a", "b", "c"])
TYPES = st.sampled_from(["x", "y"])
POLICY = RetryPolicy(3, 2, "exponential", 3)


@dataclass
class Sent:
    type: str
    at: int
    payload: bytes
    taken: bool = False


@dataclass
class Known:
    """What a step should be, said as simply as possible."""

    kind: str
    due: int = 0
    type: str = ""
    failures: int = 0
    answer: object = None


@dataclass
class Model:
    steps: dict[str, Known] = field(default_factory=dict)
    sent: list[Sent] = field(default_factory=list)
    # none, active, parking or stopping: what the one context is doing.
    context: str = "none"
    parked_on: str | None = None
    doomed: str | None = None
    marked: bool = False
    end: str | None = None

    def oldest(self, kind: str, not_after: int) -> Sent | None:
        return next((one for one in self.sent if one.type == kind and not one.taken and one.at <= not_after), None)

    def open(self) -> list[str]:
        return [name for name, step in self.steps.items() if step.answer is None]


STEPS_AT_LEAST = 10_000


class Machine(RuleBasedStateMachine):
    # Rules that were run, in all examples together.
    steps = 0
    make_rows: Callable[[], Rows] = Rows

    @initialize()
    def create(self) -> None:
        self.rows = self.make_rows()
        self.rows.create()
        self.model = Model()
        self.old_fences = [("incarnation", 0, "nobody")]
        self.sequence = 0
        self.last = None

    # --- the world ---

    @rule(ms=st.sampled_from([0, 1, 999, 1000, 1001, 2000, 60_000]))
    def time_passes(self, ms: int) -> None:
        self.rows.now += ms

    @rule(kind=TYPES)
    def send(self, kind: str) -> None:
        self.sequence += 1
        payload = b'{"n":%d}' % self.sequence
        model, rows = self.model, self.rows
        reply = rows.send(kind, payload)
        if model.end is not None or model.marked:
            assert reply.reason == "instance_terminal"
            return
        assert reply == Done()
        event = Sent(kind, rows.now, payload)
        model.sent.append(event)
        step = model.steps.get(model.parked_on or "")
        parked = model.context == "none" and step is not None and step.kind == "wait" and step.answer is None
        if parked and step.type == kind and rows.now <= step.due:
            event.taken = True
            step.answer = Resolve(payload)

    @rule()
    def terminate(self) -> None:
        reply = self.rows.terminate()
        if self.model.end is not None:
            assert isinstance(reply, Ended)
        elif self.model.context == "none":
            assert isinstance(reply, Ended)
            self.model.end = "terminated"
        else:
            assert isinstance(reply, Stopping)
            self.model.marked = True

    @precondition(lambda self: self.model.context == "none")
    @rule()
    def claim(self) -> None:
        # A pause after a loss is over by now.
        self.rows.wall += 60_000
        due = self.rows.row.due_at_ms or 0
        reply = self.rows.claim()
        if self.model.end is not None:
            assert not isinstance(reply, Claimed)
        elif due <= self.rows.now:
            assert isinstance(reply, Claimed)
            self.model.context = "active"
            self.model.parked_on = None
        else:
            assert not isinstance(reply, Claimed)

    @rule(waited=st.booleans())
    def without_a_deployment(self, waited: bool) -> None:
        """W-087: what nothing runs of is queued, unless it is parked or ends now; what runs is left alone."""
        if waited:
            self.rows.wall += 60_000 if self.model.context == "none" else 0
        before = self.rows.row
        reply = self.rows.requeue()
        model, row = self.model, self.rows.row
        if model.context != "none" or before.status in ("sleeping", "waiting") or model.end is not None:
            assert (reply, row) == (Done(), before)
        else:
            assert row.status == "queued"
            assert row.due_at_ms == (
                before.due_at_ms if before.status == "queued" and before.due_at_ms else row.due_at_ms
            )

    @rule(which=st.integers(0, 50))
    def a_former_owner_tries(self, which: int) -> None:
        fence = self.old_fences[which % len(self.old_fences)]
        before = (self.rows.instance, dict(self.rows.steps), len(self.rows.log))
        assert self.rows.call(SleepCalled("late", 0), fence) == Stop()
        self.rows.end(Completed(b"{}"), fence)
        self.rows.renew(fence)
        assert before == (self.rows.instance, dict(self.rows.steps), len(self.rows.log))

    # --- the context ---

    def _usable(self) -> bool:
        return self.model.context == "active"

    def _expect(self, reply: object, expected: object, then: str = "active") -> None:
        if self.model.marked:
            expected, then = Stop(), "stopping"
        assert reply == expected
        self.model.context = then

    def _enter(self, name: str, kind: str) -> Known | None:
        """The step to go on with, or None after checking the answer of a finished or mismatched one."""
        step = self.model.steps.get(name)
        if step is None:
            step = Known(kind)
            if not self.model.marked:
                self.model.steps[name] = step
            return step
        return step

    @precondition(_usable)
    @rule(name=NAMES, works=st.booleans())
    def do(self, name: str, works: bool) -> None:
        rows, model = self.rows, self.model
        step = self._enter(name, "do")
        if step.answer is not None:
            self._expect(rows.do_started(name, policy=POLICY), step.answer)
            return
        if step.kind != "do":
            self._expect(rows.do_started(name, policy=POLICY), Stop(), "stopping")
            model.doomed = None if model.marked else "step_definition_mismatch"
            return
        rows.do_started(name, step.failures + 1, POLICY)
        if works:
            reply = rows.succeed(name, b'{"ok":1}')
            if not model.marked:
                step.answer = Resolve(b'{"ok":1}')
            self._expect(reply, Resolve(b'{"ok":1}'))
            return
        reply = rows.fail(name, step.failures + 1, POLICY)
        if model.marked:
            self._expect(reply, Stop())
            return
        step.failures += 1
        if step.failures == 3:
            step.answer = Reject("step_failed")
            self._expect(reply, Reject("step_failed"))
        else:
            step.due = rows.now + [2000, 3000][step.failures - 1]
            model.parked_on = name
            self._expect(reply, Park(), "parking")

    @precondition(_usable)
    @rule(name=NAMES, seconds=st.sampled_from([0, 1, 60]))
    def sleep(self, name: str, seconds: int) -> None:
        rows, model = self.rows, self.model
        fresh = name not in model.steps
        step = self._enter(name, "sleep")
        reply = rows.sleep(name, seconds)
        if step.answer is not None:
            self._expect(reply, step.answer)
            return
        if step.kind != "sleep":
            self._expect(reply, Stop(), "stopping")
            model.doomed = None if model.marked else "step_definition_mismatch"
            return
        if fresh:
            step.due = rows.now + seconds * 1000
        if model.marked:
            self._expect(reply, Stop())
        elif rows.now >= step.due:
            step.answer = Resolve()
            self._expect(reply, Resolve())
        else:
            model.parked_on = name
            self._expect(reply, Park(), "parking")

    @precondition(_usable)
    @rule(name=NAMES, kind=TYPES)
    def wait(self, name: str, kind: str) -> None:
        rows, model = self.rows, self.model
        fresh = name not in model.steps
        step = self._enter(name, "wait")
        reply = rows.wait(name, kind, 2)
        if step.answer is not None:
            self._expect(reply, step.answer)
            return
        if step.kind != "wait":
            self._expect(reply, Stop(), "stopping")
            model.doomed = None if model.marked else "step_definition_mismatch"
            return
        if fresh:
            step.due, step.type = rows.now + 2000, kind
        if model.marked:
            self._expect(reply, Stop())
            return
        event = model.oldest(step.type, step.due)
        if event is not None:
            event.taken = True
            step.answer = Resolve(event.payload)
            self._expect(reply, step.answer)
        elif rows.now > step.due:
            step.answer = Reject("wait_timeout")
            self._expect(reply, step.answer)
        else:
            model.parked_on = name
            self._expect(reply, Park(), "parking")

    # --- ends ---

    def _ended(self) -> None:
        self.old_fences.append(self.rows.fence())

    def _after_the_stop(self) -> None:
        """What the row must be once nothing runs and the run itself said nothing."""
        model = self.model
        model.context = "none"
        if model.marked:
            model.end = "terminated"
        elif model.doomed is not None:
            model.end = "errored"
        step = model.steps.get(model.parked_on or "")
        if model.end is None and step is not None and step.kind == "wait" and step.answer is None:
            event = model.oldest(step.type, step.due)
            if event is not None:
                event.taken = True
                step.answer = Resolve(event.payload)

    @precondition(lambda self: self.model.context == "parking")
    @rule()
    def parks(self) -> None:
        self._ended()
        step = self.model.steps[self.model.parked_on]
        self.rows.end(Parked())
        self._after_the_stop()
        if self.model.end is None:
            assert self.rows.status == ("waiting" if step.kind == "wait" else "sleeping")

    @precondition(lambda self: self.model.context != "none")
    @rule(how=st.sampled_from(["lost", "stopped", "reclaimed", "lapsed"]))
    def dies(self, how: str) -> None:
        self._ended()
        if how == "lost":
            self.rows.end(Lost("killed"))
        elif how == "stopped":
            self.rows.end(Stopped())
        elif how == "reclaimed":
            self.rows.reclaim()
        else:
            self.rows.wall += LEASE
            assert self.rows.end(Completed(b"{}")) != Ended
        self._after_the_stop()

    @precondition(_usable)
    @rule(returns=st.booleans())
    def settles(self, returns: bool) -> None:
        self._ended()
        self.rows.end(Completed(b"{}") if returns else Failed("run_threw", "m"))
        model = self.model
        model.context = "none"
        if model.marked:
            model.end = "terminated"
        elif model.open():
            model.end = "errored"
            assert self.rows.failure == ("errored", "step_definition_mismatch")
        else:
            model.end = "complete" if returns else "errored"

    # --- what always holds ---

    @invariant()
    def rows_agree(self) -> None:
        if not hasattr(self, "rows"):
            return
        Machine.steps += 1
        row, model = self.rows.row, self.model
        assert (row.status in TERMINAL) == (model.end is not None)
        if model.end is not None:
            assert row.status == model.end and not self.rows.queue
            assert row.owner is None and row.due_at_ms is None
            assert self.last in (None, row)
            self.last = row
        else:
            untaken = [event.payload for event in model.sent if not event.taken]
            assert [event.payload for event in self.rows.queue] == untaken
            assert (row.status == "running" and row.owner is not None) == (model.context != "none")
            assert row.due_at_ms is not None or row.lease_until_ms is not None
        assert row.queued_count == len(self.rows.queue)
        assert row.queued_bytes == sum(event.cost for event in self.rows.queue)
        assert row.step_count == len(self.rows.steps)
        assert row.open_steps == sum(not step.finished for step in self.rows.steps.values())

    @invariant()
    def log_is_well_formed(self) -> None:
        if not hasattr(self, "rows"):
            return
        log = self.rows.log
        types = [entry.type for entry in log]
        assert [entry.event_id for entry in log] == list(range(1, len(log) + 1))
        assert [entry.at_ms for entry in log] == sorted(entry.at_ms for entry in log)
        assert types[0] == "workflow_queued"
        endings = [kind for kind in types if kind in ("workflow_completed", "workflow_errored", "workflow_terminated")]
        assert len(endings) == (self.model.end is not None)
        assert not endings or types[-1] == endings[0]
        assert types.count("workflow_started") == min(1, types.count("workflow_running"))
        bodies = [(entry.type, entry.body) for entry in log if not entry.type.startswith("workflow_")]
        assert len(bodies) == len(set(bodies)), "S-14: each fact once"


class TestMachine(Machine.TestCase):
    """W-004, W-010, W-064, W-087, W-095, W-104, W-114, W-118, W-122, W-140, S-04, S-14, S-30: they agree."""

    settings = settings(max_examples=400, stateful_step_count=50, deadline=None)

    def runTest(self) -> None:  # noqa: N802 - the name that unittest gives it
        Machine.steps = 0
        super().runTest()
        print("steps", Machine.steps)
        assert Machine.steps >= STEPS_AT_LEAST


def test_the_tables_agree_too(new_rows: Callable[[], Rows]) -> None:
    """W-004, W-005, W-010, W-064, W-087, W-095, W-104, W-118, W-122, Design 2: the same over the tables."""

    class Stored(Machine):
        make_rows = staticmethod(new_rows)

    run_state_machine_as_test(Stored, settings=settings(max_examples=10, stateful_step_count=40, deadline=None))
