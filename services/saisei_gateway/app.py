"""The gateway as an ASGI application: which route a request is for, who calls, and one form for every failure.

Starlette's requests and responses on uvicorn (uvloop, httptools). Paths are matched here and not by Starlette's router,
which decodes them first and so could not tell an instance id with a slash from two segments.

Granian 2.8 was measured beside uvicorn 0.54 (TLS, one process, 2 shared cores): 31 µs CPU for a small answer against
39, 5.2 µs for a server-sent event against 5.7, 76 MB against 33. uvicorn stays: a request costs ten times that in gRPC,
and it runs in our event loop, lets us answer malformed HTTP with a problem, bound heads, and end streams on a stop.

The order of checks is H-035: route, method, credential, permission class; the handlers go on with query, headers, body.
"""

from __future__ import annotations

import logging
import time
from typing import Any

from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

from saisei_contract.errors import SaiseiError
from saisei_contract.rate import RateLimit
from saisei_gateway import artifacts, clock, events_sse, workflows
from saisei_gateway.access import Permission
from saisei_gateway.calls import Call, Gateway
from saisei_gateway.host_api import offerings, operations, previews, resources, support
from saisei_gateway.host_api.discovery import discovery_response
from saisei_gateway.host_api.request import read_query
from saisei_gateway.host_api.respond import host_error, json_response, problem_response
from saisei_gateway.openapi import document
from saisei_gateway.routes import Area, Capability, Endpoint, Handler, Route, RouteTable
from saisei_gateway.settings import HOST_API_ROOT, hostname_of
from saisei_gateway.traffic import Exchange, authority_of

log = logging.getLogger(__name__)

CLOCK = "/test/v1/clock:advance"
INSTANCES = "/apis/saisei/v1/workflows/{uid}/instances"


_NO_CLOCK = "This Host runs by the machine's clock: only one that was started with --virtual-clock can be advanced."


def _reads(handler: Handler) -> Endpoint:
    return Endpoint(handler, Permission.READ)


def _writes(handler: Handler) -> Endpoint:
    return Endpoint(handler, Permission.WRITE)


async def _discovery(call: Call) -> Response:
    read_query(call.request)
    return await discovery_response(call.gateway.terms)


async def _openapi(call: Call) -> Response:
    read_query(call.request)
    return json_response(
        document(call.gateway.settings.public_origin, virtual_clock=call.gateway.settings.virtual_clock)
    )


async def _capability_unavailable(_: Call) -> Response:
    raise SaiseiError("capability_unavailable", "This Host advertises no such capability.")


def _host(path: str, methods: dict[str, Endpoint], capability: Capability | None = None) -> Route:
    return Route(HOST_API_ROOT + path, methods, Area.HOST_API, capability)


def route_table(*, virtual_clock: bool) -> RouteTable:
    routes = [
        Route("/.well-known/takoform/v2", {"GET": Endpoint(_discovery, public=True)}, Area.HOST_API),
        _host("/support", {"GET": Endpoint(support.get_support)}),
        _host("/resources", {"GET": _reads(resources.list_resources), "POST": _writes(resources.create_resource)}),
        _host(
            "/resources/{uid}",
            {
                "GET": _reads(resources.get_resource),
                "PUT": _writes(resources.update_resource),
                "DELETE": _writes(resources.delete_resource),
            },
        ),
        _host("/operations/{id}", {"GET": _reads(operations.get_operation)}),
        _host("/offerings", {"GET": Endpoint(offerings.list_offerings)}, Capability.OFFERINGS),
        _host("/previews", {"POST": _writes(previews.preview)}, Capability.PREVIEWS),
        _host("/operations/{id}/private-inputs", {"PUT": _writes(operations.replenish)}, Capability.PRIVATE_INPUTS),
        Route("/openapi.json", {"GET": Endpoint(_openapi, public=True)}),
        Route("/artifacts/v1/sha256/{digest}", {"PUT": _writes(artifacts.put_artifact)}),
        Route(INSTANCES, {"GET": _reads(workflows.list_instances), "POST": _writes(workflows.create_instance)}),
        Route(INSTANCES + ":batchCreate", {"POST": _writes(workflows.create_batch)}),
        Route(INSTANCES + "/{id}/events", {"GET": _reads(events_sse.subscribe), "POST": _writes(workflows.send_event)}),
        Route(INSTANCES + "/{id}/steps", {"GET": _reads(workflows.list_steps)}),
        Route(INSTANCES + "/{id}:terminate", {"POST": _writes(workflows.terminate)}),
        Route(INSTANCES + "/{id}", {"GET": _reads(workflows.get_instance)}),
    ]
    if virtual_clock:
        routes.append(Route(CLOCK, {"POST": Endpoint(clock.advance)}))
    return RouteTable(routes)


class GatewayApp:
    """The ASGI application. Requests for the origin's host are for the Host, all others for a Worker."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self._limit = RateLimit(gateway.settings.rate_per_second, gateway.settings.rate_burst)
        self._routes = route_table(virtual_clock=gateway.settings.virtual_clock)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        assert scope["type"] == "http", "the server speaks HTTP only"
        response = _Sent(send)
        request = Request(scope, receive)
        label = "unrouted"
        try:
            authority = authority_of(request)
            if hostname_of(authority) != self._gateway.settings.origin_hostname:
                label = "worker"
                await Exchange(self._gateway, request, authority).run(scope, receive, response.send)
            else:
                found = self._routes.find(scope["raw_path"].decode("latin-1"))
                label = found[0].path if found else label
                answer = await self._answer(request, found)
                await answer(scope, receive, response.send)
        except ClientDisconnect:
            return
        except SaiseiError as error:
            await self._refuse(error, response, scope, receive)
        except Exception as error:
            log.error("a request failed", extra={"route": label, "method": scope["method"]}, exc_info=error)
            if response.status:
                return  # the server cuts a response that is left open
            failure = SaiseiError("internal_error", "The Host failed; its log has the details.")
            await problem_response(failure)(scope, receive, response.send)
        finally:
            if response.status:
                self._gateway.metrics.answered(label, scope["method"], response.status, response.seconds)

    async def _answer(self, request: Request, found: tuple[Route, dict[str, str]] | None) -> Response:
        """SaiseiError becomes a problem here, while the route's vocabulary is known."""
        area = found[0].area if found else Area.HOST_API
        try:
            if found is None:
                is_clock = request.url.path == CLOCK
                raise SaiseiError("not_found", _NO_CLOCK if is_clock else "There is no such path.")
            route, segments = found
            if route.capability is not None and not await self._advertised(route.capability):
                return await _capability_unavailable(Call(self._gateway, request, segments, None))
            endpoint = route.methods.get(request.method)
            if endpoint is None:
                error = SaiseiError("method_not_allowed", f"This path knows {', '.join(route.methods)} only.")
                return problem_response(error, allow=list(route.methods))
            caller = None
            if not endpoint.public:
                caller = await self._gateway.authenticator.caller(request.headers.getlist("authorization"))
                self._limit.require(caller.principal.name, time.monotonic())
                caller.require(endpoint.permission)
            return await endpoint.handle(Call(self._gateway, request, segments, caller))
        except SaiseiError as error:
            return problem_response(host_error(error) if area is Area.HOST_API else error)

    async def _advertised(self, capability: Capability) -> bool:
        return bool(getattr(await self._gateway.terms.current(), capability.value))

    async def _refuse(self, error: SaiseiError, response: _Sent, scope: Scope, receive: Receive) -> None:
        if not response.status:
            await problem_response(error)(scope, receive, response.send)


class _Sent:
    """Remembers whether, when and with which status the response began."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self._since = time.monotonic()
        self.status = 0
        self.seconds = 0.0

    async def send(self, message: Message | dict[str, Any]) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            self.seconds = time.monotonic() - self._since
        await self._send(message)
