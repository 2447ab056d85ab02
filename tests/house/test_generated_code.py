"""gen/ is what the protos make, and the protos keep their style."""

from __future__ import annotations

import filecmp
import subprocess
import sys
from pathlib import Path

from tests.house.regenerate import ROOT


def test_generated_code_is_fresh(tmp_path: Path) -> None:
    """Design 1: gen/ is checked in and equals what protoc makes of protos/."""
    # In a process of its own: protoc's plugins are looked up on PATH, where this interpreter's folder must come first.
    script = str(ROOT / "tests" / "house" / "regenerate.py")
    environment = {"PATH": f"{Path(sys.executable).parent}:/usr/bin:/bin"}
    subprocess.run([sys.executable, script, str(tmp_path)], check=True, env=environment)
    made = {path.relative_to(tmp_path) for path in tmp_path.rglob("*_pb2*")}
    kept = {path.relative_to(ROOT / "gen") for path in (ROOT / "gen").rglob("*_pb2*") if path.suffix != ".pyc"}
    assert made == kept
    stale = [str(path) for path in made if not filecmp.cmp(tmp_path / path, ROOT / "gen" / path, shallow=False)]
    assert not stale, "run: python tests/house/regenerate.py"


def test_protos_pass_buf_lint() -> None:
    """Design 1: `buf lint` is clean."""
    done = subprocess.run(
        [str(Path(sys.executable).parent / "buf"), "lint"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
