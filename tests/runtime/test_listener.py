"""The runtime's listener on a network, beside a control service on the same one: both take known clients only."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import pytest
from sqlalchemy import select
from tests.control.kit import eventually
from tests.support.pki import Pki, make_pki

from saisei.control.v1 import access_pb2, access_pb2_grpc
from saisei.runtime.v1 import admin_pb2, admin_pb2_grpc, workflows_pb2, workflows_pb2_grpc
from saisei_control.app import ControlApp
from saisei_control.settings import ControlSettings
from saisei_control.store.schema import runtimes
from saisei_runtime.app import ReplicaLock, RuntimeApp
from saisei_runtime.settings import RuntimeSettings
from saisei_service.credentials import service_metadata, user_metadata
from saisei_service.rpc import open_channel
from saisei_service.rpc_errors import from_rpc_error


@dataclass
class Pair:
    pki: Pki
    control: ControlApp
    runtime: RuntimeSettings
    runtime_port: int
    control_port: int

    @property
    def as_service(self) -> Any:
        return service_metadata(self.runtime.credential())

    def channel(self, credentials: grpc.ChannelCredentials | None) -> grpc.aio.Channel:
        return open_channel(f"127.0.0.1:{self.runtime_port}", credentials)


@pytest.fixture
async def pair(tmp_path: Path) -> AsyncIterator[Pair]:
    folder = tmp_path / "pki"
    folder.mkdir()
    pki = make_pki(folder)
    shared: dict[str, Any] = {
        "data_dir": tmp_path,
        "grpc_tls_cert_file": pki.cert,
        "grpc_tls_key_file": pki.key,
        "grpc_tls_ca_file": pki.ca,
        "grpc_tls_client_ca_file": pki.ca,
    }
    control = await ControlApp.open(ControlSettings(**shared, control_listen="127.0.0.1:0"))
    (control_port,) = await control.start()
    settings = RuntimeSettings(
        **shared, control_address=f"127.0.0.1:{control_port}", runtime_listen="127.0.0.1:0", runtime_id="runtime-1"
    )
    with ReplicaLock(tmp_path / "run" / "runtime-1.lock") as lock:
        runtime = RuntimeApp(settings, lock.fd)
        (port,) = await runtime.start()
        try:
            yield Pair(pki, control, settings, port, control_port)
        finally:
            await runtime.stop()
            await control.stop()


async def test_the_runtime_listens_with_tls(pair: Pair) -> None:
    """Design 1, H-001: on a network the runtime takes TLS and, with a clients' authority, known clients only (mTLS)."""
    stranger = pair.runtime.model_copy(
        update={"grpc_tls_cert_file": pair.pki.other_cert, "grpc_tls_key_file": pair.pki.other_key}
    )
    nameless = pair.runtime.model_copy(update={"grpc_tls_cert_file": None, "grpc_tls_key_file": None})
    distrustful = pair.runtime.model_copy(update={"grpc_tls_ca_file": pair.pki.other_cert})
    for credentials, known in (
        (pair.runtime.channel_credentials(), True),
        (stranger.channel_credentials(), False),
        (nameless.channel_credentials(), False),
        (distrustful.channel_credentials(), False),
        (None, False),
    ):
        async with pair.channel(credentials) as channel:
            stub = admin_pb2_grpc.RuntimeAdminServiceStub(channel)
            call = stub.Observe(admin_pb2.ObserveRequest(workflow_uid="r-none"), metadata=pair.as_service, timeout=20)
            if known:
                assert not (await call).ready
            else:
                with pytest.raises(grpc.aio.AioRpcError) as failure:
                    await call
                assert failure.value.code() is grpc.StatusCode.UNAVAILABLE


async def test_a_known_client_still_needs_a_credential(pair: Pair) -> None:
    """H-044, Design 1: a certificate opens the connection; each call is judged by its token, which the runtime has the
    control service check over the same network.
    """
    control = open_channel(f"127.0.0.1:{pair.control_port}", pair.runtime.channel_credentials())
    async with control, pair.channel(pair.runtime.channel_credentials()) as channel:
        made = await access_pb2_grpc.AccessServiceStub(control).CreateToken(
            access_pb2.CreateTokenRequest(principal={"name": "alice", "rights": [{"space": "main", "read": True}]}),
            metadata=pair.as_service,
        )
        workflows = workflows_pb2_grpc.WorkflowServiceStub(channel)
        wanted = workflows_pb2.GetInstanceRequest(workflow_uid="r-none", id="one")

        async def refusal(metadata: Any) -> str:
            with pytest.raises(grpc.aio.AioRpcError) as failure:
                await workflows.GetInstance(wanted, metadata=metadata, timeout=20)
            return from_rpc_error(failure.value).reason

        assert await refusal(user_metadata("saisei_" + "x" * 43)) == "unauthenticated"
        assert await refusal(()) == "unauthenticated"
        assert await refusal(user_metadata(made.token)) == "not_found"
        admin = admin_pb2_grpc.RuntimeAdminServiceStub(channel)
        with pytest.raises(grpc.aio.AioRpcError) as failure:
            await admin.Observe(admin_pb2.ObserveRequest(workflow_uid="r"), metadata=user_metadata(made.token))
        assert from_rpc_error(failure.value).reason == "unauthenticated"


async def test_assignments_cross_the_network(pair: Pair) -> None:
    """Design 1, Design 4: the runtime is a live replica of a control service that it reaches over TLS alone."""

    async def known() -> bool:
        rows = await pair.control.store.read(lambda connection: connection.execute(select(runtimes)).all())
        return [row.runtime_id for row in rows] == ["runtime-1"]

    await eventually(known)
