"""Tokens, over gRPC to the control service with the service credential: for whoever operates the machine."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc

from saisei.common.v1 import common_pb2
from saisei.control.v1 import access_pb2, access_pb2_grpc
from saisei_cli.failures import CommandFailure
from saisei_cli.operator_calls import CALL_SECONDS, OperatorCalls
from saisei_service.rpc_errors import from_rpc_error


@dataclass(frozen=True, slots=True)
class SpaceGrant:
    """Rights in one Space, "*" for each. `write` includes use as a reference target (design 6)."""

    space: str
    read: bool
    write: bool
    admin: bool = False

    @classmethod
    def parse(cls, text: str) -> SpaceGrant:
        """`S:read,write`; CommandFailure when it says anything else."""
        space, separator, rights_text = text.partition(":")
        rights = {right.strip() for right in rights_text.split(",")} if separator else set()
        if not space or not rights or not rights <= {"read", "write", "admin"}:
            raise CommandFailure(
                f"--space {text!r} is not a grant",
                "write SPACE: and some of read, write, admin, for example SPACE:read,write",
            )
        return cls(space, read="read" in rights, write="write" in rights, admin="admin" in rights)


class Access(OperatorCalls):
    """`AccessService` of a control service."""

    def __init__(self, control: str, credential_file: Path) -> None:
        super().__init__(control, credential_file)
        self._stub: Any = access_pb2_grpc.AccessServiceStub(self.channel)

    def __enter__(self) -> Access:
        return self

    def is_valid(self, token: str) -> bool:
        try:
            self._stub.Authenticate(
                access_pb2.AuthenticateRequest(token=token), metadata=self.metadata, timeout=CALL_SECONDS
            )
        except grpc.RpcError as error:
            if from_rpc_error(error).reason == "unauthenticated":  # type: ignore[arg-type]
                return False
            raise self.failure(error) from error
        return True

    def create_token(self, principal: str, grants: Iterable[SpaceGrant], expires_in_seconds: int | None = None) -> str:
        """Makes a token and returns its text, which can't be read again."""
        request = access_pb2.CreateTokenRequest(
            principal=common_pb2.Principal(
                name=principal,
                rights=[
                    common_pb2.SpaceRights(
                        space=grant.space, read=grant.read, write=grant.write, use=grant.write, admin=grant.admin
                    )
                    for grant in grants
                ],
            ),
            expires_in_seconds=expires_in_seconds,
        )
        return str(self.call(self._stub.CreateToken, request).token)

    def rotate_token(self, token_id: str, overlap_seconds: int, expires_in_seconds: int | None = None) -> str:
        """A new token of the same principal; the old one ends after the overlap."""
        request = access_pb2.RotateTokenRequest(
            token_id=token_id, overlap_seconds=overlap_seconds, expires_in_seconds=expires_in_seconds
        )
        return str(self.call(self._stub.RotateToken, request).token)

    def tokens(self, principal: str | None) -> list[Any]:
        """`saisei.control.v1.Token` messages, oldest first."""
        request = access_pb2.ListTokensRequest(principal=principal)
        return list(self.call(self._stub.ListTokens, request).tokens)

    def revoke_tokens(self, principal: str, token_id: str | None = None) -> int:
        """Ends each token of the principal, or one, at once; returns how many there were."""
        request = access_pb2.RevokeTokensRequest(principal=principal, token_id=token_id)
        return int(self.call(self._stub.RevokeTokens, request).revoked)
