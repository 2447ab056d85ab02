"""`GET {root}/support?form=` (H-050 … H-055)."""

from __future__ import annotations

from starlette.responses import Response

from saisei.control.v1 import resources_pb2
from saisei_contract.errors import SaiseiError
from saisei_contract.grammar import is_form_url
from saisei_contract.records import SupportRecord
from saisei_contract.wire import support_json
from saisei_gateway.backends import CALL_SECONDS, answer_of
from saisei_gateway.calls import Call
from saisei_gateway.host_api.request import read_query
from saisei_gateway.host_api.respond import json_response


async def get_support(call: Call) -> Response:
    form = required_form(read_query(call.request, ("form",)))
    answer = await answer_of(
        call.backends.support.GetSupport(
            resources_pb2.GetSupportRequest(form=form), metadata=call.metadata, timeout=CALL_SECONDS
        )
    )
    # The asked text goes back, letter for letter (H-051).
    return json_response(support_json(SupportRecord(form, answer.supported, answer.private_inputs)))


def required_form(query: dict[str, str]) -> str:
    """H-050; SaiseiError invalid_request."""
    if "form" not in query:
        raise SaiseiError("invalid_request", "The query parameter form is missing.")
    return checked_form(query["form"])


def checked_form(form: str) -> str:
    if not is_form_url(form):
        raise SaiseiError(
            "invalid_request",
            "The query parameter form must be an ASCII absolute https URL without userinfo, query and fragment.",
        )
    return form
