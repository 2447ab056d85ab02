"""`scheduled` and `queue` handlers: what they are called with, how they end, and what becomes of a batch."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from saisei_contract.errors import SaiseiError
from saisei_runtime.isolates.port import BindingError
from saisei_runtime.isolates.runs import QueueBatch, QueueMessage, RunEnd, ScheduledEvent
from saisei_runtime.isolates.serving import ServingLimits

pytestmark = pytest.mark.asyncio(loop_scope="session")


class Settler:
    """Records settlements in order; `fail` makes the next ones fail."""

    def __init__(self) -> None:
        self.done: list[tuple[list[str], bool, int | None]] = []
        self.fail = False

    async def settle(self, message_ids: Sequence[str], *, retry: bool, delay_seconds: int | None) -> None:
        if self.fail:
            self.fail = False
            raise BindingError("backend_unavailable", "not now")
        self.done.append((list(message_ids), retry, delay_seconds))


def told(caplog: pytest.LogCaptureFixture) -> Any:
    """What the handler wrote as JSON with `console.log`."""
    return [json.loads(r.getMessage()) for r in caplog.records if r.getMessage().startswith(("{", "["))]


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(30):
        while not condition():
            await asyncio.sleep(0.005)


async def scheduled(lab: Any, statements: str, **options: Any) -> RunEnd:
    source = f"export default {{ async scheduled(event, env, ctx) {{ {statements} }} }};"
    end: RunEnd = await lab.pool.scheduled(
        lab.code(source, **options), ScheduledEvent(1_700_000_000_000, "*/5 * * * *")
    )
    return end


BATCH = QueueBatch(
    "batch-1",
    "jobs",
    [QueueMessage(name, 1_700_000_000_000 + i, b"\0" + name.encode(), i + 1) for i, name in enumerate("abc")],
)


async def queue(lab: Any, statements: str, settler: Settler, batch: QueueBatch = BATCH) -> RunEnd:
    source = f"""const name = (p) => p.then(() => "ok", (e) => e.name); let kept;
    export default {{ async queue(batch, env, ctx) {{ {statements} }} }};"""
    end: RunEnd = await lab.pool.queue(lab.code(source), batch, settler)
    return end


async def test_scheduled_event(lab: Any, caplog: pytest.LogCaptureFixture) -> None:
    """MW-20, MW-27, MW-21: the event has the time and the cron expression; env and ctx are those of every handler."""
    with caplog.at_level(logging.INFO, logger="saisei_runtime.worker"):
        end = await scheduled(
            lab,
            """console.log(JSON.stringify([event, Object.keys(env), typeof ctx.waitUntil, this === undefined]));""",
            vars_json=b'{"V":1}',
        )
        await until(lambda: len(told(caplog)) == 1)
    assert end == RunEnd(True)
    assert told(caplog) == [[{"scheduledTime": 1_700_000_000_000, "cron": "*/5 * * * *"}, ["V"], "function", False]]


@pytest.mark.parametrize(
    ("statements", "name", "message"),
    [
        ("throw new TypeError('why');", "TypeError", "why"),
        ("await null; throw new RangeError('later');", "RangeError", "later"),
        ("return Promise.reject('text');", "Error", "text"),
    ],
)
async def test_failed_runs(lab: Any, statements: str, name: str, message: str) -> None:
    """MW-24: what a handler throws ends the run as failed, with its name and message."""
    assert await scheduled(lab, statements) == RunEnd(False, name, message)


async def test_no_handler(lab: Any) -> None:
    """MW-10, MW-24: an undeclared or inherited handler is never called; a run of it is a failed one."""
    inherited = "export default Object.create({ scheduled() {} });"
    for source in ("export default {};", inherited, "import './none.mjs';"):
        end = await lab.pool.scheduled(lab.code(source), ScheduledEvent(0, "* * * * *"))
        assert not end.ok


async def test_wait_until_of_a_run(lab: Any, caplog: pytest.LogCaptureFixture) -> None:
    """MW-25: `waitUntil` keeps the invocation after the handler's end, and changes nothing of it."""
    with caplog.at_level(logging.INFO, logger="saisei_runtime.worker"):
        end = await scheduled(
            lab, "ctx.waitUntil(new Promise((r) => setTimeout(r, 5)).then(() => console.log('[1]')));"
        )
        assert end == RunEnd(True)
        await until(lambda: told(caplog) == [[1]])


async def test_wait_until_expires(own_lab: Any, caplog: pytest.LogCaptureFixture) -> None:
    """MW-25: a promise that never settles holds its invocation for a bounded time; its ctx then has expired."""
    lab = own_lab(serving=ServingLimits(wait_until_within=0.2))
    with caplog.at_level(logging.INFO, logger="saisei_runtime.worker"):
        statements = """ctx.waitUntil(new Promise(() => {}));
        const timer = setInterval(() => { try { ctx.waitUntil(1); } catch (e) {
          clearInterval(timer); console.log(JSON.stringify([e.name])); } }, 5);"""
        assert await scheduled(lab, statements) == RunEnd(True)
        await until(lambda: told(caplog) == [["context_expired"]])
    threads = next(iter(lab.pool._isolates["worker"].serving.values()))
    await until(lambda: threads.invocations == 0)
    assert "waitUntil" in caplog.text


async def test_batch(lab: Any, caplog: pytest.LogCaptureFixture) -> None:
    """MW-28, MW-29: the shape of a batch; each body is a Uint8Array of its own; nothing of it can be changed."""
    settler = Settler()
    with caplog.at_level(logging.INFO, logger="saisei_runtime.worker"):
        end = await queue(
            lab,
            """const [m] = batch.messages;
            console.log(JSON.stringify([Object.keys(batch), batch.batchId, batch.queue, batch.messages.length,
              {...m, body: [...m.body]}, m.body instanceof Uint8Array, m.body.buffer.byteLength,
              batch.messages instanceof Array, [batch, batch.messages, m].every(Object.isFrozen)]));""",
            settler,
        )
        await until(lambda: len(told(caplog)) == 1)
    assert end == RunEnd(True)
    first = {"id": "a", "timestampMillis": 1_700_000_000_000, "body": [0, 97], "attempts": 1}
    methods = ["acknowledge", "retry", "acknowledgeAll", "retryAll"]
    keys = ["batchId", "queue", "messages", *methods]
    assert told(caplog) == [[keys, "batch-1", "jobs", 3, first, True, 2, True, True]]


@pytest.mark.parametrize(
    ("statements", "settled"),
    [
        ("", [(["a", "b", "c"], False, None)]),
        ("throw new Error('x');", [(["a", "b", "c"], True, None)]),
        ("await batch.acknowledge('b');", [(["b"], False, None), (["a", "c"], False, None)]),
        ("await batch.retry('b', 60);", [(["b"], True, 60), (["a", "c"], False, None)]),
        ("await batch.acknowledge('a'); throw 1;", [(["a"], False, None), (["b", "c"], True, None)]),
        ("await batch.retryAll(5);", [(["a", "b", "c"], True, 5)]),
        ("await batch.retry('a'); await batch.acknowledgeAll();", [(["a"], True, None), (["b", "c"], False, None)]),
        ("await batch.acknowledgeAll(); await batch.retryAll();", [(["a", "b", "c"], False, None)]),
        ("batch.acknowledge('a');", [(["a"], False, None), (["b", "c"], False, None)]),
    ],
)
async def test_settlement(lab: Any, statements: str, settled: list[Any]) -> None:
    """MW-28, MW-29, MW-30: a return acknowledges the rest, a throw retries it; what was settled keeps its result."""
    settler = Settler()
    end = await queue(lab, statements, settler)
    assert end.ok is ("throw" not in statements)
    assert settler.done == settled


async def test_errors_of_a_batch(lab: Any, caplog: pytest.LogCaptureFixture) -> None:
    """MW-29: the names of the errors; the All forms never fail with already_settled; a bad delay is a TypeError."""
    settler = Settler()
    with caplog.at_level(logging.INFO, logger="saisei_runtime.worker"):
        await queue(
            lab,
            """await batch.acknowledge("a");
            const bad = [-1, 43201, 1.5, "1", null, NaN].map((delay) => name(batch.retry("b", delay)));
            console.log(JSON.stringify([await name(batch.acknowledge("a")), await name(batch.retry("a")),
              await name(batch.acknowledge("z")), await name(batch.acknowledge(1)), await Promise.all(bad),
              await name(batch.retryAll(-1)), await name(batch.retry("b", 43200)),
              await name(batch.acknowledgeAll())]));""",
            settler,
        )
        await until(lambda: len(told(caplog)) == 1)
    twice = ["already_settled", "already_settled", "unknown_message", "TypeError"]
    assert told(caplog) == [[*twice, ["TypeError"] * 6, "TypeError", "ok", "ok"]]
    assert settler.done == [(["a"], False, None), (["b"], True, 43200), (["c"], False, None)]


async def test_a_settlement_that_fails(lab: Any, caplog: pytest.LogCaptureFixture) -> None:
    """MW-29: without durable settlement a call rejects with backend_unavailable, and can be tried again."""
    settler = Settler()
    settler.fail = True
    with caplog.at_level(logging.INFO, logger="saisei_runtime.worker"):
        await queue(
            lab,
            """const once = () => name(batch.acknowledge("a"));
            console.log(JSON.stringify([await once(), await once()]));""",
            settler,
        )
        await until(lambda: len(told(caplog)) == 1)
    assert told(caplog) == [["backend_unavailable", "ok"]]
    settler.fail = True
    with pytest.raises(SaiseiError, match="backend_unavailable"):
        await queue(lab, "return;", settler)


async def test_calls_after_the_end(lab: Any, caplog: pytest.LogCaptureFixture) -> None:
    """MW-30: after its handler has ended a batch is unknown, also within `waitUntil`."""
    settler = Settler()
    with caplog.at_level(logging.INFO, logger="saisei_runtime.worker"):
        await queue(
            lab,
            """ctx.waitUntil(new Promise((r) => setTimeout(r, 5)).then(async () => {
              console.log(JSON.stringify([await name(batch.acknowledge("a")), await name(batch.retryAll())])); }));""",
            settler,
        )
        await until(lambda: len(told(caplog)) == 1)
    assert told(caplog) == [["unknown_batch", "unknown_batch"]]
    assert settler.done == [(["a", "b", "c"], False, None)]


async def test_a_run_that_is_cut_off(own_lab: Any) -> None:
    """MW-24, W-087: a batch whose thread is ended is not settled by the Host: it will be delivered again."""
    lab = own_lab()
    settler = Settler()
    source = "export default { async queue(batch) { await batch.acknowledge('a'); await new Promise(() => {}); } };"
    code = lab.code(source)
    task = asyncio.create_task(lab.pool.queue(code, BATCH, settler))
    await until(lambda: settler.done == [(["a"], False, None)])
    assert await lab.pool.drain("worker") == 1
    with pytest.raises(SaiseiError, match="backend_unavailable"):
        await task
    assert settler.done == [(["a"], False, None)]
