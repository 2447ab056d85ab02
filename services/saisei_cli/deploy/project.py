"""`saisei.toml` and the files that it names: read, checked, and nothing else yet."""

from __future__ import annotations

import difflib
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, StrictBool, ValidationError

from saisei_cli.deploy.assets import AssetFile, AssetsEntry, read_assets
from saisei_cli.failures import CommandFailure
from saisei_contract.cron import CronError, parse_cron

PROJECT_FILE = "saisei.toml"
JAVASCRIPT = "application/javascript+module"
# A file's ending decides its media type (MW-11); [media_types] of the project adds endings or overrides these.
MEDIA_TYPES = {
    ".mjs": JAVASCRIPT,
    ".js": JAVASCRIPT,
    ".txt": "text/plain",
    ".csv": "text/plain",
    ".html": "text/plain",
    ".md": "text/plain",
    ".sql": "text/plain",
    ".wasm": "application/wasm",
    ".bin": "application/octet-stream",
    ".map": "application/source-map+json",
}

_Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,127}$")]
_Handler = Literal["fetch", "scheduled", "queue"]


class _Closed(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, alias_generator=None)


def _schedule(cron: str) -> str:
    try:
        parse_cron(cron)
    except CronError as error:
        raise ValueError(f"the schedule {error}") from None
    return cron


class WorkflowEntry(_Closed):
    """One DurableWorkflow: a Resource name, the exported class, and the Binding's name in `env` (none: no Binding)."""

    name: _Name
    class_name: Annotated[str, Field(alias="class", min_length=1)]
    binding: Annotated[str, Field(pattern=r"^[A-Za-z_$][A-Za-z0-9_$]{0,63}$")] | None = None


class ServiceEntry(_Closed):
    """One service Binding: its name in `env`, and the Resource name of the Worker of the Space that it calls."""

    binding: Annotated[str, Field(pattern=r"^[A-Za-z_$][A-Za-z0-9_$]{0,63}$")]
    worker: _Name


class ProjectFile(_Closed):
    """The keys of saisei.toml. Unknown keys are refused."""

    space: _Name
    # Resources that this makes are named after it, with up to 30 more characters.
    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,97}$")]
    # None: a site without code.
    main: str | None = None
    assets: AssetsEntry | None = None
    modules: list[str] = []
    handlers: list[_Handler] | None = None
    endpoint: StrictBool = False
    vars: dict[str, Any] = {}
    secrets: list[str] = []
    workflows: list[WorkflowEntry] = []
    services: list[ServiceEntry] = []
    crons: list[Annotated[str, AfterValidator(_schedule)]] = []
    media_types: dict[str, str] = {}

    @property
    def declared_handlers(self) -> list[str]:
        """Without `handlers`: `fetch` for code with an endpoint, `scheduled` for code with schedules."""
        if self.handlers is not None:
            return list(self.handlers)
        if self.main is None:
            return []
        return [*(["fetch"] if self.endpoint else []), *(["scheduled"] if self.crons else [])]


@dataclass(frozen=True, slots=True)
class ModuleFile:
    """One file of the bundle; `path` is relative to the project's folder, with `/`."""

    path: str
    media_type: str
    content: bytes


@dataclass(frozen=True, slots=True)
class Project:
    """A project as read. `files` ascend by path and hold the main module, if there is code."""

    file: ProjectFile
    folder: Path
    files: tuple[ModuleFile, ...]
    assets: tuple[AssetFile, ...] = ()


def read_project(folder: Path) -> Project:
    """The project of a folder, or of its saisei.toml. CommandFailure names the file, the key and what is wrong."""
    if folder.name == PROJECT_FILE and folder.is_file():
        folder = folder.parent
    file = read_project_file(folder)
    source = folder / PROJECT_FILE
    files = () if file.main is None else _read_files(source, folder, file, file.main)
    return Project(file, folder, files, () if file.assets is None else read_assets(source, folder, file.assets))


def read_project_file(folder: Path) -> ProjectFile:
    """What saisei.toml says, without the files that it names."""
    source = folder if folder.name == PROJECT_FILE and folder.is_file() else folder / PROJECT_FILE
    try:
        values = tomllib.loads(source.read_text(encoding="utf-8"))
    except OSError as error:
        why = "there is no" if isinstance(error, FileNotFoundError | NotADirectoryError) else "cannot read"
        raise CommandFailure(f"{why} {source}", "name the folder that has a saisei.toml") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise CommandFailure(f"{source} is not TOML: {error}") from error
    try:
        file = ProjectFile.model_validate(values)
    except ValidationError as error:
        raise CommandFailure(f"{source} is not a project: " + "; ".join(map(_fault, error.errors()))) from error
    _check_parts(source, file)
    _refuse_shared_names(source, file)
    return file


def _fault(fault: Any) -> str:
    """One mistake: the key, what is wrong with its value, and what it may be."""
    where = ".".join(str(part) for part in fault["loc"])
    value = fault["input"]
    match fault["type"]:
        case "extra_forbidden":
            key = str(fault["loc"][-1])
            known = _keys(_ENTRIES.get(str(fault["loc"][0]), ProjectFile))
            near = difflib.get_close_matches(key, known, 1, 0.6)
            meant = f" (did you mean {near[0]}?)" if near else ""
            return f"{where}: there is no such key{meant}; the keys are {', '.join(known)}"
        case "missing":
            return f"{where}: is required"
        case "bool_type":
            return f"{where}: write true or false, without quotes, not {value!r}"
        case "string_type":
            return f"{where}: write a text in quotes, not {value!r}"
        case "list_type":
            return f"{where}: write a list, for example [{value!r}]"
        case "model_type" if fault["loc"][0] == "assets":
            return f'{where}: write assets = "FOLDER", or [assets] with folder = "FOLDER"'
        case "model_type" if fault["loc"][0] in _ENTRIES:
            entry = str(fault["loc"][0])
            keys = " and ".join(f'{key} = "…"' for key in _keys(_ENTRIES[entry])[:2])
            return f"{where}: write [[{entry}]] with {keys}"
        case "string_pattern_mismatch":
            return (
                f"{where}: {value!r} has characters that a name cannot have, or is too long ({fault['ctx']['pattern']})"
            )
        case _:
            return f"{where}: {str(fault['msg']).removeprefix('Input ').removeprefix('Value error, ')}, not {value!r}"


# Tables, some of which may repeat, by their key.
_ENTRIES: dict[str, type[BaseModel]] = {"workflows": WorkflowEntry, "services": ServiceEntry, "assets": AssetsEntry}


def _keys(model: type[BaseModel]) -> list[str]:
    return [field.alias or name for name, field in model.model_fields.items()]


def _refuse_shared_names(source: Path, file: ProjectFile) -> None:
    names = [file.name, *(workflow.name for workflow in file.workflows)]
    bindings = [*file.vars, *file.secrets, *(entry.binding for entry in file.workflows if entry.binding)]
    bindings += [entry.binding for entry in file.services]
    for what, values in (("Resource name", names), ("name in env", bindings), ("schedule", file.crons)):
        twice = sorted({value for value in values if values.count(value) > 1})
        if twice:
            raise CommandFailure(f"{source} uses the {what} {twice[0]!r} twice", "each needs a name of its own")
    if file.crons and "scheduled" not in file.declared_handlers:
        raise CommandFailure(
            f"{source}: crons needs the handler scheduled, and handlers does not list it", 'add "scheduled" to handlers'
        )


def _check_parts(source: Path, file: ProjectFile) -> None:
    """WV-04, WV-05: what needs code, and that there is something at all."""
    if file.main is not None:
        first = file.assets is not None and file.assets.run_worker_first
        if first and "fetch" not in file.declared_handlers:
            raise CommandFailure(
                f"{source}: assets.run_worker_first needs the handler fetch", "say endpoint = true, or leave it out"
            )
        return
    if file.assets is None:
        raise CommandFailure(
            f"{source} has neither main nor assets", 'name the main module (main = "main.mjs") or a folder of files'
        )
    needing = {
        "modules": file.modules,
        "handlers": file.handlers,
        "vars": file.vars,
        "secrets": file.secrets,
        "workflows": file.workflows,
        "services": file.services,
        "crons": file.crons,
        "assets.run_worker_first": file.assets.run_worker_first,
    }
    for key, value in needing.items():
        if value:
            raise CommandFailure(f"{source}: {key} is for code, and there is no main", 'add main = "main.mjs"')


def _read_files(source: Path, folder: Path, file: ProjectFile, main: str) -> tuple[ModuleFile, ...]:
    found: dict[str, Path] = {}
    for pattern in [main, *file.modules]:
        if Path(pattern).is_absolute() or ".." in Path(pattern).parts:
            raise CommandFailure(f"{source}: {pattern!r} leaves the project's folder", "modules lie below saisei.toml")
        matches = [path for path in folder.glob(pattern) if path.is_file()]
        if not matches:
            raise CommandFailure(f"{source}: no file matches {pattern!r} in {folder}")
        found.update((path.relative_to(folder).as_posix(), path) for path in matches)
    media_types = MEDIA_TYPES | file.media_types
    files = []
    for path in sorted(found):
        ending = Path(path).suffix.lower()
        if ending not in media_types:
            known = ", ".join(sorted(media_types))
            raise CommandFailure(
                f"{path} has no known media type for its ending {ending!r} (known: {known})",
                f"add it to [media_types] in {source}, or leave the file out of modules",
            )
        files.append(ModuleFile(path, media_types[ending], found[path].read_bytes()))
    if main not in found:
        raise CommandFailure(f"{source}: main = {main!r} must name one file exactly")
    if media_types[Path(main).suffix.lower()] != JAVASCRIPT:
        raise CommandFailure(f"{source}: main = {main!r} is not a JavaScript module (.mjs or .js)")
    return tuple(files)
