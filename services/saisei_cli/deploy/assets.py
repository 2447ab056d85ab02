"""The folder of static files that `assets` in saisei.toml names: found, checked and typed; read when they are sent."""

from __future__ import annotations

import hashlib
import mimetypes
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, StrictBool, model_validator

from saisei_cli.failures import CommandFailure
from saisei_contract.artifacts import MAX_FILE_BYTES, MAX_FILES, MAX_TOTAL_BYTES, is_artifact_path, is_media_type

ROOT_INDEX = "index.html"
OCTETS = "application/octet-stream"
# Python's own table and not this machine's, so that a site is the same wherever it is deployed from; and what it lacks.
_TABLE = mimetypes.MimeTypes(filenames=()).types_map[True]
MEDIA_TYPES = _TABLE | {
    ".avif": "image/avif",
    ".cjs": "text/javascript",
    ".eot": "application/vnd.ms-fontobject",
    ".flac": "audio/flac",
    ".gz": "application/gzip",
    ".ico": "image/x-icon",
    ".js": "text/javascript",
    ".json5": "application/json5",
    ".jsonld": "application/ld+json",
    ".map": "application/json",
    ".md": "text/markdown",
    ".mjs": "text/javascript",
    ".otf": "font/otf",
    ".rss": "application/rss+xml",
    ".svgz": OCTETS,
    ".ttf": "font/ttf",
    ".wasm": "application/wasm",
    ".webmanifest": "application/manifest+json",
    ".webp": "image/webp",
    ".woff": "font/woff",
    ".woff2": "font/woff2",
    ".xml": "application/xml",
    ".yaml": "application/yaml",
    ".yml": "application/yaml",
}
# Names with a dot in front are editors' and tools' own; this one is the web's (RFC 8615).
_WELL_KNOWN = ".well-known"


class AssetsEntry(BaseModel):
    """`assets = "FOLDER"`, or a table with what else there is to say of it."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    folder: str
    run_worker_first: StrictBool = False
    single_page_application: StrictBool = False
    media_types: dict[str, str] = {}

    @model_validator(mode="before")
    @classmethod
    def _folder_alone(cls, value: Any) -> Any:
        return {"folder": value} if isinstance(value, str) else value


@dataclass(frozen=True, slots=True)
class AssetFile:
    """`path` is relative to the folder, with `/`; `sha256` as it was when the folder was read."""

    path: str
    media_type: str
    source: Path
    sha256: str


def read_assets(source: Path, folder: Path, entry: AssetsEntry) -> tuple[AssetFile, ...]:
    """Every file of the folder but hidden ones, ascending by path. CommandFailure says what cannot be served, and why.

    `source` is the saisei.toml, `folder` the project's.
    """
    if Path(entry.folder).is_absolute() or ".." in Path(entry.folder).parts:
        raise CommandFailure(f"{source}: assets = {entry.folder!r} leaves the project's folder")
    root = folder / entry.folder
    if not root.is_dir():
        raise CommandFailure(f"{source}: assets = {entry.folder!r} is no folder in {folder}", "build the site first")
    found = sorted(_walk(root), key=lambda path: path.relative_to(root).as_posix())
    if not found:
        raise CommandFailure(f"{source}: the folder {entry.folder!r} of assets has no files")
    if len(found) > MAX_FILES:
        raise CommandFailure(f"{root} has {len(found):,} files; a Version serves at most {MAX_FILES}")
    media_types = MEDIA_TYPES | entry.media_types
    for ending, media_type in entry.media_types.items():
        if not ending.startswith(".") or ending != ending.lower() or not is_media_type(media_type):
            raise CommandFailure(
                f"{source}: assets.media_types: {ending!r} = {media_type!r}",
                'write ".ending" = "type/subtype", in lower case and without parameters',
            )
    total, files = 0, []
    for path in found:
        name = path.relative_to(root).as_posix()
        size = path.stat().st_size
        total += size
        if size > MAX_FILE_BYTES:
            raise CommandFailure(f"{path} has {size:,} bytes; a file of a site has at most {MAX_FILE_BYTES:,}")
        if not is_artifact_path(name):
            raise CommandFailure(
                f"{name!r} in {root} cannot be served: paths have at most 1,024 bytes of UTF-8 without \\, ?, # and "
                "control characters",
                "rename it",
            )
        if not path.resolve().is_relative_to(root.resolve()):
            raise CommandFailure(f"{path} is a link to a file outside of {root}", "copy the file into the folder")
        with path.open("rb") as opened:
            digest = hashlib.file_digest(opened, "sha256").hexdigest()
        files.append(AssetFile(name, media_types.get(path.suffix.lower(), OCTETS), path, digest))
    if total > MAX_TOTAL_BYTES:
        raise CommandFailure(f"{root} has {total:,} bytes in all; a Version serves at most {MAX_TOTAL_BYTES:,}")
    if entry.single_page_application and all(file.path != ROOT_INDEX for file in files):
        raise CommandFailure(
            f"{source}: single_page_application needs a file {ROOT_INDEX} in {root}, and there is none",
            "build the site first, or leave single_page_application out",
        )
    return tuple(files)


def _walk(root: Path) -> list[Path]:
    """Regular files; folders that are links are not followed."""
    found = []
    for place, folders, names in os.walk(root):
        folders[:] = [name for name in folders if not name.startswith(".") or name == _WELL_KNOWN]
        found += [Path(place, name) for name in names if not name.startswith(".") and Path(place, name).is_file()]
    return found
