"""`GET {root}/offerings?form=&space=`, where the operator lists some (H-060 … H-062)."""

from __future__ import annotations

from starlette.responses import Response

from saisei.control.v1 import resources_pb2 as pb
from saisei_contract.errors import SaiseiError
from saisei_contract.grammar import is_name, parse_page_limit
from saisei_contract.json_reader import JsonValue
from saisei_contract.wire import offering_json, page_json
from saisei_gateway.backends import CALL_SECONDS, answer_of
from saisei_gateway.calls import Call
from saisei_gateway.host_api.records import offering_record
from saisei_gateway.host_api.request import read_query
from saisei_gateway.host_api.respond import json_response
from saisei_gateway.host_api.support import required_form


async def list_offerings(call: Call) -> Response:
    query = read_query(call.request, ("form", "space", "limit", "cursor"))
    form, space = required_form(query), query.get("space", "")
    if not is_name(space):
        raise SaiseiError("invalid_request", "The query parameter space must name a Space.")
    max_page_size = (await call.gateway.terms.current()).max_page_size
    request = pb.ListOfferingsRequest(
        form=form,
        space=space,
        limit=parse_page_limit([query["limit"]] if "limit" in query else [], max_page_size),
        cursor=query.get("cursor"),
    )
    page = await answer_of(call.backends.support.ListOfferings(request, metadata=call.metadata, timeout=CALL_SECONDS))
    items: list[JsonValue] = [offering_json(offering_record(item)) for item in page.items]
    return json_response(page_json(items, page.next_cursor if page.HasField("next_cursor") else None))
