"""Servers and channels that all services share."""

from __future__ import annotations

from pathlib import Path

from grpc_health.v1 import health_pb2, health_pb2_grpc

from saisei_service.rpc import RpcServer, UnixSocket, open_channel


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
