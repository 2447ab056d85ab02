"""Settings of the control service (`SAISEI_*`)."""

from __future__ import annotations

import importlib
from pathlib import Path

from pydantic import Field

from saisei_control.artifacts.sources import Sources, load_origins
from saisei_control.secrets.keys import FileKeyRing, KeyRing
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
    # `package.module:callable` of an own provider of sealing keys (see secrets/keys.py), called without arguments;
    # empty: {data}/seal.key.
    sealing_key_ring: str = ""
    # TOML or JSON with the Offerings of this Host (H-060 … H-063); absent: it advertises none.
    offerings_file: Path | None = None
    # Whether artifacts are fetched from public addresses, and TOML with the private origins that they may also come
    # from (see artifacts/sources.py); absent: none.
    artifact_fetch: bool = True
    artifact_origins_file: Path | None = None
    # TOML with the OpenID Connect providers whose tokens are taken (see access/oidc.py); absent: none.
    oidc_file: Path | None = None
    # Calls of one principal; over it they are refused with rate_limited. 0 a second: no limit.
    rate_per_second: float = Field(default=2000.0, ge=0)
    rate_burst: int = Field(default=4000, ge=1)
    # Mutations of one Space that may be in acceptance at once; more are refused with rate_limited.
    space_concurrency: int = Field(default=256, ge=1)
    # How long entries of the audit log are kept.
    audit_days: int = Field(default=400, ge=1)

    def key_ring(self) -> KeyRing:
        if not self.sealing_key_ring:
            return FileKeyRing(self.data_dir / "seal.key")
        module, _, name = self.sealing_key_ring.partition(":")
        ring: KeyRing = getattr(importlib.import_module(module), name)()
        return ring

    def sources(self) -> Sources:
        private = () if self.artifact_origins_file is None else load_origins(self.artifact_origins_file)
        return Sources(public=self.artifact_fetch, private=private)

    def database_url(self) -> str:
        return self.control_database_url or f"sqlite:///{self.data_dir.absolute()}/control.db"

    def runtimes(self) -> list[str]:
        return [part.strip() for part in self.runtime().split(",") if part.strip()]
