"""From a request's URL to the path of a static asset (WV-20, WV-21)."""

from __future__ import annotations

import re

INDEX = "index.html"

_AFTER_AUTHORITY = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://[^/\\?#]*")
_REMOVED_FROM_URLS = re.compile(r"[\t\n\r]")
_ESCAPE = re.compile(r"%([0-9A-Fa-f]{2})")
_BROKEN_ESCAPE = re.compile(r"%(?![0-9A-Fa-f]{2})")
# Any of these needs the whole procedure; most paths have none.
_UNUSUAL = re.compile(r"[%\\\x00-\x20\x7f]|/\.|//")
_FORBIDDEN = re.compile(r"[/\\\x00-\x1f\x7f]")
_ONE_DOT = frozenset({".", "%2e"})
_TWO_DOTS = frozenset({"..", ".%2e", "%2e.", "%2e%2e"})


def asset_key(url: str) -> str | None:
    """The path in an asset manifest that an absolute `http(s)` URL stands for; None when it is unsearchable.

    The key is made of the pathname that the Worker would see in `Request.url`: dot segments are resolved and
    backslashes are slashes, as in every URL of that class; query and fragment do not count. Each segment is then
    decoded once. Nothing else is changed: no case folding, no Unicode normalisation, no second decoding.
    """
    path = _path(url)
    if _UNUSUAL.search(path) is None:
        key = path[1:]
        return key + INDEX if not key or key.endswith("/") else key
    segments = _resolved(path)
    *inner, last = segments
    if "" in inner:
        return None
    decoded = [_decoded(segment) for segment in segments]
    if None in decoded:
        return None
    key = "/".join(segment for segment in decoded if segment is not None)
    return key if last else key + INDEX


def _path(url: str) -> str:
    """From the first slash on, without query and fragment; at least `/`."""
    found = _AFTER_AUTHORITY.match(url)
    rest = url[found.end() :] if found is not None else url
    for mark in "?#":
        rest = rest.partition(mark)[0]
    return rest if rest.startswith(("/", "\\")) else f"/{rest}"


def _resolved(path: str) -> list[str]:
    """The segments of the pathname, still escaped; the last one is empty after a trailing slash."""
    _, *parts = _REMOVED_FROM_URLS.sub("", path).replace("\\", "/").split("/")
    segments: list[str] = []
    for index, part in enumerate(parts):
        at_end = index == len(parts) - 1
        if part.lower() in _TWO_DOTS:
            del segments[-1:]
        elif part.lower() not in _ONE_DOT:
            segments.append(part)
            continue
        if at_end:
            segments.append("")
    return segments or [""]


def _decoded(segment: str) -> str | None:
    """One segment as text; None when it cannot be part of a path."""
    if _BROKEN_ESCAPE.search(segment) is not None:
        return None
    try:
        text = _ESCAPE.sub(lambda found: chr(int(found[1], 16)), _as_bytes(segment)).encode("latin-1").decode()
    except UnicodeError:
        return None
    return None if _FORBIDDEN.search(text) is not None or text in (".", "..") else text


def _as_bytes(segment: str) -> str:
    """UTF-8, each byte as one character: an escape stands for a byte and not for a character."""
    return segment if segment.isascii() else segment.encode().decode("latin-1")
