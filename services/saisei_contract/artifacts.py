"""Artifact manifests: what a bundle's document must look like before any file is taken in (AR-02 … AR-07)."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum

from saisei_contract.errors import SaiseiError
from saisei_contract.grammar import is_artifact_url, is_sha256, is_well_formed
from saisei_contract.json_reader import JsonValue, shown
from saisei_contract.shapes import closed, text
from saisei_contract.strict_json import parse

MAX_MANIFEST_BYTES = 1_048_576
MAX_FILES = 512
MAX_FILE_BYTES = 16_777_216
MAX_TOTAL_BYTES = 134_217_728
MAX_PATH_BYTES = 1024

JAVASCRIPT_MODULE = "application/javascript+module"
SOURCE_MAP = "application/source-map+json"
"""Auxiliary, never importable (MW-11, C 5)."""

MODULE_MEDIA_TYPES = frozenset({JAVASCRIPT_MODULE, "text/plain", "application/octet-stream", "application/wasm"})
"""Importable types (MW-11)."""

_TOKEN = r"[!#$%&'*+.^_`|~0-9A-Za-z-]+"  # noqa: S105 - RFC 9110's name for it
_MEDIA_TYPE = re.compile(rf"{_TOKEN}/{_TOKEN}\Z", re.ASCII)
_FORBIDDEN_IN_PATH = re.compile(r"[\x00-\x1f\x7f\\?#]")
_PATH_RULE = (
    f"a relative POSIX path of 1 to {MAX_PATH_BYTES:,} bytes without empty, '.' or '..' segments, backslash, '?', '#' "
    "or control characters"
)
_URL_RULE = "an ASCII absolute https URL of at most 8,192 characters without userinfo, query and fragment"


class ManifestKind(Enum):
    WORKER_BUNDLE = "WorkerBundle"
    STATIC_ASSET_BUNDLE = "StaticAssetBundle"
    SQLITE_MIGRATION_SET = "SQLiteMigrationSet"


class ManifestError(ValueError):
    """The manifest breaks a rule. `code` is the Operation's error code; `message` names the place and the rule."""

    code = "artifact_invalid"

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message


@dataclass(frozen=True, slots=True)
class ManifestFile:
    path: str
    url: str
    sha256: str
    media_type: str


@dataclass(frozen=True, slots=True)
class Manifest:
    """`entrypoint` is None but for a WorkerBundle. `files` keep the manifest's order."""

    entrypoint: str | None
    files: tuple[ManifestFile, ...]


def parse_manifest(raw: bytes, kind: ManifestKind) -> Manifest:
    """The manifest in `raw`; ManifestError names the first rule that it breaks."""
    if len(raw) > MAX_MANIFEST_BYTES:
        raise ManifestError(f"The manifest has {len(raw):,} bytes; at most {MAX_MANIFEST_BYTES:,} are allowed.")
    try:
        value = parse(raw)
    except SaiseiError as error:
        raise ManifestError(error.detail.replace("The body", "The manifest", 1)) from None
    bundle = kind is ManifestKind.WORKER_BUNDLE
    manifest = closed(value, "", ("entrypoint", "files") if bundle else ("files",), (), _refusal)
    listed = manifest["files"]
    if not isinstance(listed, list) or not 1 <= len(listed) <= MAX_FILES:
        raise _refusal("files", f"must be an array of 1 to {MAX_FILES} entries")
    files = tuple(_file(entry, f"files[{index}]", kind) for index, entry in enumerate(listed))
    _refuse_duplicates(files)
    return Manifest(_entrypoint(manifest["entrypoint"], files) if bundle else None, files)


def check_sizes(sizes: list[int]) -> int:
    """The total of the files' sizes in bytes; ManifestError when one file or the total is too large (AR-02)."""
    for index, size in enumerate(sizes):
        if size > MAX_FILE_BYTES:
            raise ManifestError(f"files[{index}] has {size:,} bytes; at most {MAX_FILE_BYTES:,} are allowed.")
    total = sum(sizes)
    if total > MAX_TOTAL_BYTES:
        raise ManifestError(f"The files have {total:,} bytes in total; at most {MAX_TOTAL_BYTES:,} are allowed.")
    return total


def is_artifact_path(path: str) -> bool:
    """AR-03: a relative POSIX path of 1-1,024 UTF-8 bytes without empty, `.` and `..` segments and without special
    characters.
    """
    if not is_well_formed(path) or not 1 <= len(path.encode()) <= MAX_PATH_BYTES:
        return False
    return _FORBIDDEN_IN_PATH.search(path) is None and not {"", ".", ".."}.intersection(path.split("/"))


def is_media_type(text: str) -> bool:
    """AR-06: RFC 9110's `type/subtype`, without parameters."""
    return _MEDIA_TYPE.match(text) is not None


def _file(entry: JsonValue, place: str, kind: ManifestKind) -> ManifestFile:
    item = closed(entry, place, ("path", "url", "sha256", "mediaType"), (), _refusal)
    return ManifestFile(
        path=text(item["path"], f"{place}.path", is_artifact_path, _PATH_RULE, _refusal),
        url=text(item["url"], f"{place}.url", is_artifact_url, _URL_RULE, _refusal),
        sha256=text(item["sha256"], f"{place}.sha256", is_sha256, "64 lower-case hexadecimal digits", _refusal),
        media_type=_media_type(item["mediaType"], f"{place}.mediaType", kind),
    )


def _media_type(value: JsonValue, path: str, kind: ManifestKind) -> str:
    match kind:
        case ManifestKind.WORKER_BUNDLE:
            known = MODULE_MEDIA_TYPES | {SOURCE_MAP}
            return text(value, path, known.__contains__, f"one of {', '.join(sorted(known))}", _refusal)
        case ManifestKind.STATIC_ASSET_BUNDLE:
            rule = "a media type without parameters, such as text/html"
            return text(value, path, is_media_type, rule, _refusal)
        case ManifestKind.SQLITE_MIGRATION_SET:
            return text(value, path, "application/sql".__eq__, "application/sql", _refusal)


def _refuse_duplicates(files: tuple[ManifestFile, ...]) -> None:
    seen: set[str] = set()
    for index, file in enumerate(files):
        if file.path in seen:
            raise _refusal(f"files[{index}].path", f"repeats the path {shown(file.path)}")
        seen.add(file.path)


def _entrypoint(value: JsonValue, files: tuple[ManifestFile, ...]) -> str:
    types = {file.path: file.media_type for file in files}
    path = text(value, "entrypoint", types.__contains__, "the path of one of the files", _refusal)
    if types[path] != JAVASCRIPT_MODULE:
        raise _refusal("entrypoint", f"must name a file of the mediaType {JAVASCRIPT_MODULE}")
    return path


def _refusal(path: str, rule: str) -> ManifestError:
    return ManifestError(f"{path or 'The manifest'} {rule}.")
