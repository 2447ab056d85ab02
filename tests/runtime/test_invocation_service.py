"""The gateway's exchanges: what becomes of an invocation whose client leaves."""

from __future__ import annotations

from typing import Any

import pytest
from tests.runtime.test_serving import Codes, Pool, serving, state

from saisei.runtime.v1 import invocation_pb2 as pb
from saisei_runtime.api.invocation_service import _response
from saisei_runtime.isolates.port import FetchHead
from saisei_runtime.serving.invoke import Serving

__all__ = ["Codes", "serving", "state"]

HEAD = FetchHead("GET", "https://a.workers.test/", ())


@pytest.fixture
def pool() -> Pool:
    return Pool()


@pytest.mark.parametrize("messages", [0, 1, 2])
async def test_a_client_that_leaves_between_messages(serving: Serving, pool: Pool, messages: int) -> None:
    """WV-13: however far the response has come, its end is the end of the invocation."""
    result = await serving.fetch("a.workers.test", HEAD)
    exchange: Any = _response(result)
    for _ in range(messages):
        assert isinstance(await anext(exchange), pb.FetchResponse)
    await exchange.aclose()
    if messages:
        assert serving.invocations_of("v") == 0
