"""SIGKILL of any process at random moments, under load: nothing lost, nothing twice, nobody has to poke anything."""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import threading
import time
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from tests.support.dev_host import DevHost, eventually

INSTANCES = 200
ROUNDS = 20
STEPS = [f"step {index}" for index in range(10)]
TARGETS = ("control", "runtime", "gateway", "node")


class Killer:
    """Kills one process a time, at random moments, until each of ROUNDS is done; remembers what it did."""

    def __init__(self, host: DevHost, rng: random.Random) -> None:
        self._host = host
        self._rng = rng
        self.kills: list[str] = []

    def run(self) -> None:
        # Each kind of process dies equally often, in random order.
        targets = [TARGETS[number % len(TARGETS)] for number in range(ROUNDS)]
        self._rng.shuffle(targets)
        for target in targets:
            time.sleep(self._rng.uniform(0.05, 0.6))
            self._kill(target)

    def _kill(self, target: str) -> None:
        def pids() -> list[int]:
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):
                return self._host.node_pids() if target == "node" else [self._host.service_pid(target)]
            return []

        # A runtime that has just been restarted has no Node process yet.
        for pid in eventually(pids, within_seconds=30):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.kills.append(target)


@pytest.fixture(scope="module")
def story(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """200 instances under 20 kills; what the Host says of them afterwards."""
    seed = int(os.environ.get("SAISEI_TEST_SEED", random.randrange(2**32)))
    print("seed", seed)
    rng = random.Random(seed)
    with DevHost() as host:
        uid = host.deploy(Path(__file__).parent / "ten_steps").workflows["chaos-ten-steps"]
        killer = Killer(host, rng)
        thread = threading.Thread(target=killer.run)
        ids = [f"chaos-{number}" for number in range(INSTANCES)]

        def create(instance_id: str) -> None:
            # A lost answer may have created it: then the id is taken, by exactly this instance (W-021).
            def created() -> bool:
                try:
                    host.client.create_instance(uid, instance_id)
                except Exception as error:
                    if getattr(error, "code", None) == "instance_exists":
                        return True
                    raise AssertionError(str(error)) from error
                return True

            eventually(created, within_seconds=60)
            time.sleep(rng.uniform(0, 0.05))

        with ThreadPoolExecutor(8) as pool:
            first = list(pool.map(create, ids[:50]))
            thread.start()
            list(pool.map(create, ids[50:]))
        assert len(first) == 50
        thread.join()
        began = time.monotonic()

        def all_ended() -> bool:
            counts = defaultdict(int)
            for instance in host.client.instances(uid):
                counts[instance["status"]] += 1
            assert dict(counts) == {"complete": INSTANCES}
            return True

        eventually(all_ended, within_seconds=90, every_seconds=0.25)
        recovered = time.monotonic() - began
        effects: dict[tuple[str, str], list[str]] = defaultdict(list)
        for line in host.log_lines("runtime"):
            text = line.get("text") or line.get("message", "")
            if isinstance(text, str) and text.startswith('{"effect"'):
                effect = json.loads(text)
                effects[effect["effect"], effect["step"]].append(effect["nonce"])
        print("kills", killer.kills, "drained in", round(recovered, 2), "s")
        return {
            "instances": {instance_id: host.client.instance(uid, instance_id) for instance_id in ids},
            "events": {instance_id: list(host.client.events(uid, instance_id)) for instance_id in ids},
            "effects": effects,
            "kills": killer.kills,
        }


def test_every_instance_completes_with_the_journaled_output(story: dict[str, Any]) -> None:
    """W-005, W-098, W-155: after 20 kills every instance is complete, and its output is what its steps committed."""
    assert len(story["kills"]) == ROUNDS
    for instance_id, instance in story["instances"].items():
        committed = {
            event["stepName"]: event["output"]["nonce"]
            for event in story["events"][instance_id]
            if event["type"] == "step_completed"
        }
        assert instance["output"] == {"nonces": committed}
        assert list(committed) == STEPS


def test_no_committed_step_ran_again(story: dict[str, Any]) -> None:
    """W-094, W-107: an effect may repeat only while it is not committed: nothing of a step runs after its commit."""
    for instance_id, events in story["events"].items():
        for event in events:
            if event["type"] != "step_completed":
                continue
            nonces = story["effects"][instance_id, event["stepName"]]
            assert len(nonces) == len(set(nonces))
            # A kill may take the last lines of a log with it; those that are there must be in order.
            if event["output"]["nonce"] in nonces:
                assert nonces[-1] == event["output"]["nonce"], (instance_id, event["stepName"])


def test_event_logs_are_dense_and_tell_each_fact_once(story: dict[str, Any]) -> None:
    """S-04, S-14, S-30: ids are dense from 1, each step and attempt appears once, one terminal event at the end."""
    for instance_id, events in story["events"].items():
        assert [event["eventId"] for event in events] == list(range(1, len(events) + 1))
        assert [event["timestamp"] for event in events] == sorted(event["timestamp"] for event in events)
        types = [event["type"] for event in events]
        assert types[0] == "workflow_queued"
        assert types.count("workflow_started") == 1
        assert types[-1] == "workflow_completed"
        for fact in ("step_started", "attempt_started", "attempt_completed", "step_completed"):
            names = [event["stepName"] for event in events if event["type"] == fact]
            assert names == STEPS, (instance_id, fact, names)
