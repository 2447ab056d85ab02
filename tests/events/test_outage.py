"""What readers see of an outage of the journal (S-13): on PostgreSQL, whose databases open and close under a Host."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager

import psycopg
import pytest
from tests.events.kit import FACES, HTTP_FACES, Refused, StreamCutError, World, app_folder, eventually
from tests.support.dev_host import DevHost
from tests.support.postgres import host_databases

from saisei_cli.deploy.apply import Deployed

WAITS = {"wait": "w", "type": "go", "seconds": 600}


class Shutter:
    """Closes and opens the runtime's database; nobody else notices."""

    def __init__(self, postgres_url: str, database_url: str) -> None:
        self._cluster = postgres_url.replace("postgresql+psycopg://", "postgresql://")
        self._name = database_url.partition("?")[0].rpartition("/")[2]

    @contextmanager
    def closed(self) -> Iterator[None]:
        self._run(
            f"ALTER DATABASE {self._name} ALLOW_CONNECTIONS false",
            f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = '{self._name}'",
        )
        try:
            yield
        finally:
            self._run(f"ALTER DATABASE {self._name} ALLOW_CONNECTIONS true")

    def _run(self, *statements: str) -> None:
        with psycopg.connect(self._cluster, autocommit=True) as connection:
            for statement in statements:
                connection.execute(statement)  # type: ignore[call-overload]


Shared = tuple[DevHost, Deployed, Shutter]


@pytest.fixture(scope="module")
def shared(postgres_url: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shared]:
    with host_databases(postgres_url) as environment, DevHost(environment=environment) as host:
        deployed = host.deploy(app_folder(tmp_path_factory.mktemp("events") / "app"))
        yield host, deployed, Shutter(postgres_url, environment["SAISEI_RUNTIME_DATABASE_URL"])


@pytest.fixture
def shutter(shared: Shared) -> Shutter:
    return shared[2]


@pytest.fixture
async def world(shared: Shared) -> AsyncIterator[World]:
    one = World(*shared[:2])
    yield one
    await one.close()


async def _parked(world: World) -> str:
    instance_id = await world.scene("parked", WAITS)
    await world.until(instance_id, "waiting")
    return instance_id


async def _goes_on(world: World, instance_id: str) -> None:
    """`go`, as soon as the journal can be written again."""

    async def _sent() -> bool:
        try:
            await world.send(instance_id)
        except Exception:
            return False
        return True

    await eventually(_sent)


async def test_outage_in_a_worker(world: World, shutter: Shutter) -> None:
    """S-13: `next` and `subscribe` reject with backend_unavailable; a new subscription goes on after the cursor."""
    instance_id = await _parked(world)
    asking = asyncio.create_task(world.worker("/outage", id=instance_id))

    async def _reading() -> bool:
        return await world.open_subscriptions() >= 1

    await eventually(_reading)
    with shutter.closed():
        with pytest.raises(Refused):
            await world.read("worker", instance_id)
        with pytest.raises(StreamCutError):
            await world.read("grpc", instance_id)
        for face in HTTP_FACES:
            with pytest.raises(Refused) as refused:
                await world.read(face, instance_id)
            assert (refused.value.status, refused.value.code) == (503, "backend_unavailable")

        async def _told() -> bool:
            """Also those that only wait are told, once the runtime has looked after them."""
            return "subscriptions cannot be looked after" in str(list(world.host.log_lines("runtime")))

        await eventually(_told)
    await _goes_on(world, instance_id)
    got = await asking
    assert got["seen"] == list(range(1, 9))
    assert set(got["errors"]) == {"backend_unavailable"}


@pytest.mark.parametrize("face", FACES)
async def test_outage_and_resume(world: World, shutter: Shutter, face: str) -> None:
    """S-05, S-13: a stream over an outage either goes on or is cut without an end; the cursor continues it."""
    instance_id = await _parked(world)
    seen: list[int] = []

    async def _follow() -> None:
        while True:
            try:
                async for event in world.follow(face, instance_id, seen[-1] if seen else 0):
                    seen.append(event["eventId"])
            except (StreamCutError, Refused):
                await asyncio.sleep(0.05)
            else:
                return

    async def _five() -> bool:
        return len(seen) == 5

    following = asyncio.create_task(_follow())
    await eventually(_five)
    with shutter.closed(), pytest.raises((StreamCutError, Refused)):
        await world.read(face, instance_id)
    await _goes_on(world, instance_id)
    await asyncio.wait_for(following, 60)
    assert seen == list(range(1, 9))
