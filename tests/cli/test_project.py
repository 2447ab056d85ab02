"""saisei.toml: what is taken, and how a mistake is shown."""

from __future__ import annotations

from pathlib import Path

import pytest

from saisei_cli.deploy.project import read_project
from saisei_cli.failures import CommandFailure

MINIMAL = 'space = "s"\nname = "n"\nmain = "main.mjs"\n'


def write(folder: Path, toml: str, **files: str) -> Path:
    (folder / "saisei.toml").write_text(toml)
    for name, text in {"main.mjs": "export default {};", **files}.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder


def test_files_are_found_once_with_their_media_types(tmp_path: Path) -> None:
    """MW-11: a file's ending decides its media type; globs and lists may overlap."""
    files = {"src/a.mjs": "1", "data/t.csv": "x", "w/m.wasm": "\0asm", "w/x.bin": "b"}
    toml = MINIMAL + 'modules = ["src/*.mjs", "**/*.mjs", "data/*", "w/*"]'
    project = read_project(write(tmp_path, toml, **files))
    assert [(file.path, file.media_type) for file in project.files] == [
        ("data/t.csv", "text/plain"),
        ("main.mjs", "application/javascript+module"),
        ("src/a.mjs", "application/javascript+module"),
        ("w/m.wasm", "application/wasm"),
        ("w/x.bin", "application/octet-stream"),
    ]


def test_handlers_default_to_fetch_for_an_endpoint(tmp_path: Path) -> None:
    """EP-01: an Endpoint needs a fetch handler; without an Endpoint none is declared unless the project says so."""
    assert read_project(write(tmp_path, MINIMAL)).file.declared_handlers == []
    assert read_project(write(tmp_path, MINIMAL + "endpoint = true")).file.declared_handlers == ["fetch"]
    assert read_project(write(tmp_path, MINIMAL + "handlers = []\nendpoint = true")).file.declared_handlers == []
    both = read_project(write(tmp_path, MINIMAL + 'crons = ["0 0 * * *"]\nendpoint = true'))
    assert both.file.declared_handlers == ["fetch", "scheduled"]


@pytest.mark.parametrize(
    ("toml", "said"),
    [
        ("space = ", "not TOML"),
        (MINIMAL + "colour = 1", "colour"),
        (MINIMAL + '[[workflows]]\nname = "w"', "workflows.0.class"),
        (MINIMAL + '[[workflows]]\nname = "n"\nclass = "A"', "'n' twice"),
        (MINIMAL + '[[services]]\nworker = "w"', "services.0.binding: is required"),
        (MINIMAL + '[[services]]\nbinding = "A"\nwroker = "w"', "did you mean worker"),
        (MINIMAL + 'services = ["w"]', '[[services]] with binding = "…" and worker = "…"'),
        (MINIMAL + 'vars.A = 1\n[[services]]\nbinding = "A"\nworker = "w"', "name in env 'A' twice"),
        (MINIMAL + 'crons = ["* * * *"]', "crons.0: the schedule must have five fields"),
        (MINIMAL + 'crons = ["* * * * 7"]', "day of the week field, which is from 0 to 6"),
        (MINIMAL + 'crons = "* * * * *"', "write a list"),
        (MINIMAL + 'crons = ["* * * * *", "* * * * *"]', "twice"),
        (MINIMAL + 'handlers = ["fetch"]\ncrons = ["* * * * *"]', "needs the handler scheduled"),
        (MINIMAL + 'modules = ["nothing/*.js"]', "no file matches"),
        (MINIMAL + 'modules = ["../x.mjs"]', "leaves the project"),
        (MINIMAL + 'modules = ["read.me"]', "no known media type"),
        (MINIMAL.replace("main.mjs", "read.csv"), "not a JavaScript module"),
        (MINIMAL.replace('"s"', '"-s"'), "space"),
    ],
)
def test_mistakes_name_the_key(tmp_path: Path, toml: str, said: str) -> None:
    """Issue 2: bad input gets an error that names the field and the rule."""
    folder = write(tmp_path, toml, **{"read.me": "", "read.csv": ""})
    with pytest.raises(CommandFailure) as failure:
        read_project(folder)
    assert said in failure.value.message


def test_a_folder_without_a_project(tmp_path: Path) -> None:
    """Issue 2: the error says which file is missing."""
    with pytest.raises(CommandFailure, match=r"there is no .*saisei\.toml"):
        read_project(tmp_path)
