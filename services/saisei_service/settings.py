"""Settings that each service shares: environment variables `SAISEI_*`, or keyword arguments in tests."""

from __future__ import annotations

from pathlib import Path

from pydantic_settings import BaseSettings, SettingsConfigDict

from saisei_service.credentials import load_or_create_service_credential


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
            path = Path(address.removeprefix("unix:"))
            path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            # A killed predecessor leaves its socket behind; only one service of a data folder may listen here.
            path.unlink(missing_ok=True)
    return addresses
