"""`saisei.control.v1.AccessService`. Internal: takes the service credential."""

from __future__ import annotations

from saisei.common.v1 import common_pb2
from saisei.control.v1 import access_pb2 as pb
from saisei.control.v1 import access_pb2_grpc as rpc
from saisei_contract.clock import Clock
from saisei_contract.errors import SaiseiError
from saisei_contract.grammar import is_name
from saisei_contract.strict_json import MAX_INTEGER
from saisei_control.access.rights import EVERY_SPACE, SpaceRights, merge_rights
from saisei_control.access.tokens import create_token, revoke_tokens
from saisei_control.api.callers import Callers, Context
from saisei_control.api.convert import principal_message
from saisei_control.store.store import Store
from saisei_service.credentials import require_service

_MAX_PRINCIPAL_CHARACTERS = 128
_MAX_SPACES = 1000


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
        expires = request.expires_in_seconds if request.HasField("expires_in_seconds") else None
        if expires is not None and not 1 <= expires <= MAX_INTEGER // 1000:
            raise SaiseiError("invalid_request", "expires_in_seconds must be at least 1; leave it out for no expiry")
        now = self._clock.now_ms()
        token = await self._store.write(
            lambda connection: create_token(connection, request.principal.name, rights, now, expires)
        )
        return pb.CreateTokenResponse(token=token)

    async def RevokeTokens(self, request: pb.RevokeTokensRequest, context: Context) -> pb.RevokeTokensResponse:
        require_service(context, self._credential)
        now = self._clock.now_ms()
        revoked = await self._store.write(lambda connection: revoke_tokens(connection, request.principal, now))
        return pb.RevokeTokensResponse(revoked=revoked)


def _rights(principal: common_pb2.Principal) -> dict[str, SpaceRights]:
    if not 1 <= len(principal.name) <= _MAX_PRINCIPAL_CHARACTERS or not principal.name.isprintable():
        raise SaiseiError("invalid_request", "the principal's name must have 1 to 128 printable characters")
    if len(principal.rights) > _MAX_SPACES:
        raise SaiseiError("invalid_request", f"a token names at most {_MAX_SPACES} Spaces")
    for entry in principal.rights:
        if entry.space != EVERY_SPACE and not is_name(entry.space):
            raise SaiseiError("invalid_request", "a Space is '*' or 1 to 128 characters of A-Z a-z 0-9 . _ -")
    return merge_rights((entry.space, SpaceRights(entry.read, entry.write, entry.use)) for entry in principal.rights)
