"""`saisei.control.v1.SupportService`: which Forms hold here, and the Host's limits."""

from __future__ import annotations

from saisei.control.v1 import resources_pb2 as pb
from saisei.control.v1 import resources_pb2_grpc as rpc
from saisei_contract import strict_json
from saisei_contract.clock import Clock
from saisei_contract.errors import SaiseiError
from saisei_contract.forms.registry import FORMS
from saisei_contract.grammar import is_form_url, is_name
from saisei_contract.wire import OPERATION_NAMES
from saisei_control.api.callers import Callers, Context
from saisei_control.limits import MAX_PAGE_SIZE, MAX_REQUEST_BYTES, REPLAY_WINDOW_SECONDS
from saisei_control.resources.check import takes_private_inputs
from saisei_control.resources.cursors import Cursors
from saisei_control.resources.offerings import Offerings


class SupportServicer(rpc.SupportServiceServicer):
    def __init__(
        self,
        callers: Callers,
        clock: Clock,
        cursors: Cursors,
        offerings: Offerings,
        *,
        previews: bool,
    ) -> None:
        self._callers = callers
        self._clock = clock
        self._cursors = cursors
        self._offerings = offerings
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
            offerings=self._offerings.advertised,
            previews=True,
            private_inputs=True,
            max_request_bytes=MAX_REQUEST_BYTES,
            max_page_size=MAX_PAGE_SIZE,
            replay_window_seconds=REPLAY_WINDOW_SECONDS,
            authentication_schemes=self._callers.schemes,
        )

    async def ListOfferings(self, request: pb.ListOfferingsRequest, context: Context) -> pb.ListOfferingsResponse:
        """H-062."""
        caller = await self._callers.of(context)
        if not is_form_url(request.form) or not is_name(request.space):
            raise SaiseiError("invalid_request", "form and space are both needed: a Form URL and the name of a Space")
        limit = request.limit if request.HasField("limit") else MAX_PAGE_SIZE
        if not 1 <= limit <= MAX_PAGE_SIZE:
            raise SaiseiError("invalid_request", f"limit must be an integer from 1 to {MAX_PAGE_SIZE}")
        rights = caller.in_space(request.space)
        if not (rights.read or rights.write):
            raise SaiseiError("forbidden", f"the token may not use the Space {request.space}")
        now = self._clock.now_ms()
        binding = strict_json.dumps(["offerings", caller.principal, request.form, request.space])
        after = self._cursors.open(request.cursor, binding, now) if request.HasField("cursor") else ""
        found = self._offerings.listed(request.form, request.space, after, limit + 1)
        shown = found[:limit]
        return pb.ListOfferingsResponse(
            items=[
                pb.OfferingDescription(
                    id=item.id,
                    revision=item.revision,
                    form=item.form,
                    label=item.label,
                    description=item.description,
                    terms_url=item.terms_url,
                )
                for item in shown
            ],
            next_cursor=self._cursors.seal(shown[-1].id, binding, now) if len(found) > limit else None,
        )
