"""`assets` in saisei.toml: which files a site has, their types, and how a mistake is shown."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from saisei_cli.deploy.project import Project, read_project
from saisei_cli.failures import CommandFailure

SITE = 'space = "s"\nname = "n"\nassets = "dist"\n'
TABLE = 'space = "s"\nname = "n"\n[assets]\nfolder = "dist"\n'
CODE = 'main = "main.mjs"\n'


def read(folder: Path, toml: str, *files: str) -> Project:
    (folder / "saisei.toml").write_text(toml)
    (folder / "main.mjs").write_text("export default {};")
    for name in files or ("dist/index.html",):
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(name)
    return read_project(folder)


def failure(folder: Path, toml: str, *files: str) -> str:
    with pytest.raises(CommandFailure) as raised:
        read(folder, toml, *files)
    return f"{raised.value.message} ({raised.value.hint})"


def test_every_file_has_its_type(tmp_path: Path) -> None:
    """AR-06: by its ending, on every machine the same; [assets] adds endings; hidden files stay at home."""
    types = {
        "a.css": "text/css",
        "a.glb": "model/gltf-binary",
        "a.HTML": "text/html",
        "a.js": "text/javascript",
        "a.mjs": "text/javascript",
        "a.svg": "image/svg+xml",
        "a.tar.gz": "application/gzip",
        "a.unheard-of": "application/octet-stream",
        "a.webmanifest": "application/manifest+json",
        "a.woff2": "font/woff2",
        "b/.well-known/x": "application/octet-stream",
        "none": "application/octet-stream",
        "再生 é.json": "application/json",
    }
    hidden = (".env", ".git/config", "b/.DS_Store")
    toml = TABLE + 'media_types = { ".glb" = "model/gltf-binary" }\n'
    project = read(tmp_path, toml, *(f"dist/{name}" for name in (*types, *hidden)))
    assert {file.path: file.media_type for file in project.assets} == types
    assert [file.path for file in project.assets] == sorted(types)
    assert project.files == ()
    assert project.file.declared_handlers == []


def test_code_beside_a_site(tmp_path: Path) -> None:
    """WV-04, WV-23: with main there is code, and its handler is declared as ever."""
    project = read(tmp_path, CODE + "endpoint = true\n" + SITE)
    assert [file.path for file in project.files] == ["main.mjs"]
    assert project.file.declared_handlers == ["fetch"]
    assert read(tmp_path, "endpoint = true\n" + SITE).file.declared_handlers == []


@pytest.mark.parametrize(
    ("toml", "said"),
    [
        ('space = "s"\nname = "n"\n', "neither main nor assets"),
        (SITE.replace("dist", "nowhere"), "no folder"),
        (SITE.replace("dist", "../dist"), "leaves the project"),
        (SITE.replace("dist", "/etc"), "leaves the project"),
        (SITE.replace("dist", "empty"), "has no files"),
        (SITE.replace('"dist"', "7"), 'assets = "FOLDER"'),
        ('space = "s"\nname = "n"\n[assets]\n', "folder: is required"),
        (TABLE + "spa = true\n", "the keys are folder"),
        (TABLE + 'single_page_application = "yes"\n', "true or false"),
        (TABLE.replace("dist", "sub") + "single_page_application = true\n", "index.html"),
        (TABLE + 'media_types = { "glb" = "model/gltf-binary" }\n', "'glb'"),
        (TABLE + 'media_types = { ".html" = "text/html; charset=utf-8" }\n', "without parameters"),
        (TABLE + "run_worker_first = true\n", "is for code"),
        (CODE + TABLE + "run_worker_first = true\n", "endpoint = true"),
        ('handlers = ["fetch"]\n' + SITE, "handlers is for code"),
        ('secrets = ["A"]\n' + SITE, "secrets is for code"),
        ("vars = { A = 1 }\n" + SITE, "vars is for code"),
        (SITE + '[[workflows]]\nname = "w"\nclass = "W"\n', "workflows is for code"),
        (SITE + '[[services]]\nbinding = "A"\nworker = "w"\n', "services is for code"),
    ],
)
def test_mistakes_name_the_key(tmp_path: Path, toml: str, said: str) -> None:
    """WV-04, WV-05, Issue 2: what cannot be deployed is refused before anything is sent, with what to do."""
    (tmp_path / "empty").mkdir()
    assert said in failure(tmp_path, toml, "dist/index.html", "sub/page.html")


def test_files_that_cannot_be_served(tmp_path: Path) -> None:
    """AR-02, AR-03: each limit is told with the file that breaks it."""
    assert "cannot be served" in failure(tmp_path, SITE, "dist/a?b.html")
    (tmp_path / "dist" / "a?b.html").unlink()
    (tmp_path / "dist" / "link").symlink_to("/etc/hostname")
    assert "outside" in failure(tmp_path, SITE)
    (tmp_path / "dist" / "link").unlink()
    with (tmp_path / "dist" / "large").open("wb") as large:
        large.truncate(16_777_217)
    assert "16,777,217 bytes" in failure(tmp_path, SITE)
    (tmp_path / "dist" / "large").unlink()
    for number in range(9):
        with (tmp_path / "dist" / f"part-{number}").open("wb") as part:
            part.truncate(15_000_000)
    assert "135,000,0" in failure(tmp_path, SITE)
    assert "at most 512" in failure(tmp_path, SITE, *(f"dist/{number}" for number in range(512)))


def test_names_that_are_no_text(tmp_path: Path) -> None:
    """AR-03: a name that is no UTF-8 is refused in words and not with a crash."""
    (tmp_path / "dist").mkdir()
    (Path(os.fsdecode(os.fsencode(tmp_path) + b"/dist/\xff"))).write_text("x")
    assert "cannot be served" in failure(tmp_path, SITE)


def test_links_within_the_site_are_files(tmp_path: Path) -> None:
    """AR-06: a link to a file of the same folder is served as that file; linked folders are not followed."""
    (tmp_path / "dist").mkdir()
    (tmp_path / "dist" / "copy.html").symlink_to("index.html")
    (tmp_path / "dist" / "loop").symlink_to(".")
    project = read(tmp_path, SITE)
    assert [file.path for file in project.assets] == ["copy.html", "index.html"]
    assert len({file.sha256 for file in project.assets}) == 1
