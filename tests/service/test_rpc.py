"""Servers and channels that all services share."""

from __future__ import annotations

import asyncio
from pathlib import Path

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from saisei.control.v1 import resources_pb2, resources_pb2_grpc
from saisei_contract.errors import SaiseiError
from saisei_service.rpc import RpcServer, UnixSocket, open_channel
from saisei_service.rpc_errors import from_rpc_error


async def _answers(address: str) -> bool:
    async with open_channel(address) as channel:
        stub = health_pb2_grpc.HealthStub(channel)
        answer = await stub.Check(health_pb2.HealthCheckRequest(), wait_for_ready=True, timeout=10)
        return answer.status == health_pb2.HealthCheckResponse.SERVING


async def test_a_departing_server_leaves_its_successors_socket_alone(tmp_path: Path) -> None:
    """Design 1: a service that starts while its predecessor ends is reached under the one address for good."""
    path = tmp_path / "a.sock"
    address = f"unix:{path}"
    old, new = RpcServer(), RpcServer()
    await old.start([address])
    assert await _answers(address)
    await new.start([address])
    shown = path.stat().st_ino
    await old.stop(0)
    del old
    assert path.stat().st_ino == shown
    assert await _answers(address)
    await new.stop(0)
    assert list(tmp_path.iterdir()) == []


async def test_a_killed_servers_socket_is_replaced(tmp_path: Path) -> None:
    """Design 1: the file that a killed service left behind hinders no start."""
    path = tmp_path / "a.sock"
    path.write_bytes(b"")
    server = RpcServer()
    await server.start([f"unix:{path}"])
    assert await _answers(f"unix:{path}")
    await server.stop(0)


def test_what_is_no_longer_ours_is_not_withdrawn(tmp_path: Path) -> None:
    """Design 1: a socket file is removed by the server that made it only."""
    first, second = UnixSocket(tmp_path / "a.sock"), UnixSocket(tmp_path / "a.sock")
    for socket in (first, second):
        socket.draft.write_bytes(b"")
        socket.publish()
    first.withdraw()
    assert (tmp_path / "a.sock").exists()
    second.withdraw()
    second.withdraw()
    assert not (tmp_path / "a.sock").exists()


async def test_a_server_that_is_slow_to_answer_is_waited_for(tmp_path: Path) -> None:
    """Design 1: a connection that is not answered at once, by a process that is busy, fails no call."""
    server, address = RpcServer(), f"unix:{tmp_path / 'a.sock'}"
    await server.start([address])
    relays: set[asyncio.Task[None]] = set()

    async def copy(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
        while data := await source.read(65536):
            target.write(data)

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await asyncio.sleep(0.6)
        far_reader, far_writer = await asyncio.open_unix_connection(tmp_path / "a.sock")
        relays.update(asyncio.create_task(each) for each in (copy(reader, far_writer), copy(far_reader, writer)))

    busy = await asyncio.start_unix_server(accept, tmp_path / "busy.sock")
    try:
        async with open_channel(f"unix:{tmp_path / 'busy.sock'}") as channel:
            stub = health_pb2_grpc.HealthStub(channel)
            answer = await stub.Check(health_pb2.HealthCheckRequest(), timeout=30)
        assert answer.status == health_pb2.HealthCheckResponse.SERVING
    finally:
        for relay in relays:
            relay.cancel()
        busy.close()
        await server.stop(0)


async def test_an_address_that_cannot_be_bound_fails_the_start(tmp_path: Path) -> None:
    """Design 1: a service does not run on without its listener."""
    server = RpcServer()
    try:
        await server.start([f"unix:{tmp_path / 'missing' / 'a.sock'}"])
    except RuntimeError:
        return
    finally:
        await server.server.stop(0)
    raise AssertionError("started without a listener")


class _Failing(resources_pb2_grpc.ResourceServiceServicer):
    async def GetResource(  # noqa: N802 - the rpc's name
        self, request: resources_pb2.GetResourceRequest, context: object
    ) -> resources_pb2.Resource:
        if request.uid == "known":
            raise SaiseiError("gone", "It was deleted.", {"operationId": "op-1"})
        raise RuntimeError("the database's password is hunter2")


async def test_a_servicers_errors_cross_in_one_form(tmp_path: Path) -> None:
    """Design 1: a SaiseiError is a Status with its reason, words and metadata; anything else says nothing of inside."""
    server = RpcServer()
    add = resources_pb2_grpc.add_ResourceServiceServicer_to_server
    server.register(add, _Failing(), "saisei.control.v1.ResourceService")
    address = f"unix:{tmp_path / 'a.sock'}"
    await server.start([address])
    try:
        async with open_channel(address) as channel:
            stub = resources_pb2_grpc.ResourceServiceStub(channel)
            with pytest.raises(grpc.aio.AioRpcError) as known:
                await stub.GetResource(resources_pb2.GetResourceRequest(uid="known"))
            error = from_rpc_error(known.value)
            assert (error.reason, error.detail, error.metadata) == ("gone", "It was deleted.", {"operationId": "op-1"})
            with pytest.raises(grpc.aio.AioRpcError) as unknown:
                await stub.GetResource(resources_pb2.GetResourceRequest(uid="x"))
            assert from_rpc_error(unknown.value).reason == "internal_error"
            assert "hunter2" not in str(unknown.value)
            # A method that the servicer lacks, and a service that nobody added.
            with pytest.raises(grpc.aio.AioRpcError) as missing:
                await stub.ListResources(resources_pb2.ListResourcesRequest())
            assert missing.value.code() in {grpc.StatusCode.UNIMPLEMENTED, grpc.StatusCode.INTERNAL}
            with pytest.raises(grpc.aio.AioRpcError) as nobody:
                await resources_pb2_grpc.OperationServiceStub(channel).GetOperation(resources_pb2.GetOperationRequest())
            assert nobody.value.code() is grpc.StatusCode.UNIMPLEMENTED
    finally:
        await server.stop(0)
