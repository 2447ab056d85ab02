"""Binding calls of contexts and invocations: performed by the BindingHost, answered into the thread."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from saisei_runtime.code import WorkerCode
from saisei_runtime.isolates.port import BindingCall, BindingError, BindingHost, BindingResult
from saisei_runtime.isolates.protocol import Answer, Call

_log = logging.getLogger(__name__)


class BindingCalls:
    """The calls of one scope. `close()` frees what it opened; calls under way go on, unanswered."""

    def __init__(
        self,
        host: BindingHost,
        code: WorkerCode,
        scope_id: str,
        send: Callable[[Answer, bytes], None],
        identity: int = 0,
    ) -> None:
        self._host = host
        self._code = code
        self._scope_id = scope_id
        self._send = send
        self._identity = identity
        self._closed = False
        self._used = False
        self._tasks: set[asyncio.Task[None]] = set()

    def begin(self, frame: Call, body: bytes) -> None:
        self._used = True
        task = asyncio.get_running_loop().create_task(self._perform(frame, body if frame.has else None))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _perform(self, frame: Call, body: bytes | None) -> None:
        binding = next((found for found in self._code.bindings if found.name == frame.binding), None)
        try:
            if binding is None:
                raise BindingError("TypeError", f"there is no Binding {frame.binding!r}")
            code = self._code
            result = await self._host.call(
                BindingCall(
                    code.worker_uid, code.version_uid, self._scope_id, binding, frame.method, frame.arguments, body
                )
            )
        except BindingError as error:
            self._answer(Answer(self._identity, frame.call, False, None, error.name, error.message, False))
        except Exception:
            _log.exception("a Binding call failed", extra={"context": self._scope_id, "method": frame.method})
            reason = "the Binding cannot answer now"
            self._answer(Answer(self._identity, frame.call, False, None, "backend_unavailable", reason, False))
        else:
            self._resolve(frame, result)
        finally:
            # A call that outlived its scope may have opened something since (S-11).
            if self._closed:
                self._host.close_scope(self._scope_id)

    def _resolve(self, frame: Call, result: BindingResult) -> None:
        has = result.body is not None
        self._answer(Answer(self._identity, frame.call, True, dict(result.value), "", "", has), result.body or b"")

    def _answer(self, answer: Answer, body: bytes = b"") -> None:
        if not self._closed:
            self._send(answer, body)

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        if self._used:
            self._host.close_scope(self._scope_id)
