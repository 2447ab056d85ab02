"""Well-known packages from the npm registry, unmodified, as modules of a Worker."""

from __future__ import annotations

import re
import shutil
import uuid
from pathlib import Path

import pytest
from tests.support.dev_host import DevHost
from tests.support.npm_packages import fetch

APP = Path(__file__).parent / "apps" / "packages"
PACKAGES = {"marked": "18", "lodash-es": "4", "uuid": "14"}
_IMPORT = re.compile(r"""(?:from|import)\s*['"](\.{1,2}/[^'"]+)['"]""")


def copy_graph(package: Path, target: Path, *entries: str) -> None:
    """Copies the modules that are reachable from `entries`, byte for byte (a bundle holds at most 512 files)."""
    todo, seen = [package / entry for entry in entries], set()
    while todo:
        module = todo.pop().resolve()
        if module in seen:
            continue
        seen.add(module)
        copy = target / module.relative_to(package.resolve())
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(module, copy)
        if package.name != "marked":
            todo.extend(module.parent / specifier for specifier in _IMPORT.findall(module.read_text()))


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("packages")
    packages = fetch(folder, PACKAGES)
    project = folder / "project"
    project.mkdir()
    for file in ("main.mjs", "saisei.toml"):
        shutil.copyfile(APP / file, project / file)
    copy_graph(packages / "marked", project / "marked", "lib/marked.esm.js")
    copy_graph(packages / "lodash-es", project / "lodash-es", "groupBy.js", "sortBy.js")
    copy_graph(packages / "uuid", project / "uuid", "dist/v5.js", "dist/validate.js")
    return project


def test_unmodified_packages_work_in_steps(host: DevHost, project: Path) -> None:
    """MW-10, MW-12, W-081: module graphs of three npm packages load by relative specifiers and run inside steps."""
    uid = host.deploy(project).workflows["publish"]
    words = ["one", "three", "two", "seven"]
    created = host.client.create_instance(uid, None, {"markdown": "# Title\n\n*text*", "words": words})
    ended = host.client.wait_instance(uid, created["id"])
    assert ended["status"] == "complete", ended
    assert ended["output"] == {
        "html": "<h1>Title</h1>\n<p><em>text</em></p>\n",
        "lengths": ["3", "5"],
        "groups": {"3": ["one", "two"], "5": ["three", "seven"]},
        # Another implementation of RFC 9562 gives the same.
        "id": str(uuid.uuid5(uuid.NAMESPACE_URL, "https://example.com/report")),
        "valid": True,
    }
