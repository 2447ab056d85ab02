"""Two principals, three Spaces, random calls: nobody sees, counts, blocks or infers what the other has."""

from __future__ import annotations

import os
import random
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
from tests.conformance.host_api.conftest import Target, make_token
from tests.conformance.kit import BUNDLE, MODULE_WORKER, WORKFLOW, Json, Principal, accepted, fresh_key, problem
from tests.support.dev_host import DevHost

CALLS = 250
CALLS_LONG = 5_000
NAMES = [f"name-{number}" for number in range(30)]
_IDS = re.compile(r"\b(?:r|op)-[0-9a-f]{32}\b")


@dataclass
class Thing:
    """A Resource as whoever may see it knows it."""

    uid: str
    space: str
    name: str
    generation: int
    operations: list[str]
    deleted: bool = False


@dataclass
class Person:
    """A principal, the Spaces it may use, and what it has used its idempotency keys for."""

    principal: Principal
    spaces: tuple[str, str]
    used: dict[str, tuple[tuple[Any, ...], str]] = field(default_factory=dict)
    cursors: list[tuple[Json, str]] = field(default_factory=list)


class Game:
    """Random calls of both. Each answer must be what the caller's own view alone foretells.

    Names and keys come from one small pool for both, so that whatever one does could get into the other's way.
    """

    def __init__(self, people: list[Person], rng: random.Random) -> None:
        self.people = people
        self.rng = rng
        self.things: dict[str, Thing] = {}
        self.keys = [f"{fresh_key()}-{number}" for number in range(60)]
        self.moves = [self.create] * 3 + [self.change] * 3 + [self.read, self.walk, self.steal, self.refer]

    def play(self) -> None:
        me = self.rng.choice(self.people)
        self.rng.choice(self.moves)(me)

    def visible(self, me: Person) -> list[Thing]:
        return [thing for thing in self.things.values() if thing.space in me.spaces]

    def check(self, me: Person, response: Any, *said: str) -> Any:
        """No identifier of what the caller may not see is in the answer, but for what it has just said itself."""
        allowed = {*said}
        for thing in self.visible(me):
            allowed |= {thing.uid, *thing.operations}
        hidden = {name for thing in self.things.values() for name in (thing.uid, *thing.operations)} - allowed
        for found in _IDS.findall(response.text + str(response.headers)):
            assert found not in hidden, response.text
        return response

    def create(self, me: Person) -> None:
        space = self.rng.choice([thing for person in self.people for thing in person.spaces])
        name, key = self.rng.choice(NAMES), self.rng.choice(self.keys)
        body = me.principal.envelope(name=name, space=space)
        response = self.check(me, me.principal.post(body, key))
        request = ("POST", space, name)
        if space not in me.spaces:
            problem(response, 403, "forbidden")
        elif key in me.used:
            self._replayed(me, response, key, request)
        elif any((thing.space, thing.name, thing.deleted) == (space, name, False) for thing in self.things.values()):
            problem(response, 409, "name_conflict")
        else:
            operation = me.principal.settled(response)
            uid = operation["resourceUid"]
            assert uid not in self.things
            self.things[uid] = Thing(uid, space, name, 1, [operation["id"]])
            me.used[key] = (request, operation["id"])

    def _replayed(self, me: Person, response: Any, key: str, request: tuple[Any, ...]) -> None:
        before, operation_id = me.used[key]
        if before == request:
            assert accepted(me.principal, response)["id"] == operation_id
        else:
            assert "operationId" not in problem(response, 409, "idempotency_conflict")

    def change(self, me: Person) -> None:
        thing = self._any()
        if thing is None:
            return
        removing, key = self.rng.random() < 0.5, self.rng.choice([*self.keys, fresh_key()])
        generation = thing.generation - (self.rng.random() < 0.2)
        request = ("DELETE" if removing else "PUT", thing.uid, generation)
        if removing:
            response = me.principal.delete(thing.uid, generation, key)
        else:
            response = me.principal.put(thing.uid, {"spec": {}}, generation, key)
        self.check(me, response, thing.uid)
        if thing.space not in me.spaces:
            self._as_unknown(me, response, thing.uid, me.principal.put("r-unknown", {"spec": {}}, generation, key))
        elif key in me.used:
            self._replayed(me, response, key, request)
        elif thing.deleted:
            assert response.status_code in (404, 410)
        elif generation != thing.generation:
            problem(response, 409, "generation_conflict")
        else:
            operation = me.principal.settled(response)
            thing.generation += 1
            thing.deleted = removing
            thing.operations.append(operation["id"])
            me.used[key] = (request, operation["id"])

    def _any(self) -> Thing | None:
        return self.rng.choice(list(self.things.values())) if self.things else None

    @staticmethod
    def _as_unknown(me: Person, response: Any, said: str, unknown: Any) -> None:
        """A hidden thing is answered exactly as one that never was."""
        problem(response, 404, "not_found")
        assert response.text.replace(said, "r-unknown") == unknown.text
        assert _names(response) == _names(unknown)

    def read(self, me: Person) -> None:
        thing = self._any()
        if thing is None:
            return
        operation_id = self.rng.choice(thing.operations)
        resource = self.check(me, me.principal.get(f"/resources/{thing.uid}"), thing.uid)
        operation = self.check(me, me.principal.get(f"/operations/{operation_id}"), operation_id)
        if thing.space in me.spaces:
            assert resource.status_code in ((404, 410) if thing.deleted else (200,))
            assert operation.json()["resourceUid"] == thing.uid
        else:
            self._as_unknown(me, resource, thing.uid, me.principal.get("/resources/r-unknown"))
            self._as_unknown(me, operation, operation_id, me.principal.get("/operations/r-unknown"))

    def walk(self, me: Person) -> None:
        filters: Json = {}
        if self.rng.random() < 0.4:
            filters["space"] = self.rng.choice([space for person in self.people for space in person.spaces])
        if self.rng.random() < 0.3:
            filters["name"] = self.rng.choice(NAMES)
        if self.rng.random() < 0.3:
            filters["form"] = self.rng.choice([MODULE_WORKER, BUNDLE])
        if "space" in filters and filters["space"] not in me.spaces:
            problem(self.check(me, me.principal.get("/resources", **filters)), 403, "forbidden")
            return
        expected = sorted(
            thing.uid
            for thing in self.visible(me)
            if not thing.deleted
            and filters.get("space", thing.space) == thing.space
            and filters.get("name", thing.name) == thing.name
            and filters.get("form", MODULE_WORKER) == MODULE_WORKER
        )
        size, found, query = self.rng.choice([1, 2, 3, 5, 8, 100]), [], dict(filters)
        if size < 3 and len(expected) > 20:
            size = 7
        while True:
            page = self.check(me, me.principal.get("/resources", limit=size, **query)).json()
            found += [item["uid"] for item in page["items"]]
            # A page is full unless it is the last one, and the last one says so at once.
            assert len(page["items"]) == min(size, len(expected) - len(found) + len(page["items"]))
            assert (page["nextCursor"] is None) == (len(found) == len(expected))
            if page["nextCursor"] is None:
                break
            query = filters | {"cursor": page["nextCursor"]}
            me.cursors.append((filters, page["nextCursor"]))
        assert found == expected

    def steal(self, me: Person) -> None:
        """A cursor of the other is worth as much as a made-up one."""
        other = self.people[1 - self.people.index(me)]
        if other.cursors:
            filters, cursor = self.rng.choice(other.cursors[-20:])
            response = self.check(me, me.principal.get("/resources", cursor=cursor, **filters))
            if filters.get("space", me.spaces[0]) in me.spaces:
                made_up = me.principal.get("/resources", cursor="made-up", **filters)
                problem(response, 400, "invalid_request")
                assert response.text == made_up.text
            else:
                problem(response, 403, "forbidden")

    def refer(self, me: Person) -> None:
        """As a target of a reference, a hidden Resource is as good as none."""
        thing = self._any()
        if thing is None or thing.space in me.spaces:
            return
        answers = []
        for uid in (thing.uid, "r-unknown"):
            spec = {"worker": {"resourceUid": uid}, "className": "A"}
            body = me.principal.envelope(WORKFLOW, spec, "refers", space=me.spaces[0])
            answers.append(self.check(me, me.principal.post(body), thing.uid))
            problem(answers[-1], 409, "dependency_conflict")
        assert answers[0].text.replace(thing.uid, "r-unknown") == answers[1].text


def _names(response: Any) -> set[str]:
    return set(response.headers.keys())


@pytest.fixture
def game(target: Target, dev: DevHost) -> Iterator[Game]:
    seed = int(os.environ.get("SAISEI_TEST_SEED", random.randrange(2**32)))
    print("seed", seed)
    shared = f"shared-{fresh_key()[:8]}"
    people = []
    for name in ("ann", "ben"):
        spaces = (f"{name}-{fresh_key()[:8]}", shared)
        token = make_token(dev, f"{name}-{fresh_key()}", **dict.fromkeys(spaces, "read,write"))
        people.append(Person(Principal(target.address, token, spaces[0]), spaces))
    yield Game(people, random.Random(seed))
    for person in people:
        person.principal.close()


def test_random_calls_reveal_nothing(game: Game) -> None:
    """H-046, H-096, H-130, H-182, F-03: names, keys, cursors, 409s and page sizes depend on one's own Spaces only."""
    for _ in range(CALLS):
        game.play()


@pytest.mark.long
def test_many_random_calls_reveal_nothing(game: Game) -> None:
    """H-046, H-096, H-130, H-182, F-03: the same over 5,000 calls."""
    for _ in range(CALLS_LONG):
        game.play()
