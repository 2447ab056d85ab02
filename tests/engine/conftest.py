"""The engine over a real database and scripted contexts."""

from __future__ import annotations

import os
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from itertools import count
from pathlib import Path

import psycopg
import pytest

# The scripted contexts are a module next to the tests; importlib mode gives them no package of their own.
sys.path.insert(0, str(Path(__file__).parent))

from engine_fakes import Host, VirtualHost
from machine_kit import Rows, StoredRows

from saisei_runtime.store import migrate_runtime
from saisei_service.database import Database, open_database

_numbers = count(1)


@pytest.fixture
def database(database_url: str) -> Iterator[Database]:
    opened = open_database(database_url)
    migrate_runtime(opened)
    yield opened
    opened.close()


@pytest.fixture(scope="module", params=["memory", "sqlite", "postgresql"])
def new_rows(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[], Rows]]:
    """Makes the machine's rows: over dictionaries, and over the tables of one database for all tests of a file."""
    if request.param == "memory":
        yield Rows
        return
    name = f"machine_{os.getpid()}_{next(_numbers)}"
    if request.param == "sqlite":
        url, base = f"sqlite:///{tmp_path_factory.mktemp(name) / 'machine.db'}", None
    else:
        base = request.getfixturevalue("postgres_url")
        url = base.replace("/postgres?", f"/{name}?")
        with psycopg.connect(base.replace("+psycopg", ""), autocommit=True) as connection:
            connection.execute(f"CREATE DATABASE {name}")
    opened = open_database(url)
    migrate_runtime(opened)
    yield lambda: StoredRows(opened)
    opened.close()
    if base is not None:
        with psycopg.connect(base.replace("+psycopg", ""), autocommit=True) as connection:
            connection.execute(f"DROP DATABASE {name} WITH (FORCE)")


@pytest.fixture
async def host(database: Database) -> AsyncIterator[Host]:
    """A started engine on a clock that stands still between advances."""
    running = VirtualHost(database)
    await running.start()
    yield running
    await running.stop()
