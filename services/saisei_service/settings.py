"""Settings that each service shares: environment variables `SAISEI_*`, or keyword arguments in tests."""

from __future__ import annotations

from pathlib import Path

import grpc
from pydantic import model_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

from saisei_service.credentials import load_or_create_service_credential
from saisei_service.tls import channel_credentials, listener_credentials


class ServiceSettings(BaseSettings):
    """Common to control, runtime and gateway. Empty addresses take the embedded default under `data_dir`."""

    model_config = SettingsConfigDict(env_prefix="SAISEI_", extra="ignore")

    data_dir: Path = Path(".saisei")
    service_credential_file: Path | None = None
    control_address: str = ""
    runtime_address: str = ""
    workers_domain: str = "workers.localhost"
    virtual_clock: bool = False
    preview_forms: bool = False
    log_level: str = "INFO"
    # gRPC over a network (design 1): this service's own certificate and key, for its `host:port` listeners and to show
    # to others; the authority of the other services' certificates; the authority that clients' must be of (mTLS).
    grpc_tls_cert_file: Path | None = None
    grpc_tls_key_file: Path | None = None
    grpc_tls_ca_file: Path | None = None
    grpc_tls_client_ca_file: Path | None = None

    @model_validator(mode="after")
    def _certificate_with_key(self) -> ServiceSettings:
        if (self.grpc_tls_cert_file is None) != (self.grpc_tls_key_file is None):
            raise ValueError("SAISEI_GRPC_TLS_CERT_FILE and SAISEI_GRPC_TLS_KEY_FILE come together")
        if self.grpc_tls_client_ca_file is not None and self.grpc_tls_cert_file is None:
            raise ValueError("SAISEI_GRPC_TLS_CLIENT_CA_FILE needs SAISEI_GRPC_TLS_CERT_FILE")
        return self

    def listener_credentials(self) -> grpc.ServerCredentials | None:
        """For `host:port` listeners; unix sockets take none."""
        return listener_credentials(self.grpc_tls_cert_file, self.grpc_tls_key_file, self.grpc_tls_client_ca_file)

    def channel_credentials(self) -> grpc.ChannelCredentials | None:
        """For `host:port` addresses of other services."""
        return channel_credentials(self.grpc_tls_ca_file, self.grpc_tls_cert_file, self.grpc_tls_key_file)

    def control(self) -> str:
        """gRPC address of the control service."""
        return self.control_address or f"unix:{self.data_dir.absolute()}/run/control.sock"

    def runtime(self) -> str:
        """gRPC address of the runtime service."""
        return self.runtime_address or f"unix:{self.data_dir.absolute()}/run/runtime.sock"

    def credential(self) -> str:
        """The service credential, made on the first start of an installation."""
        return load_or_create_service_credential(self.service_credential_file or self.data_dir / "service.key")


def listen_addresses(configured: str, default: str) -> list[str]:
    """A comma-separated list of addresses, or the default; folders of unix sockets are made (mode 0700)."""
    addresses = [part.strip() for part in configured.split(",") if part.strip()] or [default]
    for address in addresses:
        if address.startswith("unix:"):
            Path(address.removeprefix("unix:")).parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    return addresses
