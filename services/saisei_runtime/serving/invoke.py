"""One HTTP request or scheduled run for a Worker: Worker → Version → context (WD-04, MW-23, MW-24)."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator
from typing import Protocol

from saisei_contract.errors import SaiseiError
from saisei_runtime.code import CodeSource, WorkerCode
from saisei_runtime.hosting.state import HostedState
from saisei_runtime.isolates.bodies import WatchedBody
from saisei_runtime.isolates.port import FetchHead, FetchResult
from saisei_runtime.isolates.runs import RunEnd, ScheduledEvent


class ServingPool(Protocol):
    async def fetch(self, code: WorkerCode, request: FetchHead) -> FetchResult: ...

    async def scheduled(self, code: WorkerCode, event: ScheduledEvent) -> RunEnd: ...


class Serving:
    def __init__(self, state: HostedState, code: CodeSource, pool: ServingPool) -> None:
        self._state = state
        self._code = code
        self._pool = pool
        # By Version UID: accepted and not yet answered to the end.
        self._under_way: Counter[str] = Counter()

    def invocations_of(self, version_uid: str) -> int:
        """HTTP invocations of a Version that are under way (WV-13)."""
        return self._under_way[version_uid]

    async def fetch(self, hostname: str, request: FetchHead) -> FetchResult:
        """SaiseiError not_found for a hostname without Endpoint, backend_unavailable when delivery cannot start."""
        endpoint = self._state.endpoint(hostname)
        if endpoint is None:
            unknown = SaiseiError("not_found", f"no WorkerEndpoint has the hostname {hostname[:253]!r}")
            raise self._state.missing(unknown)
        return await self.deliver(endpoint.worker_uid, request)

    async def deliver(self, worker_uid: str, request: FetchHead) -> FetchResult:
        """A request for a Worker, from its Endpoint or through a service Binding (MW-40). SaiseiError
        backend_unavailable when delivery cannot start, Unanswered when it began and its Worker was stopped."""
        version_uid = self._pick(worker_uid)
        self._under_way[version_uid] += 1
        try:
            result = await self._fetch(version_uid, request)
        except BaseException:
            self._ended(version_uid)
            raise
        # Its end, or its close, is the end of the invocation.
        result.body = WatchedBody(result.body, lambda _whole: self._ended(version_uid))
        return result

    async def scheduled(self, worker_uid: str, event: ScheduledEvent) -> RunEnd:
        """One scheduled run (MW-27). SaiseiError as from `deliver`."""
        version_uid = self._pick(worker_uid)
        self._under_way[version_uid] += 1
        try:
            return await self._pool.scheduled(await self._code.load(version_uid), event)
        finally:
            self._ended(version_uid)

    def _pick(self, worker_uid: str) -> str:
        version_uid = self._state.pick(worker_uid)
        if version_uid is None:
            raise SaiseiError("backend_unavailable", "the Worker has no active WorkerDeployment")
        return version_uid

    async def _fetch(self, version_uid: str, request: FetchHead) -> FetchResult:
        code = await self._code.load(version_uid)
        if "fetch" not in code.handlers:
            return FetchResult(404, [("content-type", "text/plain;charset=UTF-8")], _text("Not Found\n"))
        return await self._pool.fetch(code, request)

    def _ended(self, version_uid: str) -> None:
        self._under_way[version_uid] -= 1
        if self._under_way[version_uid] <= 0:
            del self._under_way[version_uid]


async def _text(text: str) -> AsyncIterator[bytes]:
    yield text.encode()
