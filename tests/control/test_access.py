"""Tokens and the credentials of calls."""

from __future__ import annotations

import grpc
import pytest
from sqlalchemy import select
from tests.control.kit import Client, Kit, Refused, refused

from saisei.common.v1 import common_pb2
from saisei.control.v1 import access_pb2 as pb
from saisei.control.v1 import assignments_pb2
from saisei_control.store.schema import tokens
from saisei_service.clock import VirtualClock
from saisei_service.credentials import service_metadata, user_metadata


async def test_a_token_names_its_principal(kit: Kit) -> None:
    """H-044, H-047: Authenticate gives the stable principal and its rights; write includes use."""
    token = await kit.token("alice", a="read", b="write")
    answer = await kit.access.Authenticate(
        pb.AuthenticateRequest(token=token), metadata=service_metadata(kit.credential)
    )
    assert answer.principal == common_pb2.Principal(
        name="alice",
        rights=[
            common_pb2.SpaceRights(space="a", read=True),
            common_pb2.SpaceRights(space="b", write=True, use=True),
        ],
    )


async def test_unknown_tokens_are_refused(kit: Kit) -> None:
    """H-044: every request is authenticated; nothing tells an unknown token from a revoked one."""
    nobody = Client(kit.channel, "saisei_nothing")
    assert (await refused(nobody.list())).reason == "unauthenticated"
    revoked = await kit.client("carol")
    await revoked.list()
    answer = await kit.access.RevokeTokens(
        pb.RevokeTokensRequest(principal="carol"), metadata=service_metadata(kit.credential)
    )
    assert answer.revoked == 1
    assert (await refused(revoked.list())).message == (await refused(nobody.list())).message


async def test_a_token_expires(kit: Kit) -> None:
    """H-044: a token is valid until its expiry and not at it."""
    await kit.stop()
    kit.settings = kit.settings.model_copy(update={"virtual_clock": True})
    await kit.start()
    request = pb.CreateTokenRequest(
        principal=common_pb2.Principal(name="dave", rights=[common_pb2.SpaceRights(space="*", read=True)]),
        expires_in_seconds=60,
    )
    made = await kit.access.CreateToken(request, metadata=service_metadata(kit.credential), wait_for_ready=True)
    client = Client(kit.channel, made.token)
    clock = kit.app.clock if kit.app else None
    assert isinstance(clock, VirtualClock)
    clock.advance(59.999)
    await client.list()
    clock.advance(0.001)
    assert (await refused(client.list())).reason == "unauthenticated"


async def test_tokens_are_stored_hashed(kit: Kit) -> None:
    """H-153, H-182: the text of a token is nowhere in the database."""
    token = await kit.token()
    assert kit.app is not None
    rows = await kit.app.store.read(lambda connection: list(connection.execute(select(tokens))))
    assert rows
    assert all(token not in str(row) for row in rows)


@pytest.mark.parametrize("scheme", ["user", "none"])
async def test_internal_services_take_the_service_credential_only(kit: Kit, scheme: str) -> None:
    """Design 1: a user's token never opens an internal service."""
    metadata = user_metadata(await kit.token()) if scheme == "user" else ()
    assignments = kit.runtime.assignments
    for call in (
        kit.access.Authenticate(pb.AuthenticateRequest(token="x"), metadata=metadata),
        kit.access.CreateToken(pb.CreateTokenRequest(), metadata=metadata),
        kit.access.RevokeTokens(pb.RevokeTokensRequest(principal="x"), metadata=metadata),
        assignments.AckAssignment(assignments_pb2.AckAssignmentRequest(runtime_id="r"), metadata=metadata),
        assignments.OpenSecrets(assignments_pb2.OpenSecretsRequest(version_uid="r"), metadata=metadata),
    ):
        with pytest.raises(grpc.aio.AioRpcError) as failure:
            await call
        assert Refused.of(failure.value).reason == "unauthenticated"
    stream = assignments.WatchAssignments(assignments_pb2.WatchAssignmentsRequest(runtime_id="r"), metadata=metadata)
    with pytest.raises(grpc.aio.AioRpcError) as failure:
        await stream.read()
    assert Refused.of(failure.value).reason == "unauthenticated"


async def test_bad_tokens_are_not_made(kit: Kit) -> None:
    """H-006: principals and Spaces have their grammar, expiry lies ahead."""
    good = common_pb2.Principal(name="erin", rights=[common_pb2.SpaceRights(space="a", read=True)])
    for request in (
        pb.CreateTokenRequest(principal=common_pb2.Principal(name="")),
        pb.CreateTokenRequest(principal=common_pb2.Principal(name="x" * 129)),
        pb.CreateTokenRequest(principal=common_pb2.Principal(name="a\nb")),
        pb.CreateTokenRequest(
            principal=common_pb2.Principal(name="a", rights=[common_pb2.SpaceRights(space="no space")])
        ),
        pb.CreateTokenRequest(principal=good, expires_in_seconds=0),
    ):
        with pytest.raises(grpc.aio.AioRpcError) as failure:
            await kit.access.CreateToken(request, metadata=service_metadata(kit.credential))
        assert Refused.of(failure.value).reason == "invalid_request"
