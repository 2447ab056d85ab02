"""Tokens, over gRPC to the control service with the service credential: for whoever operates the machine."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

import grpc

from saisei.common.v1 import common_pb2
from saisei.control.v1 import access_pb2, access_pb2_grpc
from saisei_cli.failures import CommandFailure
from saisei_service.credentials import service_metadata
from saisei_service.rpc_errors import from_rpc_error

_CALL_SECONDS = 10.0


@dataclass(frozen=True, slots=True)
class SpaceGrant:
    """Rights in one Space, "*" for each. `write` includes use as a reference target (design 6)."""

    space: str
    read: bool
    write: bool

    @classmethod
    def parse(cls, text: str) -> SpaceGrant:
        """`S:read,write`; CommandFailure when it says anything else."""
        space, separator, rights_text = text.partition(":")
        rights = {right.strip() for right in rights_text.split(",")} if separator else set()
        if not space or not rights or not rights <= {"read", "write"}:
            raise CommandFailure(
                f"--space {text!r} is not a grant", "write SPACE:read, SPACE:write or SPACE:read,write"
            )
        return cls(space, read="read" in rights, write="write" in rights)


class Access:
    """A connection to `AccessService`. `control` is `unix:/path` or `host:port`."""

    def __init__(self, control: str, credential_file: Path) -> None:
        try:
            credential = credential_file.read_text().strip()
        except OSError as error:
            raise CommandFailure(
                f"cannot read the service credential {credential_file}: {error.strerror}",
                "give the --data-dir of a saisei dev, or SAISEI_SERVICE_CREDENTIAL_FILE",
            ) from error
        self._metadata = service_metadata(credential)
        self._address = control
        self._channel = grpc.insecure_channel(control)
        self._stub: Any = access_pb2_grpc.AccessServiceStub(self._channel)

    def __enter__(self) -> Access:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._channel.close()

    def is_valid(self, token: str) -> bool:
        try:
            self._stub.Authenticate(
                access_pb2.AuthenticateRequest(token=token), metadata=self._metadata, timeout=_CALL_SECONDS
            )
        except grpc.RpcError as error:
            if from_rpc_error(error).reason == "unauthenticated":  # type: ignore[arg-type]
                return False
            raise self._failure(error) from error
        return True

    def create_token(self, principal: str, grants: Iterable[SpaceGrant], expires_in_seconds: int | None = None) -> str:
        """Makes a token and returns its text, which can't be read again."""
        request = access_pb2.CreateTokenRequest(
            principal=common_pb2.Principal(
                name=principal,
                rights=[
                    common_pb2.SpaceRights(space=grant.space, read=grant.read, write=grant.write, use=grant.write)
                    for grant in grants
                ],
            )
        )
        if expires_in_seconds is not None:
            request.expires_in_seconds = expires_in_seconds
        try:
            answer = self._stub.CreateToken(request, metadata=self._metadata, timeout=_CALL_SECONDS)
        except grpc.RpcError as error:
            raise self._failure(error) from error
        return str(answer.token)

    def revoke_tokens(self, principal: str) -> int:
        """Ends each token of the principal at once; returns how many there were."""
        request = access_pb2.RevokeTokensRequest(principal=principal)
        try:
            answer = self._stub.RevokeTokens(request, metadata=self._metadata, timeout=_CALL_SECONDS)
        except grpc.RpcError as error:
            raise self._failure(error) from error
        return int(answer.revoked)

    def _failure(self, error: Any) -> CommandFailure:
        known = from_rpc_error(error)
        if known.reason == "backend_unavailable":
            return CommandFailure(f"the control service at {self._address} does not answer", "is saisei dev running?")
        return CommandFailure(str(known))
