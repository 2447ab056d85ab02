"""What the engine must know of Deployments, as a port: the newest assignments, in memory, without waiting."""

from __future__ import annotations

from typing import Protocol


class Allocations(Protocol):
    def pick(self, worker_uid: str) -> str | None:
        """The Version UID for one new context, at random by weight (WD-04); None without an active Deployment."""
        ...

    def selects(self, worker_uid: str, version_uid: str) -> bool:
        """Whether a context that begins now may be of that Version (W-084)."""
        ...

    @property
    def complete(self) -> bool:
        """Whether everything assigned is known: until then, what is missing here may exist all the same."""
        ...

    def workflow(self, workflow_uid: str) -> tuple[str, str, str] | None:
        """(Worker UID, class name, Space) of a workflow, or None when it is not known here."""
        ...
