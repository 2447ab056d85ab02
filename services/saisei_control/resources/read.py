"""Reads: one Resource, one Operation, pages (H-090 … H-096). They start no work; an observation may be refreshed."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, replace

from sqlalchemy import Connection

from saisei_contract import strict_json
from saisei_contract.clock import Clock
from saisei_contract.errors import SaiseiError
from saisei_contract.forms import urls
from saisei_contract.grammar import is_uid
from saisei_contract.records import OperationRecord, Phase, ResourceRecord
from saisei_control.access.rights import Caller
from saisei_control.operations.effects import worker_cron_trigger as cron_trigger
from saisei_control.operations.effects.durable_workflow import observed
from saisei_control.resources.cursors import Cursors
from saisei_control.runtime_client import RuntimeFleet
from saisei_control.store.rows import (
    StoredResource,
    dump,
    find_operation_with_space,
    find_resource,
    live_resource,
    page_of_all,
    page_of_space,
    update_resource,
)
from saisei_control.store.store import Store

# An observation of a workflow younger than this is shown as it is; a read waits no longer than that for a newer one.
FRESH_SECONDS = 1.0
REFRESH_SECONDS = 0.3
_REMEMBERED_REFRESHES = 10_000


@dataclass(frozen=True, slots=True)
class ListQuery:
    """Exact filters, None for any (H-092)."""

    space: str | None = None
    name: str | None = None
    form: str | None = None


@dataclass(frozen=True, slots=True)
class Page:
    items: list[ResourceRecord]
    next_cursor: str | None


class Reader:
    def __init__(self, store: Store, cursors: Cursors, fleet: RuntimeFleet, clock: Clock) -> None:
        self._store = store
        self._cursors = cursors
        self._fleet = fleet
        self._clock = clock
        # Monotonic seconds of the last refresh by workflow UID: a virtual clock would never call an observation old.
        self._refreshed: dict[str, float] = {}

    async def resource(self, caller: Caller, uid: str) -> ResourceRecord:
        """SaiseiError not_found for unknown and unseen ones, gone for a remembered delete (H-046, H-091)."""
        stored = await self._store.peek(lambda connection: find_resource(connection, uid))
        if stored is None or not caller.in_space(stored.record.space).read:
            raise SaiseiError("not_found", f"there is no Resource {uid}")
        if stored.deleted_at_ms is not None:
            raise SaiseiError("gone", "the Resource was deleted")
        if stored.record.form == urls.DURABLE_WORKFLOW:
            return await self._refresh(stored)
        if stored.record.form == urls.WORKER_CRON_TRIGGER:
            return await self._look_ahead(stored)
        return stored.record

    async def operation(self, caller: Caller, operation_id: str) -> OperationRecord:
        """Needs the right to read its Resource (H-045)."""

        found = None
        if is_uid(operation_id):
            found = await self._store.peek(lambda connection: find_operation_with_space(connection, operation_id))
        if found is None or not caller.in_space(found[1]).read:
            raise SaiseiError("not_found", f"there is no Operation {operation_id[:128]}")
        return found[0].record

    async def page(self, caller: Caller, query: ListQuery, limit: int, cursor: str | None) -> Page:
        """One page by ascending UID, filled after filtering by permission (H-094, H-096)."""
        spaces = caller.readable_spaces()
        if query.space is not None and not caller.in_space(query.space).read:
            raise SaiseiError("forbidden", f"the token may not read the Space {query.space}")
        now = self._clock.now_ms()
        binding = strict_json.dumps([caller.principal, query.space, query.name, query.form])
        after = None if cursor is None else self._cursors.open(cursor, binding, now)

        if query.space is not None:
            spaces = {query.space}

        def work(connection: Connection) -> list[StoredResource]:
            if spaces is None:
                return page_of_all(connection, query.name, query.form, after or "", limit + 1)
            # A page costs what its own Spaces hold, however much lies in others.
            found = [
                stored
                for space in spaces
                for stored in page_of_space(connection, space, query.name, query.form, after or "", limit + 1)
            ]
            return sorted(found, key=lambda stored: stored.uid)[: limit + 1]

        # Each row that is looked at is shown, so that it is short work.
        short = spaces is not None and len(spaces) == 1 and query.form is None
        found = await (self._store.peek(work) if short else self._store.read(work))
        more = len(found) > limit
        items = [stored.record for stored in found[:limit]]
        return Page(items, self._cursors.seal(items[-1].uid, binding, now) if more else None)

    async def _look_ahead(self, stored: StoredResource) -> ResourceRecord:
        """A settled trigger with the match that is the next one by now (CR-07)."""
        record = stored.record
        if record.phase is not Phase.IDLE or record.observed_generation != record.generation:
            return record
        now = self._clock.now_ms()
        text = dump(await self._store.peek(lambda connection: cron_trigger.observe(connection, stored, now)))
        if text == record.observed_json:
            return record
        await self._store.write(lambda connection: _keep_observation(connection, record, text, now))
        return replace(record, observed_json=text, observed_at_ms=now)

    async def _refresh(self, stored: StoredResource) -> ResourceRecord:
        """A newer observation of a settled workflow if the runtime gives one in time; never fails (DW-05, H-090)."""
        record = stored.record
        last = self._refreshed.get(record.uid)
        recent = last is not None and time.monotonic() - last < FRESH_SECONDS
        if recent or record.phase is not Phase.IDLE or record.observed_generation != record.generation:
            return record
        if len(self._refreshed) >= _REMEMBERED_REFRESHES:
            self._refreshed.clear()
        self._refreshed[record.uid] = time.monotonic()
        try:
            async with asyncio.timeout(REFRESH_SECONDS):
                found = await self._fleet.observe(record.uid, REFRESH_SECONDS)
                text, now = dump(observed(found)), self._clock.now_ms()
                await self._store.write(lambda connection: _keep_observation(connection, record, text, now))
        except (SaiseiError, TimeoutError):
            self._refreshed.pop(record.uid, None)
            return record
        return replace(record, observed_json=text, observed_at_ms=now)


def _keep_observation(connection: Connection, seen: ResourceRecord, text: str, now_ms: int) -> None:
    """Unless a mutation was accepted since: an old observation never gets a new generation's name (H-073)."""
    current = live_resource(connection, seen.uid)
    if current is not None and current.record.generation == seen.generation:
        update_resource(connection, seen.uid, {"observed_json": text, "observed_at": now_ms})
