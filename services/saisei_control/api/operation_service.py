"""`saisei.control.v1.OperationService`."""

from __future__ import annotations

from saisei.control.v1 import resources_pb2 as pb
from saisei.control.v1 import resources_pb2_grpc as rpc
from saisei_control.api.callers import Callers, Context
from saisei_control.api.convert import operation_message
from saisei_control.resources.accept import Acceptance
from saisei_control.resources.read import Reader


class OperationServicer(rpc.OperationServiceServicer):
    def __init__(self, callers: Callers, acceptance: Acceptance, reader: Reader) -> None:
        self._callers = callers
        self._acceptance = acceptance
        self._reader = reader

    async def GetOperation(self, request: pb.GetOperationRequest, context: Context) -> pb.Operation:
        caller = await self._callers.of(context)
        return operation_message(await self._reader.operation(caller, request.id))

    async def SupplyPrivateInputs(self, request: pb.SupplyPrivateInputsRequest, context: Context) -> pb.Operation:
        caller = await self._callers.of(context)
        caller.require_any_write()
        given = dict(request.private_inputs.values)
        return operation_message(await self._acceptance.supply_private_inputs(caller, request.id, given))
