"""One story: mixed instances on one Host, faults all the while, and what the Host says of them at the end."""

from __future__ import annotations

import json
import random
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.chaos.faults import Faults
from tests.support.dev_host import DevHost, eventually

from saisei_cli.client import HostClient, HostError, HostUnreachable

KINDS = ("do", "retry", "sleep", "wait")
HOLDS = ("hold in a step", "hold between steps", "hold in a sleep", "hold in a wait", "hold in a retry")
# For what never comes, on a machine of any speed.
PATIENCE_SECONDS = 300.0
STORY_SECONDS = 1_800.0


@dataclass(frozen=True)
class Size:
    """`rounds` of each instance; a waiting one has as many races between an event and the wait for it."""

    instances: int
    faults: int
    rounds: int
    watched: int = 20


@dataclass
class Story:
    seed: int
    size: Size
    # By instance id.
    kinds: dict[str, str] = field(default_factory=dict)
    instances: dict[str, Any] = field(default_factory=dict)
    events: dict[str, list[Any]] = field(default_factory=dict)
    steps: dict[str, list[Any]] = field(default_factory=dict)
    # What readers saw that were attached all the while.
    watched: dict[str, list[Any]] = field(default_factory=dict)
    # How many events an instance had when `terminate` had answered.
    terminated_at: dict[str, int] = field(default_factory=dict)
    # By (instance, step): the nonces that the log has, in its order.
    effects: dict[tuple[str, str], list[str]] = field(default_factory=lambda: defaultdict(list))
    faults: list[str] = field(default_factory=list)

    def of(self, *kinds: str) -> Iterator[str]:
        return (instance_id for instance_id, kind in self.kinds.items() if kind in kinds)


def tell(host: DevHost, seed: int, size: Size, postgres_url: str | None) -> Story:
    """Runs it. The same seed makes the same instances, delays and faults; what they meet is up to the machine."""
    story = Story(seed, size)
    rng = random.Random(seed)
    uid = host.deploy(Path(__file__).parent / "app").workflows["chaos-mixed"]
    for number in range(size.instances):
        # Each fifth is terminated.
        kinds = HOLDS if number % 5 == 4 else KINDS
        story.kinds[f"chaos-{number}"] = kinds[number // 5 % len(kinds)]
    work = _Work(host.client, uid, story)
    faults = Faults(host, random.Random(f"{seed} faults"), size.faults, postgres_url)
    watched = rng.sample(sorted(story.kinds), min(size.watched, size.instances))
    with ThreadPoolExecutor(48) as pool, ThreadPoolExecutor(len(watched)) as readers:
        tasks: list[Future[None]] = []
        reading: list[Future[None]] = []

        def one(instance_id: str) -> None:
            chance = random.Random(f"{seed} {instance_id}")
            work.create(instance_id, chance)
            if instance_id in watched:
                reading.append(readers.submit(work.watch, instance_id))
            work.go_on(instance_id, chance)

        for number, instance_id in enumerate(story.kinds):
            if number == size.instances // 5:
                faults.start()
            tasks.append(pool.submit(one, instance_id))
        faults.finish()
        began = time.monotonic()
        for task in tasks:
            task.result(STORY_SECONDS)
        for task in reading:
            task.result(STORY_SECONDS)
        eventually(work.all_ended, within_seconds=PATIENCE_SECONDS, every_seconds=0.25)
        print("faults:", "; ".join(faults.done), "- the rest took", round(time.monotonic() - began, 1), "s")
    story.faults = faults.done
    work.collect()
    for line in host.log_lines("runtime"):
        text = line.get("text") or line.get("message", "")
        if isinstance(text, str) and text.startswith('{"effect"'):
            effect = json.loads(text)
            story.effects[effect["effect"], effect["step"]].append(effect["nonce"])
    return story


class _Work:
    """What users do meanwhile. A call without an answer proves nothing, so it is made again until it has one."""

    def __init__(self, client: HostClient, uid: str, story: Story) -> None:
        self._client = client
        self._uid = uid
        self._story = story

    def create(self, instance_id: str, rng: random.Random) -> None:
        kind, rounds = self._story.kinds[instance_id], self._story.size.rounds
        time.sleep(rng.uniform(0, 0.2))
        params = {"kind": kind, "rounds": 1 if kind in HOLDS else rounds}
        self._until_answered(lambda: self._client.create_instance(self._uid, instance_id, params), "instance_exists")

    def go_on(self, instance_id: str, rng: random.Random) -> None:
        """Does with it what its kind is for."""
        kind, rounds = self._story.kinds[instance_id], self._story.size.rounds
        if kind == "wait":
            for number in range(rounds):
                time.sleep(rng.uniform(0, 0.08))
                self._until_answered(
                    lambda number=number: self._client.send_event(
                        self._uid, instance_id, f"event {number}", {"n": number}
                    ),
                    # An earlier try was accepted, and the instance has ended with it.
                    "instance_terminal",
                )
        if kind in HOLDS:
            time.sleep(rng.uniform(0, 2))
            self._until_answered(lambda: self._client.terminate(self._uid, instance_id))
            self._story.terminated_at[instance_id] = len(list(self._events(instance_id)))

    def watch(self, instance_id: str) -> None:
        self._story.watched[instance_id] = list(self._events(instance_id))

    def all_ended(self) -> bool:
        counts: dict[str, int] = defaultdict(int)
        for instance in self._client.instances(self._uid):
            counts[instance["status"]] += 1
        holds = sum(1 for _ in self._story.of(*HOLDS))
        assert dict(counts) == {"complete": self._story.size.instances - holds, "terminated": holds}
        return True

    def collect(self) -> None:
        for instance_id in self._story.kinds:
            self._story.instances[instance_id] = self._client.instance(self._uid, instance_id)
            self._story.events[instance_id] = list(self._events(instance_id))
            self._story.steps[instance_id] = self._client.steps(self._uid, instance_id)

    def _events(self, instance_id: str) -> Iterator[Any]:
        return self._client.events(self._uid, instance_id, patience_seconds=PATIENCE_SECONDS)

    def _until_answered(self, call: Callable[[], Any], also: str = "") -> None:
        def answered() -> bool:
            try:
                call()
            except HostError as error:
                if error.code == also:
                    return True
                assert error.code == "backend_unavailable", error
                raise AssertionError(str(error)) from error
            except HostUnreachable as error:
                raise AssertionError(str(error)) from error
            return True

        eventually(answered, within_seconds=PATIENCE_SECONDS)
