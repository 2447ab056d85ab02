"""Artifact manifests."""

from __future__ import annotations

import json
from typing import Any

import pytest

from saisei_contract.artifacts import (
    Manifest,
    ManifestError,
    ManifestFile,
    ManifestKind,
    check_sizes,
    is_artifact_path,
    parse_manifest,
)

BUNDLE, ASSETS, SQL = ManifestKind.WORKER_BUNDLE, ManifestKind.STATIC_ASSET_BUNDLE, ManifestKind.SQLITE_MIGRATION_SET
DIGEST = "0" * 64


def file(path: str = "index.mjs", **change: Any) -> dict[str, Any]:
    return {
        "path": path,
        "url": "https://h/x",
        "sha256": DIGEST,
        "mediaType": "application/javascript+module",
    } | change


def manifest(*files: Any, entrypoint: Any = "index.mjs", **extra: Any) -> bytes:
    return json.dumps({"entrypoint": entrypoint, "files": list(files)} | extra).encode()


def refused(raw: bytes, kind: ManifestKind = BUNDLE) -> str:
    with pytest.raises(ManifestError) as caught:
        parse_manifest(raw, kind)
    assert caught.value.code == "artifact_invalid"
    assert caught.value.message == str(caught.value)
    return caught.value.message


def test_bundle() -> None:
    """AR-02, AR-05: an entrypoint and files in their order, of the importable types and source maps."""
    types = ["text/plain", "application/octet-stream", "application/wasm", "application/source-map+json"]
    raw = manifest(file(), *(file(f"lib/f{i}", mediaType=kind) for i, kind in enumerate(types)))
    read = parse_manifest(raw, BUNDLE)
    assert read.entrypoint == "index.mjs"
    assert [item.media_type for item in read.files[1:]] == types
    assert read.files[0] == ManifestFile("index.mjs", "https://h/x", DIGEST, "application/javascript+module")


def test_static_assets() -> None:
    """AR-06: files only, any media type without parameters."""
    raw = json.dumps({"files": [file("a.html", mediaType="text/html"), file("b", mediaType="image/svg+xml")]}).encode()
    read = parse_manifest(raw, ASSETS)
    assert read == Manifest(None, read.files)
    for bad in ("text", "text/", "/html", "text/html; charset=utf-8", "text/html ", "", "text/html\n", "a/b/c", 7):
        assert "files[0].mediaType" in refused(json.dumps({"files": [file(mediaType=bad)]}).encode(), ASSETS)
    assert 'unknown field "entrypoint"' in refused(manifest(file()), ASSETS)


def test_migrations() -> None:
    """AR-07: application/sql exactly, order kept."""
    raw = json.dumps({"files": [file(path, mediaType="application/sql") for path in ("2.sql", "1.sql")]}).encode()
    assert [item.path for item in parse_manifest(raw, SQL).files] == ["2.sql", "1.sql"]
    for bad in ("application/SQL", "text/plain"):
        assert "must be application/sql" in refused(json.dumps({"files": [file(mediaType=bad)]}).encode(), SQL)


@pytest.mark.parametrize(
    ("raw", "word"),
    [
        (b"", "The manifest is not valid JSON: the text is empty"),
        (b"[]", "The manifest must be a JSON object"),
        (b'{"files":[],"files":[]}', 'the key "files" is repeated'),
        (b'{"entrypoint":"\xff"}', "not UTF-8"),
        (b"\xef\xbb\xbf{}", "byte order mark"),
        (b"{}", "entrypoint is missing"),
        (b'{"entrypoint":"a"}', "files is missing"),
        (manifest(file(), extra=1), 'has the unknown field "extra"'),
        (manifest(), "files must be an array of 1 to 512"),
        (manifest(*(file(f"f{i}") for i in range(513))), "files must be an array of 1 to 512"),
        (b'{"entrypoint":"a","files":{}}', "files must be an array"),
        (b'{"entrypoint":"a","files":null}', "files must not be null"),
        (manifest("x"), "files[0] must be a JSON object"),
        (manifest(file(), file("b", extra=1)), 'files[1] has the unknown field "extra"'),
        (manifest({"path": "a"}), "files[0].url is missing"),
        (manifest(file(url=None)), "files[0].url must not be null"),
        (manifest(file(url="http://h/x")), "files[0].url must be an ASCII absolute https URL"),
        (manifest(file(url="https://h/x?y")), "files[0].url"),
        (manifest(file(sha256="A" * 64)), "files[0].sha256 must be 64 lower-case"),
        (manifest(file(mediaType="text/javascript")), "files[0].mediaType must be one of"),
        (manifest(file(mediaType="application/json")), "files[0].mediaType must be one of"),
        (manifest(file(mediaType="Application/Javascript+module")), "files[0].mediaType must be one of"),
        (manifest(file(), file()), 'files[1].path repeats the path "index.mjs"'),
        (manifest(file(), entrypoint="other.mjs"), "entrypoint must be the path of one of the files"),
        (manifest(file(), entrypoint=7), "entrypoint must be the path"),
        (manifest(file(mediaType="text/plain")), "entrypoint must name a file of the mediaType"),
        (b"[" * 100_000, "nest deeper"),
    ],
)
def test_bad_bundles(raw: bytes, word: str) -> None:
    """AR-02, AR-03, AR-04, AR-05: the refusal names the place and the rule."""
    assert word in refused(raw)


def test_limits_of_the_manifest() -> None:
    """AR-02: 1,048,576 bytes and 512 files, not one more."""
    parse_manifest(manifest(file(), *(file(f"f{i}") for i in range(511))), BUNDLE)
    raw = manifest(file())
    parse_manifest(raw + b" " * (1_048_576 - len(raw)), BUNDLE)
    assert "1,048,577 bytes" in refused(raw + b" " * (1_048_577 - len(raw)))


@pytest.mark.parametrize(
    "path",
    [
        "a",
        "a/b.c",
        "…",
        "é" * 512,
        "a" * 1024,
        "...",
        ".a",
        "a..b",
        "a b",
        "%2e%2e",
        "a:b",
        "*",
        "~",
        "e\u0301",
        "\u0080",
    ],
)
def test_good_paths(path: str) -> None:
    """AR-03: relative POSIX paths of 1 to 1,024 UTF-8 bytes."""
    assert is_artifact_path(path)


@pytest.mark.parametrize(
    "path",
    ["", "/", "/a", "a/", "a//b", ".", "..", "./a", "a/.", "a/../b", "a\\b", "a?b", "a#b", "a\x00", "a\nb", "a\x7f",
     "a" * 1025, "é" * 513, "\ud800"],
)  # fmt: skip
def test_bad_paths(path: str) -> None:
    """AR-03: no outer slash, empty or dot segment, backslash, `?`, `#`, control, or byte too many."""
    assert not is_artifact_path(path)
    if path != "\ud800":
        assert "files[0].path" in refused(manifest(file(path)))


def test_paths_are_compared_exactly() -> None:
    """AR-03: letter case and composition make another path."""
    parse_manifest(manifest(file(), file("Index.mjs"), file("\u00e9"), file("e\u0301")), BUNDLE)


def test_sizes() -> None:
    """AR-02: 16,777,216 bytes a file, 134,217,728 in all; empty files are fine."""
    assert check_sizes([0, 16_777_216]) == 16_777_216
    assert check_sizes([16_777_216] * 8) == 134_217_728
    with pytest.raises(ManifestError, match=r"files\[1\] has 16,777,217 bytes"):
        check_sizes([0, 16_777_217])
    with pytest.raises(ManifestError, match="134,217,729 bytes in total"):
        check_sizes([16_777_216] * 8 + [1])
