"""What new contexts are given (W-081): params and the whole history, read for all that start at one moment together.

All 1,024 results of a history may be 1 MiB each: those that are not small stay where they are until the code asks.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, TypeAlias

from sqlalchemy import Connection

from saisei_runtime.isolates.port import HistoryStep
from saisei_runtime.workflow.records import Instance, Step
from saisei_runtime.workflow.statements import DEFERRED, Cursor, statements
from saisei_runtime.workflow.workspace import loaded_step

Start: TypeAlias = tuple[bytes | None, list[HistoryStep]]

# Longer histories are read alone, so that the short ones do not wait for them.
SHORT_HISTORY: Final = 32


class Starts:
    """`of` may be called by many at once: those of one turn of the event loop share two statements.

    A read of its own for each took a fifth of the CPU of instances that wake from a sleep.
    """

    def __init__(
        self,
        read: Callable[[Callable[[Connection], dict[str, Start]]], Awaitable[dict[str, Start]]],
        *,
        postgresql: bool,
    ) -> None:
        self._in_reader = read
        self._sql = statements(postgresql)
        self._wanted: list[tuple[Instance, asyncio.Future[Start]]] = []
        self._reading: set[asyncio.Task[None]] = set()

    async def of(self, instance: Instance) -> Start:
        """SaiseiError backend_unavailable when the database cannot be read."""
        if not instance.has_params and instance.step_count == 0:
            return None, []
        if instance.step_count > SHORT_HISTORY:
            found = await self._in_reader(lambda connection: self._read(connection, [instance]))
            return found[instance.incarnation]
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Start] = loop.create_future()
        self._wanted.append((instance, future))
        if len(self._wanted) == 1:
            loop.call_soon(self._begin)
        return await future

    def _begin(self) -> None:
        wanted, self._wanted = self._wanted, []
        task = asyncio.get_running_loop().create_task(self._settle(wanted))
        self._reading.add(task)
        task.add_done_callback(self._reading.discard)

    async def _settle(self, wanted: list[tuple[Instance, asyncio.Future[Start]]]) -> None:
        instances = [instance for instance, _ in wanted]
        try:
            found = await self._in_reader(lambda connection: self._read(connection, instances))
        except BaseException as error:
            for _, future in wanted:
                if not future.done():
                    future.set_exception(error)
            if not isinstance(error, Exception):
                raise
            return
        for instance, future in wanted:
            if not future.done():
                future.set_result(found[instance.incarnation])

    def _read(self, connection: Connection, instances: Sequence[Instance]) -> dict[str, Start]:
        cursor = Cursor(connection.connection, postgresql=self._sql.postgresql)
        given = [(instance.incarnation,) for instance in instances if instance.has_params]
        begun = [(instance.incarnation,) for instance in instances if instance.step_count > 0]
        params: dict[str, bytes] = {}
        if given:
            for incarnation, document in cursor.fetch(self._sql.params_by_incarnation, self._sql.many(given)):
                params[incarnation] = bytes(document)
        steps: dict[str, list[Step]] = {instance.incarnation: [] for instance in instances}
        if begun:
            for row in cursor.fetch(self._sql.steps_by_incarnation, self._sql.many(begun)):
                step = loaded_step(row)
                steps[step.incarnation].append(step)
        starts: dict[str, Start] = {}
        for incarnation, history in steps.items():
            history.sort(key=lambda step: step.seq)
            starts[incarnation] = (params.get(incarnation), [_history(step) for step in history])
        return starts


def _history(step: Step) -> HistoryStep:
    if step.result == DEFERRED:
        return HistoryStep(step.name, step.kind, step.state, deferred=True)
    if step.finished:
        return HistoryStep(step.name, step.kind, step.state, step.result, step.error, step.failed_attempts)
    return HistoryStep(step.name, step.kind, "open", failed_attempts=step.failed_attempts)
