"""The Host under test: one of ours on SQLite and one on PostgreSQL, or the one that --base-url names.

Against another Host: `pytest tests/conformance/host_api --base-url https://host.example --token T [--ca-file F]
[--other-token T2] [--space S]`, or SAISEI_CONFORMANCE_BASE_URL, _TOKEN, _CA_FILE, _OTHER_TOKEN and _SPACE. The token
may read, write and use Resources in the Space; the other token is another principal's, with rights in another Space
only. The suite makes many Resources and deletes few: give it a Space that can be thrown away.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from tests.conformance.kit import Address, Principal
from tests.support.dev_host import DevHost
from tests.support.postgres import host_databases

from saisei_cli.access import Access, SpaceGrant

SPACE, OTHER_SPACE = "conformance", "conformance-other"
# On our own Hosts each file works in a Space of its own, so that its lists stay short.
SPACES = [f"conformance-{number}" for number in range(16)]


@dataclass
class Target:
    """`dev` is None for a Host that is not ours."""

    address: Address
    token: str
    other_token: str | None
    space: str
    dev: DevHost | None


def _option(config: pytest.Config, name: str) -> str | None:
    found: str | None = config.getoption(name)
    return found


def _is_remote(config: pytest.Config) -> bool:
    return _option(config, "--base-url") is not None


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "target" in metafunc.fixturenames:
        kinds = ["remote"] if _is_remote(metafunc.config) else ["sqlite", "postgresql"]
        metafunc.parametrize("target", kinds, indirect=True, scope="session")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Against another Host, tests are left out that need our own processes, or a second token that was not given."""
    if not _is_remote(config):
        return
    missing = {"dev", "control"} | (set() if _option(config, "--other-token") else {"other"})
    left_out = [item for item in items if missing & set(getattr(item, "fixturenames", ()))]
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if item not in left_out]


def make_token(dev: DevHost, principal: str, **spaces: str) -> str:
    """A token of our own Host; `spaces` maps a Space (`_` for `-`) to its rights: `read,write`."""
    with Access(str(dev.ready["grpc"]["control"]), dev.data_dir / "service.key") as access:
        grants = [SpaceGrant.parse(f"{name.replace('_', '-')}:{rights}") for name, rights in spaces.items()]
        return access.create_token(principal, grants)


@pytest.fixture(scope="session")
def target(request: pytest.FixtureRequest) -> Iterator[Target]:
    config = request.config
    if request.param == "remote":
        base_url, token = _option(config, "--base-url"), _option(config, "--token")
        assert base_url is not None
        assert token is not None, "give the Host's token with --token"
        address = Address(base_url, _option(config, "--ca-file"))
        yield Target(address, token, _option(config, "--other-token"), _option(config, "--space") or SPACE, None)
        return
    if request.param == "postgresql":
        with host_databases(request.getfixturevalue("postgres_url")) as environment:
            yield from _own(environment)
    else:
        yield from _own({})


def _own(environment: dict[str, str]) -> Iterator[Target]:
    with DevHost(environment=environment) as dev:
        address = Address(dev.ready["origin"], dev.ready["caFile"])
        token = make_token(dev, "tester", **dict.fromkeys(SPACES, "read,write"))
        other = make_token(dev, "somebody", conformance_other="read,write")
        yield Target(address, token, other, SPACES[0], dev)


@pytest.fixture(scope="module")
def host(request: pytest.FixtureRequest, target: Target) -> Iterator[Principal]:
    """The principal under test."""
    files = sorted(path.name for path in Path(__file__).parent.glob("test_*.py"))
    space = target.space if target.dev is None else SPACES[files.index(request.path.name)]
    principal = Principal(target.address, target.token, space)
    yield principal
    principal.close()


@pytest.fixture(scope="session")
def other(target: Target) -> Iterator[Principal]:
    """Another principal, who has no right in the first one's Space."""
    assert target.other_token is not None
    principal = Principal(target.address, target.other_token, OTHER_SPACE)
    yield principal
    principal.close()


@pytest.fixture(scope="session")
def dev(target: Target) -> DevHost:
    """The processes of our own Host."""
    assert target.dev is not None
    return target.dev
