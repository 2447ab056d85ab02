"""What new contexts are given, read together."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from typing import Any

import pytest
import sqlalchemy as sa
from msgspec.structs import astuple

from saisei_contract.errors import SaiseiError
from saisei_runtime.isolates.port import HistoryStep
from saisei_runtime.store import schema
from saisei_runtime.store.text import stored
from saisei_runtime.workflow.reads import Reads
from saisei_runtime.workflow.records import DO, STEP_COMPLETE, Instance, Step
from saisei_runtime.workflow.starts import SHORT_HISTORY, Starts
from saisei_service.database import Database


def _insert(database: Database, table: sa.Table, rows: list[tuple[Any, ...]]) -> None:
    names = [column.name for column in table.columns]
    if not rows:
        return
    with database.writer.begin() as connection:
        connection.execute(sa.insert(table), [dict(zip(names, row, strict=True)) for row in rows])


def _stored(database: Database, lengths: list[int], params: list[bytes | None]) -> list[Instance]:
    instances, steps, documents = [], [], []
    for number, (length, document) in enumerate(zip(lengths, params, strict=True)):
        incarnation = f"{number:032x}"
        instances.append(
            Instance(incarnation, "w", f"i-{number}", 1, 2, has_params=int(document is not None), step_count=length)
        )
        if document is not None:
            documents.append((incarnation, document))
        for seq in range(length, 0, -1):  # stored in another order than they are to come
            name = stored(f"{number}\0{seq}")
            done = seq % 2 == 0
            state: dict[str, Any] = {"state": STEP_COMPLETE, "result": f"{number * seq}".encode()} if done else {}
            steps.append(astuple(Step(incarnation, name, seq, DO, 1, failed_attempts=0 if done else 2, **state)))
    _insert(database, schema.instances, [astuple(instance) for instance in instances])
    _insert(database, schema.params, documents)
    _insert(database, schema.steps, steps)
    return instances


def _expected(number: int, length: int) -> list[HistoryStep]:
    return [
        HistoryStep(f"{number}\0{seq}", DO, "complete", f"{number * seq}".encode(), None, 0)
        if seq % 2 == 0
        else HistoryStep(f"{number}\0{seq}", DO, "open", failed_attempts=2)
        for seq in range(1, length + 1)
    ]


async def test_contexts_that_start_together_get_each_their_own(database: Database) -> None:
    """W-081, W-091: each context gets its own params and its own history, whole and in order of registration."""
    seed = random.randrange(1 << 32)
    print("seed", seed)
    chance = random.Random(seed)
    lengths = [chance.choice([0, 0, 1, 2, 7, SHORT_HISTORY, SHORT_HISTORY + 1, 200]) for _ in range(60)]
    params = [chance.choice([None, b"", f'{{"n":{number}}}'.encode()]) for number in range(60)]
    instances = _stored(database, lengths, params)
    reads = Reads(database)
    try:
        found = await asyncio.gather(*(reads.start_of(instance) for instance in instances))
    finally:
        reads.close()
    for number, (given, history) in enumerate(found):
        assert given == params[number]
        assert history == _expected(number, lengths[number])


async def test_short_histories_share_a_read(database: Database) -> None:
    """Design 4: starts of one moment cost two statements, and a long history is waited for by nobody else."""
    instances = _stored(database, [1] * 20 + [SHORT_HISTORY + 1], [b"1"] * 21)
    reads = Reads(database)
    jobs = 0

    async def counted(run: Callable[[sa.Connection], Any]) -> Any:
        nonlocal jobs
        jobs += 1
        return await reads._read(run)

    starts = Starts(counted, postgresql=database.is_postgresql)
    try:
        await asyncio.gather(*(starts.of(instance) for instance in instances))
    finally:
        reads.close()
    assert jobs == 2


async def test_an_outage_is_told_to_all_and_passes(database: Database) -> None:
    """W-015: a read that fails starts nothing; the next one is a new one; a start that is given up hurts no other."""
    instances = _stored(database, [1] * 5, [None] * 5)
    reads = Reads(database)
    failing = True

    async def sometimes(run: Callable[[sa.Connection], Any]) -> Any:
        if failing:
            raise SaiseiError("backend_unavailable", "The journal cannot be read now. Try again later.")
        return await reads._read(run)

    starts = Starts(sometimes, postgresql=database.is_postgresql)
    try:
        for result in await asyncio.gather(*(starts.of(one) for one in instances), return_exceptions=True):
            assert isinstance(result, SaiseiError)
            assert result.reason == "backend_unavailable"
        failing = False
        tasks = [asyncio.create_task(starts.of(one)) for one in instances]
        await asyncio.sleep(0)
        tasks[0].cancel()
        for task in tasks[1:]:
            assert len((await task)[1]) == 1
        with pytest.raises(asyncio.CancelledError):
            await tasks[0]
    finally:
        reads.close()
