"""gRPC to the control service with the service credential: for whoever operates the machine."""

from __future__ import annotations

import os
from pathlib import Path
from types import TracebackType
from typing import Any

import grpc

from saisei.control.v1 import admin_pb2, admin_pb2_grpc
from saisei_cli.connection import DEFAULT_DATA_DIR, dev_description
from saisei_cli.failures import CommandFailure
from saisei_service.credentials import service_metadata
from saisei_service.rpc_errors import from_rpc_error
from saisei_service.tls import channel_credentials

CALL_SECONDS = 10.0


def _path(variable: str) -> Path | None:
    value = os.environ.get(variable)
    return Path(value) if value else None


class OperatorCalls:
    """A connection to the control service at `unix:/path` or `host:port`, with TLS as SAISEI_GRPC_TLS_… says."""

    def __init__(self, control: str, credential_file: Path) -> None:
        try:
            credential = credential_file.read_text().strip()
            tls = channel_credentials(
                _path("SAISEI_GRPC_TLS_CA_FILE"), _path("SAISEI_GRPC_TLS_CERT_FILE"), _path("SAISEI_GRPC_TLS_KEY_FILE")
            )
        except OSError as error:
            raise CommandFailure(
                f"cannot read {error.filename}: {error.strerror}",
                "give the --data-dir of a saisei dev, or SAISEI_SERVICE_CREDENTIAL_FILE",
            ) from error
        self.metadata = service_metadata(credential)
        self._address = control
        if tls is None or control.startswith("unix:"):
            self.channel = grpc.insecure_channel(control)
        else:
            self.channel = grpc.secure_channel(control, tls)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.channel.close()

    def call(self, method: Any, request: Any) -> Any:
        """The answer; CommandFailure in words otherwise."""
        try:
            return method(request, metadata=self.metadata, timeout=CALL_SECONDS)
        except grpc.RpcError as error:
            raise self.failure(error) from error

    def failure(self, error: Any) -> CommandFailure:
        known = from_rpc_error(error)
        if known.reason == "backend_unavailable":
            return CommandFailure(f"the control service at {self._address} does not answer", "is saisei dev running?")
        return CommandFailure(str(known))


class Operator(OperatorCalls):
    """`ControlAdminService` of a control service."""

    def __init__(self, control: str, credential_file: Path) -> None:
        super().__init__(control, credential_file)
        self._stub: Any = admin_pb2_grpc.ControlAdminServiceStub(self.channel)

    def __enter__(self) -> Operator:
        return self

    def resolve(self, operation_id: str, outcome: Any, reason: str) -> Any:
        request = admin_pb2.ResolveOperationRequest(id=operation_id, outcome=outcome, reason=reason)
        return self.call(self._stub.ResolveOperation, request)

    def audit(self, **filters: Any) -> list[Any]:
        return list(self.call(self._stub.ListAudit, admin_pb2.ListAuditRequest(**filters)).entries)

    def rotate_sealing_key(self) -> Any:
        return self.call(self._stub.RotateSealingKey, admin_pb2.RotateSealingKeyRequest())


def control_of(data_dir: Path | None) -> tuple[str, Path]:
    """Address and credential file: of the environment, else of the running `saisei dev`, else the default ones."""
    folder = (data_dir or Path(os.environ.get("SAISEI_DATA_DIR", DEFAULT_DATA_DIR))).absolute()
    credential = Path(os.environ.get("SAISEI_SERVICE_CREDENTIAL_FILE", folder / "service.key"))
    address = os.environ.get("SAISEI_CONTROL_ADDRESS")
    if data_dir is not None or address is None:
        try:
            address = str(dev_description(folder)["grpc"]["control"])
        except CommandFailure:
            socket = folder / "run" / "control.sock"
            if not socket.exists():
                raise
            address = f"unix:{socket}"
    return address, credential
