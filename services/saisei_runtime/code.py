"""What a WorkerVersion is to the runtime: modules, environment and nothing that could be resolved again by name."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Protocol


class BindingKind(Enum):
    KV = "kv"
    SQLITE = "sqlite"
    BUCKET = "bucket"
    QUEUE = "queue"
    SERVICE = "service"
    ACTOR = "actor"
    WORKFLOW = "workflow"


@dataclass(frozen=True, slots=True)
class Binding:
    """One key of `env` and the Resource UID it is pinned to (F-02)."""

    name: str
    kind: BindingKind
    resource_uid: str


@dataclass(frozen=True, slots=True)
class Module:
    """One importable file of a bundle (MW-11)."""

    media_type: str
    data: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class WorkerCode:
    """Everything a context of one WorkerVersion needs. Immutable for the life of the Version UID."""

    version_uid: str
    worker_uid: str
    entrypoint: str
    modules: Mapping[str, Module] = field(repr=False)
    handlers: frozenset[str] = frozenset()
    # Canonical JSON object of the non-secret variables.
    vars_json: bytes = b"{}"
    secrets: Mapping[str, str] = field(default_factory=dict, repr=False)
    bindings: tuple[Binding, ...] = ()


class CodeSource(Protocol):
    async def load(self, version_uid: str) -> WorkerCode:
        """The code of an assigned Version; SaiseiError backend_unavailable when it cannot be had now."""
        ...
