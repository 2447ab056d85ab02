"""Tokens that are listed, rotated and revoked; the principal stays."""

from __future__ import annotations

from typing import Any

from tests.control.kit import Client, Kit, eventually, refused
from tests.support.stopwatch import Stopwatch

from saisei.control.v1 import access_pb2 as pb
from saisei_contract.forms import urls

WORKER = urls.MODULE_WORKER


async def listed(kit: Kit, principal: str | None = None) -> list[pb.Token]:
    return list((await kit.operate(kit.access.ListTokens, pb.ListTokensRequest(principal=principal))).tokens)


def rotate(kit: Kit, token_id: str, overlap: int = 0, **more: Any) -> Any:
    request = pb.RotateTokenRequest(token_id=token_id, overlap_seconds=overlap, **more)
    return kit.operate(kit.access.RotateToken, request)


async def test_a_rotated_token_keeps_its_principal(kit: Kit) -> None:
    """H-047, H-130: the new token owns the same Resources and keys; the old one ends at once."""
    old = await kit.client("alice")
    made = await old.settled(await old.create(WORKER, "one", {}, key="0123456789abcdef"))
    (token,) = await listed(kit, "alice")
    new = Client(kit.channel, (await rotate(kit, token.id)).token)
    assert (await refused(old.list())).reason == "unauthenticated"
    assert (await new.create(WORKER, "one", {}, key="0123456789abcdef")).id == made.id
    before, after = await listed(kit, "alice")
    assert before.HasField("revoked_at") and not after.HasField("revoked_at")
    assert after.principal == token.principal
    assert (await refused(rotate(kit, token.id))).reason == "not_found"


async def test_an_overlap_lets_both_be_used(kit: Kit) -> None:
    """H-047: clients change over while both tokens are valid; the old one then expires, never later than it would."""
    await kit.reconfigure(virtual_clock=True)
    old = await kit.client("alice")
    (token,) = await listed(kit, "alice")
    new = Client(kit.channel, (await rotate(kit, token.id, 60, expires_in_seconds=3600)).token)
    await old.list()
    await new.list()
    again = (await listed(kit, "alice"))[1]
    await rotate(kit, again.id, 604_800)
    await kit.advance(60)
    assert (await refused(old.list())).reason == "unauthenticated"
    await kit.advance(3600 - 61)
    await new.list()
    await kit.advance(1)
    assert (await refused(new.list())).reason == "unauthenticated"


async def test_tokens_are_listed_without_their_texts(kit: Kit) -> None:
    """H-153, H-182: id, principal, rights and times; a text is told once, when it is made."""
    texts = [await kit.token("alice", main="read,admin"), await kit.token("bob", other="write")]
    found = await listed(kit)
    assert [(token.principal.name, token.principal.rights[0].space) for token in found] == [
        ("alice", "main"),
        ("bob", "other"),
    ]
    assert found[0].principal.rights[0].admin
    assert len({token.id for token in found}) == 2
    assert not any(text in str(token) for text in texts for token in found)
    for bad in ("", "x" * 16, found[0].id[:8], "%" * 16):
        assert (await refused(rotate(kit, bad))).reason == "invalid_request"
    for overlap in (-1, 604_801):
        assert (await refused(rotate(kit, found[0].id, overlap))).reason == "invalid_request"


async def test_one_token_of_several_is_revoked(kit: Kit) -> None:
    """H-044: by its id, at once; the principal's others go on."""
    one, other = await kit.client("alice"), await kit.client("alice")
    await one.list()
    first = (await listed(kit, "alice"))[0]
    request = pb.RevokeTokensRequest(principal="alice", token_id=first.id)
    assert (await kit.operate(kit.access.RevokeTokens, request)).revoked == 1
    outcomes = [await _is_refused(client) for client in (one, other)]
    assert sorted(outcomes) == [False, True]


async def _is_refused(client: Client) -> bool:
    try:
        await client.list()
    except Exception:
        return True
    return False


async def test_a_revocation_reaches_every_replica(kit: Kit) -> None:
    """H-044, Issue 3: what one replica revokes, another refuses within two seconds."""
    second, channel = await kit.second()
    try:
        token = await kit.token("alice")
        client = Client(channel, token)
        await client.list()
        stopwatch = Stopwatch()
        await kit.operate(kit.access.RevokeTokens, pb.RevokeTokensRequest(principal="alice"))
        await eventually(lambda: _is_refused(client))
        assert stopwatch.seconds() < 2.0
    finally:
        await second.stop()
        await channel.close()
