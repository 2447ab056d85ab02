"""One Host for all end-to-end tests: a real `saisei dev` on a data folder of its own."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.support.dev_host import DevHost


@pytest.fixture(scope="session")
def host() -> Iterator[DevHost]:
    with DevHost() as running:
        yield running
