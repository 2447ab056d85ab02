"""Resources, Operations, Support and Discovery as values (contract 1.4, 1.5, 1.7, 1.11).

Times are epoch milliseconds.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Phase(Enum):
    """H-074. No phase means that the application works."""

    PENDING = "pending"
    IDLE = "idle"
    DELETING = "deleting"
    ERROR = "error"


class Action(Enum):
    CREATE = "create"
    UPDATE = "update"
    DELETE = "delete"


class OperationStatus(Enum):
    """H-111. `succeeded` and `failed` are terminal."""

    QUEUED = "queued"
    RUNNING = "running"
    WAITING_INPUT = "waiting_input"
    RECONCILING = "reconciling"
    SUCCEEDED = "succeeded"
    FAILED = "failed"

    @property
    def is_terminal(self) -> bool:
        return self in {OperationStatus.SUCCEEDED, OperationStatus.FAILED}


class Effect(Enum):
    """What is known of the managed thing, Host records aside (H-115)."""

    NONE = "none"
    UNKNOWN = "unknown"
    PARTIAL = "partial"
    COMPLETE = "complete"


class InputReason(Enum):
    """Why private inputs are asked for again (H-114)."""

    EXPIRED = "expired"
    UNAVAILABLE = "unavailable"


@dataclass(frozen=True, slots=True)
class Offering:
    id: str
    revision: str


@dataclass(frozen=True, slots=True)
class OfferingRecord:
    """H-062: one entry of the list that a create chooses from."""

    id: str
    revision: str
    form: str
    label: str
    description: str
    terms_url: str | None = None


@dataclass(frozen=True, slots=True)
class ResourceRecord:
    """H-070.

    `spec_json`, `observed_json` and `output_json` are JSON texts of objects, numbers as they came (H-076, H-077).
    """

    uid: str
    form: str
    space: str
    name: str
    generation: int
    observed_generation: int
    observed_at_ms: int | None
    phase: Phase
    spec_json: str
    observed_json: str
    output_json: str
    last_operation: str
    offering: Offering | None = None


@dataclass(frozen=True, slots=True)
class OperationFailure:
    """Stable code and a sentence for people; never backend text, a stack or a secret (H-113)."""

    code: str
    message: str


@dataclass(frozen=True, slots=True)
class OperationWarning:
    """What could not be established although nothing is known to be wrong (WD-10). Code and sentence, as above."""

    code: str
    message: str


@dataclass(frozen=True, slots=True)
class InputRequired:
    """The names that a replenishment must give, all of them from the original request (H-114)."""

    names: tuple[str, ...]
    reason: InputReason


@dataclass(frozen=True, slots=True)
class OperationRecord:
    """H-110 … H-114. `warnings` is this Host's own addition (H-013)."""

    id: str
    resource_uid: str
    action: Action
    generation: int
    status: OperationStatus
    effect: Effect
    created_at_ms: int
    updated_at_ms: int
    retain_until_ms: int
    error: OperationFailure | None = None
    input_required: InputRequired | None = None
    warnings: tuple[OperationWarning, ...] = ()


@dataclass(frozen=True, slots=True)
class SupportRecord:
    """H-050 … H-054. `form` is the asked one, letter for letter."""

    form: str
    supported: bool
    private_inputs: bool


@dataclass(frozen=True, slots=True)
class DiscoveryRecord:
    """H-040 … H-043."""

    base_url: str
    documentation: str
    authentication_schemes: tuple[str, ...]
    authentication_documentation: str
    offerings: bool
    previews: bool
    private_inputs: bool
    max_request_bytes: int
    max_page_size: int
    replay_window_seconds: int
