"""Many clients at once: one winner, whatever the order (H-145, H-084, H-102, H-109)."""

from __future__ import annotations

import os
import random
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from threading import Barrier
from typing import Any

import httpx
import pytest
from tests.conformance.kit import (
    BUNDLE,
    MODULE_WORKER,
    VERSION,
    Principal,
    accepted,
    fresh_key,
    fresh_name,
    problem,
    reference,
)

COPIES = 50
ROUNDS = 20


def at_once(*calls: Callable[[], httpx.Response]) -> list[httpx.Response]:
    """All calls, each in a thread of its own, from one starting shot."""
    barrier = Barrier(len(calls))

    def run(call: Callable[[], httpx.Response]) -> httpx.Response:
        barrier.wait()
        return call()

    with ThreadPoolExecutor(len(calls)) as pool:
        return list(pool.map(run, calls))


def test_copies_of_one_create_are_one_operation(host: Principal) -> None:
    """H-145, H-192: 50 concurrent copies: one Operation, one Resource, and every copy is told of it."""
    body, key = host.envelope(), fresh_key()
    responses = at_once(*[lambda: host.post(body, key)] * COPIES)
    operations = [accepted(host, response) for response in responses]
    assert len({operation["id"] for operation in operations}) == 1
    assert len({operation["resourceUid"] for operation in operations}) == 1
    assert host.settled(host.post(body, key))["status"] == "succeeded"
    assert len(host.walk(space=host.space, name=body["name"])) == 1


def test_creates_of_one_name_have_one_winner(host: Principal) -> None:
    """H-084, H-082, H-144: 50 concurrent intents for one name: one accepted, 49 conflicts, one Resource."""
    name = fresh_name()
    spec = host.bundle_spec()
    bodies = [host.envelope(name=name) if n % 2 else host.envelope(BUNDLE, spec, name) for n in range(COPIES)]
    responses = at_once(*[partial(host.post, body) for body in bodies])
    winners = [response for response in responses if response.status_code in (200, 202)]
    assert len(winners) == 1
    for response in responses:
        if response not in winners:
            problem(response, 409, "name_conflict")
    uid = accepted(host, winners[0])["resourceUid"]
    assert [item["uid"] for item in host.walk(space=host.space, name=name)] == [uid]


def test_updates_of_one_generation_have_one_winner(host: Principal) -> None:
    """H-102, H-072: of 20 concurrent updates and deletes of a generation one is accepted; the generation moves by 1."""
    uid = host.made()["uid"]
    calls: list[Callable[[], httpx.Response]] = [lambda: host.put(uid, {"spec": {}}, 1)] * 19
    responses = at_once(*calls, lambda: host.put(uid, {"spec": {}}, 1))
    winners = [response for response in responses if response.status_code in (200, 202)]
    assert len(winners) == 1
    for response in responses:
        if response not in winners:
            assert response.json()["code"] in ("resource_busy", "generation_conflict")
    assert host.settled(winners[0])["generation"] == 2
    assert host.resource(uid)["generation"] == 2


def test_copies_of_one_delete_are_one_operation(host: Principal) -> None:
    """H-145, H-107: 20 concurrent copies of a delete: the same Operation, also for those that come after its end."""
    uid, key = host.made()["uid"], fresh_key()
    responses = at_once(*[lambda: host.delete(uid, 1, key)] * 20)
    assert len({accepted(host, response)["id"] for response in responses}) == 1


def test_a_reference_and_the_delete_of_its_target_exclude_each_other(host: Principal) -> None:
    """H-109, F-04: whatever the timing, exactly one of the two loses; many rounds, with random delays."""
    seed = int(os.environ.get("SAISEI_TEST_SEED", random.randrange(2**32)))
    print("seed", seed)
    rng = random.Random(seed)
    bundle = host.made(BUNDLE, host.bundle_spec())
    outcomes: Counter[str] = Counter()
    for _ in range(ROUNDS):
        worker = host.made()
        spec = {"worker": reference(worker), "bundle": reference(bundle), "handlers": ["fetch"]}
        pauses = [rng.uniform(0, 0.004) * rng.randrange(2) for _ in range(2)]
        refer, remove = at_once(
            _after(pauses[0], partial(host.post, host.envelope(VERSION, spec))),
            _after(pauses[1], partial(host.delete, worker["uid"], 1)),
        )
        assert (refer.status_code in (200, 202)) != (remove.status_code in (200, 202)), (refer.text, remove.text)
        if refer.status_code == 409:
            problem(refer, 409, "dependency_conflict")
            assert host.settled(remove)["status"] == "succeeded"
            outcomes["deleted"] += 1
        else:
            problem(remove, 409, "dependency_conflict")
            assert host.settled(refer)["status"] == "succeeded"
            assert host.resource(worker["uid"])["generation"] == 1
            outcomes["referred"] += 1
    print(dict(outcomes))


def _after(seconds: float, call: Any) -> Callable[[], httpx.Response]:
    def run() -> httpx.Response:
        time.sleep(seconds)
        response: httpx.Response = call()
        return response

    return run


@pytest.mark.parametrize("round_number", range(3))
def test_a_storm_of_mixed_mutations_stays_consistent(host: Principal, round_number: int) -> None:
    """H-072, H-102, H-110, H-145: under 16 clients each accepted mutation is one generation and one Operation."""
    rng = random.Random(round_number)
    uids = [host.made()["uid"] for _ in range(4)]

    def client(seed: int) -> list[dict[str, Any]]:
        own, mine = random.Random(seed), []
        for _ in range(15):
            uid = own.choice(uids)
            current = host.get(f"/resources/{uid}").json()["generation"]
            response = host.put(uid, {"spec": {}}, current)
            if response.status_code in (200, 202):
                mine.append(accepted(host, response))
            else:
                assert response.json()["code"] in ("resource_busy", "generation_conflict")
        return mine

    with ThreadPoolExecutor(16) as pool:
        found = [each for mine in pool.map(client, [rng.randrange(2**32) for _ in range(16)]) for each in mine]
    for uid in uids:
        generations = sorted(each["generation"] for each in found if each["resourceUid"] == uid)
        assert generations == list(range(2, len(generations) + 2))
        assert host.resource(uid)["generation"] == len(generations) + 1
    assert len({each["id"] for each in found}) == len(found)
    assert {item["form"] for item in host.walk(space=host.space, form=MODULE_WORKER)} <= {MODULE_WORKER}
