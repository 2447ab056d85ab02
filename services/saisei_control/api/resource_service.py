"""`saisei.control.v1.ResourceService`: syntax in the order of H-035, then acceptance or a read."""

from __future__ import annotations

from typing import TypeAlias

from saisei.control.v1 import resources_pb2 as pb
from saisei.control.v1 import resources_pb2_grpc as rpc
from saisei_contract.errors import SaiseiError
from saisei_contract.grammar import is_form_url, is_name, is_uid, require_idempotency_key
from saisei_contract.records import Offering, OperationRecord
from saisei_contract.strict_json import MAX_INTEGER
from saisei_contract.wire import CreateInput, UpdateInput, parse_spec_text
from saisei_control.api.callers import Callers, Context
from saisei_control.api.convert import operation_message, resource_message
from saisei_control.limits import MAX_PAGE_SIZE, MAX_REQUEST_BYTES
from saisei_control.resources.accept import Acceptance
from saisei_control.resources.check import off_loop
from saisei_control.resources.idempotency import Key
from saisei_control.resources.preview import Preview, PreviewDelete, Previewer, PreviewUpdate
from saisei_control.resources.read import ListQuery, Reader
from saisei_service.credentials import is_host_api


class ResourceServicer(rpc.ResourceServiceServicer):
    def __init__(self, callers: Callers, acceptance: Acceptance, reader: Reader) -> None:
        self._callers = callers
        self._acceptance = acceptance
        self._previewer = Previewer(acceptance)
        self._reader = reader

    async def CreateResource(self, request: pb.CreateResourceRequest, context: Context) -> pb.MutationResponse:
        caller = await self._callers.of(context)
        caller.require_any_write()
        key = _key(request, context)
        _check_size(request.ByteSize())
        wanted = await _create_input(request)
        return _answer(await self._acceptance.create(caller, key, wanted, request.spec_json))

    async def UpdateResource(self, request: pb.UpdateResourceRequest, context: Context) -> pb.MutationResponse:
        caller = await self._callers.of(context)
        caller.require_any_write()
        key = _key(request, context)
        generation = _generation(request)
        _check_size(request.ByteSize())
        wanted = await _update_input(request)
        uid = _known(request.uid)
        return _answer(await self._acceptance.update(caller, key, uid, generation, wanted, request.spec_json))

    async def DeleteResource(self, request: pb.DeleteResourceRequest, context: Context) -> pb.MutationResponse:
        caller = await self._callers.of(context)
        caller.require_any_write()
        key = _key(request, context)
        generation = _generation(request)
        return _answer(await self._acceptance.delete(caller, key, _known(request.uid), generation))

    async def PreviewMutation(self, request: pb.PreviewMutationRequest, context: Context) -> pb.PreviewMutationResponse:
        """H-160."""
        caller = await self._callers.of(context)
        caller.require_any_write()
        _check_size(request.ByteSize())
        refusal = await self._previewer.judge(caller, await _preview(request))
        if refusal is None:
            return pb.PreviewMutationResponse(valid=True)
        message = refusal.detail or refusal.kind.title
        return pb.PreviewMutationResponse(errors=[pb.OperationError(code=refusal.reason, message=message)])

    async def GetResource(self, request: pb.GetResourceRequest, context: Context) -> pb.Resource:
        caller = await self._callers.of(context)
        return resource_message(await self._reader.resource(caller, _known(request.uid)))

    async def ListResources(self, request: pb.ListResourcesRequest, context: Context) -> pb.ListResourcesResponse:
        caller = await self._callers.of(context)
        caller.require_any_read()
        limit = request.limit if request.HasField("limit") else MAX_PAGE_SIZE
        if not 1 <= limit <= MAX_PAGE_SIZE:
            raise _invalid("limit", f"must be an integer from 1 to {MAX_PAGE_SIZE}")
        query = ListQuery(
            space=_identifier("space", request.space) if request.HasField("space") else None,
            name=_identifier("name", request.name) if request.HasField("name") else None,
            form=request.form if request.HasField("form") else None,
        )
        if query.form is not None and not is_form_url(query.form):
            raise _invalid("form", "must be an ASCII absolute https URL without userinfo, query and fragment")
        page = await self._reader.page(caller, query, limit, request.cursor if request.HasField("cursor") else None)
        return pb.ListResourcesResponse(
            items=[resource_message(item) for item in page.items], next_cursor=page.next_cursor
        )


def _key(
    request: pb.CreateResourceRequest | pb.UpdateResourceRequest | pb.DeleteResourceRequest, context: Context
) -> Key:
    return Key("host" if is_host_api(context) else "grpc", require_idempotency_key([request.idempotency_key]))


def _answer(record: OperationRecord) -> pb.MutationResponse:
    return pb.MutationResponse(operation=operation_message(record))


def _invalid(name: str, rule: str) -> SaiseiError:
    return SaiseiError("invalid_request", f"The field {name} {rule}.")


def _identifier(name: str, value: str) -> str:
    if not is_name(value):
        raise _invalid(name, "must have 1 to 128 characters of A-Z a-z 0-9 . _ - and begin with a letter or digit")
    return value


def _known(uid: str) -> str:
    """What is no UID at all is not found, as over HTTP."""
    if not is_uid(uid):
        raise SaiseiError("not_found", "there is no Resource with that UID")
    return uid


def _check_size(size_bytes: int) -> None:
    if size_bytes > MAX_REQUEST_BYTES:
        raise SaiseiError("request_too_large", f"a request has at most {MAX_REQUEST_BYTES:,} bytes, not {size_bytes:,}")


async def _create_input(request: pb.CreateResourceRequest | pb.PreviewCreate) -> CreateInput:
    spec = await off_loop(request.spec_json, lambda: parse_spec_text(request.spec_json))
    if not is_form_url(request.form):
        raise _invalid("form", "must be an ASCII absolute https URL without userinfo, query and fragment")
    return CreateInput(
        form=request.form,
        space=_identifier("space", request.space),
        name=_identifier("name", request.name),
        spec=spec,
        private_inputs=_private_inputs(request),
        offering=_offering(request),
    )


async def _update_input(request: pb.UpdateResourceRequest | pb.PreviewUpdate) -> UpdateInput:
    spec = await off_loop(request.spec_json, lambda: parse_spec_text(request.spec_json))
    return UpdateInput(spec=spec, private_inputs=_private_inputs(request))


async def _preview(request: pb.PreviewMutationRequest) -> Preview:
    match request.WhichOneof("mutation"):
        case "create":
            return await _create_input(request.create)
        case "update":
            generation = _generation(request.update)
            wanted = await _update_input(request.update)
            return PreviewUpdate(_known(request.update.uid), generation, wanted)
        case "delete":
            return PreviewDelete(_known(request.delete.uid), _generation(request.delete))
        case _:
            raise _invalid("mutation", "must be a create, an update or a delete")


_Conditional: TypeAlias = pb.UpdateResourceRequest | pb.DeleteResourceRequest | pb.PreviewUpdate | pb.PreviewDelete
_Confidential: TypeAlias = pb.CreateResourceRequest | pb.UpdateResourceRequest | pb.PreviewCreate | pb.PreviewUpdate


def _generation(request: _Conditional) -> int:
    """H-021, H-022: 0 is well-formed and stale."""
    if not request.HasField("expected_generation"):
        raise SaiseiError(
            "expected_generation_required", "expected_generation is missing; send the Resource's current generation"
        )
    if not 0 <= request.expected_generation <= MAX_INTEGER:
        raise _invalid("expected_generation", "must be an integer from 0 to 9007199254740991")
    return request.expected_generation


def _private_inputs(request: _Confidential) -> dict[str, str] | None:
    return dict(request.private_inputs.values) if request.HasField("private_inputs") else None


def _offering(request: pb.CreateResourceRequest | pb.PreviewCreate) -> Offering | None:
    if not request.HasField("offering"):
        return None
    if not request.offering.revision:
        raise _invalid("offering.revision", "must not be empty")
    return Offering(_identifier("offering.id", request.offering.id), request.offering.revision)
