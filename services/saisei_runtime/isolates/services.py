"""Calls through service Bindings (MW-40 … MW-42): a request of one context or invocation becomes another Worker's."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from urllib.parse import urlsplit

from saisei_contract.http_headers import HOP_BY_HOP
from saisei_runtime.code import Binding, BindingKind, WorkerCode
from saisei_runtime.isolates.bodies import WatchedBody
from saisei_runtime.isolates.lineage import Lineage
from saisei_runtime.isolates.port import BindingError, BindingHost, FetchHead, FetchResult, ServiceCall


class ServiceCalls:
    """Those of one context or invocation. `close` breaks off what is under way."""

    def __init__(self, host: BindingHost, code: WorkerCode, scope_id: str, lineage: Lineage) -> None:
        self._host = host
        self._code = code
        self._scope_id = scope_id
        self._lineage = lineage
        self._tasks: set[asyncio.Task[None]] = set()
        self._closed = False

    def hold(self, task: asyncio.Task[None]) -> None:
        """`task` performs one of the calls: it ends with the scope."""
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        if self._closed:
            task.cancel()

    def close(self) -> None:
        self._closed = True
        for task in list(self._tasks):
            task.cancel()

    async def fetch(self, name: str, request: FetchHead) -> FetchResult:
        """BindingError when delivery cannot start, with a message for the tenant. The call is under way until the body
        of its result has ended or is closed."""
        binding = self._binding(name)
        refusal = self._lineage.refusal()
        if refusal is not None:
            raise BindingError("backend_unavailable", refusal)
        tree = self._lineage.tree
        tree.under_way += 1

        def ended(_whole: bool) -> None:
            tree.under_way -= 1

        try:
            head = replace(request, headers=_headers(request), lineage=self._lineage.below())
            code = self._code
            call = ServiceCall(code.worker_uid, code.version_uid, self._scope_id, binding, head)
            result = await self._host.fetch(call)
        except BaseException:
            ended(False)
            raise
        result.headers = [pair for pair in result.headers if pair[0].lower() not in HOP_BY_HOP]
        result.body = WatchedBody(result.body, ended)
        return result

    def _binding(self, name: str) -> Binding:
        for binding in self._code.bindings:
            if binding.name == name and binding.kind is BindingKind.SERVICE:
                return binding
        raise BindingError("TypeError", f"there is no service Binding {name!r}")


def _headers(request: FetchHead) -> list[tuple[str, str]]:
    """As they would arrive at the Worker's own address: the Host is the URL's."""
    kept = [pair for pair in request.headers if pair[0] not in HOP_BY_HOP and pair[0] != "host"]
    return [("host", urlsplit(request.url).netloc.rpartition("@")[2]), *kept]
