"""Settings of the runtime service (`SAISEI_*`)."""

from __future__ import annotations

from saisei_service.settings import ServiceSettings


class RuntimeSettings(ServiceSettings):
    """`runtime_id` is stable over restarts: it names the replica in leases and acknowledgements."""

    runtime_database_url: str = ""
    runtime_listen: str = ""
    runtime_id: str = "runtime-1"
    # Workflow contexts at once, over all Workers, and for one Worker (each is a thread of its Node process).
    max_contexts: int = 64
    max_contexts_per_worker: int = 32
    # Whether Workers may `fetch` public addresses, and names that they may also reach inside (comma-separated).
    egress: bool = True
    egress_allowed_hosts: str = ""

    def allowed_hosts(self) -> frozenset[str]:
        return frozenset(name.strip().lower() for name in self.egress_allowed_hosts.split(",") if name.strip())

    def database_url(self) -> str:
        return self.runtime_database_url or f"sqlite:///{self.data_dir.absolute()}/runtime.db"
