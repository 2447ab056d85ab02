"""One HTTP request for a Worker: hostname → Worker → Version → context (WD-04, MW-23)."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Callable

from saisei_contract.errors import SaiseiError
from saisei_runtime.code import CodeSource
from saisei_runtime.hosting.state import HostedState
from saisei_runtime.isolates.port import ContextPool, FetchHead, FetchResult


class Serving:
    def __init__(self, state: HostedState, code: CodeSource, pool: ContextPool) -> None:
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
        version_uid = self._state.pick(endpoint.worker_uid)
        if version_uid is None:
            raise SaiseiError("backend_unavailable", "the Worker has no active WorkerDeployment")
        self._under_way[version_uid] += 1
        try:
            result = await self._fetch(version_uid, request)
        except BaseException:
            self._ended(version_uid)
            raise
        result.body = self._until_end(version_uid, result.body)
        return result

    async def _fetch(self, version_uid: str, request: FetchHead) -> FetchResult:
        code = await self._code.load(version_uid)
        if "fetch" not in code.handlers:
            return FetchResult(404, [("content-type", "text/plain;charset=UTF-8")], _text("Not Found\n"))
        return await self._pool.fetch(code, request)

    def _ended(self, version_uid: str) -> None:
        self._under_way[version_uid] -= 1
        if self._under_way[version_uid] <= 0:
            del self._under_way[version_uid]

    def _until_end(self, version_uid: str, body: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
        """The same body; its end, or its close, is the end of the invocation."""
        return _Counted(body, lambda: self._ended(version_uid))


class _Counted:
    """A class and not a generator: a generator that nobody began to read ends without a word."""

    def __init__(self, body: AsyncIterator[bytes], ended: Callable[[], None]) -> None:
        self._body = body
        self._ended = ended
        self._open = True

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self

    async def __anext__(self) -> bytes:
        try:
            return await anext(self._body)
        except BaseException:
            self._close()
            raise

    async def aclose(self) -> None:
        try:
            close = getattr(self._body, "aclose", None)
            if close is not None:
                await close()
        finally:
            self._close()

    def _close(self) -> None:
        if self._open:
            self._open = False
            self._ended()


async def _text(text: str) -> AsyncIterator[bytes]:
    yield text.encode()
