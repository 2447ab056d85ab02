"""Which invocations of a Version are under way: from their acceptance to the end of the response."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from saisei.control.v1 import assignments_pb2 as pb
from saisei_contract.errors import SaiseiError
from saisei_runtime.code import WorkerCode
from saisei_runtime.hosting.asset_store import AssetStore
from saisei_runtime.hosting.state import HostedState
from saisei_runtime.isolates.port import FetchHead, FetchResult
from saisei_runtime.serving.assets import Assets
from saisei_runtime.serving.invoke import Serving

HEAD = FetchHead("GET", "https://a.workers.test/", ())


class Pool:
    """Answers each fetch with two parts; or fails."""

    def __init__(self) -> None:
        self.closed = 0
        self.fails = False

    async def fetch(self, code: WorkerCode, request: FetchHead) -> FetchResult:
        if self.fails:
            raise SaiseiError("backend_unavailable", "no thread")
        return FetchResult(200, (), self._parts())

    async def _parts(self) -> AsyncIterator[bytes]:
        try:
            yield b"a"
            yield b"b"
        finally:
            self.closed += 1


class Codes:
    async def load(self, version_uid: str) -> WorkerCode:
        return WorkerCode(version_uid, "w", "main.mjs", {}, frozenset({"fetch"}))


@pytest.fixture
def pool() -> Pool:
    return Pool()


@pytest.fixture
def state() -> HostedState:
    return HostedState()


@pytest.fixture
def serving(state: HostedState, pool: Pool, tmp_path: Path) -> Serving:
    body = pb.DeploymentAssignment(worker_uid="w", versions=[pb.WeightedVersion(version_uid="v", weight=10_000)])
    state.apply(pb.Assignment(revision=1, resource_uid="d", deployment=body))
    door = pb.EndpointAssignment(worker_uid="w", hostname="a.workers.test")
    state.apply(pb.Assignment(revision=2, resource_uid="e", endpoint=door))
    return Serving(state, Codes(), pool, Assets(state, AssetStore(None, "key", tmp_path)))  # type: ignore[arg-type]


async def test_an_invocation_lasts_to_the_end_of_its_body(serving: Serving, pool: Pool) -> None:
    """WV-13: counted while its body is read, and no longer."""
    result = await serving.fetch("a.workers.test", HEAD)
    other = await serving.fetch("a.workers.test", HEAD)
    assert serving.invocations_of("v") == 2
    assert [part async for part in result.body] == [b"a", b"b"]
    assert serving.invocations_of("v") == 1
    assert [part async for part in other.body] == [b"a", b"b"]
    assert serving.invocations_of("v") == serving.invocations_of("another") == 0


async def test_a_body_that_is_closed_is_no_invocation_any_more(serving: Serving, pool: Pool) -> None:
    """WV-13: also when nobody read it, or only a part of it; closing it again changes nothing."""
    for read in (0, 1):
        result = await serving.fetch("a.workers.test", HEAD)
        for _ in range(read):
            await anext(result.body)
        for _ in range(2):
            await result.body.aclose()  # type: ignore[attr-defined]
        assert serving.invocations_of("v") == 0


async def test_a_fetch_that_fails_is_over(serving: Serving, pool: Pool) -> None:
    """WV-13: what never began holds nothing."""
    pool.fails = True
    with pytest.raises(SaiseiError):
        await serving.fetch("a.workers.test", HEAD)
    assert serving.invocations_of("v") == 0


SITE = pb.AssetsAssignment(files=[pb.BundleFile(path="a.txt", sha256="a" * 64, media_type="text/plain", size_bytes=1)])


def hosted(state: HostedState, **weights: int) -> None:
    """Versions `code` (fetch alone), `site` (assets before it) and `late` (fetch before its assets), by weight."""
    late = pb.AssetsAssignment()
    late.CopyFrom(SITE)
    late.run_worker_first = True
    for revision, (uid, assets) in enumerate({"code": None, "site": SITE, "late": late}.items(), 10):
        body = pb.VersionAssignment(worker_uid="w", entrypoint="main.mjs", handlers=["fetch"], assets=assets)
        state.apply(pb.Assignment(revision=revision, resource_uid=uid, version=body))
    versions = [pb.WeightedVersion(version_uid=uid, weight=weight) for uid, weight in weights.items()]
    allocation = pb.DeploymentAssignment(worker_uid="w", versions=versions)
    state.apply(pb.Assignment(revision=20, resource_uid="d", deployment=allocation))


async def test_a_located_version_stays(state: HostedState, serving: Serving) -> None:
    """WD-04: the Version that was chosen while an asset was looked for answers, as long as it is selected."""
    hosted(state, code=9_999, site=1)
    for chosen in ("code", "site"):
        result = await serving.fetch("a.workers.test", HEAD, chosen)
        assert serving.invocations_of(chosen) == 1
        await result.body.aclose()  # type: ignore[attr-defined]
    hosted(state, code=10_000)
    result = await serving.fetch("a.workers.test", HEAD, "site")
    assert (serving.invocations_of("site"), serving.invocations_of("code")) == (0, 1)
    await result.body.aclose()  # type: ignore[attr-defined]


@pytest.mark.parametrize("uid", ["code", "site", "late"])
async def test_locating_decides_and_waits_for_nothing(state: HostedState, serving: Serving, uid: str) -> None:
    """WV-23, WV-24: bytes that are not here yet, a miss, and a Worker that comes first are for fetch."""
    hosted(state, **{uid: 10_000})
    assert serving.locate("a.workers.test", "https://a.workers.test/a.txt") == uid
    assert serving.locate("a.workers.test", "https://a.workers.test/b.txt") == uid
    assert serving.locate("b.workers.test", "https://b.workers.test/a.txt") == ""
    assert serving.assets_first(uid) is (uid == "site")
