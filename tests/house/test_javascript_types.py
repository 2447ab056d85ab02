"""The JavaScript that runs next to tenants' code, checked against its JSDoc types."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

from tests.support.npm_packages import fetch

from saisei_runtime.isolates.process import JS_FOLDER, node_executable

# Exact: a newer compiler or newer declarations may find more, and nothing here changed then.
PACKAGES = {"typescript": "5.9.3", "@types/node": "24.19.4", "undici-types": "7.24.6"}
PLANTED = 'import { quote } from "%s/intrinsics.mjs";\n/** @type {number} */\nexport const wrong = quote("x");\n'


def test_the_types_of_the_isolates_javascript(tmp_path: Path) -> None:
    """Style: `tsc --checkJs` finds nothing wrong, apart from the error that is planted beside it."""
    packages = fetch(tmp_path, PACKAGES)
    planted = tmp_path / "planted.mjs"
    planted.write_text(PLANTED % JS_FOLDER.as_posix())
    project = tmp_path / "tsconfig.json"
    include = [str(JS_FOLDER / "**/*.mjs"), str(JS_FOLDER / "node.d.ts"), str(planted)]
    options = {"typeRoots": [str(packages / "@types")]}
    project.write_text(
        json.dumps({"extends": str(JS_FOLDER / "tsconfig.json"), "compilerOptions": options, "include": include})
    )
    checked = subprocess.run(
        [node_executable(), packages / "typescript/lib/tsc.js", "--project", project, "--pretty", "false"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    found = [line for line in checked.stdout.splitlines() if not line.startswith(" ")]
    mine = [line for line in found if line.startswith("planted.mjs(3,14): error TS2322:")]
    assert len(mine) == 1 and found == mine, f"{checked.stdout}{checked.stderr}"
