"""Regenerates `gen/` from `protos/`: `python tests/house/regenerate.py [TARGET]`.

The freshness test calls `generate` with a scratch folder and compares, so there is one way to make this code.
"""

from __future__ import annotations

import sys
from pathlib import Path

import grpc_tools
from grpc_tools import protoc

ROOT = Path(__file__).resolve().parents[2]


def generate(target: Path) -> None:
    """Writes the Python modules and their `.pyi` under `target`; raises RuntimeError when protoc refuses."""
    protos = ROOT / "protos"
    files = sorted(str(path.relative_to(protos)) for path in protos.rglob("*.proto"))
    well_known = Path(grpc_tools.__file__).parent / "_proto"
    target.mkdir(parents=True, exist_ok=True)
    status = protoc.main(
        [
            "protoc",
            f"--proto_path={protos}",
            f"--proto_path={well_known}",
            f"--python_out={target}",
            f"--grpc_python_out={target}",
            f"--mypy_out=quiet:{target}",
            f"--mypy_grpc_out=quiet:{target}",
            *files,
        ]
    )
    if status != 0:
        raise RuntimeError(f"protoc ended with status {status}")


if __name__ == "__main__":
    generate(Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "gen")
