"""`saisei.control.v1.AccessService`. Internal: takes the service credential."""

from __future__ import annotations

import re
from collections.abc import Mapping

from sqlalchemy import Connection

from saisei.common.v1 import common_pb2
from saisei.control.v1 import access_pb2 as pb
from saisei.control.v1 import access_pb2_grpc as rpc
from saisei_contract.clock import Clock
from saisei_contract.errors import SaiseiError
from saisei_contract.grammar import format_ms, is_name
from saisei_contract.strict_json import MAX_INTEGER
from saisei_control.access import audit
from saisei_control.access.audit import OPERATOR, Deed
from saisei_control.access.rights import EVERY_SPACE, Caller, SpaceRights, merge_rights
from saisei_control.access.tokens import create_token, list_tokens, revoke_tokens, rotate_token
from saisei_control.api.callers import Callers, Context
from saisei_control.api.convert import principal_message
from saisei_control.store.store import Store
from saisei_service.credentials import require_service

_MAX_PRINCIPAL_CHARACTERS = 128
_MAX_SPACES = 1000
_MAX_OVERLAP_SECONDS = 604_800
_TOKEN_ID = re.compile(r"[0-9a-f]{16}\Z")


class AccessServicer(rpc.AccessServiceServicer):
    def __init__(self, callers: Callers, store: Store, clock: Clock, credential: str) -> None:
        self._callers = callers
        self._store = store
        self._clock = clock
        self._credential = credential

    async def Authenticate(self, request: pb.AuthenticateRequest, context: Context) -> pb.AuthenticateResponse:
        require_service(context, self._credential)
        return pb.AuthenticateResponse(principal=principal_message(await self._callers.authenticate(request.token)))

    async def CreateToken(self, request: pb.CreateTokenRequest, context: Context) -> pb.CreateTokenResponse:
        require_service(context, self._credential)
        rights = _rights(request.principal)
        expires = _expiry(request)
        now = self._clock.now_ms()
        name = request.principal.name

        def work(connection: Connection) -> str:
            audit.record(connection, Deed(OPERATOR, "token.create", detail=f"for {name}: {_shown(rights)}"), now)
            return create_token(connection, name, rights, now, expires)

        return pb.CreateTokenResponse(token=await self._store.write(work))

    async def RevokeTokens(self, request: pb.RevokeTokensRequest, context: Context) -> pb.RevokeTokensResponse:
        require_service(context, self._credential)
        now = self._clock.now_ms()
        token_id = _token_id(request.token_id) if request.HasField("token_id") else None

        def work(connection: Connection) -> int:
            revoked = revoke_tokens(connection, request.principal, now, token_id)
            detail = f"{revoked} of {request.principal[:_MAX_PRINCIPAL_CHARACTERS]}"
            audit.record(connection, Deed(OPERATOR, "token.revoke", detail=detail), now)
            return revoked

        revoked = await self._store.write(work)
        self._callers.forget()
        return pb.RevokeTokensResponse(revoked=revoked)

    async def RotateToken(self, request: pb.RotateTokenRequest, context: Context) -> pb.RotateTokenResponse:
        require_service(context, self._credential)
        now, token_id, expires = self._clock.now_ms(), _token_id(request.token_id), _expiry(request)
        if not 0 <= request.overlap_seconds <= _MAX_OVERLAP_SECONDS:
            raise SaiseiError("invalid_request", f"overlap_seconds must be from 0 to {_MAX_OVERLAP_SECONDS}")

        def work(connection: Connection) -> str:
            text, old = rotate_token(connection, token_id, now, request.overlap_seconds, expires)
            detail = f"{old.id} of {old.principal}, valid for {request.overlap_seconds} s more"
            audit.record(connection, Deed(OPERATOR, "token.rotate", detail=detail), now)
            return text

        token = await self._store.write(work)
        self._callers.forget()
        return pb.RotateTokenResponse(token=token)

    async def ListTokens(self, request: pb.ListTokensRequest, context: Context) -> pb.ListTokensResponse:
        require_service(context, self._credential)
        principal = request.principal if request.HasField("principal") else None
        found = await self._store.read(lambda connection: list_tokens(connection, principal))
        return pb.ListTokensResponse(
            tokens=[
                pb.Token(
                    id=token.id,
                    principal=principal_message(Caller(token.principal, token.rights)),
                    created_at=format_ms(token.created_at_ms),
                    expires_at=None if token.expires_at_ms is None else format_ms(token.expires_at_ms),
                    revoked_at=None if token.revoked_at_ms is None else format_ms(token.revoked_at_ms),
                )
                for token in found
            ]
        )


def _expiry(request: pb.CreateTokenRequest | pb.RotateTokenRequest) -> int | None:
    if not request.HasField("expires_in_seconds"):
        return None
    if not 1 <= request.expires_in_seconds <= MAX_INTEGER // 1000:
        raise SaiseiError("invalid_request", "expires_in_seconds must be at least 1; leave it out for no expiry")
    return request.expires_in_seconds


def _token_id(text: str) -> str:
    if not _TOKEN_ID.match(text):
        raise SaiseiError("invalid_request", "token_id must be the 16 hexadecimal digits that ListTokens shows")
    return text


def _shown(rights: Mapping[str, SpaceRights]) -> str:
    return " ".join(
        f"{space}:{','.join(name for name in ('read', 'write', 'use', 'admin') if getattr(value, name))}"
        for space, value in sorted(rights.items())
    )


def _rights(principal: common_pb2.Principal) -> dict[str, SpaceRights]:
    if not 1 <= len(principal.name) <= _MAX_PRINCIPAL_CHARACTERS or not principal.name.isprintable():
        raise SaiseiError("invalid_request", "the principal's name must have 1 to 128 printable characters")
    if len(principal.rights) > _MAX_SPACES:
        raise SaiseiError("invalid_request", f"a token names at most {_MAX_SPACES} Spaces")
    for entry in principal.rights:
        if entry.space != EVERY_SPACE and not is_name(entry.space):
            raise SaiseiError("invalid_request", "a Space is '*' or 1 to 128 characters of A-Z a-z 0-9 . _ -")
    return merge_rights(
        (entry.space, SpaceRights(entry.read, entry.write, entry.use, entry.admin)) for entry in principal.rights
    )
