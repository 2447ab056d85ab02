"""Offerings: off by default, and what changes when the operator lists some."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.control.kit import Client, Kit, refused

from saisei.control.v1 import resources_pb2 as pb
from saisei_contract.forms import urls
from saisei_control.resources.offerings import Offerings

WORKER = urls.MODULE_WORKER
SMALL = {"id": "small", "revision": "1", "form": WORKER, "label": "Small", "description": "Less"}
LARGE = {**SMALL, "id": "large", "label": "Large", "spaces": ["main"], "termsUrl": "https://terms.test/"}
FLOW = {**SMALL, "id": "flow", "form": urls.DURABLE_WORKFLOW}


async def offer(kit: Kit, *items: dict[str, Any]) -> None:
    file = kit.folder / "offerings.json"
    file.write_text(json.dumps({"offerings": items}))
    await kit.reconfigure(offerings_file=file)


async def listed(client: Client, **query: Any) -> pb.ListOfferingsResponse:
    return await client.call(client.support.ListOfferings, pb.ListOfferingsRequest(**query))


async def test_without_a_list_there_are_none(kit: Kit, client: Client) -> None:
    """H-032, H-060: not advertised, not listed, and a create that names one is told so."""
    assert not (await kit.operate(client.support.GetDiscovery, pb.GetDiscoveryRequest())).offerings
    assert (await refused(listed(client, form=WORKER, space="main"))).reason == "capability_unavailable"
    refusal = await refused(client.create(WORKER, "one", {}, offering=("small", "1")))
    assert refusal.reason == "capability_required"
    assert not (await client.get(await client.made(WORKER, "one", {}))).HasField("offering")


async def test_the_list(kit: Kit, client: Client) -> None:
    """H-062: of one Form in one Space, ascending by id, in pages bound to both; empty is an answer."""
    await offer(kit, SMALL, LARGE, FLOW)
    assert (await kit.operate(client.support.GetDiscovery, pb.GetDiscoveryRequest())).offerings
    every = await kit.client("bob", every="read,write")
    assert [item.id for item in (await listed(every, form=WORKER, space="main")).items] == ["large", "small"]
    assert [item.id for item in (await listed(every, form=WORKER, space="other")).items] == ["small"]
    assert not (await listed(every, form=urls.WORKER_BUNDLE, space="main")).items
    first = await listed(client, form=WORKER, space="main", limit=1)
    assert (first.items[0].id, first.items[0].terms_url) == ("large", "https://terms.test/")
    second = await listed(client, form=WORKER, space="main", limit=1, cursor=first.next_cursor)
    assert [item.id for item in second.items] == ["small"]
    assert not second.HasField("next_cursor")
    wrong = listed(client, form=urls.DURABLE_WORKFLOW, space="main", cursor=first.next_cursor)
    assert (await refused(wrong)).reason == "invalid_request"
    assert (await refused(listed(client, form=WORKER, space="other"))).reason == "forbidden"
    for query in ({"form": WORKER}, {"space": "main"}, {"form": WORKER, "space": "main", "limit": 0}):
        assert (await refused(listed(client, **query))).reason == "invalid_request"


async def test_a_create_chooses_one(kit: Kit, client: Client) -> None:
    """H-035, H-061: a create names a current pair of its Form and Space; a refused key is not consumed."""
    before = await client.create(WORKER, "before", {}, key="made-before-there-were-any")
    await offer(kit, SMALL, LARGE, FLOW)
    key = "one-key-for-all-of-them"
    assert (await refused(client.create(WORKER, "one", {}, key=key))).reason == "invalid_request"
    for pair in (("small", "2"), ("none", "1"), ("flow", "1")):
        assert (await refused(client.create(WORKER, "one", {}, key=key, offering=pair))).reason == "offering_changed"
    made = await client.settled(await client.create(WORKER, "one", {}, key=key, offering=("large", "1")))
    chosen = (await client.get(made.resource_uid)).offering
    assert (chosen.id, chosen.revision) == ("large", "1")
    different = client.create(WORKER, "one", {}, key=key, offering=("small", "1"))
    assert (await refused(different)).reason == "idempotency_conflict"
    # H-142: what was accepted before is answered as ever.
    assert (await client.create(WORKER, "before", {}, key="made-before-there-were-any")).id == before.id


async def test_the_choice_is_for_life(kit: Kit, client: Client) -> None:
    """H-063: an Offering that changed or went blocks neither read nor update nor delete, and is still shown."""
    await offer(kit, SMALL)
    uid = await client.made(WORKER, "one", {}, offering=("small", "1"))
    await offer(kit)
    assert (await client.get(uid)).offering.id == "small"
    assert (await refused(client.create(WORKER, "two", {}, offering=("small", "1")))).reason == "offering_changed"
    await client.settled(await client.update(uid, 1, {}))
    assert (await client.get(uid)).offering.revision == "1"
    await client.deleted(uid)


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("[]", "one list"),
        ('{"offerings": [{}]}', "offerings.0"),
        (json.dumps({"offerings": [SMALL, SMALL]}), "an id of its own"),
        (json.dumps({"offerings": [{**SMALL, "id": "a b"}]}), "offerings.0.id"),
        (json.dumps({"offerings": [{**SMALL, "form": "x"}]}), "offerings.0.form"),
        (json.dumps({"offerings": [{**SMALL, "revision": ""}]}), "offerings.0.revision"),
        (json.dumps({"offerings": [{**SMALL, "termsUrl": "http://t.test/"}]}), "termsUrl"),
        (json.dumps({"offerings": [{**SMALL, "extra": 1}]}), "extra"),
        ("{", "offerings.json"),
    ],
)
def test_a_wrong_list_is_said_plainly(tmp_path: Path, text: str, fault: str) -> None:
    """H-062: the service does not start with a list that it cannot offer, and says where it is wrong."""
    file = tmp_path / "offerings.json"
    file.write_text(text)
    with pytest.raises(ValueError, match="offerings") as failure:
        Offerings.load(file)
    assert fault in str(failure.value)


def test_a_list_may_be_toml(tmp_path: Path) -> None:
    """H-062: the same fields, one table each."""
    file = tmp_path / "offerings.toml"
    file.write_text("".join(f"[[offerings]]\n{_toml(item)}" for item in (SMALL, LARGE)))
    loaded = Offerings.load(file)
    assert [item.id for item in loaded.listed(WORKER, "main", "", 10)] == ["large", "small"]


def _toml(item: dict[str, Any]) -> str:
    return "".join(f"{name} = {json.dumps(value)}\n" for name, value in item.items())
