"""Credentials of a call: a user's bearer token or the service credential, both in the metadata key `authorization`."""

from __future__ import annotations

import hmac
import os
import secrets
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import grpc

from saisei_contract.errors import SaiseiError

SERVICE_SCHEME = "Service"
USER_SCHEME = "Bearer"

Metadata = tuple[tuple[str, str], ...]


# Says in a call's metadata that it carries a request of the Host API, whose idempotency keys are a scope of their own
# (H-149). It grants nothing.
_API = "saisei-api"
_HOST_API = "host"


def host_api_metadata(token: str) -> Metadata:
    """Of a user's request that came over the Host API."""
    return (*user_metadata(token), (_API, _HOST_API))


def is_host_api(context: grpc.aio.ServicerContext[Any, Any]) -> bool:
    metadata: Iterable[tuple[str, Any]] = context.invocation_metadata() or ()
    return any(key == _API and value == _HOST_API for key, value in metadata)


def user_metadata(token: str) -> Metadata:
    return (("authorization", f"{USER_SCHEME} {token}"),)


def service_metadata(credential: str) -> Metadata:
    return (("authorization", f"{SERVICE_SCHEME} {credential}"),)


def load_or_create_service_credential(path: Path) -> str:
    """Reads the shared secret of one installation, or makes it (mode 0600) on its first start."""
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        return path.read_text().strip()
    with os.fdopen(descriptor, "w") as file:
        credential = secrets.token_urlsafe(32)
        file.write(credential + "\n")
        file.flush()
        os.fsync(file.fileno())
    return credential


def _authorization(context: grpc.aio.ServicerContext[Any, Any]) -> tuple[str, str]:
    metadata: Iterable[tuple[str, Any]] = context.invocation_metadata() or ()
    values = [value for key, value in metadata if key == "authorization"]
    if len(values) != 1 or not isinstance(values[0], str):
        raise SaiseiError("unauthenticated", "send exactly one authorization metadata entry: Bearer <token>")
    scheme, _, credential = values[0].partition(" ")
    return scheme.lower(), credential.strip()


def bearer_token(context: grpc.aio.ServicerContext[Any, Any]) -> str:
    """The user token of the call; SaiseiError unauthenticated without one."""
    scheme, credential = _authorization(context)
    if scheme != USER_SCHEME.lower() or not credential:
        raise SaiseiError("unauthenticated", "this call takes a bearer token: authorization: Bearer <token>")
    return credential


def is_service(context: grpc.aio.ServicerContext[Any, Any], expected: str) -> bool:
    try:
        scheme, credential = _authorization(context)
    except SaiseiError:
        return False
    return scheme == SERVICE_SCHEME.lower() and hmac.compare_digest(credential.encode(), expected.encode())


def require_service(context: grpc.aio.ServicerContext[Any, Any], expected: str) -> None:
    """Refuses a call of an internal service that does not carry the service credential."""
    if not is_service(context, expected):
        raise SaiseiError("unauthenticated", "this is an internal call: it takes the service credential")
