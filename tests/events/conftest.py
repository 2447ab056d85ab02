"""One Host for the folder, with heartbeats that a test can wait for and few contexts, so that instances can queue."""

from __future__ import annotations

import os
import random
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
from tests.events.kit import World, app_folder
from tests.support.dev_host import DevHost

CONTEXTS = 8


@pytest.fixture(scope="session")
def events_host(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[DevHost, Any]]:
    environment = {"SAISEI_HEARTBEAT_SECONDS": "0.2", "SAISEI_MAX_CONTEXTS_PER_WORKER": str(CONTEXTS)}
    with DevHost(environment=environment) as host:
        yield host, host.deploy(app_folder(tmp_path_factory.mktemp("events") / "app"))


@pytest.fixture
async def world(events_host: tuple[DevHost, Any]) -> AsyncIterator[World]:
    host, deployed = events_host
    one = World(host, deployed)
    yield one
    await one.close()


@pytest.fixture
def rng() -> random.Random:
    seed = int(os.environ.get("SAISEI_TEST_SEED", random.randrange(2**32)))
    print("seed", seed)
    return random.Random(seed)
