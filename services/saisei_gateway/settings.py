"""Settings of the gateway (`SAISEI_*`)."""

from __future__ import annotations

import re
from pathlib import Path

from pydantic import Field, field_validator

from saisei_contract.grammar import is_https_url
from saisei_service.settings import ServiceSettings

HOST_API_ROOT = "/apis/forms.takoform.com/v2"
_AUTHORITY = re.compile(r"https://[^/]+\Z")


class GatewaySettings(ServiceSettings):
    """Addresses are `host:port`, IPv6 hosts in brackets. The certificate covers the origin and the Endpoints."""

    gateway_listen: str = "127.0.0.1:8443"
    tls_cert_file: Path
    tls_key_file: Path
    # Scheme, host and port as clients see them; every URL that the Host hands out begins with it (H-041).
    public_origin: str = "https://localhost:8443"
    # Port 0: no admin port.
    admin_listen: str = "127.0.0.1:0"
    # Where people read how to use and to authenticate to this Host (H-042). Empty: the OpenAPI document of this origin.
    documentation_url: str = ""
    # Requests of one principal, on top of what the control service allows; over it they are 429. 0 a second: no limit.
    rate_per_second: float = Field(default=2000.0, ge=0)
    rate_burst: int = Field(default=4000, ge=1)
    heartbeat_seconds: float = 15.0
    # Static assets of at most 1 MiB that stay in memory, all Workers' together; those used last stay longest.
    asset_memory_bytes: int = Field(default=64 * 1024 * 1024, ge=0)
    # How long open exchanges may go on after SIGTERM; event streams are closed at once.
    shutdown_seconds: int = 5

    @field_validator("public_origin")
    @classmethod
    def _origin(cls, value: str) -> str:
        if value != value.lower() or not _AUTHORITY.match(value) or not is_https_url(value):
            raise ValueError("must be https://host or https://host:port in lower case, without a path")
        return value

    @field_validator("documentation_url")
    @classmethod
    def _documentation(cls, value: str) -> str:
        if value and not value.startswith("https://"):
            raise ValueError("must be an absolute https URL")
        return value

    @property
    def base_url(self) -> str:
        """What discovery publishes, without a trailing slash (H-041)."""
        return self.public_origin + HOST_API_ROOT

    @property
    def documentation(self) -> str:
        return self.documentation_url or f"{self.public_origin}/openapi.json"

    @property
    def origin_hostname(self) -> str:
        """The origin's host without its port: a request for any other one is for a Worker."""
        return hostname_of(self.public_origin.removeprefix("https://"))


def hostname_of(authority: str) -> str:
    """Host of `host[:port]`, lower-case, without the root dot."""
    host = authority[: authority.index("]") + 1] if authority.startswith("[") and "]" in authority else authority
    if not host.startswith("["):
        host = host.partition(":")[0]
    return host.lower().removesuffix(".")


def split_address(address: str) -> tuple[str, int]:
    """`host:port` as a pair, brackets of IPv6 removed; ValueError otherwise."""
    host, separator, port = address.rpartition(":")
    if not separator or not port.isascii() or not port.isdigit() or int(port) > 65535:
        raise ValueError(f"{address!r} is not host:port")
    return host.removeprefix("[").removesuffix("]"), int(port)
