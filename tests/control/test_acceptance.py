"""What makes a mutation accepted, exactly once, and what refuses it."""

from __future__ import annotations

import asyncio
import json

from tests.control.kit import SPACE, Builder, Client, Kit, eventually, ref, refused

from saisei.control.v1 import resources_pb2 as pb
from saisei_contract.forms import urls
from saisei_control.store.rows import update_resource

WORKER = urls.MODULE_WORKER


async def test_concurrent_copies_have_one_operation(client: Client) -> None:
    """H-145, H-192: of 50 simultaneous copies one wins and the others return its Operation."""
    key = client.key()
    answers = await asyncio.gather(*(client.create(WORKER, "one", {}, key=key) for _ in range(50)))
    assert len({answer.id for answer in answers}) == 1
    assert len((await client.list()).items) == 1


async def test_one_name_has_one_winner(client: Client) -> None:
    """H-071, H-084: of 50 simultaneous creates of a name one is accepted, the others meet name_conflict."""

    async def attempt() -> str:
        return (await client.create(WORKER, "wanted", {})).id

    answers = await asyncio.gather(*(attempt() for _ in range(50)), return_exceptions=True)
    assert len([answer for answer in answers if isinstance(answer, str)]) == 1
    assert {answer.reason for answer in answers if isinstance(answer, Exception)} == {"name_conflict"}
    assert len((await client.list()).items) == 1


async def test_names_are_unique_across_forms(client: Client, build: Builder) -> None:
    """H-071, H-084: the name is taken whatever Form has it, and free in another Space."""
    worker = await client.made(WORKER, "taken", {})
    workflow = {"worker": ref(worker), "className": "Flow"}
    assert (await refused(client.create(urls.DURABLE_WORKFLOW, "taken", workflow))).reason == "name_conflict"


async def test_equal_requests_replay(client: Client) -> None:
    """H-140, H-142: other spelling of the same JSON is the same request, whatever has happened since."""
    worker = await client.made(WORKER, "owner", {})
    key = client.key()
    spec = f'{{"worker": {{"resourceUid": "{worker}"}}, "className": "Flow"}}'
    first = await client.create(urls.DURABLE_WORKFLOW, "flow", spec, key=key)
    same = f'{{ "className":"\\u0046low","worker":{{"resourceUid":"{worker}"}} }}'
    assert (await client.create(urls.DURABLE_WORKFLOW, "flow", same, key=key)).id == first.id
    await client.settled(first)
    await client.deleted(first.resource_uid)
    replay = await client.create(urls.DURABLE_WORKFLOW, "flow", spec, key=key)
    assert (replay.id, replay.status) == (first.id, pb.OPERATION_STATUS_SUCCEEDED)


async def test_numbers_are_equal_mathematically(client: Client, build: Builder) -> None:
    """H-140: 10000, 1e4 and 10000.0 are one request; true is not 1."""
    worker = await build.worker()
    version = await build.version(worker)
    key = client.key()
    text = '{"worker":{"resourceUid":"%s"},"versions":[{"workerVersion":{"resourceUid":"%s"},"weight":%s}]}'
    first = await client.create(urls.WORKER_DEPLOYMENT, "live", text % (worker, version, "10000"), key=key)
    for spelling in ("1e4", "10000.0", "1.0E+4"):
        again = await client.create(urls.WORKER_DEPLOYMENT, "live", text % (worker, version, spelling), key=key)
        assert again.id == first.id
    other = client.create(urls.WORKER_DEPLOYMENT, "live", text % (worker, version, "true"), key=key)
    assert (await refused(other)).reason == "idempotency_conflict"


async def test_a_key_serves_one_request(client: Client) -> None:
    """H-143: the key of another body, path, generation or method is idempotency_conflict and has no effect."""
    key = client.key()
    first = await client.settled(await client.create(WORKER, "one", {}, key=key))
    uid = first.resource_uid
    for other in (
        client.create(WORKER, "two", {}, key=key),
        client.create(urls.WORKER_BUNDLE, "one", {}, key=key),
        client.update(uid, 1, {}, key=key),
        client.delete(uid, 1, key=key),
    ):
        assert (await refused(other)).reason == "idempotency_conflict"
    update_key = client.key()
    await client.settled(await client.update(uid, 1, {}, key=update_key))
    assert (await refused(client.update(uid, 2, {}, key=update_key))).reason == "idempotency_conflict"
    assert (await client.get(uid)).generation == 2


async def test_a_refused_request_leaves_its_key_free(client: Client) -> None:
    """H-144: a key is consumed by acceptance only."""
    key = client.key()
    assert (await refused(client.create(WORKER, "one", {"x": 1}, key=key))).reason == "invalid_spec"
    assert (await client.create(WORKER, "one", {}, key=key)).generation == 1


async def test_principals_have_keys_of_their_own(kit: Kit, client: Client) -> None:
    """H-130, H-047: another principal's same key is another request; another token of the principal is not."""
    key = client.key()
    first = await client.create(WORKER, "one", {}, key=key)
    bob = await kit.client("bob")
    assert (await bob.create(WORKER, "two", {}, key=key)).id != first.id
    rotated = await kit.client("alice")
    assert (await rotated.create(WORKER, "one", {}, key=key)).id == first.id


async def test_replay_needs_the_right_still(kit: Kit, client: Client) -> None:
    """H-146: a principal that may no longer write learns nothing from its key."""
    key = client.key()
    await client.create(WORKER, "one", {}, key=key)
    lesser = await kit.client("alice", other="read,write")
    assert (await refused(lesser.create(WORKER, "one", {}, key=key))).reason == "forbidden"


async def test_replays_survive_a_restart(kit: Kit, client: Client) -> None:
    """H-145: the mapping is durable."""
    key = client.key()
    first = await client.create(WORKER, "one", {}, key=key)
    await kit.restart()
    again = await client.create(WORKER, "one", {}, key=key)
    assert again.id == first.id


async def test_generations_count_accepted_mutations(client: Client) -> None:
    """H-072, H-103, F-06: an equal spec under a new key is a new Operation and a new generation."""
    uid = await client.made(WORKER, "one", {})
    first = await client.settled(await client.update(uid, 1, {}))
    second = await client.settled(await client.update(uid, 2, {}))
    assert first.id != second.id
    found = await client.get(uid)
    assert (found.generation, found.observed_generation, found.last_operation) == (3, 3, second.id)


async def test_stale_and_missing_generations(client: Client) -> None:
    """H-021, H-022, H-102: none is expected_generation_required, 0 and old ones generation_conflict; no trace."""
    uid = await client.made(WORKER, "one", {})
    assert (await refused(client.update(uid, None, {}))).reason == "expected_generation_required"
    assert (await refused(client.delete(uid, None))).reason == "expected_generation_required"
    for stale in (0, 2, 9_007_199_254_740_991):
        assert (await refused(client.update(uid, stale, {}))).reason == "generation_conflict"
        assert (await refused(client.delete(uid, stale))).reason == "generation_conflict"
    for malformed in (-1, 9_007_199_254_740_992):
        assert (await refused(client.update(uid, malformed, {}))).reason == "invalid_request"
    assert (await client.get(uid)).generation == 1


async def test_the_last_generation(kit: Kit, client: Client) -> None:
    """H-005, H-072: a generation that has reached the largest integer is not wrapped: mutations are refused, and so
    says a preview.
    """
    largest = 9_007_199_254_740_991
    assert kit.app is not None
    for generation, accepted in ((largest - 1, True), (largest, False)):
        uid = await client.made(WORKER, f"n{generation}", {})
        values = {"generation": generation, "observed_generation": generation}
        await kit.app.store.write(lambda connection, uid=uid, values=values: update_resource(connection, uid, values))
        if accepted:
            assert (await client.settled(await client.update(uid, generation, {}))).generation == largest
        for call in (client.update(uid, largest, {}), client.delete(uid, largest)):
            assert (await refused(call)).reason == "generation_conflict"
        preview = pb.PreviewUpdate(uid=uid, expected_generation=largest, spec_json="{}")
        verdict = await client.call(client.resources.PreviewMutation, pb.PreviewMutationRequest(update=preview))
        assert [error.code for error in verdict.errors] == ["generation_conflict"]
        found = await client.get(uid)
        assert (found.generation, found.phase) == (largest, pb.PHASE_IDLE)


async def test_one_of_two_updates_wins(client: Client) -> None:
    """H-102: of simultaneous updates with one generation exactly one is accepted."""
    uid = await client.made(WORKER, "one", {})
    answers = await asyncio.gather(*(client.update(uid, 1, {}) for _ in range(20)), return_exceptions=True)
    accepted = [answer for answer in answers if not isinstance(answer, Exception)]
    assert len(accepted) == 1
    assert {answer.reason for answer in answers if isinstance(answer, Exception)} <= {
        "resource_busy",
        "generation_conflict",
    }


async def test_busy_comes_before_stale(kit: Kit, client: Client, build: Builder) -> None:
    """H-036, H-102, H-117: while a mutation is unfinished another is resource_busy, even with a stale generation."""
    worker = await build.worker()
    kit.runtime.holds["InspectVersion"] = asyncio.Event()
    bundle = await build.bundle()
    spec = {"worker": ref(worker), "bundle": ref(bundle), "handlers": []}
    operation = await client.create(urls.WORKER_VERSION, "version", spec)
    for generation in (0, 1):
        busy = await refused(client.update(operation.resource_uid, generation, spec))
        assert busy.reason == "resource_busy"
    kit.runtime.holds["InspectVersion"].set()
    assert (await client.settled(operation)).status == pb.OPERATION_STATUS_SUCCEEDED


async def test_the_order_of_checks(kit: Kit, client: Client) -> None:
    """H-035: key, size, JSON, envelope, Space, Form, capability, spec, references, name; the first failure answers."""
    flow = {"worker": ref("r-nothing"), "className": "Flow"}
    await client.made(WORKER, "taken", {})
    unknown = "https://example.com/forms/None/1/"
    for expected, call in (
        ("invalid_request", client.create(unknown, "taken", "[", key="short", space="elsewhere")),
        ("request_too_large", client.create(unknown, "taken", "[" + " " * 4_194_304, space="elsewhere")),
        ("invalid_request", client.create(unknown, "taken", '{"a":1,"a":2}', space="elsewhere")),
        ("invalid_request", client.create(unknown, "-bad-", {}, space="elsewhere")),
        ("forbidden", client.create(unknown, "taken", {"x": 1}, space="elsewhere")),
        ("unsupported_form", client.create(unknown, "taken", {"x": 1}, secrets={})),
        ("capability_required", client.create(WORKER, "taken", {"x": 1}, secrets={})),
        ("invalid_spec", client.create(urls.DURABLE_WORKFLOW, "taken", flow | {"x": 1})),
        ("dependency_conflict", client.create(urls.DURABLE_WORKFLOW, "taken", flow)),
        ("name_conflict", client.create(WORKER, "taken", {})),
    ):
        assert (await refused(call)).reason == expected


async def test_an_offering_needs_offerings(client: Client) -> None:
    """H-060: this Host has none, so that naming one is capability_required."""
    request = pb.CreateResourceRequest(
        idempotency_key=client.key(),
        form=WORKER,
        space=SPACE,
        name="one",
        spec_json="{}",
        offering=pb.Offering(id="small", revision="1"),
    )
    assert (await refused(client.call(client.resources.CreateResource, request))).reason == "capability_required"


async def test_the_spec_comes_back_as_it_was_sent(client: Client, build: Builder) -> None:
    """H-076: defaults are not expanded and numbers keep their spelling."""
    worker = await build.worker()
    bundle = await build.bundle()
    text = '{"worker":{"resourceUid":"%s"},"bundle":{"resourceUid":"%s"},"handlers":[],"vars":{"n":1.50}}'
    spec = text % (worker, bundle)
    uid = await client.made(urls.WORKER_VERSION, "version", spec)
    assert (await client.get(uid)).spec_json == spec


async def test_a_created_resource_is_whole_at_once(kit: Kit, client: Client, build: Builder) -> None:
    """H-070, H-077, H-085: pending, generation 1, nothing observed yet."""
    worker = await build.worker()
    kit.runtime.acknowledges = False
    operation = await client.create(urls.DURABLE_WORKFLOW, "flow", {"worker": ref(worker), "className": "Flow"})
    found = await client.get(operation.resource_uid)
    assert (found.phase, found.generation, found.observed_generation) == (pb.PHASE_PENDING, 1, 0)
    assert not found.HasField("observed_at")
    assert (json.loads(found.observed_json), json.loads(found.output_json)) == ({}, {})
    assert found.last_operation == operation.id
    kit.runtime.acknowledges = True
    await client.settled(operation)


async def test_retention_is_extended_at_the_end(client: Client) -> None:
    """H-147: an Operation is kept for a full window after its terminal transition."""
    operation = await client.settled(await client.create(WORKER, "one", {}))
    day = operation.retain_until[:10]
    assert day > operation.updated_at[:10]
    assert operation.retain_until[11:] == operation.updated_at[11:]


async def test_a_deleting_name_stays_reserved(kit: Kit, client: Client, build: Builder) -> None:
    """H-105, H-107: the name is free once the delete has succeeded, not before."""
    worker = await build.worker()
    flow = await client.made(urls.DURABLE_WORKFLOW, "flow", {"worker": ref(worker), "className": "Flow"})
    kit.runtime.holds["Purge"] = asyncio.Event()
    operation = await client.delete(flow, 1)
    assert operation.generation == 2
    assert (await client.get(flow)).phase == pb.PHASE_DELETING
    assert (await refused(client.create(WORKER, "flow", {}))).reason == "name_conflict"
    kit.runtime.holds["Purge"].set()
    await client.settled(operation)
    again = await client.made(WORKER, "flow", {})
    assert again != flow


async def test_a_deleted_resource_is_gone(client: Client) -> None:
    """H-091, H-107: gone for reads and new mutations, while the Operation and its replay stay."""
    uid = await client.made(WORKER, "one", {})
    key = client.key()
    operation = await client.settled(await client.delete(uid, 1, key=key))
    assert (await refused(client.get(uid))).reason == "gone"
    assert (await refused(client.update(uid, 2, {}))).reason == "gone"
    assert (await refused(client.delete(uid, 2))).reason == "gone"
    assert (await client.delete(uid, 1, key=key)).id == operation.id
    assert (await client.operation(operation.id)).effect == pb.EFFECT_COMPLETE

    async def listed() -> bool:
        return not (await client.list()).items

    assert await eventually(listed)
