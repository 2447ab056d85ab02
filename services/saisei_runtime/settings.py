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
    # Whether the kernel filters the system calls of the processes that run Workers, where it can.
    system_call_filter: bool = True
    # Whether Workers may `fetch` public addresses, and names that they may also reach inside (comma-separated).
    egress: bool = True
    egress_allowed_hosts: str = ""
    # Where `GET /metrics` answers, `host:port`; "": nowhere. For the operator's own network.
    runtime_metrics_listen: str = ""

    def allowed_hosts(self) -> frozenset[str]:
        return frozenset(name.strip().lower() for name in self.egress_allowed_hosts.split(",") if name.strip())

    def metrics_address(self) -> tuple[str, int] | None:
        """Host and port, or None. ValueError for what is no `host:port`."""
        if not self.runtime_metrics_listen:
            return None
        host, colon, port = self.runtime_metrics_listen.rpartition(":")
        if not colon or not port.isascii() or not port.isdigit():
            raise ValueError("SAISEI_RUNTIME_METRICS_LISTEN is host:port")
        return host.strip("[]"), int(port)

    def database_url(self) -> str:
        return self.runtime_database_url or f"sqlite:///{self.data_dir.absolute()}/runtime.db"
