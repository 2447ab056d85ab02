"""Databases for every suite: a fresh SQLite file or a fresh PostgreSQL database for each test.

PostgreSQL is a throwaway cluster of the session on a unix socket. Its binaries come from SAISEI_TEST_PG_BIN, the
PATH, or /usr/lib/postgresql; without them the tests that need it fail and say so, because nothing here is skipped.
"""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from itertools import count
from pathlib import Path

import psycopg
import pytest
from hypothesis import HealthCheck, settings

_numbers = count(1)

# A pause of the machine in the middle of an example, or of its making, says nothing about the rule. What fails is
# printed in a form that runs it again.
settings.register_profile(
    "suite", deadline=None, suppress_health_check=[HealthCheck.too_slow], database=None, print_blob=True
)
settings.load_profile("suite")

# The cluster is started while services run in this process; gRPC's handlers around a fork have crashed it then.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "false")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--long", action="store_true", help="also run the tests that take longer than the suite may")
    group = parser.getgroup("conformance", "the Host that tests/conformance is pointed at (default: Hosts of its own)")
    for name, text in (
        ("base-url", "origin or API root of the Host"),
        ("token", "bearer token with read and write in the Space"),
        ("other-token", "bearer token of another principal, with rights in another Space only"),
        ("ca-file", "authorities to trust, as PEM"),
        ("space", "Space to work in"),
    ):
        variable = f"SAISEI_CONFORMANCE_{name.upper().replace('-', '_')}"
        group.addoption(f"--{name}", default=os.environ.get(variable), help=f"{text} (or {variable})")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Tests marked `long` run on request only; they are deselected, and pytest says how many."""
    if config.getoption("--long"):
        return
    left_out = [item for item in items if item.get_closest_marker("long")]
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if not item.get_closest_marker("long")]


def _binaries() -> Path:
    named = os.environ.get("SAISEI_TEST_PG_BIN")
    if named:
        return Path(named)
    found = shutil.which("initdb")
    if found:
        return Path(found).resolve().parent
    versions = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"), key=lambda path: int(path.parts[-3]))
    if versions:
        return versions[-1].parent
    raise RuntimeError(
        "No PostgreSQL was found: install it, or name its folder of binaries in SAISEI_TEST_PG_BIN. "
        "`-k 'not postgresql'` leaves these tests out."
    )


def _unprivileged() -> dict[str, object]:
    """PostgreSQL refuses to run as root; then it runs as its own or as a nobody's account."""
    if os.geteuid() != 0:
        return {}
    for name in ("postgres", "nobody"):
        try:
            account = pwd.getpwnam(name)
        except KeyError:
            continue
        return {"user": account.pw_uid, "group": account.pw_gid, "extra_groups": []}
    raise RuntimeError("PostgreSQL cannot run as root, and there is neither a user postgres nor nobody.")


@pytest.fixture(scope="session")
def postgres_url() -> Iterator[str]:
    """URL of a database of a cluster that lives as long as the session."""
    binaries, account = _binaries(), _unprivileged()
    # A socket's path may have 107 bytes: not pytest's own long folder.
    folder = Path(tempfile.mkdtemp(prefix="saisei-pg-"))
    try:
        if account:
            os.chown(folder, account["user"], account["group"])  # type: ignore[arg-type]
        data = folder / "data"

        def _run(*command: str | Path) -> None:
            subprocess.run(
                [str(part) for part in command], check=True, cwd=folder, capture_output=True, timeout=120, **account
            )  # type: ignore[call-overload]

        _run(binaries / "initdb", "-D", data, "-U", "saisei", "-A", "trust", "-E", "UTF8", "--locale=C", "--no-sync")
        options = f"-c listen_addresses= -c unix_socket_directories={folder} -c max_connections=200 -c fsync=off"
        _run(binaries / "pg_ctl", "-D", data, "-w", "-t", "110", "-l", folder / "log", "-o", options, "start")
        try:
            yield f"postgresql+psycopg://saisei@/postgres?host={folder}"
        finally:
            _run(binaries / "pg_ctl", "-D", data, "-w", "-m", "immediate", "stop")
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(params=["sqlite", "postgresql"])
def database_url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """URL of a fresh, empty database; each test that asks for it runs once on each kind."""
    if request.param == "sqlite":
        yield f"sqlite:///{tmp_path / 'saisei.db'}"
        return
    base = request.getfixturevalue("postgres_url")
    name = f"test_{os.getpid()}_{next(_numbers)}"
    plain = base.replace("postgresql+psycopg://", "postgresql://")
    with psycopg.connect(plain, autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name}")
    yield base.replace("/postgres?", f"/{name}?")
    with psycopg.connect(plain, autocommit=True) as connection:
        connection.execute(f"DROP DATABASE {name} WITH (FORCE)")
