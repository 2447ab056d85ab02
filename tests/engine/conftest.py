"""The engine over a real database and scripted contexts."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

# The scripted contexts are a module next to the tests; importlib mode gives them no package of their own.
sys.path.insert(0, str(Path(__file__).parent))

from engine_fakes import Host, VirtualHost

from saisei_runtime.store import migrate_runtime
from saisei_service.database import Database, open_database


@pytest.fixture
def database(database_url: str) -> Iterator[Database]:
    opened = open_database(database_url)
    migrate_runtime(opened)
    yield opened
    opened.close()


@pytest.fixture
async def host(database: Database) -> AsyncIterator[Host]:
    """A started engine on a clock that stands still between advances."""
    running = VirtualHost(database)
    await running.start()
    yield running
    await running.stop()
