"""A database of its own for each service of a Host that runs on PostgreSQL."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from itertools import count

import psycopg

_numbers = count(1)


@contextlib.contextmanager
def host_databases(postgres_url: str) -> Iterator[dict[str, str]]:
    """The environment of a Host whose control and runtime keep their state in fresh databases of that cluster."""
    plain = postgres_url.replace("postgresql+psycopg://", "postgresql://")
    number = next(_numbers)
    names = {service: f"host_{os.getpid()}_{number}_{service}" for service in ("control", "runtime")}
    with psycopg.connect(plain, autocommit=True) as connection:
        for name in names.values():
            connection.execute(f"CREATE DATABASE {name}")  # type: ignore[call-overload]
    yield {
        f"SAISEI_{service.upper()}_DATABASE_URL": postgres_url.replace("/postgres?", f"/{name}?")
        for service, name in names.items()
    }
    with psycopg.connect(plain, autocommit=True) as connection:
        for name in names.values():
            connection.execute(f"DROP DATABASE {name} WITH (FORCE)")  # type: ignore[call-overload]
