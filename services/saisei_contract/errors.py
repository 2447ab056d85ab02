"""Every error that a client can meet, once: reason ⇄ HTTP status ⇄ gRPC code (H-180, contract 3.4).

A reason is what a program reads: the `code` of an HTTP problem, the `reason` of a gRPC `ErrorInfo`, the `name` of an
Error inside a Worker. The message is for people: it says what was wrong, where, and what to do, and carries nothing
internal or secret (H-182).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum

ERROR_DOMAIN = "saisei"


class GrpcCode(IntEnum):
    """The numbers of `grpc.StatusCode`, so that this package needs no gRPC."""

    OK = 0
    INVALID_ARGUMENT = 3
    DEADLINE_EXCEEDED = 4
    NOT_FOUND = 5
    ALREADY_EXISTS = 6
    PERMISSION_DENIED = 7
    RESOURCE_EXHAUSTED = 8
    FAILED_PRECONDITION = 9
    ABORTED = 10
    OUT_OF_RANGE = 11
    UNIMPLEMENTED = 12
    INTERNAL = 13
    UNAVAILABLE = 14
    UNAUTHENTICATED = 16


@dataclass(frozen=True, slots=True)
class ErrorKind:
    """One row of the table."""

    reason: str
    http_status: int
    title: str
    grpc_code: GrpcCode


def _kinds() -> dict[str, ErrorKind]:
    g = GrpcCode
    rows = [
        ("invalid_request", 400, "The request is not well-formed", g.INVALID_ARGUMENT),
        ("unauthenticated", 401, "The credential is missing or not valid", g.UNAUTHENTICATED),
        ("forbidden", 403, "The principal may not do this", g.PERMISSION_DENIED),
        ("not_found", 404, "There is no such thing, or it is not visible to the caller", g.NOT_FOUND),
        ("capability_unavailable", 404, "This Host does not offer the capability", g.UNIMPLEMENTED),
        ("method_not_allowed", 405, "The path does not know this method", g.UNIMPLEMENTED),
        ("name_conflict", 409, "The name is taken in this Space", g.ALREADY_EXISTS),
        ("generation_conflict", 409, "The expected generation is not the current one", g.ABORTED),
        ("resource_busy", 409, "An earlier mutation of the Resource is unfinished", g.ABORTED),
        ("idempotency_conflict", 409, "The idempotency key belongs to another request", g.ALREADY_EXISTS),
        ("offering_changed", 409, "The Offering is not the current one", g.FAILED_PRECONDITION),
        ("dependency_conflict", 409, "Other Resources do not allow this", g.FAILED_PRECONDITION),
        ("private_inputs_conflict", 409, "The private inputs differ from the original ones", g.FAILED_PRECONDITION),
        ("private_inputs_unverifiable", 409, "The private inputs can no longer be compared", g.FAILED_PRECONDITION),
        ("operation_terminal", 409, "The Operation has ended", g.FAILED_PRECONDITION),
        ("cursor_expired", 409, "The cursor has expired", g.OUT_OF_RANGE),
        ("gone", 410, "The Resource was deleted", g.NOT_FOUND),
        ("request_too_large", 413, "The request is too large", g.RESOURCE_EXHAUSTED),
        ("unsupported_media_type", 415, "The media type is not supported", g.INVALID_ARGUMENT),
        ("unsupported_form", 422, "This Host does not support the Form", g.UNIMPLEMENTED),
        ("invalid_spec", 422, "The spec breaks a rule of its Form", g.INVALID_ARGUMENT),
        ("capability_required", 422, "The request needs a capability that is not offered", g.FAILED_PRECONDITION),
        ("expected_generation_required", 428, "The expected generation is missing", g.FAILED_PRECONDITION),
        ("rate_limited", 429, "Too many requests", g.RESOURCE_EXHAUSTED),
        ("internal_error", 500, "The Host failed", g.INTERNAL),
        ("temporarily_unavailable", 503, "The Host cannot answer now", g.UNAVAILABLE),
        # Bindings and instances (contract 3.4; design 6 fixes the HTTP statuses).
        ("unknown_instance", 404, "There is no such instance", g.NOT_FOUND),
        ("instance_exists", 409, "The instance id is taken", g.ALREADY_EXISTS),
        ("instance_terminal", 409, "The instance has ended", g.FAILED_PRECONDITION),
        ("event_queue_full", 409, "The instance's event queue is full", g.RESOURCE_EXHAUSTED),
        ("invalid_params", 422, "The document breaks a rule of documents", g.INVALID_ARGUMENT),
        ("document_too_large", 413, "The document is over 1,048,576 canonical bytes", g.OUT_OF_RANGE),
        ("backend_unavailable", 503, "The backend cannot take this now", g.UNAVAILABLE),
    ]
    return {row[0]: ErrorKind(*row) for row in rows}


ERROR_KINDS: dict[str, ErrorKind] = _kinds()


@dataclass(eq=False)
class SaiseiError(Exception):
    """A refusal or failure that may be shown to the client as it is.

    `reason` is a key of ERROR_KINDS. `detail` is one or two plain sentences. `metadata` holds public strings for
    programs, such as `operationId`; it never holds secrets or foreign data.
    """

    reason: str
    detail: str = ""
    metadata: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.reason not in ERROR_KINDS:
            raise ValueError(f"{self.reason!r} is not a reason of the error table")
        super().__init__(self.reason, self.detail)

    @property
    def kind(self) -> ErrorKind:
        return ERROR_KINDS[self.reason]

    def __str__(self) -> str:
        return f"{self.reason}: {self.detail or self.kind.title}"
