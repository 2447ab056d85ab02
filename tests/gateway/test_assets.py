"""Static assets out of the gateway's memory, and those that it passes on in pieces."""

from __future__ import annotations

import asyncio
import hashlib
import os
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
import pytest_asyncio
from tests.gateway.conftest import Host, HostFactory
from tests.gateway.test_host_api import assert_problem
from tests.gateway.waiting import eventually

from saisei_gateway.assets import MAX_KEPT_BYTES


@pytest_asyncio.fixture(loop_scope="session")
async def site(host: Host) -> AsyncIterator[Host]:
    """The Host with two small files and a large one; the hostname is known to have assets first."""
    assets = host.runtime.assets
    assets.files = {"": b"index", "a.txt": b"text a", "large": os.urandom(4 * MAX_KEPT_BYTES)}
    assert (await page(host, "/")).content == b"index"
    yield host
    # The hostname is an ordinary one again.
    assets.fault = "no-assets"
    await page(host, "/none")


async def page(host: Host, path: str, method: str = "GET", **headers: str) -> Any:
    response = await host.worker(method, path, headers={name.replace("_", "-"): text for name, text in headers.items()})
    await response.aread()
    return response


async def test_small_files_are_read_once(site: Host) -> None:
    """WV-22, Issue 7: their bytes come from memory, the verdict from the runtime; whole, in part, or not at all."""
    assets = site.runtime.assets
    fetches = len(site.runtime.calls)
    for _ in range(3):
        response = await page(site, "/a.txt?q")
        assert (response.status_code, response.content) == (200, b"text a")
        assert response.headers["content-type"] == "text/plain"
    assert (await page(site, "/a.txt", range="bytes=5-")).content == b"a"
    assert (await page(site, "/a.txt", if_none_match=response.headers["etag"])).status_code == 304
    assert (await page(site, "/a.txt", "HEAD")).headers["content-length"] == "6"
    assert [request.sha256 for request in assets.reads].count(hashlib.sha256(b"text a").hexdigest()) == 1
    assert len(site.runtime.calls) == fetches
    assets.files["a.txt"] = b"renewed"
    assert (await page(site, "/a.txt")).content == b"renewed"


async def test_those_who_come_together_share_a_reading(site: Host) -> None:
    """Issue 7: the first request reads for all; questions that meet share messages, in any order of answers."""
    assets = site.runtime.assets
    assets.files |= {f"{number}": b"x" * (number + 1) for number in range(20)}
    assets.files["shared"] = b"shared"
    assets.hold = asyncio.Event()
    several = [asyncio.create_task(page(site, "/shared")) for _ in range(5)]
    each = [asyncio.create_task(page(site, f"/{number}")) for number in range(20)]
    await eventually(lambda: assets.open_reads == 21)
    assets.hold.set()
    assert {(await task).content for task in several} == {b"shared"}
    assert [(await task).content for task in each] == [b"x" * (number + 1) for number in range(20)]
    assert sum(assets.batches) == 25


async def test_what_is_no_asset_goes_to_fetch(site: Host) -> None:
    """WV-23, WD-04: with the Version that was chosen for it; a Version without assets ends the asking."""
    assert (await page(site, "/other")).status_code == 201
    assert site.runtime.last("Fetch").version_uid == "v"
    assert (await page(site, "/a.txt", "POST")).status_code == 201
    assert site.runtime.last("Fetch").version_uid == ""
    site.runtime.assets.fault = "no-assets"
    asked = sum(site.runtime.assets.batches)
    for _ in range(3):
        assert (await page(site, "/other")).status_code == 201
    assert sum(site.runtime.assets.batches) == asked + 1


async def test_locating_that_breaks(site: Host) -> None:
    """Design 6: each request is then answered in the ordinary way, and asking begins again by itself."""
    assets = site.runtime.assets
    assets.fault = "locate"
    found = await asyncio.gather(*(page(site, "/a.txt") for _ in range(8)))
    assert {response.content for response in found} == {b"text a"}
    assets.fault = ""
    fetches = len(site.runtime.calls)
    assert (await page(site, "/a.txt")).content == b"text a"
    assert len(site.runtime.calls) == fetches


@pytest.mark.parametrize("fault", ["away", "wrong"])
async def test_bytes_that_do_not_come(site: Host, fault: str) -> None:
    """AR-14, H-180: other bytes than the digest's are never passed on; the next request may be luckier."""
    site.runtime.assets.files["b.txt"] = fault.encode()
    site.runtime.assets.fault = fault
    assert_problem(await page(site, "/b.txt"), 503, "backend_unavailable")
    if fault == "away":
        assert_problem(await page(site, "/large"), 503, "backend_unavailable")
    site.runtime.assets.fault = ""
    assert (await page(site, "/b.txt")).content == fault.encode()


async def test_large_files_pass_through(site: Host) -> None:
    """Issue 7: byte for byte, and of a range no more than its bytes."""
    data = site.runtime.assets.files["large"]
    assert (await page(site, "/large")).content == data
    part = await page(site, "/large", range="bytes=3000000-3000099")
    assert (part.status_code, part.content) == (206, data[3_000_000:3_000_100])
    read = site.runtime.assets.reads[-1]
    assert (read.offset, read.length) == (3_000_000, 100)


async def test_a_large_file_that_breaks_off(site: Host) -> None:
    """WD-09: the connection is cut, so that no client takes a part for the whole."""
    site.runtime.assets.fault = "half"
    with pytest.raises(httpx.RemoteProtocolError):
        await page(site, "/large")


async def test_a_client_that_leaves(site: Host) -> None:
    """Issue 7: nobody reads on for it."""
    site.runtime.assets.files["huge"] = bytes(16 * MAX_KEPT_BYTES)
    response = await site.worker("GET", "/huge")
    assert await anext(response.aiter_raw())
    assert site.runtime.assets.open_reads == 1
    await response.aclose()
    await eventually(lambda: site.runtime.assets.open_reads == 0)


async def test_memory_is_bounded(run_host: HostFactory) -> None:
    """Issue 7: what was used last stays; the rest is read again, and without memory everything passes through."""
    async with run_host(asset_memory_bytes=250) as host:
        assets = host.runtime.assets
        assets.files = {name: name.encode() * 100 for name in "abc"} | {"d": b"d" * 251}
        for name in "abacab":
            assert (await page(host, f"/{name}")).content == assets.files[name]
        digests = {hashlib.sha256(data).hexdigest(): name for name, data in assets.files.items()}
        assert "".join(digests[read.sha256] for read in assets.reads) == "abcb"
        assert (await page(host, "/d")).content == assets.files["d"]
        assert (await page(host, "/d", "HEAD")).headers["content-length"] == "251"
