"""What only a Worker can do with a subscription: `using`, disposal, concurrent `next`, and leaving it open (4.1)."""

from __future__ import annotations

import json
from typing import Any

from tests.events.kit import World, eventually, ids_of, new_id, types_of
from tests.events.test_faces import NAMES, WAITS

SLEEPS = {"sleep": "s", "seconds": 0}


async def test_options(world: World) -> None:
    """S-09: each bad option is a TypeError, before anything is subscribed."""
    instance_id = await world.scene("options", SLEEPS)
    await world.nothing_open()
    names = await world.worker("/refused", id=instance_id)
    assert len(names) == 17
    assert all(found == {"name": "TypeError", "isError": True} for found in names.values()), names
    assert await world.open_subscriptions() == 0


async def test_good_options(world: World) -> None:
    """S-05, S-06, S-09: no options, omitted ones, names twice, and all 29 at once."""
    instance_id = await world.scene("options", SLEEPS)
    got = await world.worker("/accepted", id=instance_id, names=json.dumps(NAMES))
    assert got == {"first": [1, 1, 1, 1], "afterTheOnlyMatch": True}


async def test_concurrent_next(world: World) -> None:
    """S-07, S-10: 12 calls at once get one event each in call order; after the last one each is done."""
    instance_id = await world.scene("concurrent", SLEEPS, {"sleep": "second", "seconds": 1}, {"do": "a"})
    got = await world.worker("/concurrent", id=instance_id, count="20")
    assert got == {"ids": [*range(1, 15), *[None] * 6], "settled": list(range(20))}


async def test_dispose(world: World) -> None:
    """S-03, S-11, S-12: synchronous, idempotent; pending and later `next` are done; nobody else notices."""
    instance_id = await world.scene("disposed", WAITS)
    await world.until(instance_id, "waiting")
    assert await world.worker("/disposed", id=instance_id) == {
        "callable": "function",
        "answer": True,
        "ended": [[True, True, True]] * 3,
        "before": "waiting",
        "other": "workflow_completed",
    }


async def test_using(world: World) -> None:
    """S-03, S-11: the end of the block disposes of it."""
    instance_id = await world.scene("using", WAITS)
    assert await world.worker("/using", id=instance_id) == {"done": True}
    await world.terminate(instance_id)


async def test_freed_with_the_invocation(world: World) -> None:
    """S-11: what a handler leaves open is freed when its invocation ends, also a `subscribe` that it did not await."""
    instance_id = await world.scene("left", WAITS)
    await world.until(instance_id, "waiting")
    await world.nothing_open()
    for _ in range(3):
        assert await world.worker("/left", id=instance_id, count="50") == {"opened": 50}
    await world.nothing_open(within_seconds=1.0)
    await world.terminate(instance_id)


async def test_values_are_clones(world: World) -> None:
    """S-07, S-17: params and output are plain values of their own for each reader; `done` has both keys."""
    instance_id = await world.scene("clones", SLEEPS, nested={"text": "as given"})
    got = await world.worker("/clones", id=instance_id)
    (params, output) = got["others"]
    assert params["nested"] == output["nested"] == {"text": "as given"}
    assert got["plain"] and got["fresh"]
    assert got["ends"] == [["done,value", True]] * 2


# --- the guide's three examples, as they stand there ------------------------------------------------------------------


async def test_guide_every_event(world: World) -> None:
    """Issue 6, S-01 … S-03, S-07: the first example logs each event of the instance that it creates."""
    answer = await world.worker("/guide/every-event")
    instance_id = answer["instanceId"]
    (_, started, *_) = events = await world.read("grpc", instance_id)
    assert started["params"] == {"reportId": "report-123"}

    def _logged() -> list[str]:
        lines = (str(line.get("text") or line.get("message", "")) for line in world.host.log_lines("runtime"))
        return [line for line in lines if instance_id in line and line.startswith("workflow_")]

    async def _all() -> bool:
        return [line.split()[0] for line in _logged()] == types_of(events)

    await eventually(_all)


async def test_guide_filtered(world: World) -> None:
    """Issue 6, S-06, S-07: the second example tells how the instance ended, after the switch of the guide."""
    await world.create("report-123", {"acts": [SLEEPS], "total": 3})
    assert await world.worker("/guide/filtered") == {"lines": [["Workflow output:", {"total": 3}]]}


async def test_guide_resumed(world: World) -> None:
    """Issue 6, S-05, S-06: the third example processes what came after the saved event, and saves each."""
    instance_id = new_id("resumed")
    await world.create(instance_id, {"acts": [{"do": "a"}, {"do": "b"}, {"sleep": "s", "seconds": 1}, {"do": "c"}]})
    whole: list[Any] = await world.read("grpc", instance_id)
    wanted = [event for event in whole if event["type"] in ("step_completed", "workflow_completed")]
    got = await world.worker("/guide/resumed", id=instance_id, after=str(wanted[0]["eventId"]))
    assert got["processed"] == [[event["eventId"], event["type"]] for event in wanted[1:]]
    assert got["saved"] == ids_of(whole)[-1]
