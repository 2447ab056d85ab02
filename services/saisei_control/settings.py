"""Settings of the control service (`SAISEI_*`)."""

from __future__ import annotations

from pydantic import Field

from saisei_service.settings import ServiceSettings


class ControlSettings(ServiceSettings):
    """`control_id` is stable over restarts: a restarted replica takes up at once what its predecessor had leased.

    `public_origin`: origin of `{origin}/artifacts/v1/sha256/{digest}`; when empty, that path of any origin means bytes
    held here. `runtime_address` may list several replicas, comma-separated.
    """

    control_database_url: str = ""
    control_listen: str = ""
    control_id: str = Field(default="control-1", pattern=r"^[A-Za-z0-9._-]{1,64}$")
    public_origin: str = ""

    def database_url(self) -> str:
        return self.control_database_url or f"sqlite:///{self.data_dir.absolute()}/control.db"

    def runtimes(self) -> list[str]:
        return [part.strip() for part in self.runtime().split(",") if part.strip()]
