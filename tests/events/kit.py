"""The faces of event subscriptions, each as an async iterator of event objects that says how it ended."""

from __future__ import annotations

import asyncio
import json
import shutil
import ssl
import uuid
from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing
from pathlib import Path
from typing import Any

import grpc
import httpx
from tests.support.dev_host import DevHost

from saisei.common.v1.common_pb2 import Document
from saisei.runtime.v1 import workflows_pb2 as pb
from saisei.runtime.v1.admin_pb2 import ObserveRequest
from saisei.runtime.v1.admin_pb2_grpc import RuntimeAdminServiceStub
from saisei.runtime.v1.workflows_pb2_grpc import WorkflowServiceStub
from saisei_cli.deploy.apply import Deployed
from saisei_service.credentials import service_metadata, user_metadata
from saisei_service.rpc import open_channel

HERE = Path(__file__).parent
FACES = ("worker", "grpc", "sse", "ndjson")
HTTP_FACES = ("sse", "ndjson")
ENDINGS = ("workflow_completed", "workflow_errored", "workflow_terminated")
MEDIA_TYPES = {"sse": "text/event-stream", "ndjson": "application/x-ndjson"}

Event = dict[str, Any]


class StreamCutError(Exception):
    """The stream stopped and did not say that it was done."""


class Refused(Exception):  # noqa: N818 - the answer that a test asks for
    """Instead of a stream: `code` of the problem or reason of the RPC, `status` of HTTP or gRPC."""

    def __init__(self, status: Any, code: str) -> None:
        super().__init__(f"{status} {code}")
        self.status = status
        self.code = code


def app_folder(folder: Path) -> Path:
    """The app with the guide's examples: the first is a module; the others are bodies of functions."""
    shutil.copytree(HERE / "app", folder, dirs_exist_ok=True)
    guide = folder / "guide"
    guide.mkdir()
    shutil.copy(HERE / "guide" / "every-event.mjs", guide)
    for name, given in (
        ("filtered", "env, console"),
        ("resumed", "instance, lastProcessedEventId, processEvent, saveLastProcessedEventId"),
    ):
        text = (HERE / "guide" / f"{name}.txt").read_text()
        (guide / f"{name}.mjs").write_text(f"export async function {name}({given}) {{\n{text}\n}}\n")
    return folder


def new_id(what: str) -> str:
    return f"{what}-{uuid.uuid4().hex[:10]}"


class World:
    """One test's clients of a running Host. `uid` is the workflow `scenes`."""

    def __init__(self, host: DevHost, deployed: Deployed, *, token: str | None = None) -> None:
        assert deployed.hostname is not None
        self.host = host
        self.uid = deployed.workflows["scenes"]
        self.token = token or host.token
        self.hostname = deployed.hostname
        context = ssl.create_default_context(cafile=str(host.ready["caFile"]))
        self.http = httpx.AsyncClient(
            verify=context,
            trust_env=False,
            timeout=60,
            limits=httpx.Limits(max_connections=None),
            headers={"authorization": f"Bearer {self.token}"},
        )
        self._channel = open_channel(host.grpc_runtime)
        self.metadata = user_metadata(self.token)
        self.stub = WorkflowServiceStub(self._channel)
        self._admin = RuntimeAdminServiceStub(self._channel)

    async def close(self) -> None:
        await self.http.aclose()
        await self._channel.close()

    # --- instances ---

    async def create(self, instance_id: str, params: Any = None) -> str:
        document = None if params is None else Document(canonical_json=json.dumps(params).encode())
        await self.stub.CreateInstance(
            pb.CreateInstanceRequest(workflow_uid=self.uid, id=instance_id, params=document), metadata=self.metadata
        )
        return instance_id

    async def scene(self, what: str, *acts: Event, **rest: Any) -> str:
        """A new instance that performs `acts` and then completes with `rest`; its id."""
        return await self.create(new_id(what), {"acts": list(acts), **rest})

    async def send(self, instance_id: str, event_type: str = "go") -> None:
        request = pb.SendEventRequest(workflow_uid=self.uid, id=instance_id, type=event_type)
        await self.stub.SendEvent(request, metadata=self.metadata)

    async def terminate(self, instance_id: str) -> None:
        await self.stub.Terminate(pb.TerminateRequest(workflow_uid=self.uid, id=instance_id), metadata=self.metadata)

    async def status(self, instance_id: str) -> str:
        request = pb.GetInstanceRequest(workflow_uid=self.uid, id=instance_id)
        found = await self.stub.GetInstance(request, metadata=self.metadata)
        return pb.InstanceStatus.Name(found.status).removeprefix("INSTANCE_STATUS_").lower()

    async def until(self, instance_id: str, status: str) -> None:
        async def _reached() -> bool:
            return await self.status(instance_id) == status

        await eventually(_reached)

    async def open_subscriptions(self) -> int:
        """Of this workflow, in the runtime: one for each reader, but one for all readers of an instance over HTTP."""
        credential = (self.host.data_dir / "service.key").read_text().strip()
        answer = await self._admin.Observe(ObserveRequest(workflow_uid=self.uid), metadata=service_metadata(credential))
        return int(answer.open_subscriptions)

    async def open_streams(self) -> int:
        """Event streams of the gateway; 0 while it is away."""
        try:
            metrics = (await self.http.get(self.host.ready["adminUrl"] + "/metrics")).text
        except httpx.HTTPError:
            return 0
        name = 'saisei_gateway_open_streams{kind="events"} '
        return next((int(float(line.removeprefix(name))) for line in metrics.splitlines() if line.startswith(name)), 0)

    async def readers(self, face: str) -> int:
        """How many are subscribed through a face, when no other one is used."""
        return await (self.open_streams() if face in HTTP_FACES else self.open_subscriptions())

    async def nothing_open(self, within_seconds: float | None = None) -> None:
        """Until runtime and gateway hold nothing of any reader: tests run one after the other."""

        async def _none() -> bool:
            return await self.open_subscriptions() == 0 and await self.open_streams() == 0

        stopwatch = self.host.stopwatch()
        await eventually(_none)
        assert within_seconds is None or stopwatch.seconds() < within_seconds

    # --- faces ---

    def follow(
        self, face: str, instance_id: str, cursor: int | None = None, types: Sequence[str] | None = None
    ) -> AsyncIterator[Event]:
        """Events until the face says that it is done; StreamCutError when it stops otherwise, Refused without one."""
        match face:
            case "worker":
                return self._worker(instance_id, cursor, types)
            case "grpc":
                return self._grpc(instance_id, cursor, types)
            case _:
                return self._http(face, instance_id, cursor, types)

    async def read(
        self, face: str, instance_id: str, cursor: int | None = None, types: Sequence[str] | None = None
    ) -> list[Event]:
        """All of them."""
        async with asyncio.timeout(60), aclosing(self.follow(face, instance_id, cursor, types)) as events:  # type: ignore[type-var]
            return [event async for event in events]

    async def _grpc(self, instance_id: str, cursor: int | None, types: Sequence[str] | None) -> AsyncIterator[Event]:
        call = self.stub.SubscribeEvents(
            pb.SubscribeEventsRequest(
                workflow_uid=self.uid,
                id=instance_id,
                cursor=cursor or 0,
                filter=None if types is None else pb.EventFilter(types=types),
            ),
            metadata=self.metadata,
        )
        begun = False
        try:
            async for message in call:
                begun = True
                event = json.loads(message.event_json)
                # The fields of the message are those of the object.
                assert (message.event_id, message.type) == (event["eventId"], event["type"])
                assert (message.timestamp_ms, message.instance_id) == (event["timestamp"], event["instanceId"])
                yield event
        except grpc.aio.AioRpcError as error:
            if begun or error.code() is grpc.StatusCode.UNAVAILABLE:
                raise StreamCutError(str(error.code())) from error
            raise Refused(error.code(), error.details() or "") from error
        finally:
            call.cancel()

    def events_url(self, instance_id: str) -> str:
        return f"{self.host.ready['origin']}/apis/saisei/v1/workflows/{self.uid}/instances/{instance_id}/events"

    async def _http(
        self, face: str, instance_id: str, cursor: int | None, types: Sequence[str] | None
    ) -> AsyncIterator[Event]:
        query = {} if cursor is None else {"cursor": str(cursor)}
        if types is not None:
            query["filter"] = ",".join(types)
        async with aclosing(self.records(face, instance_id, query, {})) as records:
            async for record in records:
                if record["type"] != "heartbeat":
                    yield record

    async def records(
        self, face: str, instance_id: str, query: dict[str, str], headers: dict[str, str]
    ) -> AsyncIterator[Event]:
        """Events, and heartbeats as `{"type": "heartbeat"}`."""
        headers = {"accept": MEDIA_TYPES[face], **headers}
        try:
            async with self.http.stream("GET", self.events_url(instance_id), params=query, headers=headers) as response:
                if response.status_code != 200:
                    problem = json.loads(await response.aread())
                    raise Refused(response.status_code, problem["code"])
                assert response.headers["content-type"].startswith(MEDIA_TYPES[face])
                assert response.headers["cache-control"] == "no-store"
                assert response.headers["x-accel-buffering"] == "no"
                ended = False
                async for record in (_sse if face == "sse" else _ndjson)(response.aiter_lines()):
                    assert not ended, "a record after the end"
                    ended = record["type"] == "end"
                    if not ended:
                        yield record
        except httpx.HTTPError as error:
            raise StreamCutError(str(error)) from error
        if not ended:
            raise StreamCutError("no end record")

    async def _worker(self, instance_id: str, cursor: int | None, types: Sequence[str] | None) -> AsyncIterator[Event]:
        options = {key: value for key, value in (("cursor", cursor), ("filter", types)) if value is not None}
        query = {"id": instance_id} | ({"options": json.dumps(options)} if options else {})
        async with aclosing(self.worker_lines("/follow", query)) as lines:
            async for line in lines:
                yield line

    async def worker_lines(self, path: str, query: dict[str, str]) -> AsyncIterator[Event]:
        ended = False
        try:
            async with self.http.stream("GET", self._worker_url(path), params=query, **self._as_worker()) as response:
                if response.status_code != 200:
                    raise Refused(response.status_code, "worker")
                async for record in _ndjson(response.aiter_lines()):
                    if record["type"] == "error":
                        raise StreamCutError(record["name"])
                    ended = record["type"] == "end"
                    if ended:
                        assert record == {"type": "end", "hasValue": False}
                    else:
                        yield record
        except httpx.HTTPError as error:
            raise StreamCutError(str(error)) from error
        if not ended:
            raise StreamCutError("no end")

    async def worker(self, path: str, **query: str) -> Any:
        """What a route of the app answers as JSON."""
        response = await self.http.get(self._worker_url(path), params=query, **self._as_worker())
        assert response.status_code == 200, response.text
        return response.json()

    def _worker_url(self, path: str) -> str:
        return self.host.ready["origin"] + path

    def _as_worker(self) -> dict[str, Any]:
        return {"headers": {"host": self.hostname}, "extensions": {"sni_hostname": self.hostname}}


async def _sse(lines: AsyncIterator[str]) -> AsyncIterator[Event]:
    block: dict[str, str] = {}
    async for line in lines:
        if line.startswith(":"):
            yield {"type": "heartbeat"}
        elif line:
            key, _, value = line.partition(": ")
            block[key] = value
        elif block:
            record = json.loads(block["data"])
            assert block["event"] == record["type"]
            # A browser sends back the newest id that it saw: `end` has none.
            assert block.get("id") == (None if record["type"] == "end" else str(record["eventId"]))
            yield record
            block = {}


async def _ndjson(lines: AsyncIterator[str]) -> AsyncIterator[Event]:
    async for line in lines:
        yield json.loads(line) if line else {"type": "heartbeat"}


async def eventually(check: Any, within_seconds: float = 30.0) -> None:
    """Polls `await check()` until it is true."""
    async with asyncio.timeout(within_seconds):
        while not await check():
            await asyncio.sleep(0.02)


def types_of(events: list[Event]) -> list[str]:
    return [event["type"] for event in events]


def ids_of(events: list[Event]) -> list[int]:
    return [event["eventId"] for event in events]
