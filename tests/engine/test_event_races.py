"""An event against the wait for it, at every seam of the engine: which transaction, which place in it, whose runtime.

What races in life is put in every possible order here. An owner's life is a row of actions; events come in a
transaction of their own before one of them, or in the same transaction before or after it, from its own runtime or from
another one on the same database. All scenarios go through the same transactions, each with an instance of its own.
"""

from __future__ import annotations

import itertools
import threading
from collections import defaultdict
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass, field
from enum import Enum

import pytest
import sqlalchemy as sa

from saisei_runtime.isolates.port import (
    Completed,
    ContextEnd,
    ContextOutcome,
    Lost,
    Park,
    Parked,
    ProofKind,
    Reject,
    Resolve,
    Stop,
    StopProof,
    WaitCalled,
)
from saisei_runtime.store import schema
from saisei_runtime.workflow.commands import (
    Claim,
    Claimed,
    Command,
    ContextEnded,
    Create,
    Created,
    Done,
    Instant,
    NotClaimed,
    Refused,
    Reply,
    SendEvent,
    StepCalled,
)
from saisei_runtime.workflow.statements import Cursor, statements
from saisei_runtime.workflow.workspace import Workspace, loaded_instance
from saisei_service.database import Database, open_database

# Finished steps by name: the result of each, or the code of its failure.
History = dict[str, bytes | str | None]

START = 1_000_000_000
TIMEOUT_SECONDS = 60
TIMEOUT_MS = TIMEOUT_SECONDS * 1000
LEASE_MS = 10_000


class Place(Enum):
    """Where an event is, seen from an action of the owner."""

    ALONE = "in a transaction of its own before it"
    ELSEWHERE = "in a transaction of its own before it, by another runtime"
    FIRST = "in its transaction, before it"
    THEN = "in its transaction, after it"


@dataclass(frozen=True)
class Slot:
    action: int
    place: Place

    @property
    def order(self) -> tuple[int, int]:
        return self.action, (0, 0, 1, 2)[list(Place).index(self.place)]


@dataclass
class Scenario:
    """`waits` waits for "go", one after the other; `slots` of the events, in their order.

    `late_ms`: each event comes so long after the first wait's registration, and the owner's actions from that on
    `late_ms` or `owner_late_ms` after it. `lost`: the context is lost instead of that action, and the stale owner still
    tries it afterwards.
    """

    waits: int
    slots: Sequence[Slot]
    late_ms: int = 0
    owner_late_ms: int = 0
    lost: int | None = None
    number: int = 0
    # What happened.
    now: int = START
    wall: int = 0
    actions: int = 0
    sent: int = 0
    accepted: list[tuple[int, bytes]] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)
    registered: list[int] = field(default_factory=list)
    timed_out: int = 0
    exists: bool = False
    over: bool = False
    output: list[bytes | None] | None = None

    @property
    def incarnation(self) -> str:
        return f"{self.number:032x}"

    @property
    def instance_id(self) -> str:
        return f"i{self.number}"

    def expected(self) -> list[bytes | None]:
        """The naive model: each wait takes the oldest event that nobody took and that was accepted in its time."""
        left = list(self.accepted)
        results: list[bytes | None] = []
        for begun in self.registered:
            found = next((one for one in left if one[0] <= begun + TIMEOUT_MS), None)
            if found is not None:
                left.remove(found)
            results.append(None if found is None else found[1])
        return results

    def __str__(self) -> str:
        where = ", ".join(f"{slot.action} {slot.place.name}" for slot in self.slots)
        return f"{self.waits} waits; events at {where}; late {self.late_ms}/{self.owner_late_ms}; lost at {self.lost}"


class Gone:
    """To an owner: its context was lost instead of that action."""


class Writer:
    """A runtime's journal: whole transactions, one after the other."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._sql = statements(database.is_postgresql)

    def commit(
        self, commands: Sequence[tuple[Command, Instant]], between: Callable[[], None] | None = None
    ) -> list[Reply]:
        """`between` is called when everything is loaded and decided, and nothing is written."""
        with self._database.writer.begin() as connection:
            cursor = Cursor(connection.connection, postgresql=self._sql.postgresql)
            workspace = Workspace(cursor, self._sql, (), ())
            workspace.load([command for command, _ in commands])
            replies = [workspace.apply(command, now) for command, now in commands]
            if between is not None:
                between()
            workspace.flush()
        return replies


def owner(scenario: Scenario, history: Callable[[Scenario], History]) -> Generator[Command, Reply | Gone, None]:
    """One instance's life as its runtime drives it: claims, contexts that call each wait, ends."""
    name = scenario.incarnation
    assert isinstance((yield Create("wf", scenario.instance_id, name, None)), Created)
    for epoch in itertools.count(1):
        by = f"owner-{epoch}"
        while not isinstance((yield Claim(name, by, "runtime", "v1", LEASE_MS)), Claimed):
            pass
        results: list[bytes | None] = []
        parked = False
        reply: Reply | Gone = Done()
        for number in range(scenario.waits):
            done = history(scenario)
            if f"w{number}" in done:
                found = done[f"w{number}"]
                results.append(None if isinstance(found, str) else found)
                continue
            reply = yield StepCalled(name, epoch, by, WaitCalled(f"w{number}", "go", TIMEOUT_SECONDS))
            match reply:
                case Resolve(result):
                    results.append(result)
                case Reject("wait_timeout"):
                    results.append(None)
                case Park():
                    parked = True
                    break
                case Gone():
                    break
                case _:
                    raise AssertionError(reply)
        if isinstance(reply, Gone):
            continue
        outcome: ContextOutcome = Parked() if parked else Completed(None)
        reply = yield ContextEnded(name, epoch, by, _end(name, epoch, outcome))
        if not parked and not isinstance(reply, Gone):
            scenario.output = results
            return


def _end(name: str, epoch: int, outcome: ContextOutcome) -> ContextEnd:
    return ContextEnd(outcome, StopProof(ProofKind.QUIESCENT, f"{name}-{epoch}"))


class Stage:
    """Plays all scenarios side by side: a round is one transaction of events elsewhere, one of events alone, and one of
    all owners' next actions with the events that share it."""

    def __init__(self, database: Database, other: Database, scenarios: Sequence[Scenario]) -> None:
        self.database = database
        self.here, self.elsewhere = Writer(database), Writer(other)
        self.scenarios = scenarios
        self.history: dict[str, History] = {}
        self.lives: dict[int, Generator[Command, Reply | Gone, None]] = {}
        self.next: dict[int, Command | None] = {}
        self.stale: dict[int, Command] = {}
        for number, scenario in enumerate(scenarios):
            scenario.number = number
            life = owner(scenario, lambda one: self.history.get(one.incarnation, {}))
            self.lives[number] = life
            self.next[number] = next(life)

    def play(self) -> None:
        for _ in range(200):
            live = [one for one in self.scenarios if self.next[one.number] is not None]
            if not live:
                return
            self._round(live)
        raise AssertionError(f"stuck: {[str(one) for one in self.scenarios if self.next[one.number] is not None][:5]}")

    def _round(self, live: Sequence[Scenario]) -> None:
        # Two events of one scenario at the same place are two transactions.
        while any(self._due(one, Place.ELSEWHERE) or self._due(one, Place.ALONE) for one in live):
            for place, writer in ((Place.ELSEWHERE, self.elsewhere), (Place.ALONE, self.here)):
                if batch := [(one, self._event(one)) for one in live if self._due(one, place)]:
                    replies = writer.commit([(command, self._instant(one)) for one, command in batch])
                    for (one, command), reply in zip(batch, replies, strict=True):
                        self._answered(one, command, reply, one.now)
        commands: list[tuple[Scenario, Command, bool]] = []
        for one in live:
            while self._due(one, Place.FIRST):
                commands.append((one, self._event(one), False))
            action = self.next[one.number]
            assert action is not None
            if one.number in self.stale:
                commands.append((one, self.stale.pop(one.number), False))
            if one.lost == one.actions and isinstance(action, StepCalled | ContextEnded):
                # The context dies instead; what it had still to say arrives too late.
                self.stale[one.number] = action
                action = ContextEnded(
                    one.incarnation, action.epoch, action.owner, _end("x", action.epoch, Lost("gone"))
                )
            commands.append((one, action, True))
            while self._due(one, Place.THEN):
                commands.append((one, self._event(one), False))
        instants = [self._instant(one) for one, _, _ in commands]
        replies = self.here.commit([(command, now) for (_, command, _), now in zip(commands, instants, strict=True)])
        self._read_history()
        for (one, command, is_action), reply, now in zip(commands, replies, instants, strict=True):
            if isinstance(command, SendEvent):
                self._answered(one, command, reply, now.ms)
            elif is_action:
                self._acted(one, command, reply)
            else:
                assert isinstance(reply, Stop) or not isinstance(reply, Resolve | Park | Reject), "a stale owner wrote"

    def _due(self, one: Scenario, place: Place) -> bool:
        return (
            one.sent < len(one.slots)
            and one.slots[one.sent].action == one.actions
            and one.slots[one.sent].place is place
            and self.next[one.number] is not None
        )

    def _event(self, one: Scenario) -> Command:
        one.sent += 1
        if one.late_ms and one.registered:
            one.now = max(one.now, one.registered[0] + one.late_ms)
        return SendEvent("wf", one.instance_id, "go", b'{"n":%d}' % one.sent)

    def _instant(self, one: Scenario) -> Instant:
        return Instant(one.now, one.wall)

    def _answered(self, one: Scenario, command: Command, reply: Reply, now_ms: int) -> None:
        assert isinstance(command, SendEvent)
        if isinstance(reply, Done):
            assert one.exists and not one.over, f"accepted although it is not there: {one}"
            assert command.payload is not None
            one.accepted.append((now_ms, command.payload))
        else:
            assert isinstance(reply, Refused)
            expected = "instance_terminal" if one.exists else "unknown_instance"
            assert reply.reason == expected and (one.over or not one.exists), f"{reply}: {one}"
            one.refused.append(reply.reason)

    def _acted(self, one: Scenario, command: Command, reply: Reply) -> None:
        if isinstance(command, Create):
            one.exists = True
        if isinstance(command, StepCalled) and isinstance(command.call, WaitCalled) and not isinstance(reply, Stop):
            if int(command.call.name[1:]) == len(one.registered):
                one.registered.append(one.now)
            if one.owner_late_ms:
                one.now = max(one.now, one.registered[0] + one.owner_late_ms)
        if isinstance(command, Claim) and isinstance(reply, NotClaimed):
            # Nothing to do until an event or the timeout comes. The next event is later, or there is none.
            pending = one.sent < len(one.slots) and one.slots[one.sent].action <= one.actions
            if not pending:
                if one.registered:
                    one.now = max(one.now, one.registered[-1] + TIMEOUT_MS + 1)
                one.wall += 3_600_000
            self.next[one.number] = self.lives[one.number].send(reply)
            return
        one.actions += 1
        lost = isinstance(command, ContextEnded) and isinstance(command.end.outcome, Lost)
        try:
            self.next[one.number] = self.lives[one.number].send(Gone() if lost else reply)
        except StopIteration:
            self.next[one.number] = None
            one.over = True

    def _read_history(self) -> None:
        steps = schema.steps.c
        query = sa.select(steps.incarnation, steps.name, steps.state, steps.result)
        self.history = defaultdict(dict)
        with self.database.reader.connect() as connection:
            for incarnation, name, state, result in connection.execute(query):
                if state == "complete":
                    self.history[incarnation][name] = None if result is None else bytes(result)
                elif state == "errored":
                    self.history[incarnation][name] = "wait_timeout"

    def check(self) -> None:
        """What every scenario came to, against the naive model, and the tables against both."""
        instances = schema.instances
        with self.database.reader.connect() as connection:
            rows = {row[0]: loaded_instance(row) for row in connection.execute(sa.select(instances))}
            left = connection.execute(sa.select(sa.func.count()).select_from(schema.queued_events)).scalar()
            log: dict[str, list[tuple[int, str]]] = defaultdict(list)
            table = schema.event_log
            query = sa.select(table.c.incarnation, table.c.event_id, table.c.type).order_by(table.c.event_id)
            for incarnation, event_id, kind in connection.execute(query):
                log[incarnation].append((event_id, kind))
        assert left == 0
        for one in self.scenarios:
            row = rows[one.incarnation]
            assert (row.status, row.queued_count, row.queued_bytes) == ("complete", 0, 0), one
            assert one.output == one.expected(), f"{one.output} instead of {one.expected()}: {one}"
            ids = [event_id for event_id, _ in log[one.incarnation]]
            kinds = [kind for _, kind in log[one.incarnation]]
            assert ids == list(range(1, len(ids) + 1)), one
            assert kinds.count("wait_started") == one.waits, one
            timed_out = one.output.count(None)
            ends = (kinds.count("wait_completed"), kinds.count("wait_timed_out"))
            assert ends == (one.waits - timed_out, timed_out), (one, kinds)


@pytest.fixture
def other(database: Database, database_url: str) -> Iterator[Database]:
    opened = open_database(database_url)
    yield opened
    opened.close()


def _slots(actions: int) -> list[Slot]:
    return [Slot(action, place) for action in range(actions) for place in Place]


def test_events_at_every_seam_of_a_wait(database: Database, other: Database) -> None:
    """W-060, W-061, W-064, W-065, W-066, W-116, Issue 5: one and two events in each order with one and two waits.

    Each event is taken once, by the oldest wait, or refused; no wait misses one that was accepted.
    """
    scenarios = [Scenario(waits, [slot]) for waits in (1, 2) for slot in _slots(9)]
    pairs = itertools.combinations_with_replacement(sorted(_slots(7), key=lambda slot: slot.order), 2)
    scenarios += [Scenario(waits, pair) for pair in pairs for waits in (1, 2)]
    stage = Stage(database, other, scenarios)
    stage.play()
    stage.check()
    assert {len(one.accepted) for one in scenarios} == {0, 1, 2}
    assert {reason for one in scenarios for reason in one.refused} == {"unknown_instance", "instance_terminal"}
    assert {one.output.count(None) for one in scenarios if one.output is not None} == {0, 1, 2}


def test_events_at_the_instant_of_the_timeout(database: Database, other: Database) -> None:
    """W-118, W-119: before, at and after the timeout's ms, against an owner that is before, at or after it too."""
    around = (TIMEOUT_MS - 1, TIMEOUT_MS, TIMEOUT_MS + 1)
    scenarios = [
        Scenario(waits, [slot], late_ms=late, owner_late_ms=owner_late)
        for waits in (1, 2)
        for slot in _slots(7)
        for late in around
        for owner_late in (0, *around)
    ]
    stage = Stage(database, other, scenarios)
    stage.play()
    stage.check()


def test_events_around_a_lost_owner(database: Database, other: Database) -> None:
    """W-004, W-066, W-150, W-151: the context is lost at each action; the stale owner's call comes too late."""
    scenarios = [Scenario(waits, [slot], lost=lost) for waits in (1, 2) for lost in range(2, 7) for slot in _slots(9)]
    stage = Stage(database, other, scenarios)
    stage.play()
    stage.check()


FENCE = (f"{0:032x}", 1, "owner-1")
GO = SendEvent("wf", "i", "go", b'{"n":1}')
CALL = StepCalled(*FENCE, WaitCalled("w0", "go", TIMEOUT_SECONDS))
PARKED = ContextEnded(*FENCE, _end(FENCE[0], 1, Parked()))
CLAIM = Claim(FENCE[0], "owner-2", "runtime", "v1", LEASE_MS)


@pytest.mark.parametrize(
    ("before", "first", "second"),
    [
        ([], GO, CALL),
        ([], CALL, GO),
        ([CALL], GO, PARKED),
        ([CALL], PARKED, GO),
        ([CALL, PARKED], GO, CLAIM),
        ([CALL, PARKED], CLAIM, GO),
    ],
    ids=["event, call", "call, event", "event, park", "park, event", "event, claim", "claim, event"],
)
def test_a_transaction_that_began_meanwhile(
    database: Database, other: Database, before: list[Command], first: Command, second: Command
) -> None:
    """W-066, W-116, Design 2: another runtime's transaction that begins while one is between its reads and its writes.

    It sees what the first one did: the event is in the wait, or in the queue where the wait finds it.
    """
    here, elsewhere = Writer(database), Writer(other)
    now = Instant(START, 0)
    here.commit([(Create("wf", "i", FENCE[0], None), now), (Claim(FENCE[0], FENCE[2], "runtime", "v1", LEASE_MS), now)])
    for command in before:
        here.commit([(command, now)])
    begun = threading.Event()
    replies: list[Reply] = []

    def _second() -> None:
        begun.set()
        replies.extend(elsewhere.commit([(second, now)]))

    thread = threading.Thread(target=_second)

    def _between() -> None:
        thread.start()
        assert begun.wait(30)
        assert not replies, "it read what is being changed"

    replied = here.commit([(first, now)], _between)
    thread.join(60)
    assert len(replies) == 1
    outcomes = {type(command): reply for command, reply in ((first, replied[0]), (second, replies[0]))}
    assert isinstance(outcomes[SendEvent], Done)
    with database.reader.connect() as connection:
        row = loaded_instance(connection.execute(sa.select(schema.instances)).one())
        result = connection.execute(sa.select(schema.steps.c.result)).scalar()
    # Whatever came first: the wait has the event now, or finds it when its context comes back to the call.
    if row.status == "running":
        if result is None:
            fence = (FENCE[0], row.epoch, row.owner or "")
            reply = here.commit([(StepCalled(*fence, CALL.call), now)])[0]
            if isinstance(reply, Park):
                here.commit([(ContextEnded(*fence, _end(FENCE[0], row.epoch, Parked())), now)])
    elif result is None:
        raise AssertionError(f"the event is lost: {row}")
    with database.reader.connect() as connection:
        assert bytes(connection.execute(sa.select(schema.steps.c.result)).scalar() or b"") == b'{"n":1}'
        assert connection.execute(sa.select(sa.func.count()).select_from(schema.queued_events)).scalar() == 0
