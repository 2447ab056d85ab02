"""The pure parts of the gateway: components of URLs, routes, Accept."""

from __future__ import annotations

from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from saisei_gateway.app import route_table
from saisei_gateway.framing import framing_for
from saisei_gateway.host_api.request import decode_component
from saisei_gateway.traffic import end_to_end

INSTANCES = "/apis/saisei/v1/workflows/w/instances"

scalars = st.text(st.characters(exclude_categories=["Cs"]), min_size=1)


@given(scalars)
def test_components_round_trip(text: str) -> None:
    """H-051, W-020: what a client percent-encodes is what the Host reads, for any Unicode text."""
    assert decode_component(quote(text, safe="")) == text


@given(scalars)
def test_every_id_has_its_route(text: str) -> None:
    """W-020: whatever an id holds, its four routes are told apart and give it back."""
    segment = quote(text, safe="")
    table = route_table(virtual_clock=False)
    for suffix in ("", ":terminate", "/events", "/steps"):
        found = table.find(f"{INSTANCES}/{segment}{suffix}")
        assert found is not None
        route, segments = found
        assert route.path.endswith("{id}" + suffix)
        assert decode_component(segments["id"]) == text


@pytest.mark.parametrize("raw", ["%", "%1", "%zz", "a%2", "%ff", "%c3%28", "%ed%a0%80", "%f4%90%80%80", "%c0%af"])
def test_broken_components(raw: str) -> None:
    """H-004, H-009: broken escapes, bytes that are no UTF-8, encoded surrogates and overlong forms are refused."""
    with pytest.raises(ValueError, match=r"escape|two hexadecimal"):
        decode_component(raw)


@given(st.text())
def test_any_accept_has_a_framing(accept: str) -> None:
    """Design 5: no Accept header breaks a subscription."""
    assert framing_for([accept]).media_type in {"text/event-stream", "application/x-ndjson"}


def test_hop_by_hop() -> None:
    """RFC 9110 7.6.1, MW-23: headers of one connection, and those that Connection names, go no further."""
    pairs = [("connection", "close, X-One"), ("x-one", "1"), ("te", "trailers"), ("accept", "a"), ("accept", "b")]
    assert end_to_end(pairs) == [("accept", "a"), ("accept", "b")]
