"""`saisei.control.v1.SupportService`: which Forms hold here, and the Host's limits."""

from __future__ import annotations

from saisei.control.v1 import resources_pb2 as pb
from saisei.control.v1 import resources_pb2_grpc as rpc
from saisei_contract.errors import SaiseiError
from saisei_contract.forms.registry import FORMS
from saisei_contract.grammar import is_form_url
from saisei_contract.wire import OPERATION_NAMES
from saisei_control.api.callers import Callers, Context
from saisei_control.limits import MAX_PAGE_SIZE, MAX_REQUEST_BYTES, REPLAY_WINDOW_SECONDS
from saisei_control.resources.check import takes_private_inputs


class SupportServicer(rpc.SupportServiceServicer):
    def __init__(self, callers: Callers, previews: bool) -> None:
        self._callers = callers
        self._previews = previews

    async def GetSupport(self, request: pb.GetSupportRequest, context: Context) -> pb.GetSupportResponse:
        await self._callers.of(context)
        if not is_form_url(request.form):
            raise SaiseiError(
                "invalid_request", "form must be an ASCII absolute https URL without userinfo, query and fragment"
            )
        form = FORMS.get(request.form)
        supported = form is not None and form.supported
        return pb.GetSupportResponse(
            form=request.form,
            supported=supported,
            operations=OPERATION_NAMES if supported else (),
            private_inputs=supported and form is not None and takes_private_inputs(form),
            preview=self._previews and form is not None and form.hosted and not supported,
        )

    async def GetDiscovery(self, request: pb.GetDiscoveryRequest, context: Context) -> pb.GetDiscoveryResponse:
        return pb.GetDiscoveryResponse(
            offerings=False,
            previews=False,
            private_inputs=True,
            max_request_bytes=MAX_REQUEST_BYTES,
            max_page_size=MAX_PAGE_SIZE,
            replay_window_seconds=REPLAY_WINDOW_SECONDS,
        )
