"""What an effect works with: the Operation, its Resource, and the rest of the Host behind a few verbs."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from sqlalchemy import Connection

from saisei.control.v1 import assignments_pb2
from saisei_contract.clock import Clock
from saisei_contract.errors import SaiseiError
from saisei_contract.records import Effect, OperationRecord
from saisei_control.artifacts.custody import Custody
from saisei_control.artifacts.sources import Sources
from saisei_control.assignments import log
from saisei_control.assignments.watch import Replicas
from saisei_control.operations.outcome import Again, Failed, Outcome
from saisei_control.runtime_client import RuntimeFleet
from saisei_control.secrets.vault import Vault
from saisei_control.store.rows import StoredResource, find_operation, update_operation
from saisei_control.store.store import Change, Store

T = TypeVar("T")

# One attempt waits so long for others before it gives its place to a later attempt.
PATIENCE_SECONDS = 20.0
_POLL_SECONDS = 0.5


@dataclass(frozen=True, slots=True)
class Host:
    """The parts of the control service that effects use. `public_origin` may be empty."""

    store: Store
    custody: Custody
    vault: Vault
    replicas: Replicas
    fleet: RuntimeFleet
    clock: Clock
    sources: Sources
    public_origin: str = ""


@dataclass(frozen=True, slots=True)
class Work:
    """One attempt."""

    host: Host
    operation: OperationRecord
    # Whose mutation it is.
    principal: str
    resource: StoredResource
    # This attempt's number, from 1.
    attempt: int = 1

    async def put_into_effect(self, publish: Callable[[Connection], int | Failed]) -> Outcome | None:
        """Runs `publish`, which checks and publishes in one transaction (WD-06) and gives the revision. None once every
        live runtime works by that; else the outcome of this attempt."""
        published = await self.host.store.write(publish)
        return published if isinstance(published, Failed) else await self.until_effective(published)

    def publish_in(self, connection: Connection, body: assignments_pb2.Assignment) -> int:
        """Publishes the Resource's assignment; from then on the effect has begun."""
        self._begin(connection)
        return log.publish(connection, self.resource, body)

    async def unpublish(self) -> int | None:
        """Takes the Resource's assignment back; None when there never was one, so that no runtime needs to be asked."""
        return await self.host.store.write(self.unpublish_in)

    def unpublish_in(self, connection: Connection) -> int | None:
        revision = log.unpublish(connection, self.resource)
        if revision is not None:
            self._begin(connection)
        return revision

    async def until_effective(self, revision: int) -> Outcome | None:
        """None once every live runtime works by `revision`; else the outcome of this attempt."""
        if await self.host.replicas.wait_effective(revision, PATIENCE_SECONDS):
            return None
        return Again("backend_unavailable", "no runtime has made the change effective yet", dispatched=True)

    async def until(self, ready: Callable[[Connection], T | None]) -> T | None:
        """The first value of `ready` that is not None, or None when the patience of this attempt is over."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        changes = self.host.store.changes
        changed = changes.next(Change.STATE)
        while (found := await self.host.store.read(ready)) is None:
            left = deadline - time.monotonic()
            if left <= 0:
                return None
            await changes.wait(changed, min(left, _POLL_SECONDS))
            changed = changes.next(Change.STATE)
        return found

    def _begin(self, connection: Connection) -> None:
        """H-116: from here on a lost answer proves nothing. What an operator has settled begins nothing more."""
        stored = find_operation(connection, self.operation.id)
        assert stored is not None, "it is unfinished, or was until now"
        if stored.record.status.is_terminal:
            raise SaiseiError("operation_terminal", "the Operation was settled by an operator")
        if stored.record.effect is Effect.NONE:
            update_operation(connection, self.operation.id, {"effect": Effect.UNKNOWN.value})
