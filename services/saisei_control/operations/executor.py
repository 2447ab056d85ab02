"""Carries accepted Operations out in the background, over restarts, without anyone polling (H-119).

Each unfinished Operation is leased by one executor at a time; what an attempt found is settled only while its lease
holds. Effects are idempotent, so an attempt that died is simply made again.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import partial
from typing import assert_never

from sqlalchemy import Connection, Integer, and_, bindparam, or_, select, update

from saisei_contract import operations as machine
from saisei_contract.clock import Clock
from saisei_contract.errors import SaiseiError
from saisei_contract.records import Action, Effect, OperationFailure, OperationRecord, OperationStatus
from saisei_control.operations.effects import effect_of
from saisei_control.operations.outcome import Again, Done, Failed, Outcome
from saisei_control.operations.settle import settle
from saisei_control.operations.work import Host, Work
from saisei_control.store.rows import (
    UNFINISHED,
    StoredOperation,
    StoredResource,
    find_held_operation,
    operation_of,
    operation_values,
    resource_of,
    update_operation,
)
from saisei_control.store.schema import operations, resources
from saisei_control.store.statements import Row, Statement, one_of
from saisei_control.store.store import Change, Store

log = logging.getLogger(__name__)

LEASE_MS = 15_000
RENEW_SECONDS = 4.0
# Most of them only wait, for a runtime or for each other.
MAX_IN_FLIGHT = 256
MAX_IN_FLIGHT_OF_SPACE = 192
FIRST_BACKOFF_MS = 100
MAX_BACKOFF_MS = 2_000
IDLE_SECONDS = 1.0
GATHER_SECONDS = 0.004

_WORKABLE = tuple(status for status in UNFINISHED if status != OperationStatus.WAITING_INPUT.value)


_IS_WORKABLE = one_of(operations.c.status, _WORKABLE)
_FREE = or_(operations.c.lease_until.is_(None), operations.c.lease_until <= bindparam("now"))
_DUE = (
    select(operations.c.id, resources.c.space)
    .join(resources, resources.c.uid == operations.c.resource_uid)
    .where(_IS_WORKABLE, operations.c.due_at <= bindparam("now"), _FREE)
    .order_by(operations.c.due_at, operations.c.created_at)
    .limit(bindparam("room", type_=Integer))
)
_DUE_ANYWHERE = Statement(_DUE)
_NEXT_DUE = Statement(
    select(operations.c.due_at)
    .where(
        _IS_WORKABLE,
        operations.c.due_at > bindparam("now"),
        operations.c.lease_until.is_(None),
    )
    .order_by(operations.c.due_at)
    .limit(1)
)
_CLAIMABLE = Statement(
    select(operations, resources)
    .join(resources, resources.c.uid == operations.c.resource_uid)
    .where(operations.c.id == bindparam("wanted"), _IS_WORKABLE, _FREE)
)
_OPERATION_COLUMNS = len(operations.c)


def backoff_ms(attempts: int) -> int:
    """100 ms, doubling, at most 2 s: what is missing is a part of this installation, and people wait."""
    doubled: int = FIRST_BACKOFF_MS << min(attempts, 10)
    return min(doubled, MAX_BACKOFF_MS)


@dataclass(frozen=True, slots=True)
class _Claim:
    operation: StoredOperation
    resource: StoredResource


class Executor:
    """`control_id` outlives restarts; `system` is system time (leases, back-off)."""

    def __init__(self, host: Host, control_id: str, system: Clock) -> None:
        self._host = host
        self._store: Store = host.store
        self._system = system
        self._control_id = control_id
        self._lease = f"{control_id}/{secrets.token_hex(8)}"
        self._attempts: dict[str, asyncio.Task[None]] = {}
        self._spaces: Counter[str] = Counter()
        self._loops: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        """Takes up at once what a dead predecessor of the same id had leased, then runs until `stop`."""
        await self._store.write(self._release_predecessor)
        self._loops = [asyncio.create_task(self._claim_loop()), asyncio.create_task(self._renew_loop())]

    async def stop(self) -> None:
        """Cancels what is under way and gives the leases back; the Operations go on elsewhere or after a restart."""
        tasks = [*self._loops, *self._attempts.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._store.write(
            lambda connection: connection.execute(
                update(operations)
                .where(operations.c.lease_owner == self._lease)
                .values(lease_owner=None, lease_until=None)
            )
        )

    async def _claim_loop(self) -> None:
        while True:
            changed = self._store.changes.next(Change.DUE)
            try:
                wait_seconds = await self._claim_due()
            except SaiseiError:
                wait_seconds = IDLE_SECONDS
            except Exception:
                # Whatever it is: without this loop nothing that was accepted would ever be carried out.
                log.exception("due Operations could not be claimed")
                wait_seconds = IDLE_SECONDS
            await self._store.changes.wait(changed, wait_seconds)
            # Whatever else is accepted meanwhile is claimed with it.
            await asyncio.sleep(GATHER_SECONDS)

    async def _claim_due(self) -> float:
        """Starts what is due; returns the seconds until something else may be."""
        room = MAX_IN_FLIGHT - len(self._attempts)
        due, next_due = await self._store.peek(
            lambda connection: (self._due(connection, room) if room > 0 else [], self._next_due(connection))
        )
        if due:
            for claim in await self._store.write(lambda connection: self._claim(connection, due), Change.NOTHING):
                operation_id = claim.operation.record.id
                space = claim.resource.record.space
                task = asyncio.create_task(self._attempt(claim))
                self._attempts[operation_id] = task
                self._spaces[space] += 1
                task.add_done_callback(partial(self._finished, operation_id, space))
        if next_due is None:
            return IDLE_SECONDS
        return min(IDLE_SECONDS, max(0.01, (next_due - self._system.now_ms()) / 1000))

    def end_attempt(self, operation_id: str) -> None:
        """Stops the attempt that this process makes at an Operation, if it makes one."""
        attempt = self._attempts.get(operation_id)
        if attempt is not None:
            attempt.cancel()

    def _finished(self, operation_id: str, space: str, attempt: asyncio.Task[None]) -> None:
        was_full = len(self._attempts) >= MAX_IN_FLIGHT or self._spaces[space] >= MAX_IN_FLIGHT_OF_SPACE
        del self._attempts[operation_id]
        self._spaces[space] -= 1
        if not self._spaces[space]:
            del self._spaces[space]
        if not attempt.cancelled() and (error := attempt.exception()) is not None:
            # Its lease runs out and it is attempted again.
            log.error("an Operation could not be settled", extra={"operation": operation_id}, exc_info=error)
        if was_full:
            self._store.changes.notify(Change.DUE)

    def _due(self, connection: Connection, room: int) -> list[str]:
        """The oldest, but never so many of one Space that the others find no room."""
        inside = Counter(self._spaces)
        full = [space for space, count in inside.items() if count >= MAX_IN_FLIGHT_OF_SPACE]
        now = {"now": self._system.now_ms(), "room": room}
        found: Iterable[Row] = (
            connection.execute(_DUE.where(resources.c.space.not_in(full)), now)
            if full
            else _DUE_ANYWHERE.rows(connection, now)
        )
        due = []
        for operation_id, space in found:
            if inside[space] < MAX_IN_FLIGHT_OF_SPACE:
                inside[space] += 1
                due.append(operation_id)
        return due

    def _next_due(self, connection: Connection) -> int | None:
        """When the earliest Operation that nobody works on falls due."""
        row = _NEXT_DUE.first(connection, {"now": self._system.now_ms()})
        return None if row is None else int(row[0])

    def _claim(self, connection: Connection, ids: list[str]) -> list[_Claim]:
        """Leases and starts those of `ids` that are still free. Writers take turns, so nothing comes in between."""
        now, at = self._system.now_ms(), self._host.clock.now_ms()
        claims = []
        for operation_id in ids:
            row = _CLAIMABLE.first(connection, {"wanted": operation_id, "now": now})
            if row is None:
                continue
            stored, resource = operation_of(row[:_OPERATION_COLUMNS]), resource_of(row[_OPERATION_COLUMNS:])
            record = stored.record
            if record.status is OperationStatus.QUEUED:
                record = machine.transition(record, machine.Start(), at)
            update_operation(
                connection,
                operation_id,
                {
                    "lease_owner": self._lease,
                    "lease_until": now + LEASE_MS,
                    "attempts": stored.attempts + 1,
                    "status": record.status.value,
                    "updated_at": record.updated_at_ms,
                },
            )
            claims.append(_Claim(StoredOperation(record, stored.principal, stored.attempts + 1), resource))
        return claims

    async def _attempt(self, claim: _Claim) -> None:
        record = claim.operation.record
        work = Work(self._host, record, claim.operation.principal, claim.resource, claim.operation.attempts)
        effect = effect_of(claim.resource.record.form)
        try:
            outcome = await (effect.remove(work) if record.action is Action.DELETE else effect.apply(work))
        except SaiseiError as error:
            outcome = Again(error.reason, error.detail or error.kind.title, dispatched=False)
        except Exception:
            log.exception("an Operation's attempt failed", extra={"operation": record.id})
            outcome = Again(
                "internal_error", "the Host failed and tries again; its log has the details", dispatched=False
            )
        await self._settle(claim, outcome)

    async def _settle(self, claim: _Claim, outcome: Outcome) -> None:
        """Retries over database outages: the lease ends by itself when that takes too long."""
        tells = Change.DUE if isinstance(outcome, Again) else Change.STATE
        if not isinstance(outcome, Again) and outcome.also is not None:
            tells = Change.ANYTHING
        while True:
            try:
                await self._store.write(lambda connection: self._settle_in(connection, claim, outcome), tells)
                return
            except SaiseiError:
                await asyncio.sleep(FIRST_BACKOFF_MS / 1000)

    def _settle_in(self, connection: Connection, claim: _Claim, outcome: Outcome) -> None:
        operation_id = claim.operation.record.id
        stored = find_held_operation(connection, operation_id, self._lease)
        if stored is None:
            return
        now = self._host.clock.now_ms()
        values: dict[str, object] = {"lease_owner": None, "lease_until": None}
        match outcome:
            case Done() | Failed():
                record = settle(connection, stored.record, claim.resource, _proven(stored.record, outcome), now)
            case Again():
                record = _again(stored.record, outcome, now)
                values["due_at"] = self._system.now_ms() + backoff_ms(stored.attempts)
            case _:
                assert_never(outcome)
        update_operation(connection, operation_id, {**values, **operation_values(record)})

    async def _renew_loop(self) -> None:
        while True:
            await asyncio.sleep(RENEW_SECONDS)
            if self._attempts:
                with contextlib.suppress(SaiseiError):
                    await self._store.write(self._renew, Change.NOTHING)

    def _renew(self, connection: Connection) -> None:
        connection.execute(
            update(operations)
            .where(and_(operations.c.lease_owner == self._lease, operations.c.id.in_(list(self._attempts))))
            .values(lease_until=self._system.now_ms() + LEASE_MS)
        )

    def _release_predecessor(self, connection: Connection) -> None:
        connection.execute(
            update(operations)
            .where(operations.c.lease_owner.startswith(f"{self._control_id}/", autoescape=True))
            .values(lease_owner=None, lease_until=None)
        )


def _proven(record: OperationRecord, outcome: Done | Failed) -> Done | Failed:
    """An attempt knows of itself only: what an earlier one began, and nobody took back, is still there (H-116)."""
    if isinstance(outcome, Failed) and outcome.effect is Effect.NONE and record.effect is not Effect.NONE:
        return replace(outcome, effect=Effect.PARTIAL)
    return outcome


def _again(record: OperationRecord, outcome: Again, now_ms: int) -> OperationRecord:
    """Running while nothing was dispatched, reconciling with the reason once something may have happened (H-112)."""
    begun = outcome.dispatched or record.effect is not Effect.NONE
    if record.status is OperationStatus.RUNNING and begun:
        effect = Effect.UNKNOWN if record.effect is Effect.NONE else record.effect
        failure = OperationFailure(outcome.code, outcome.message)
        return machine.transition(record, machine.Reconcile(effect, failure), now_ms)
    return record
