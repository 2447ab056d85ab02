"""Previews: whether a mutation would be accepted now (H-160). They read, and leave no trace."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias, assert_never

from sqlalchemy import Connection

from saisei_contract.errors import SaiseiError
from saisei_contract.wire import CreateInput, UpdateInput
from saisei_control.access.rights import Caller
from saisei_control.resources.accept import (
    Acceptance,
    check_current,
    judge_create,
    judge_update,
    visible_for_writing,
)
from saisei_control.resources.admission import check_deletable
from saisei_control.store.rows import StoredResource


@dataclass(frozen=True, slots=True)
class PreviewUpdate:
    uid: str
    expected_generation: int
    wanted: UpdateInput


@dataclass(frozen=True, slots=True)
class PreviewDelete:
    uid: str
    expected_generation: int


Preview: TypeAlias = CreateInput | PreviewUpdate | PreviewDelete


@dataclass(frozen=True, slots=True)
class Previewer:
    """Judges by the very checks of acceptance, in their order."""

    acceptance: Acceptance

    async def judge(self, caller: Caller, preview: Preview) -> SaiseiError | None:
        """What the mutation would be refused with, None when it would be accepted.

        SaiseiError is raised for what comes before the mutation itself is judged: forbidden, not_found (H-046).
        """
        match preview:
            case CreateInput():
                caller.require_write(preview.space)
                return await self._judged(lambda connection: self._create(connection, caller, preview))
            case PreviewUpdate() | PreviewDelete():
                stored = await self.acceptance.store.read(
                    lambda connection: visible_for_writing(connection, caller, preview.uid)
                )
                refusal = await self._judged(lambda connection: self._change(connection, caller, preview))
                if refusal is None and isinstance(preview, PreviewDelete):
                    refusal = await self._in_use(stored, preview.expected_generation)
                return refusal
            case _:
                assert_never(preview)

    async def _judged(self, work: Callable[[Connection], None]) -> SaiseiError | None:
        """One snapshot; a database that is away is no verdict."""

        def run(connection: Connection) -> SaiseiError | None:
            try:
                work(connection)
            except SaiseiError as refusal:
                return refusal
            return None

        return await self.acceptance.store.read(run)

    async def _in_use(self, stored: StoredResource, generation: int) -> SaiseiError | None:
        try:
            await self.acceptance.check_retired(stored, generation)
        except SaiseiError as refusal:
            return refusal
        return None

    def _create(self, connection: Connection, caller: Caller, wanted: CreateInput) -> None:
        judge_create(connection, caller, self.acceptance.check_create(wanted), wanted)

    def _change(self, connection: Connection, caller: Caller, preview: PreviewUpdate | PreviewDelete) -> None:
        stored = visible_for_writing(connection, caller, preview.uid)
        check_current(connection, stored, preview.expected_generation)
        if isinstance(preview, PreviewDelete):
            check_deletable(connection, preview.uid)
            return
        verdict = judge_update(stored, preview.wanted)
        if isinstance(verdict, SaiseiError):
            raise verdict
        self.acceptance.judge_current_update(connection, caller, stored, verdict, preview.wanted)
