"""One HTTP request for a Worker: hostname → Worker → Version → context (WD-04, MW-23)."""

from __future__ import annotations

from collections.abc import AsyncIterator

from saisei_contract.errors import SaiseiError
from saisei_runtime.code import CodeSource
from saisei_runtime.hosting.state import HostedState
from saisei_runtime.isolates.port import ContextPool, FetchHead, FetchResult


class Serving:
    def __init__(self, state: HostedState, code: CodeSource, pool: ContextPool) -> None:
        self._state = state
        self._code = code
        self._pool = pool

    async def fetch(self, hostname: str, request: FetchHead) -> FetchResult:
        """SaiseiError not_found for a hostname without Endpoint, backend_unavailable when delivery cannot start."""
        endpoint = self._state.endpoint(hostname)
        if endpoint is None:
            unknown = SaiseiError("not_found", f"no WorkerEndpoint has the hostname {hostname[:253]!r}")
            raise self._state.missing(unknown)
        version_uid = self._state.pick(endpoint.worker_uid)
        if version_uid is None:
            raise SaiseiError("backend_unavailable", "the Worker has no active WorkerDeployment")
        code = await self._code.load(version_uid)
        if "fetch" not in code.handlers:
            return FetchResult(404, [("content-type", "text/plain;charset=UTF-8")], _text("Not Found\n"))
        return await self._pool.fetch(code, request)


async def _text(text: str) -> AsyncIterator[bytes]:
    yield text.encode()
