"""Limits that protect: rates, a Space's share, deadlines, TLS on the network; each over gRPC itself."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.rpc import error_details_pb2
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc
from grpc_status import rpc_status
from pydantic import ValidationError
from tests.control.kit import SPACE, Client, Kit, refused
from tests.support.pki import make_pki

from saisei.control.v1 import resources_pb2 as pb
from saisei.control.v1 import resources_pb2_grpc
from saisei_contract.errors import SaiseiError
from saisei_contract.forms import urls
from saisei_control.app import ControlApp
from saisei_control.operations import executor
from saisei_control.resources.gate import SpaceGate
from saisei_control.settings import ControlSettings
from saisei_service.credentials import user_metadata
from saisei_service.rpc import open_channel

WORKER = urls.MODULE_WORKER


async def test_rate_of_a_principal(kit: Kit) -> None:
    """H-024, H-180: too many calls of one principal end with rate_limited and when to come again; others go on."""
    await kit.reconfigure(rate_per_second=0.01, rate_burst=3)
    alice, again, bob = await kit.client("alice"), await kit.client("alice"), await kit.client("bob")
    for client in (alice, again, alice):
        await client.list()
    with pytest.raises(grpc.aio.AioRpcError) as failure:
        await again.resources.ListResources(pb.ListResourcesRequest(), metadata=again.metadata)
    assert failure.value.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
    info = error_details_pb2.ErrorInfo()
    assert rpc_status.from_call(failure.value).details[0].Unpack(info)
    assert info.reason == "rate_limited"
    assert int(info.metadata["retryAfterSeconds"]) > 0
    await bob.list()


def test_a_space_takes_its_share_only() -> None:
    """H-144, H-180: over its share a Space's mutation is refused before anything was done; other Spaces go on."""
    gate = SpaceGate(2)
    with gate.entered("a"), gate.entered("a"):
        with pytest.raises(SaiseiError) as failure, gate.entered("a"):
            raise AssertionError("entered")
        assert failure.value.reason == "rate_limited"
        with gate.entered("b"):
            pass
    with gate.entered("a"):
        pass
    assert not gate._inside


async def test_a_busy_space_leaves_room(kit: Kit, client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    """H-119: Operations that wait in one Space do not keep those of another from being carried out."""
    monkeypatch.setattr(executor, "MAX_IN_FLIGHT", 4)
    monkeypatch.setattr(executor, "MAX_IN_FLIGHT_OF_SPACE", 3)
    worker = await client.made(WORKER, "worker", {})
    kit.runtime.acknowledges = False
    for number in range(8):
        spec = {"worker": {"resourceUid": worker}, "className": f"Flow{number}"}
        await client.create(urls.DURABLE_WORKFLOW, f"flow-{number}", spec)
    other = await kit.client("bob", other="read,write")
    assert await other.made(WORKER, "one", {}, space="other")
    kit.runtime.acknowledges = True


async def test_a_deadline_is_honoured(kit: Kit, client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    """H-181, Issue 3: a call whose deadline passed before its turn is answered so, and what it asked was not done."""
    assert kit.app is not None
    entered, release = asyncio.Event(), asyncio.Event()
    loop = asyncio.get_running_loop()

    def hold(_: object) -> None:
        loop.call_soon_threadsafe(entered.set)
        asyncio.run_coroutine_threadsafe(release.wait(), loop).result()

    write, given_up = kit.app.store.write, asyncio.Event()

    async def watched(*job: Any) -> Any:
        try:
            return await write(*job)
        except asyncio.CancelledError:
            given_up.set()
            raise

    holding = asyncio.create_task(write(hold))
    await entered.wait()
    monkeypatch.setattr(kit.app.store, "write", watched)
    request = pb.CreateResourceRequest(
        idempotency_key="0123456789abcdef", form=WORKER, space=SPACE, name="late", spec_json="{}"
    )
    try:
        with pytest.raises(grpc.aio.AioRpcError) as failure:
            await client.resources.CreateResource(request, metadata=client.metadata, timeout=1)
        assert failure.value.code() == grpc.StatusCode.DEADLINE_EXCEEDED
        # The server cancels on its own clock; nothing tells the client when.
        await asyncio.wait_for(given_up.wait(), 30)
    finally:
        release.set()
        await holding
    assert not (await client.list()).items
    assert (await client.create(WORKER, "late", {}, key="0123456789abcdef")).generation == 1


async def test_health_and_reflection(kit: Kit) -> None:
    """Design 1: any gRPC client finds out what there is, and whether it serves."""
    health = await health_pb2_grpc.HealthStub(kit.channel).Check(
        health_pb2.HealthCheckRequest(service="saisei.control.v1.ResourceService")
    )
    assert health.status == health_pb2.HealthCheckResponse.SERVING
    request = reflection_pb2.ServerReflectionRequest(list_services="")
    call = reflection_pb2_grpc.ServerReflectionStub(kit.channel).ServerReflectionInfo(iter([request]))
    names = {service.name async for answer in call for service in answer.list_services_response.service}
    assert {
        f"saisei.control.v1.{name}Service" for name in ("Resource", "Operation", "Support", "ControlAdmin")
    } <= names


async def test_the_order_of_checks(client: Client) -> None:
    """H-004, H-006, H-020, H-035: over gRPC as over HTTP, the first failure answers and nothing changes."""
    await client.made(WORKER, "taken", {})
    unknown = "https://forms.test/None/1.0.0/"
    good = {"idempotency_key": "0123456789abcdef", "form": WORKER, "space": SPACE, "name": "one", "spec_json": "{}"}
    changes: list[tuple[dict[str, object], str]] = [
        ({"idempotency_key": "short"}, "invalid_request"),
        ({"spec_json": "{"}, "invalid_request"),
        ({"spec_json": "[]"}, "invalid_request"),
        ({"spec_json": '{"a":1,"a":2}'}, "invalid_request"),
        ({"form": "x"}, "invalid_request"),
        ({"space": "no space"}, "invalid_request"),
        ({"name": "a\n"}, "invalid_request"),
        ({"space": "other", "form": unknown}, "forbidden"),
        ({"form": unknown, "spec_json": '{"x":1}'}, "unsupported_form"),
        ({"private_inputs": pb.PrivateInputs()}, "capability_required"),
        ({"spec_json": '{"x":1}', "name": "taken"}, "invalid_spec"),
        ({"name": "taken"}, "name_conflict"),
    ]
    for change, reason in changes:
        call = client.call(client.resources.CreateResource, pb.CreateResourceRequest(**good | change))
        assert (await refused(call)).reason == reason, change
    assert [item.name for item in (await client.list()).items] == ["taken"]
    made = await client.call(client.resources.CreateResource, pb.CreateResourceRequest(**good))
    assert made.operation.generation == 1


async def test_a_network_listener_takes_tls(kit: Kit, tmp_path: Path) -> None:
    """Design 1, H-001: on a network, gRPC is TLS; with a clients' authority it takes known clients only (mTLS)."""
    await kit.stop()
    folder = tmp_path / "pki"
    folder.mkdir()
    pki = make_pki(folder)
    settings = kit.settings.model_copy(
        update={
            "control_listen": f"{kit.settings.control_listen},127.0.0.1:0",
            "grpc_tls_cert_file": pki.cert,
            "grpc_tls_key_file": pki.key,
            "grpc_tls_ca_file": pki.ca,
            "grpc_tls_client_ca_file": pki.ca,
        }
    )
    app = await ControlApp.open(settings)
    _, port = await app.start()
    try:
        token = await kit.token()
        stranger = settings.model_copy(
            update={"grpc_tls_cert_file": pki.other_cert, "grpc_tls_key_file": pki.other_key}
        )
        nameless = settings.model_copy(update={"grpc_tls_cert_file": None, "grpc_tls_key_file": None})
        for credentials, known in (
            (settings.channel_credentials(), True),
            (stranger.channel_credentials(), False),
            (nameless.channel_credentials(), False),
            (None, False),
        ):
            channel = open_channel(f"127.0.0.1:{port}", credentials)
            stub = resources_pb2_grpc.ResourceServiceStub(channel)
            call = stub.ListResources(pb.ListResourcesRequest(), metadata=user_metadata(token), timeout=10)
            if known:
                assert list((await call).items) == []
            else:
                with pytest.raises(grpc.aio.AioRpcError) as failure:
                    await call
                assert failure.value.code() == grpc.StatusCode.UNAVAILABLE
            await channel.close()
    finally:
        await app.stop()


def test_half_a_certificate_is_refused(tmp_path: Path) -> None:
    """Design 1: a certificate without its key never means a listener without TLS."""
    for half in (
        {"grpc_tls_cert_file": tmp_path / "a"},
        {"grpc_tls_key_file": tmp_path / "a"},
        {"grpc_tls_client_ca_file": tmp_path / "a"},
    ):
        with pytest.raises(ValidationError, match="SAISEI_GRPC_TLS"):
            ControlSettings(data_dir=tmp_path, **half)
    assert ControlSettings(data_dir=tmp_path).listener_credentials() is None
