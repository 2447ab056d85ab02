"""One installation for each test, and a client of it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tests.control.kit import Builder, Client, Kit


@pytest.fixture
async def kit(tmp_path: Path, database_url: str) -> AsyncIterator[Kit]:
    kit = Kit(tmp_path, database_url)
    await kit.start()
    await kit.runtime.start(kit.runtime_address)
    yield kit
    await kit.close()


@pytest.fixture
async def client(kit: Kit) -> Client:
    return await kit.client()


@pytest.fixture
def build(client: Client) -> Builder:
    return Builder(client)
