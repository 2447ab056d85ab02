"""Completes the example: `python prepare.py TARGET PENGUINS_CSV` copies it with its data set and its wasm module.

The data set is Palmer Penguins (Horst, Hill, Gorman; CC0). It is not part of this repository: `deploy/demo.sh` takes it
from the package `palmerpenguins` of the Python package index.
"""

from __future__ import annotations

import runpy
import shutil
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent


def prepare(target: Path, penguins: Path) -> Path:
    """Returns `target`, a folder that `saisei deploy` takes."""
    shutil.copytree(HERE / "src", target / "src", dirs_exist_ok=True)
    shutil.copy(HERE / "saisei.toml", target)
    for folder in ("data", "wasm"):
        (target / folder).mkdir(exist_ok=True)
    shutil.copy(penguins, target / "data" / "penguins.csv")
    module = runpy.run_path(str(HERE / "wasm" / "make_wasm.py"))["module"]
    (target / "wasm" / "moments.wasm").write_bytes(module())
    return target


if __name__ == "__main__":
    prepare(Path(sys.argv[1]), Path(sys.argv[2]))
