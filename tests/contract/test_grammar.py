"""Names, keys, headers, URLs and times."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from saisei_contract import grammar
from saisei_contract.errors import SaiseiError

FORM = "https://edge.forms.takoform.com/forms/ModuleWorker/0.3.0/"


@pytest.mark.parametrize("text", ["a", "A9", "0", "a.b_c-d", "x" * 128])
def test_good_uids(text: str) -> None:
    """H-006: letters, digits, dot, underscore and hyphen after a letter or digit, at most 128."""
    assert grammar.is_uid(text)
    assert grammar.is_name(text)


@pytest.mark.parametrize("text", ["", "-a", ".a", "_a", "a b", "a/b", "a\n", "é", "a٣", "x" * 129, "a:b", "\na"])
def test_bad_uids(text: str) -> None:
    """H-006: whole-string and ASCII: a trailing newline or a foreign digit does not match."""
    assert not grammar.is_uid(text)


@pytest.mark.parametrize("text", ["k" * 16, "k" * 128, "a1.:_-" + "x" * 10])
def test_good_idempotency_keys(text: str) -> None:
    """H-020: 16 to 128 characters."""
    assert grammar.require_idempotency_key([text]) == text


@pytest.mark.parametrize("values", [[], ["k" * 15], ["k" * 129], [":" + "k" * 16], ["k" * 16 + "\n"], ["k" * 16] * 2])
def test_bad_idempotency_keys(values: list[str]) -> None:
    """H-020: missing, malformed or repeated is invalid_request."""
    with pytest.raises(SaiseiError) as refusal:
        grammar.require_idempotency_key(values)
    assert refusal.value.reason == "invalid_request"


@pytest.mark.parametrize(("text", "generation"), [("0", 0), ("1", 1), ("9007199254740991", 9007199254740991)])
def test_good_generations(text: str, generation: int) -> None:
    """H-021, H-022: plain decimal; 0 is well-formed."""
    assert grammar.require_generation([text]) == generation


@pytest.mark.parametrize(
    "text",
    ["", "abc", "1.0", "+1", "-1", "01", "00", "1e0", " 1", "1 ", "1\n", "١", "1_0", "9007199254740992", "9" * 5000],
)
def test_bad_generations(text: str) -> None:
    """H-021: every other spelling, and a number over the maximum, is invalid_request."""
    with pytest.raises(SaiseiError) as refusal:
        grammar.require_generation([text])
    assert refusal.value.reason == "invalid_request"


def test_missing_and_repeated_generation() -> None:
    """H-021: missing is expected_generation_required, repeated invalid_request."""
    with pytest.raises(SaiseiError, match="expected_generation_required"):
        grammar.require_generation([])
    with pytest.raises(SaiseiError, match="invalid_request"):
        grammar.require_generation(["1", "1"])


@pytest.mark.parametrize(
    "url",
    [
        FORM,
        FORM[:-1],
        "https://h",
        "https://h/",
        "https://h:8443/a",
        "https://[::1]/x",
        "https://a.b/%20",
        "https://h:/",
    ],
)
def test_good_form_urls(url: str) -> None:
    """H-008: absolute https with a host; nothing is normalised, so a missing slash is another valid URL."""
    assert grammar.is_form_url(url)


@pytest.mark.parametrize(
    "url",
    [
        "",
        "http://h/",
        "https:///x",
        "https://",
        "//h/x",
        "h/x",
        "https:/h/x",
        "https://u@h/",
        "https://u:p@h/",
        "https://h/?",
        "https://h/?a=b",
        "https://h/#",
        "https://h/#f",
        "https://h/a b",
        "https://h/é",
        "https://hé/",
        "https://h/%zz",
        "https://h/%2",
        "https://h\\x",
        "https://h:99999/",
        "https://h:x/",
        "https://h/\n",
        " https://h/",
        "https://h/<a>",
    ],
)
def test_bad_form_urls(url: str) -> None:
    """H-008: no other scheme, userinfo, query, fragment, foreign character or broken escape."""
    assert not grammar.is_form_url(url)


def test_artifact_urls_are_bounded() -> None:
    """AR-01: 8,192 characters, not one more."""
    assert grammar.is_artifact_url("https://h/" + "a" * 8182)
    assert not grammar.is_artifact_url("https://h/" + "a" * 8183)


@pytest.mark.parametrize(
    ("ms", "text"),
    [
        (0, "1970-01-01T00:00:00.000Z"),
        (1, "1970-01-01T00:00:00.001Z"),
        (1_700_000_000_123, "2023-11-14T22:13:20.123Z"),
        (951_782_400_000, "2000-02-29T00:00:00.000Z"),
        (253_402_300_799_999, "9999-12-31T23:59:59.999Z"),
        (-1, "1969-12-31T23:59:59.999Z"),
        (-60_000_000_000_000, "0068-09-03T13:20:00.000Z"),
    ],
)
def test_times(ms: int, text: str) -> None:
    """H-007: RFC 3339 UTC with Z."""
    assert grammar.format_ms(ms) == text
    assert grammar.parse_timestamp(text) == ms


@given(st.integers(-62_135_596_800_000, 253_402_300_799_999))
def test_times_come_back(ms: int) -> None:
    """H-007: what is written is read as the same millisecond, and means what the calendar says."""
    text = grammar.format_ms(ms)
    assert grammar.parse_timestamp(text) == ms
    assert datetime.fromisoformat(text) == datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=ms)


@pytest.mark.parametrize(
    ("text", "ms"),
    [("1970-01-01T00:00:01Z", 1000), ("1970-01-01T00:00:00.5Z", 500), ("1970-01-01T00:00:00.123456789Z", 123)],
)
def test_times_of_other_precision(text: str, ms: int) -> None:
    """H-007: no fraction, a short one, or finer digits than a millisecond."""
    assert grammar.parse_timestamp(text) == ms


@pytest.mark.parametrize(
    "text",
    [
        "",
        "1970-01-01",
        "1970-01-01T00:00:00",
        "1970-01-01T00:00:00+00:00",
        "1970-01-01t00:00:00z",
        "1970-02-30T00:00:00Z",
        "1970-01-01T24:00:00Z",
        "1970-01-01T00:00:00.Z",
        "1970-01-01 00:00:00Z",
        "1970-01-01T00:00:00Z\n",
        "１970-01-01T00:00:00Z",
    ],
)
def test_bad_times(text: str) -> None:
    """H-007: only the one shape ending in Z."""
    with pytest.raises(ValueError, match=r"."):
        grammar.parse_timestamp(text)


@pytest.mark.parametrize(("values", "limit"), [([], 50), (["1"], 1), (["50"], 50)])
def test_good_page_limits(values: list[str], limit: int) -> None:
    """H-093: 1 … maxPageSize, the latter when absent."""
    assert grammar.parse_page_limit(values, 50) == limit


@pytest.mark.parametrize(
    "values", [["0"], ["51"], ["abc"], ["01"], ["+1"], [""], ["1.0"], ["-1"], ["1", "1"], ["9" * 5000]]
)
def test_bad_page_limits(values: list[str]) -> None:
    """H-093: everything else is invalid_request."""
    with pytest.raises(SaiseiError, match="invalid_request"):
        grammar.parse_page_limit(values, 50)


@pytest.mark.parametrize("accepts", [grammar.is_instance_id, grammar.is_step_name, grammar.is_event_type])
def test_short_texts(accepts: object) -> None:
    """W-020, W-028: 1 to 256 scalars of any kind, 256 emoji too; no lone surrogate."""
    assert callable(accepts)
    for text in ("a", "x" * 256, "😀" * 256, " ", "\n", "日本語"):
        assert accepts(text)
    for text in ("", "x" * 257, "😀" * 257, "\ud800", "a\udfff"):
        assert not accepts(text)


def test_identifiers() -> None:
    """DW-01, WV-01: class and Binding names; secret names; keys of variables."""
    for accepts in (grammar.is_class_name, grammar.is_binding_name):
        assert all(map(accepts, ["A", "_", "$", "a1$_", "x" * 64]))
        assert not any(map(accepts, ["", "1a", "a-b", "a b", "é", "a\n", "x" * 65, "a.b"]))
    assert all(map(grammar.is_secret_name, ["A", "A_1", "X" * 64]))
    assert not any(map(grammar.is_secret_name, ["", "a", "_A", "Aa", "1A", "X" * 65, "A\n"]))
    assert all(map(grammar.is_vars_key, ["a", "A.b_c-1", "x" * 64]))
    assert not any(map(grammar.is_vars_key, ["", "_a", "1a", "a$", "x" * 65, "a\n", "__proto__"]))


def test_hostnames() -> None:
    """EP-03: lower-case labels of 1-63, at most 253 characters, no root dot."""
    longest = ".".join(["a" * 63] * 3 + ["b" * 61])
    assert len(longest) == 253
    assert all(map(grammar.is_hostname, ["a", "a-b.c", "w1.workers.localhost", "xn--p1ai.x", longest]))
    bad = ["", ".", "a.", ".a", "a..b", "-a", "a-", "A.b", "a_b", "a b", "é.x", "a\n", "a" * 64, longest + "b", "*.a"]
    assert not any(map(grammar.is_hostname, bad))


def test_digests() -> None:
    """AR-01: 64 lower-case hexadecimal digits without a prefix."""
    assert grammar.is_sha256("0123456789abcdef" * 4)
    for text in ("", "a" * 63, "a" * 65, "A" * 64, "g" * 64, "sha256:" + "a" * 57, "a" * 64 + "\n"):
        assert not grammar.is_sha256(text)


def test_json_media_types() -> None:
    """H-014: application/json with any parameters and in any case, nothing else."""
    assert all(
        map(grammar.is_json_media_type, ["application/json", "application/json; charset=utf-8", "Application/JSON;x=y"])
    )
    assert not any(
        map(grammar.is_json_media_type, [None, "", "text/json", "application/jsonp", "application/json, text/plain"])
    )


def test_cursors() -> None:
    """H-095: base64url, bounded; anything else is garbage before it is looked at."""
    assert grammar.is_cursor("abc_-9")
    assert not any(map(grammar.is_cursor, ["", "a b", "a=", "a\n", "x" * 2049]))
