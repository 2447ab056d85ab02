"""The grammars of names, keys, headers, URLs and times. Whole-string matches, ASCII digits only."""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from functools import lru_cache

from saisei_contract.errors import SaiseiError
from saisei_contract.strict_json import MAX_INTEGER

_UID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}\Z", re.ASCII)
_IDEMPOTENCY_KEY = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:-]{15,127}\Z", re.ASCII)
_DECIMAL = re.compile(r"(?:0|[1-9][0-9]*)\Z", re.ASCII)
_POSITIVE_DECIMAL = re.compile(r"[1-9][0-9]*\Z", re.ASCII)
_IDENTIFIER = re.compile(r"[A-Za-z_$][A-Za-z0-9_$]{0,63}\Z", re.ASCII)
_VARS_KEY = re.compile(r"[A-Za-z][A-Za-z0-9._-]{0,63}\Z", re.ASCII)
_SECRET_NAME = re.compile(r"[A-Z][A-Z0-9_]{0,63}\Z", re.ASCII)
_SHA256 = re.compile(r"[0-9a-f]{64}\Z", re.ASCII)
_CURSOR = re.compile(r"[A-Za-z0-9_-]{1,2048}\Z", re.ASCII)
_LABEL = re.compile(r"[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?\Z", re.ASCII)
_TIMESTAMP = re.compile(r"([0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2})(?:\.([0-9]+))?Z\Z", re.ASCII)
_SURROGATE = re.compile("[\ud800-\udfff]")
# RFC 3986, without userinfo, query and fragment. An IPv6 literal stands in brackets.
_HTTPS_URL = re.compile(
    r"https://(?:\[[0-9A-Fa-f:.]+\]|(?:[A-Za-z0-9._~!$&'()*+,;=-]|%[0-9A-Fa-f]{2})+)(?::([0-9]{0,5}))?"
    r"(?:/(?:[A-Za-z0-9._~!$&'()*+,;=:@/-]|%[0-9A-Fa-f]{2})*)?\Z",
    re.ASCII,
)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

_JSON_MEDIA_TYPE = re.compile(r"[ \t]*application/json[ \t]*(?:;.*)?\Z", re.ASCII | re.IGNORECASE)

MAX_NAME_SCALARS = 256
MAX_HOSTNAME = 253
MAX_ARTIFACT_URL = 8192


def is_uid(text: str) -> bool:
    """H-006: ids, uids, Spaces, names, Offering and Operation ids."""
    return _UID.match(text) is not None


def is_name(text: str) -> bool:
    """H-006: Resource and Space names share the grammar of UIDs."""
    return is_uid(text)


def is_idempotency_key(text: str) -> bool:
    """H-020: 16-128 characters."""
    return _IDEMPOTENCY_KEY.match(text) is not None


def require_idempotency_key(values: Sequence[str]) -> str:
    """The `Idempotency-Key` among a request's header values; SaiseiError invalid_request unless there is one good one
    (H-020).
    """
    if len(values) != 1:
        what = "is missing" if not values else "is given more than once"
        raise SaiseiError("invalid_request", f"The header Idempotency-Key {what}; mutations need exactly one.")
    if not is_idempotency_key(values[0]):
        raise SaiseiError(
            "invalid_request",
            "The header Idempotency-Key must have 16 to 128 characters of A-Z a-z 0-9 . _ : - "
            "and begin with a letter or digit.",
        )
    return values[0]


def parse_generation(text: str) -> int:
    """A generation in its only spelling, `0` or digits without a leading zero (H-021, H-022).

    SaiseiError invalid_request for any other spelling and over 9,007,199,254,740,991.
    """
    if _DECIMAL.match(text) is None or len(text) > len(str(MAX_INTEGER)) or int(text) > MAX_INTEGER:
        raise SaiseiError(
            "invalid_request",
            "The header Takoform-Expected-Generation must be a plain decimal integer from 0 to 9007199254740991.",
        )
    return int(text)


def require_generation(values: Sequence[str]) -> int:
    """The `Takoform-Expected-Generation` among header values.

    SaiseiError expected_generation_required when there is none, invalid_request when it is repeated or malformed
    (H-021).
    """
    if not values:
        raise SaiseiError(
            "expected_generation_required",
            "The header Takoform-Expected-Generation is missing; send the Resource's current generation.",
        )
    if len(values) > 1:
        raise SaiseiError("invalid_request", "The header Takoform-Expected-Generation is given more than once.")
    return parse_generation(values[0])


def is_https_url(text: str) -> bool:
    """An ASCII absolute https URL with a host and without userinfo, query and fragment."""
    match = _HTTPS_URL.match(text)
    return match is not None and int(match.group(1) or 0) <= 65535


def is_form_url(text: str) -> bool:
    """H-008. Identity is string equality: nothing is normalised."""
    return is_https_url(text)


def is_artifact_url(text: str) -> bool:
    """AR-01: as a Form URL, at most 8,192 characters."""
    return len(text) <= MAX_ARTIFACT_URL and is_https_url(text)


def is_sha256(text: str) -> bool:
    """64 lower-case hex digits, no prefix (AR-01)."""
    return _SHA256.match(text) is not None


def format_ms(ms: int) -> str:
    """Epoch milliseconds as RFC 3339 UTC with `Z` and three fraction digits (H-007)."""
    seconds, rest = divmod(ms, 1000)
    return f"{_format_second(seconds)}.{rest:03d}Z"


def parse_timestamp(text: str) -> int:
    """The epoch milliseconds of `YYYY-MM-DDTHH:MM:SS[.fraction]Z`, finer digits dropped; ValueError otherwise
    (H-007).
    """
    match = _TIMESTAMP.match(text)
    if match is None:
        raise ValueError("a timestamp is written YYYY-MM-DDTHH:MM:SS[.fraction]Z")
    second, fraction = match.groups("0")
    return _parse_second(second) * 1000 + int(fraction[:3].ljust(3, "0"))


# Times that are read and written together lie close to each other.
@lru_cache(maxsize=1024)
def _format_second(seconds: int) -> str:
    return (_EPOCH + timedelta(seconds=seconds)).isoformat(timespec="seconds").removesuffix("+00:00")


@lru_cache(maxsize=1024)
def _parse_second(text: str) -> int:
    return (datetime.fromisoformat(text).replace(tzinfo=UTC) - _EPOCH) // timedelta(seconds=1)


def parse_page_limit(values: Sequence[str], max_page_size: int) -> int:
    """The `limit` among query values: 1 … `max_page_size`, the latter when absent; SaiseiError invalid_request
    (H-093).
    """
    if not values:
        return max_page_size
    text = values[0]
    good = len(values) == 1 and _POSITIVE_DECIMAL.match(text) is not None and len(text) <= 16
    if not good or int(text) > max_page_size:
        raise SaiseiError(
            "invalid_request", f"The query parameter limit must be one integer from 1 to {max_page_size}."
        )
    return int(text)


def is_json_media_type(content_type: str | None) -> bool:
    """H-014: `application/json`, with any parameters; a missing header is none."""
    return content_type is not None and _JSON_MEDIA_TYPE.match(content_type) is not None


def is_cursor(text: str) -> bool:
    """The outer shape of a page cursor: base64url, at most 2,048 characters.

    What it says is for its maker to check (H-095).
    """
    return _CURSOR.match(text) is not None


def is_well_formed(text: str) -> bool:
    """No lone surrogates: the string can be written as UTF-8."""
    return _SURROGATE.search(text) is None


def _is_short_text(text: str) -> bool:
    return 1 <= len(text) <= MAX_NAME_SCALARS and is_well_formed(text)


def is_instance_id(text: str) -> bool:
    """W-020: 1-256 scalars."""
    return _is_short_text(text)


def is_step_name(text: str) -> bool:
    """1-256 scalars (contract 3.17)."""
    return _is_short_text(text)


def is_event_type(text: str) -> bool:
    """W-028: 1-256 scalars, compared exactly."""
    return _is_short_text(text)


def is_class_name(text: str) -> bool:
    """DW-01, AN-01: the name of an exported class."""
    return _IDENTIFIER.match(text) is not None


def is_binding_name(text: str) -> bool:
    """WV-01."""
    return _IDENTIFIER.match(text) is not None


def is_vars_key(text: str) -> bool:
    """WV-01, also for keys of objects inside `vars` (WV-03)."""
    return _VARS_KEY.match(text) is not None


def is_secret_name(text: str) -> bool:
    """WV-01."""
    return _SECRET_NAME.match(text) is not None


def is_hostname(text: str) -> bool:
    """EP-03: a lower-case absolute DNS name without the root dot, at most 253 characters, labels of 1-63."""
    return len(text) <= MAX_HOSTNAME and all(_LABEL.match(label) is not None for label in text.split("."))
