"""The HTTP response that a static asset is: what RFC 9110 says of validators, ranges and codings (WV-22).

A strong ETag is the digest of exactly the bytes of the representation. Nothing is known of an asset's dates, so that
conditions on dates never hold and `If-Modified-Since` has no meaning.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

# A name keeps its content only until the next deploy: caches may keep it and must ask whether it is still so.
CACHE_CONTROL = "public, max-age=0, must-revalidate"

_ASKED_FOR = frozenset({"accept-encoding", "if-match", "if-none-match", "if-range", "range"})
_RANGE = re.compile(r"bytes=[ \t]*([0-9]{0,18})-([0-9]{0,18})[ \t]*\Z", re.ASCII | re.IGNORECASE)
_WEIGHT = re.compile(r"[ \t]*q=(0(?:\.[0-9]{0,3})?|1(?:\.0{0,3})?)[ \t]*\Z", re.ASCII | re.IGNORECASE)
_ENTITY_TAG = re.compile(r'(?:W/)?("[^"]*")')


@dataclass(frozen=True, slots=True)
class Asset:
    """One asset and, where compressing it pays, its gzip variant (0 bytes and no digest otherwise)."""

    sha256: str
    media_type: str
    size_bytes: int
    gzip_sha256: str = ""
    gzip_bytes: int = 0


@dataclass(frozen=True, slots=True)
class AssetResponse:
    """`length` bytes from `offset` on of the variant are its body, which HEAD leaves out."""

    status: int
    headers: list[tuple[str, str]]
    gzip: bool = False
    offset: int = 0
    length: int = 0


def asset_response(asset: Asset, method: str, headers: Iterable[tuple[str, str]]) -> AssetResponse:
    """The response to a GET or HEAD whose key is this asset's. Names of `headers` are in lower case."""
    asked: dict[str, str] = {}
    for name, value in headers:
        if name in _ASKED_FOR:
            asked[name] = f"{asked[name]}, {value}" if name in asked else value
    gzip = asset.gzip_bytes > 0 and _prefers_gzip(asked.get("accept-encoding", ""))
    size = asset.gzip_bytes if gzip else asset.size_bytes
    tag = f'"{asset.gzip_sha256 if gzip else asset.sha256}"'
    common = [("etag", tag), ("cache-control", CACHE_CONTROL), ("accept-ranges", "bytes")]
    if asset.gzip_bytes:
        common.append(("vary", "accept-encoding"))
    if "if-match" in asked and not _names(asked["if-match"], tag, weak=False):
        return AssetResponse(412, [*common, ("content-length", "0")])
    if "if-none-match" in asked and _names(asked["if-none-match"], tag, weak=True):
        return AssetResponse(304, common)
    described = [("content-type", asset.media_type), *common]
    if gzip:
        described.append(("content-encoding", "gzip"))
    part = None
    if method == "GET" and "range" in asked and asked.get("if-range", tag).strip(" \t") == tag:
        part = _part(asked["range"], size)
    if part is None:
        return AssetResponse(200, [*described, ("content-length", str(size))], gzip, 0, size)
    offset, length = part
    if length == 0:
        return AssetResponse(416, [*common, ("content-range", f"bytes */{size}"), ("content-length", "0")])
    described += [("content-range", f"bytes {offset}-{offset + length - 1}/{size}"), ("content-length", str(length))]
    return AssetResponse(206, described, gzip, offset, length)


def pays_to_compress(media_type: str, size_bytes: int) -> bool:
    """Whether a gzip variant is worth making: text and what is like it, from 1 KiB on."""
    if size_bytes < 1024:
        return False
    kind, _, subtype = media_type.lower().partition("/")
    return (
        kind == "text"
        or subtype in _COMPRESSIBLE.get(kind, frozenset())
        or subtype.endswith(("+json", "+xml", "+text"))
    )


_COMPRESSIBLE = {
    "application": frozenset(
        {"javascript", "x-javascript", "ecmascript", "json", "xml", "wasm", "rtf", "sql", "vnd.ms-fontobject"}
    ),
    "font": frozenset({"ttf", "otf", "sfnt"}),
    "image": frozenset({"bmp", "x-icon", "vnd.microsoft.icon"}),
}


def _part(text: str, size: int) -> tuple[int, int] | None:
    """(offset, length) of the one range asked for; length 0 when no byte of it exists.

    None for what is no range in bytes, and for several: the whole is a right answer to these (RFC 9110 14.2).
    """
    found = _RANGE.match(text.strip(" \t"))
    if found is None or not (found[1] or found[2]):
        return None
    if not found[1]:
        length = min(int(found[2]), size)
        return size - length, length
    first = int(found[1])
    last = min(int(found[2]), size - 1) if found[2] else size - 1
    if found[2] and int(found[2]) < first:
        return None
    return first, max(0, last - first + 1)


def _names(text: str, tag: str, *, weak: bool) -> bool:
    """Whether a list of entity tags has this strong one; weakly, `W/` makes no difference (RFC 9110 8.8.3.2)."""
    if text.strip(" \t") == "*":
        return True
    return any(found[1] == tag and (weak or found[0] == tag) for found in _ENTITY_TAG.finditer(text))


def _prefers_gzip(accept_encoding: str) -> bool:
    """Whether gzip may be sent and is not liked less than the bytes as they are (RFC 9110 12.5.3)."""
    if not accept_encoding:
        return False
    weights: dict[str, float] = {}
    for item in accept_encoding.lower().split(","):
        coding, _, parameter = item.partition(";")
        weight = _WEIGHT.match(parameter)
        if parameter and weight is None:
            continue
        weights[coding.strip(" \t")] = float(weight[1]) if weight is not None else 1.0
    gzip = weights.get("gzip", weights.get("x-gzip", weights.get("*", 0.0)))
    return gzip > 0 and gzip >= weights.get("identity", 0.0)
