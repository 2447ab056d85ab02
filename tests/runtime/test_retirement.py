"""Versions that leave an allocation, on a clock that the test moves."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping

import pytest

from saisei_contract.errors import SaiseiError
from saisei_runtime.hosting.retirement import Retirement
from saisei_service.clock import VirtualClock

MINUTE = 60


class Allocations:
    def __init__(self) -> None:
        self.of: dict[str, dict[str, int]] = {}
        self.ended: list[tuple[str, str]] = []
        self.fails = 0

    def allocation(self, worker_uid: str) -> Mapping[str, int] | None:
        return self.of.get(worker_uid)

    async def end(self, worker_uid: str, version_uid: str) -> None:
        if self.fails:
            self.fails -= 1
            raise SaiseiError("backend_unavailable", "unproven")
        self.ended.append((worker_uid, version_uid))


class Scene:
    def __init__(self) -> None:
        self.clock = VirtualClock()
        self.allocations = Allocations()
        self.retirement = Retirement(self.allocations, self.clock, self.allocations.end)

    def allocate(self, *versions: str) -> None:
        self.allocations.of["w"] = dict.fromkeys(versions, 1)
        self.retirement.changed("w")

    async def ended(self, *versions: str) -> None:
        async with asyncio.timeout(20):
            while self.allocations.ended != [("w", version) for version in versions]:
                await asyncio.sleep(0.005)

    async def turn(self) -> None:
        """Everything that can happen now has happened."""
        for _ in range(20):
            await asyncio.sleep(0)


@pytest.fixture
async def scene() -> AsyncIterator[Scene]:
    made = Scene()
    made.retirement.start()
    yield made
    await made.retirement.stop()


async def test_a_dropped_version_has_fifteen_minutes(scene: Scene) -> None:
    """WD-08, W-088: counted from the switch, not a second less; what stays selected is left alone."""
    scene.allocate("old", "both")
    scene.allocate("both", "new")
    scene.clock.advance(15 * MINUTE - 1)
    await scene.turn()
    assert scene.allocations.ended == []
    scene.clock.advance(1)
    await scene.ended("old")
    scene.clock.advance(60 * MINUTE)
    await scene.turn()
    assert scene.allocations.ended == [("w", "old")]


async def test_each_switch_counts_for_its_own_versions(scene: Scene) -> None:
    """WD-08: three switches, ten minutes apart."""
    for number in range(4):
        scene.allocate(f"v{number}")
        scene.clock.advance(10 * MINUTE)
    await scene.ended("v0", "v1")
    scene.clock.advance(5 * MINUTE)
    await scene.ended("v0", "v1", "v2")


async def test_a_version_that_comes_back_stays(scene: Scene) -> None:
    """WD-08: selected again within the time, it is not retired; dropped once more, it has 15 minutes anew."""
    scene.allocate("a")
    scene.allocate("b")
    scene.clock.advance(10 * MINUTE)
    scene.allocate("a")
    scene.clock.advance(10 * MINUTE)
    await scene.turn()
    assert scene.allocations.ended == []
    scene.allocate("c")
    scene.clock.advance(5 * MINUTE)
    await scene.ended("b")
    scene.clock.advance(10 * MINUTE)
    await scene.ended("b", "a")


async def test_an_unproven_stop_is_asked_for_again(scene: Scene) -> None:
    """WD-08: a retirement that is not proven is not taken for done."""
    scene.allocations.fails = 1
    scene.allocate("a")
    scene.allocate("b")
    scene.clock.advance(15 * MINUTE)
    await scene.ended("a")
