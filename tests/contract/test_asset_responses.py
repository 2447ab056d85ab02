"""The HTTP response of an asset: conditions, ranges, codings."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from saisei_contract.asset_responses import Asset, AssetResponse, asset_response, pays_to_compress

PLAIN = Asset("a" * 64, "image/png", 100)
PACKED = Asset("a" * 64, "text/css", 5000, "b" * 64, 1000)
TAG, PACKED_TAG = f'"{"a" * 64}"', f'"{"b" * 64}"'


def ask(asset: Asset = PLAIN, method: str = "GET", **headers: str) -> AssetResponse:
    return asset_response(asset, method, [(name.replace("_", "-"), value) for name, value in headers.items()])


def values(response: AssetResponse) -> dict[str, str]:
    found = dict(response.headers)
    assert len(found) == len(response.headers), "each header once"
    return found


def test_the_whole() -> None:
    """WV-22: 200, the manifest's media type as it is, the length, and the digest of the bytes as a strong ETag."""
    response = ask()
    assert (response.status, response.gzip, response.offset, response.length) == (200, False, 0, 100)
    assert values(response) == {
        "content-type": "image/png",
        "content-length": "100",
        "etag": TAG,
        "accept-ranges": "bytes",
        "cache-control": "public, max-age=0, must-revalidate",
    }


@pytest.mark.parametrize("headers", [{}, {"accept_encoding": "gzip"}, {"if_none_match": TAG}, {"if_match": '"x"'}])
@pytest.mark.parametrize("asset", [PLAIN, PACKED])
def test_head_has_the_headers_of_get(asset: Asset, headers: dict[str, str]) -> None:
    """WV-22: status and headers are GET's; a Range means nothing to HEAD (RFC 9110 14.2)."""
    head, get = ask(asset, "HEAD", **headers), ask(asset, "GET", **headers)
    assert (head.status, head.headers) == (get.status, get.headers)
    assert ask(asset, "HEAD", range="bytes=0-9", **headers).headers == get.headers


@pytest.mark.parametrize(
    ("text", "status"),
    [
        (TAG, 304),
        (f"W/{TAG}", 304),
        (f'"x", {TAG}', 304),
        (f'"x",W/{TAG} , "y"', 304),
        ("*", 304),
        (" * ", 304),
        ('"x"', 200),
        (TAG.strip('"'), 200),
        ("", 200),
        (f'"{TAG}', 200),
        ('"' + "A" * 64 + '"', 200),
    ],
)
def test_if_none_match(text: str, status: int) -> None:
    """WV-22, Issue 7: weak comparison; 304 has the validator and no content."""
    response = ask(if_none_match=text)
    assert response.status == status
    if status == 304:
        assert response.length == 0
        assert values(response).keys() == {"etag", "cache-control", "accept-ranges"}


@pytest.mark.parametrize(
    ("text", "status"), [(TAG, 200), ("*", 200), (f"W/{TAG}", 412), ('"x"', 412), (f'"x", {TAG}', 200)]
)
def test_if_match(text: str, status: int) -> None:
    """Issue 7: strong comparison, and 412 without content (RFC 9110 13.1.1)."""
    response = ask(if_match=text, if_none_match='"other"')
    assert (response.status, response.length) == (status, 100 if status == 200 else 0)


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("bytes=0-9", (0, 10)),
        ("bytes=0-0", (0, 1)),
        ("bytes=99-99", (99, 1)),
        ("bytes=90-", (90, 10)),
        ("bytes=0-", (0, 100)),
        ("bytes=50-1000", (50, 50)),
        ("bytes=-1", (99, 1)),
        ("bytes=-100", (0, 100)),
        ("bytes=-5000", (0, 100)),
        ("Bytes= 1-2 ", (1, 2)),
        ("bytes=0-999999999999999999", (0, 100)),
    ],
)
def test_ranges(text: str, part: tuple[int, int]) -> None:
    """Issue 7: one range of bytes is 206 with exactly these."""
    response = ask(range=text)
    offset, length = part
    assert (response.status, response.offset, response.length) == (206, offset, length)
    assert values(response)["content-range"] == f"bytes {offset}-{offset + length - 1}/100"
    assert values(response)["content-length"] == str(length)


@pytest.mark.parametrize("text", ["bytes=100-", "bytes=100-200", "bytes=999999999999999999-", "bytes=-0"])
def test_ranges_beyond_the_end(text: str) -> None:
    """Issue 7: 416 with the length that there is."""
    response = ask(range=text)
    assert (response.status, response.length) == (416, 0)
    assert values(response)["content-range"] == "bytes */100"


@pytest.mark.parametrize(
    "text",
    ["", "bytes", "bytes=", "bytes=-", "bytes=a-b", "bytes=5-3", "lines=0-9", "bytes=0-1,3-4", "bytes=0-9,", "bytes=1",
     "bytes=+1-2", "bytes=1-2-3", "bytes=0x1-2", "bytes=\u0661-\u0662", "bytes=" + "9" * 5000 + "-", "bytes 0-1"],
)  # fmt: skip
def test_what_is_no_single_range(text: str) -> None:
    """Issue 7: several ranges, other units and nonsense get the whole (RFC 9110 14.2)."""
    assert (ask(range=text).status, ask(range=text).length) == (200, 100)


def test_an_empty_asset() -> None:
    """AR-02, WV-22: no byte of an empty file can be had by a range; without one it is an ordinary response."""
    empty = Asset("e" * 64, "text/plain", 0)
    assert (ask(empty).status, ask(empty).length) == (200, 0)
    for text in ("bytes=0-", "bytes=0-0", "bytes=-1"):
        assert ask(empty, range=text).status == 416


def test_if_range() -> None:
    """Issue 7: a range of another representation, or of a weak tag or a date, is answered with the whole."""
    assert ask(range="bytes=0-9", if_range=TAG).status == 206
    for other in (f"W/{TAG}", '"x"', "Mon, 30 Nov 2026 00:00:00 GMT"):
        assert ask(range="bytes=0-9", if_range=other).status == 200
    assert ask(PACKED, range="bytes=0-9", if_range=TAG, accept_encoding="gzip").status == 200


@pytest.mark.parametrize(
    ("text", "gzip"),
    [
        ("gzip", True),
        ("gzip, deflate, br, zstd", True),
        ("GZIP", True),
        ("x-gzip", True),
        ("*", True),
        ("br;q=1.0, gzip;q=0.8, *;q=0.1", True),
        ("gzip;q=0.001", True),
        ("gzip ; q=1.000", True),
        ("identity, gzip", True),
        ("", False),
        ("br", False),
        ("gzip;q=0", False),
        ("gzip;q=0.000", False),
        ("*;q=0", False),
        ("gzip;q=0, *", False),
        ("identity;q=1, gzip;q=0.5", False),
        ("gzip;q=2", False),
        ("gzip;level=9", False),
        ("gzipped", False),
        ("identity;q=1, *;q=0", False),
    ],
)
def test_codings(text: str, gzip: bool) -> None:
    """Issue 7: the gzip variant goes to who accepts it, under an ETag of its own; caches are told."""
    response = ask(PACKED, accept_encoding=text)
    found = values(response)
    assert response.gzip is gzip
    assert found["vary"] == "accept-encoding"
    assert found["content-type"] == "text/css"
    assert (found["etag"], found["content-length"]) == ((PACKED_TAG, "1000") if gzip else (TAG, "5000"))
    assert found.get("content-encoding") == ("gzip" if gzip else None)
    assert not ask(PLAIN, accept_encoding=text).gzip


def test_the_variant_is_a_representation() -> None:
    """Issue 7: conditions and ranges are about the variant's own bytes (RFC 9110 8.8.3.3, 14.2)."""
    assert ask(PACKED, accept_encoding="gzip", if_none_match=PACKED_TAG).status == 304
    assert ask(PACKED, accept_encoding="gzip", if_none_match=TAG).status == 200
    part = ask(PACKED, accept_encoding="gzip", range="bytes=-10")
    assert (part.status, part.gzip, part.offset, values(part)["content-range"]) == (
        206,
        True,
        990,
        "bytes 990-999/1000",
    )


def test_headers_that_come_twice() -> None:
    """Issue 7: a list may be spread over several header lines (RFC 9110 5.3)."""
    lines = [("if-none-match", '"x"'), ("accept", "a"), ("if-none-match", TAG)]
    assert asset_response(PLAIN, "GET", lines).status == 304


def test_what_is_compressed() -> None:
    """Issue 7: text and what is like it, when it is not tiny; what is packed already is left alone."""
    for media_type in ("text/html", "TEXT/CSS", "application/json", "image/svg+xml", "application/wasm", "font/ttf"):
        assert pays_to_compress(media_type, 1024)
        assert not pays_to_compress(media_type, 1023)
    for media_type in ("image/png", "video/mp4", "font/woff2", "application/zip", "application/octet-stream", "x/json"):
        assert not pays_to_compress(media_type, 100_000)


@given(
    st.dictionaries(
        st.sampled_from(["range", "if-range", "if-match", "if-none-match", "accept-encoding"]), st.text(max_size=30)
    )
)
def test_no_header_breaks_a_response(headers: dict[str, str]) -> None:
    """WV-22: whatever a client says, the answer is one of five statuses and stays inside the file."""
    response = asset_response(PACKED, "GET", headers.items())
    assert response.status in (200, 206, 304, 412, 416)
    assert 0 <= response.offset <= response.offset + response.length <= (1000 if response.gzip else 5000)
