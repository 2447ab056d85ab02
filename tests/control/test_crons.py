"""Cron triggers beside Deployments: both sides are checked; what is shown; what is told to the runtime."""

from __future__ import annotations

import asyncio
import json

from tests.control.kit import Builder, Client, Kit, deployment_spec, ref, refused

from saisei.control.v1 import resources_pb2 as pb
from saisei_contract.forms import urls

CRON, DEPLOYMENT = urls.WORKER_CRON_TRIGGER, urls.WORKER_DEPLOYMENT


def every(worker: str, cron: str = "*/5 * * * *") -> dict[str, object]:
    return {"worker": ref(worker), "cron": cron}


async def shown(client: Client, uid: str) -> dict[str, object]:
    found: dict[str, object] = json.loads((await client.get(uid)).observed_json)
    return found


async def test_a_trigger_is_hosted(kit: Kit, client: Client, build: Builder) -> None:
    """CR-01, CR-07, H-077: the runtime gets Worker and expression; observed has all that is known, output nothing."""
    worker = await build.worker()
    await build.deployment(worker, await build.version(worker, ["scheduled"]))
    uid = await client.made(CRON, "often", every(worker))
    body = (await kit.runtime.hosts(uid)).cron
    assert (body.worker_uid, body.cron) == (worker, "*/5 * * * *")
    observed = await shown(client, uid)
    next_match = str(observed.pop("nextMatchAt"))
    assert observed == {"cron": "*/5 * * * *", "timezone": "UTC", "scheduleReady": True}
    assert next_match[-5:] in ("0:00Z", "5:00Z")
    found = await client.get(uid)
    assert (found.phase, json.loads(found.output_json)) == (pb.PHASE_IDLE, {})


async def test_a_date_that_never_comes(client: Client, build: Builder) -> None:
    """CR-05, CR-07: accepted and ready; there is no next match to show."""
    worker = await build.worker()
    await build.deployment(worker, await build.version(worker, ["scheduled"]))
    uid = await client.made(CRON, "never", every(worker, "0 0 31 2 *"))
    assert await shown(client, uid) == {"cron": "0 0 31 2 *", "timezone": "UTC", "scheduleReady": True}


async def test_the_next_match_moves_on(kit: Kit, client: Client, build: Builder) -> None:
    """CR-07: what a read shows is the next match by now; reading changes no generation."""
    await kit.reconfigure(virtual_clock=True)
    worker = await build.worker()
    await build.deployment(worker, await build.version(worker, ["scheduled"]))
    uid = await client.made(CRON, "daily", every(worker, "0 0 * * *"))
    first = await client.get(uid)
    assert (await client.get(uid)).observed_at == first.observed_at
    await kit.advance(86_400)
    second = await client.get(uid)
    assert json.loads(second.observed_json)["nextMatchAt"] > json.loads(first.observed_json)["nextMatchAt"]
    assert second.observed_at > first.observed_at
    assert (second.generation, second.observed_generation) == (1, 1)


async def test_a_worker_without_the_handler_is_refused(client: Client, build: Builder) -> None:
    """CR-01, WD-06: before effects; without any Deployment as well."""
    worker = await build.worker()
    none = await refused(client.create(CRON, "early", every(worker)))
    assert (none.reason, "no active WorkerDeployment" in none.message) == ("dependency_conflict", True)
    await build.deployment(worker, await build.version(worker, ["fetch"]))
    refusal = await refused(client.create(CRON, "mute", every(worker)))
    assert (refusal.reason, "no handler scheduled" in refusal.message) == ("dependency_conflict", True)


async def test_a_switch_keeps_the_handler(client: Client, build: Builder) -> None:
    """WD-05, WD-06: while a trigger exists each selected Version has `scheduled`; after its delete none needs it."""
    worker = await build.worker()
    fit, unfit = await build.version(worker, ["scheduled"]), await build.version(worker, ["fetch"])
    deployment = await build.deployment(worker, fit)
    uid = await client.made(CRON, "often", every(worker))
    for versions in ((unfit,), (fit, unfit)):
        refusal = await refused(client.update(deployment, 1, deployment_spec(worker, *versions)))
        assert (refusal.reason, "no handler scheduled" in refusal.message) == ("dependency_conflict", True)
    await client.deleted(uid)
    settled = await client.settled(await client.update(deployment, 1, deployment_spec(worker, unfit)))
    assert settled.status == pb.OPERATION_STATUS_SUCCEEDED


async def test_two_sides_at_once(client: Client, build: Builder) -> None:
    """WD-06: of a trigger and a switch to a Version without the handler, accepted at once, never both hold."""
    for number in range(6):
        worker = await build.worker()
        fit, unfit = await build.version(worker, ["scheduled"]), await build.version(worker, ["fetch"])
        deployment = await build.deployment(worker, fit)
        pair = [
            client.create(CRON, f"often-{number}", every(worker)),
            client.update(deployment, 1, deployment_spec(worker, unfit)),
        ]
        if number % 2:
            pair.reverse()
        answers = await asyncio.gather(*pair, return_exceptions=True)
        held = [await client.settled(one) for one in answers if isinstance(one, pb.Operation)]
        assert sum(one.status == pb.OPERATION_STATUS_SUCCEEDED for one in held) == 1, answers


async def test_changing_and_deleting(kit: Kit, client: Client, build: Builder) -> None:
    """CR-01, CR-07, F-05: the expression changes at once, the Worker never; several triggers; delete detaches only."""
    worker, other = await build.worker(), await build.worker()
    await build.deployment(worker, await build.version(worker, ["scheduled"]))
    uid = await client.made(CRON, "often", every(worker))
    await client.made(CRON, "seldom", every(worker, "0 0 1 1 *"))
    assert (await refused(client.update(uid, 1, every(other)))).reason == "invalid_spec"
    assert (await refused(client.update(uid, 1, every(worker, "* * * * 7")))).reason == "invalid_spec"
    await client.settled(await client.update(uid, 1, every(worker, "1 * * * *")))
    assert (await kit.runtime.hosts(uid)).cron.cron == "1 * * * *"
    assert (await shown(client, uid))["cron"] == "1 * * * *"
    # MW-03: a trigger keeps its Worker.
    assert "WorkerCronTrigger" in (await refused(client.delete(worker, 1))).message
    await client.deleted(uid)
    assert uid not in kit.runtime.hosted
    assert (await client.get(worker)).phase == pb.PHASE_IDLE


async def test_without_a_deployment_it_is_not_ready(client: Client, build: Builder) -> None:
    """WD-11, CR-07: shown on the trigger once its Worker takes no runs any more, and again when it does."""
    worker = await build.worker()
    version = await build.version(worker, ["scheduled"])
    deployment = await build.deployment(worker, version)
    uid = await client.made(CRON, "often", every(worker))
    await client.deleted(deployment)
    assert (await shown(client, uid))["scheduleReady"] is False
    await build.deployment(worker, version)
    assert (await shown(client, uid))["scheduleReady"] is True
