"""Recorded histories against new code: real Node, histories in a real database, and nothing that the code may do."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import time

import pytest
from engine_fakes import Host, StepError

from saisei_contract.errors import SaiseiError
from saisei_runtime.code import Binding, BindingKind, Module, WorkerCode
from saisei_runtime.isolates.pool import IsolatePool, IsolateSettings
from saisei_runtime.isolates.port import RetryPolicy
from saisei_runtime.workflow.reads import Reads
from saisei_runtime.workflow.replay_check import (
    NAMED,
    Doubt,
    Findings,
    Mismatch,
    Replayable,
    ReplayCheck,
    Why,
    disguised,
)
from saisei_service.database import Database

PARKS = """
  await step.do("first", () => { throw new Error("an effect ran"); });
"""


def code(body: str, version: str = "new") -> WorkerCode:
    source = f"export class Flow {{ constructor(env) {{ this.env = env; }} async run(event, step) {{ {body} }} }}"
    module = Module("application/javascript+module", f"{source}\nexport default {{}};".encode())
    bindings = (Binding("FLOWS", BindingKind.WORKFLOW, "wf"),)
    return WorkerCode(version, "worker", "main.mjs", {"main.mjs": module}, vars_json=b'{"A":"b"}', bindings=bindings)


class Codes:
    def __init__(self) -> None:
        self.held: dict[str, WorkerCode] = {}

    async def load(self, version_uid: str) -> WorkerCode:
        if version_uid not in self.held:
            raise SaiseiError("backend_unavailable", "not assigned")
        return self.held[version_uid]


class Lab:
    """`check(body)` replays what is parked against a class Flow whose run has that body."""

    def __init__(self, host: Host, database: Database) -> None:
        self.host = host
        self.codes = Codes()
        self.reads = Reads(database)
        settings = IsolateSettings(egress=False, warm_threads=2, max_threads=2)
        self.replays = ReplayCheck(self.reads, self.codes, lambda bindings: IsolatePool(settings, bindings))
        self.workflows = [Replayable("wf", "Flow")]

    async def parked(self, count: int) -> None:
        """Until so many instances sleep."""
        async with asyncio.timeout(60):
            while (await self.host.engine.counts("wf"))["sleeping"] < count:
                await asyncio.sleep(0.01)

    async def check(self, *bodies: str, seconds: float = 300.0, each_seconds: float = 100.0) -> Findings:
        """With time enough on any machine, unless a test is about the time."""
        self.codes.held = {f"v{number}": code(body, f"v{number}") for number, body in enumerate(bodies)}
        return await self.replays.check(self.workflows, list(self.codes.held), seconds, each_seconds)


@pytest.fixture
async def lab(host: Host, database: Database):
    made = Lab(host, database)
    yield made
    made.reads.close()


def sleeps_after(event, step):
    yield step.do("first", lambda: b'{"n":1}')
    yield step.sleep("rest", 3600)


def waits_after(event, step):
    yield step.do("first", lambda: b'{"n":1}')
    yield step.wait("answer", "go", 3600)


def fails_after(event, step):
    yield step.do("first", lambda: b'{"n":1}')
    with contextlib.suppress(StepError):
        yield step.do("second", lambda: 1 / 0)
    yield step.do("third", lambda: 1 / 0, RetryPolicy(3, 600))


CALLS = {
    "step.do": 'await step.do("{}", () => {{ throw new Error("an effect ran"); }}, {{ maxAttempts: 3 }});',
    "step.sleep": 'await step.sleep("{}", 60);',
    "step.waitForEvent": 'await step.waitForEvent("{}", {{ type: "go", timeoutSeconds: 5 }});',
}


async def test_another_method_for_the_step_that_an_instance_is_in(lab: Lab) -> None:
    """WD-10, W-120, W-095: of the nine pairs, the three of one kind fit and the six others are known mismatches."""
    for program, name, begun in (
        (sleeps_after, "rest", "step.sleep"),
        (waits_after, "answer", "step.waitForEvent"),
        (fails_after, "third", "step.do"),
    ):
        lab.host.define(program)
        instance_id = f"in {name}"
        await lab.host.engine.create("wf", instance_id, None)
        await lab.host.until(instance_id, "sleeping", "waiting")
        bodies = [
            PARKS + 'try { await step.do("second", () => {}); } catch {}' * (name == "third") + call.format(name)
            for call in CALLS.values()
        ]
        found = await lab.check(*bodies)
        mismatches = [
            Mismatch(f"v{number}", "wf", instance_id, name, begun, called)
            for number, called in enumerate(CALLS)
            if called != begun
        ]
        assert sorted(found.mismatches, key=lambda one: one.version_uid) == mismatches
        assert (found.fitting, found.doubts) == (1, ())
        await lab.host.engine.terminate("wf", instance_id)


UNKNOWN = (
    ("", Why.ENDED),
    ('await step.do("first", () => {}); return {};', Why.ENDED),
    ('throw new Error("no");', Why.ENDED),
    ("return 5;", Why.ENDED),
    # Whatever a Binding, or the network, would have answered.
    ('try { await this.env.FLOWS.get("x"); } catch {} await step.do("rest", () => {});', Why.ASKED_OUTSIDE),
    ('try { await fetch("https://example.com/"); } catch {} await step.do("rest", () => {});', Why.ASKED_OUTSIDE),
    ('fetch("https://example.com/").catch(() => {}); await step.sleep("rest", 5);', Why.ASKED_OUTSIDE),
    ('await step.do("first", () => {}); await fetch("https://example.com/");', Why.ASKED_OUTSIDE),
    ('await Promise.all([step.do("first", () => {}), step.sleep("rest", 1)]);', Why.ENDED),
    ('await Promise.all([step.do("first", () => {}), step.do("rest", () => {})]);', Why.ENDED),
    # A tenant's words are no verdict.
    ("throw new Error('step \"rest\" is unfinished and was begun with x; now step.do uses its name');", Why.ENDED),
)


async def test_what_cannot_be_told_is_not_told(lab: Lab) -> None:
    """WD-10: anything but the step that the instance is in, called with another method, is unknown, and not fitting."""
    lab.host.define(sleeps_after)
    await lab.host.engine.create("wf", "i", None)
    await lab.host.until("i", "sleeping")
    found = await lab.check(*(body for body, _ in UNKNOWN))
    assert found == Findings((), 0, tuple(Doubt(why, "wf", "i", "rest") for _, why in UNKNOWN))
    found = await lab.check("await new Promise(() => {});", "for (;;) {}", each_seconds=1)
    assert found == Findings((), 0, (Doubt(Why.TIME, "wf", "i", "rest"),) * 2)


async def test_a_renamed_step_is_told_by_both_names(lab: Lab) -> None:
    """WD-10: the step that the instance is in has another name now: no proof, for a step in between looks the same."""
    lab.host.define(sleeps_after)
    await lab.host.engine.create("wf", "i", None)
    await lab.host.until("i", "sleeping")
    names = ["rest2", "\0-😀", '\\"']
    calls = [
        (call.format("PLACE").replace('"PLACE"', json.dumps(name)), name) for name in names for call in CALLS.values()
    ]
    found = await lab.check(*(PARKS + call for call, _ in calls))
    assert found == Findings((), 0, tuple(Doubt(Why.NEW_STEP, "wf", "i", "rest", name) for _, name in calls))
    assert len(found.unconfirmed()[Why.NEW_STEP]) == 1


async def test_a_process_that_dies_proves_nothing(lab: Lab) -> None:
    """WD-10: a replay that kills its process is told as one that was not made."""
    lab.host.define(sleeps_after)
    await lab.host.engine.create("wf", "i", None)
    await lab.host.until("i", "sleeping")
    found = await lab.check("const held = []; for (;;) held.push(new Array(1e6).fill(held.length));", each_seconds=60)
    assert [doubt.why for doubt in found.doubts] in ([Why.NOT_RUN], [Why.TIME])
    assert not found.mismatches and not found.fitting


async def test_a_replay_leaves_nothing_behind(lab: Lab, caplog: pytest.LogCaptureFixture) -> None:
    """WD-10, W-004: no row changes, no effect runs, nothing that the code prints is logged, no process is left."""
    lab.host.define(sleeps_after)
    await lab.host.engine.create("wf", "i", b'{"a":1}')
    await lab.host.until("i", "sleeping")
    before = await lab.reads.instance("wf", "i")
    with caplog.at_level(logging.DEBUG):
        found = await lab.check('console.log("printed", event.params.a);' + PARKS + 'await step.sleep("rest", 5);')
    assert found.fitting == 1
    assert await lab.reads.instance("wf", "i") == before
    assert not [record for record in caplog.records if "printed" in record.getMessage()]


async def test_nothing_parked_needs_no_code(lab: Lab) -> None:
    """WD-10: only parked instances are replayed; without any the Version is not even loaded."""
    lab.host.define(lambda event, step: (yield step.do("a", lambda: b"{}")))
    await lab.host.engine.create("wf", "i", None)
    await lab.host.until("i", "complete")
    assert await lab.replays.check(lab.workflows, ["unassigned"]) == Findings()
    lab.host.define(sleeps_after)
    await lab.host.engine.create("wf", "j", None)
    await lab.host.until("j", "sleeping")
    with pytest.raises(SaiseiError) as caught:
        await lab.replays.check(lab.workflows, ["unassigned"])
    assert caught.value.reason == "backend_unavailable"


async def test_the_sample_is_bounded_and_varied(lab: Lab) -> None:
    """WD-10: at most 200 replays, and each step that instances are in has its share of them."""

    def program(event, step):
        yield step.sleep("rare" if event.instance_id == "i7" else "usual", 3600)

    lab.host.define(program)
    await lab.host.engine.create_batch("wf", [(f"i{number}", None) for number in range(260)])
    await lab.parked(260)
    found = await lab.check('await step.do(event.instanceId === "i7" ? "rare" : "none", () => {});')
    assert [one.instance_id for one in found.mismatches] == ["i7"]
    assert (found.fitting, len(found.doubts)) == (0, 199)
    assert {doubt.why for doubt in found.doubts} == {Why.NEW_STEP}
    # Those that were not replayed are counted, and some of them named.
    replayed = {one.instance_id for one in (*found.mismatches, *found.doubts)}
    assert len(replayed) == 200 and found.not_sampled == 60
    assert {doubt.why for doubt in found.named} == {Why.NOT_SAMPLED} and len(found.named) == NAMED
    assert not replayed & {doubt.instance_id for doubt in found.named}
    told = found.unconfirmed()
    assert list(told) == [Why.NEW_STEP, Why.NOT_SAMPLED] and len(told[Why.NEW_STEP]) == 199


async def test_time_is_bounded(lab: Lab) -> None:
    """WD-10: what was not replayed in time is unknown; a Version that hangs holds a deploy up for seconds only."""
    lab.host.define(sleeps_after)
    await lab.host.engine.create_batch("wf", [(None, None)] * 30)
    await lab.parked(30)
    began = time.monotonic()
    found = await lab.check("for (;;) {}", seconds=3)
    assert not found.mismatches and not found.fitting
    assert len({doubt.instance_id for doubt in found.doubts}) == 30
    assert {doubt.why for doubt in found.doubts} == {Why.TIME}
    assert time.monotonic() - began < 30


def test_a_disguised_history_performs_nothing() -> None:
    """WD-10, W-096: every name is taken: whatever is new is one step too many."""
    assert len({step.name for step in disguised([])}) == 1024
