"""One HTTP request or scheduled run: Worker → Version → asset or context (WD-04, WV-22 … WV-25, MW-23, MW-24)."""

from __future__ import annotations

from collections import Counter
from typing import Protocol

from saisei_contract.errors import SaiseiError
from saisei_runtime.code import CodeSource, WorkerCode
from saisei_runtime.hosting.state import HostedState
from saisei_runtime.isolates.bodies import WatchedBody, close_body, plain_text
from saisei_runtime.isolates.port import FetchHead, FetchResult, StaticAsset, Unanswered
from saisei_runtime.isolates.runs import RunEnd, ScheduledEvent
from saisei_runtime.serving.assets import Assets, find


class ServingPool(Protocol):
    async def fetch(self, code: WorkerCode, request: FetchHead) -> FetchResult: ...

    async def scheduled(self, code: WorkerCode, event: ScheduledEvent) -> RunEnd: ...


class Serving:
    def __init__(self, state: HostedState, code: CodeSource, pool: ServingPool, assets: Assets) -> None:
        self._state = state
        self._code = code
        self._pool = pool
        self._assets = assets
        # By Version UID: accepted and not yet answered to the end.
        self._under_way: Counter[str] = Counter()

    def invocations_of(self, version_uid: str) -> int:
        """HTTP invocations of a Version that are under way (WV-13)."""
        return self._under_way[version_uid] + self._assets.readers_of(version_uid)

    def locate(self, hostname: str, url: str) -> StaticAsset | str:
        """The asset that answers a GET or HEAD, or the Version whose `fetch` is to be asked; "" when none is chosen.

        Says at once what can be said without waiting for anything.
        """
        endpoint = self._state.endpoint(hostname)
        version_uid = None if endpoint is None else self._state.pick(endpoint.worker_uid)
        version = None if version_uid is None else self._state.version(version_uid)
        if version is None or version.assets is None or version.assets.run_worker_first:
            return version_uid or ""
        file = find(version, "GET", url)
        found = None if file is None else self._assets.ready(version.uid, file)
        return version.uid if found is None else found

    def assets_first(self, version_uid: str) -> bool:
        """Whether the Version looks for assets before it runs code (WV-23)."""
        version = self._state.version(version_uid)
        return version is not None and version.assets is not None and not version.assets.run_worker_first

    async def fetch(self, hostname: str, request: FetchHead, chosen: str = "") -> FetchResult:
        """SaiseiError not_found for a hostname without Endpoint, backend_unavailable when delivery cannot start.

        `chosen` is the Version that `locate` has chosen for this request; it counts if it is selected still.
        """
        endpoint = self._state.endpoint(hostname)
        if endpoint is None:
            unknown = SaiseiError("not_found", f"no WorkerEndpoint has the hostname {hostname[:253]!r}")
            raise self._state.missing(unknown)
        return await self.deliver(endpoint.worker_uid, request, chosen)

    async def deliver(self, worker_uid: str, request: FetchHead, chosen: str = "") -> FetchResult:
        """A request for a Worker, from its Endpoint or through a service Binding (MW-40). SaiseiError
        backend_unavailable when delivery cannot start, Unanswered when it began and its Worker was stopped."""
        version_uid = chosen if self._state.selects(worker_uid, chosen) else self._pick(worker_uid)
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
        """Assets, then code, or the other way round (WV-22 … WV-25)."""
        version = self._state.version(version_uid)
        if version is None or version.assets is None:
            return await self._run(version_uid, request)
        file = find(version, request.method, request.url)
        if file is not None and not version.assets.run_worker_first:
            return await self._assets.result(version_uid, file, request)
        if not version.entrypoint:
            return plain_text(404, "Not Found\n")
        result = await self._run(version_uid, request)
        if file is None or not version.assets.run_worker_first or result.status != 404:
            return result
        await close_body(result.body)
        try:
            return await self._assets.result(version_uid, file, request)
        except SaiseiError as error:
            # The Worker has run.
            raise Unanswered(error.reason, error.detail) from None

    async def _run(self, version_uid: str, request: FetchHead) -> FetchResult:
        code = await self._code.load(version_uid)
        if "fetch" not in code.handlers:
            return plain_text(404, "Not Found\n")
        return await self._pool.fetch(code, request)

    def _ended(self, version_uid: str) -> None:
        self._under_way[version_uid] -= 1
        if self._under_way[version_uid] <= 0:
            del self._under_way[version_uid]
