"""How long a log can be read, and what readers see when it goes (S-01, S-13): on a virtual clock."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from tests.events.kit import FACES, HTTP_FACES, Refused, World, app_folder, eventually, ids_of
from tests.support.dev_host import DevHost

from saisei_cli.deploy.apply import Deployed

WAITS = {"wait": "w", "type": "go", "seconds": 600}
MONTH = 2_592_000


@pytest.fixture(scope="module")
def virtual(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[DevHost, Deployed]]:
    with DevHost("--virtual-clock") as host:
        yield host, host.deploy(app_folder(tmp_path_factory.mktemp("events") / "app"))


@pytest.fixture
async def world(virtual: tuple[DevHost, Deployed]) -> AsyncIterator[World]:
    one = World(*virtual)
    yield one
    await one.close()


async def _parked(world: World) -> str:
    instance_id = await world.scene("parked", WAITS)
    await world.until(instance_id, "waiting")
    return instance_id


async def test_the_end_of_the_retention(world: World) -> None:
    """S-01, S-13, W-160: subscribed for 30 days after the end; then 404, and unknown_instance for a kept handle."""
    instance_id = await _parked(world)
    await world.send(instance_id)
    await world.until(instance_id, "complete")
    stale = asyncio.create_task(world.worker("/stale", id=instance_id))

    async def _has_its_handle() -> bool:
        return await world.open_subscriptions() >= 1

    await eventually(_has_its_handle)
    await asyncio.to_thread(world.host.client.advance_clock, MONTH - 60)
    whole = await world.read("grpc", instance_id)
    assert ids_of(whole) == list(range(1, 9))
    for face in FACES:
        assert await world.read(face, instance_id) == whole
    assert not stale.done()
    await asyncio.to_thread(world.host.client.advance_clock, 120)

    async def _gone() -> bool:
        try:
            await world.read("sse", instance_id)
        except Refused as refused:
            return (refused.status, refused.code) == (404, "unknown_instance")
        return False

    await eventually(_gone)
    for face in ("worker", "grpc", "ndjson"):
        with pytest.raises(Refused):
            await world.read(face, instance_id)
    assert await asyncio.wait_for(stale, 60) == {
        "refused": {"name": "unknown_instance", "isError": True},
        "open": True,
    }


async def test_purge(world: World, tmp_path: Path) -> None:
    """S-13, W-161, DW-08: a deleted DurableWorkflow ends its subscriptions as done, and then they are 404."""
    folder = app_folder(tmp_path / "app")
    toml = (folder / "saisei.toml").read_text()
    # Without a Binding: an undeleted Version that has one keeps the workflow from being deleted.
    toml = toml.replace('name = "events"', 'name = "doomed"').replace('binding = "MY_WORKFLOW"', "")
    (folder / "saisei.toml").write_text(toml.replace('name = "scenes"', 'name = "doomed-scenes"'))
    deployed = await asyncio.to_thread(world.host.deploy, folder)
    world.uid = deployed.workflows["doomed-scenes"]
    instance_id = await _parked(world)
    streams = [asyncio.create_task(world.read(face, instance_id)) for face in ("grpc", *HTTP_FACES)]

    async def _open() -> bool:
        return await world.open_subscriptions() >= 2 and await world.open_streams() == len(HTTP_FACES)

    await eventually(_open)
    client = world.host.client
    generation = client.resource(world.uid)["generation"]
    done = await asyncio.to_thread(lambda: client.wait_operation(client.delete_resource(world.uid, generation)))
    assert done["status"] == "succeeded"
    for stream in streams:
        assert ids_of(await asyncio.wait_for(stream, 30)) == [1, 2, 3, 4, 5]
    for face in ("grpc", *HTTP_FACES):
        with pytest.raises(Refused):
            await world.read(face, instance_id)
