"""One installation for each test, and a client of it.

Data lies in memory where the machine has such a folder, and databases are copies of a migrated one: these tests are
about rules, and syncing disks and making tables took most of their time. Other suites use real disks.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import AsyncIterator, Iterator
from itertools import count
from pathlib import Path

import psycopg
import pytest
from tests.control.kit import Builder, Client, Kit

from saisei_control.store.store import MIGRATIONS
from saisei_service.database import migrate, open_database

_MEMORY = Path("/dev/shm")
_numbers = count(1)


def _folder() -> Path:
    place = _MEMORY if os.access(_MEMORY, os.W_OK) else None
    return Path(tempfile.mkdtemp(prefix="saisei-control-", dir=place))


def _migrate(url: str) -> None:
    database = open_database(url)
    migrate(database, MIGRATIONS)
    with database.writer.connect() as connection:
        if not database.is_postgresql:
            connection.exec_driver_sql("COMMIT")
            connection.exec_driver_sql("PRAGMA wal_checkpoint(TRUNCATE)")
    database.close()


@pytest.fixture
def tmp_path() -> Iterator[Path]:
    folder = _folder()
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="session")
def sqlite_template() -> Iterator[Path]:
    folder = _folder()
    _migrate(f"sqlite:///{folder / 'template.db'}")
    yield folder / "template.db"
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="session")
def postgres_template(postgres_url: str) -> str:
    name = f"control_template_{os.getpid()}"
    with psycopg.connect(postgres_url.replace("+psycopg", ""), autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name}")
    _migrate(postgres_url.replace("/postgres?", f"/{name}?"))
    return name


@pytest.fixture(params=["sqlite", "postgresql"])
def database_url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """URL of a fresh, migrated database; each test that asks for it runs once on each kind."""
    if request.param == "sqlite":
        shutil.copyfile(request.getfixturevalue("sqlite_template"), tmp_path / "saisei.db")
        yield f"sqlite:///{tmp_path / 'saisei.db'}"
        return
    base = request.getfixturevalue("postgres_url")
    template = request.getfixturevalue("postgres_template")
    name = f"control_{os.getpid()}_{next(_numbers)}"
    with psycopg.connect(base.replace("+psycopg", ""), autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name} TEMPLATE {template} STRATEGY file_copy")
        yield base.replace("/postgres?", f"/{name}?")
        connection.execute(f"DROP DATABASE {name} WITH (FORCE)")


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
