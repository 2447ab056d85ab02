"""SaiseiError ⇄ `google.rpc.Status` with one `ErrorInfo{reason, domain}`: how every error crosses gRPC (design 1)."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Mapping
from typing import Any, NoReturn, cast

import grpc
from google.protobuf import any_pb2
from google.rpc import error_details_pb2, status_pb2
from grpc_status import rpc_status

from saisei_contract.errors import ERROR_DOMAIN, ERROR_KINDS, SaiseiError

log = logging.getLogger(__name__)


def to_status(error: SaiseiError) -> status_pb2.Status:
    info = error_details_pb2.ErrorInfo(reason=error.reason, domain=ERROR_DOMAIN, metadata=error.metadata)
    packed = any_pb2.Any()
    packed.Pack(info)
    return status_pb2.Status(code=int(error.kind.grpc_code), message=error.detail or error.kind.title, details=[packed])


async def abort(context: grpc.aio.ServicerContext[Any, Any], error: SaiseiError) -> NoReturn:
    """Ends the rpc with the error; never returns."""
    status = rpc_status.to_status(to_status(error))
    await context.abort_with_status(cast(Any, status))
    raise AssertionError("abort returned")


def from_rpc_error(error: grpc.aio.AioRpcError) -> SaiseiError:
    """The SaiseiError behind a failed call; a broken connection is backend_unavailable and proves nothing (H-181)."""
    status = rpc_status.from_call(cast(Any, error))
    if status is not None:
        for detail in status.details:
            info = error_details_pb2.ErrorInfo()
            if detail.Unpack(info) and info.domain == ERROR_DOMAIN and info.reason in ERROR_KINDS:
                return SaiseiError(info.reason, status.message, dict(info.metadata))
    match error.code():
        case grpc.StatusCode.UNAVAILABLE | grpc.StatusCode.DEADLINE_EXCEEDED | grpc.StatusCode.CANCELLED:
            return SaiseiError("backend_unavailable", "a part of the Host did not answer; try again")
        case grpc.StatusCode.RESOURCE_EXHAUSTED:
            return SaiseiError("request_too_large", "the message is larger than the Host takes")
        case grpc.StatusCode.UNKNOWN | grpc.StatusCode.INTERNAL:
            # Our services give a reason with each refusal: without one, a connection or a dying process ended the call.
            log.warning("a call ended without a reason", extra={"code": error.code().name, "said": error.details()})
            return SaiseiError("backend_unavailable", "a part of the Host did not answer; try again")
        case code:
            log.error("a call failed", extra={"code": code.name, "said": error.details()})
            return SaiseiError("internal_error", "the Host failed; its log has the details")


class ServicerErrors:
    """Stands for the server where generated code adds a servicer: each of its methods is wrapped once.

    A SaiseiError becomes its Status, anything unforeseen internal_error (logged). An interceptor would do the same, at
    a fifth of the cost of a small call.
    """

    def __init__(self, server: grpc.aio.Server) -> None:
        self._server = server

    def add_generic_rpc_handlers(self, _handlers: object) -> None:
        """Generated code gives the same handlers once more below, with their names."""

    def add_registered_method_handlers(self, service: str, handlers: Mapping[str, Any]) -> None:
        wrapped = {name: _wrap(handler, f"/{service}/{name}") for name, handler in handlers.items()}
        self._server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, wrapped),))
        self._server.add_registered_method_handlers(service, wrapped)


def _wrap(handler: Any, method: str) -> Any:
    if handler.response_streaming:
        streaming = handler.stream_stream or handler.unary_stream

        async def stream(request: Any, context: Any) -> AsyncIterator[Any]:
            try:
                async for message in streaming(request, context):
                    yield message
            except Exception as error:
                await abort(context, _known(error, method))

        make: Any = (
            grpc.stream_stream_rpc_method_handler if handler.request_streaming else grpc.unary_stream_rpc_method_handler
        )
        return make(stream, handler.request_deserializer, handler.response_serializer)

    unary = handler.stream_unary or handler.unary_unary

    async def call(request: Any, context: Any) -> Any:
        try:
            return await unary(request, context)
        except (asyncio.CancelledError, grpc.aio.AbortError):
            raise
        except Exception as error:
            await abort(context, _known(error, method))

    make = grpc.stream_unary_rpc_method_handler if handler.request_streaming else grpc.unary_unary_rpc_method_handler
    return make(call, handler.request_deserializer, handler.response_serializer)


def _known(error: Exception, method: str) -> SaiseiError:
    if isinstance(error, grpc.aio.AbortError):
        raise error
    if isinstance(error, SaiseiError):
        return error
    if isinstance(error, grpc.aio.AioRpcError):
        return from_rpc_error(error)
    log.error("an rpc failed", extra={"method": method}, exc_info=error)
    return SaiseiError("internal_error", "the Host failed; its log has the details")
