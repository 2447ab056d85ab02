"""The folder tree is the architecture: who may import whom, and how long a file may be."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.house.regenerate import ROOT

SERVICES = ROOT / "services"
LONGEST_FILE_LINES = 500

# Package → our packages that it may import besides itself and the generated code.
ALLOWED = {
    "saisei_contract": frozenset[str](),
    "saisei_service": frozenset({"saisei_contract"}),
    "saisei_control": frozenset({"saisei_contract", "saisei_service"}),
    "saisei_runtime": frozenset({"saisei_contract", "saisei_service"}),
    "saisei_gateway": frozenset({"saisei_contract", "saisei_service"}),
    "saisei_cli": frozenset({"saisei_contract", "saisei_service"}),
}
# What a package of pure rules, or a client, has no business with.
FORBIDDEN = {
    "saisei_contract": frozenset(
        {
            "asyncio",
            "grpc",
            "httpx",
            "multiprocessing",
            "saisei",
            "socket",
            "sqlalchemy",
            "sqlite3",
            "subprocess",
            "threading",
        }
    ),
    "saisei_gateway": frozenset({"alembic", "psycopg", "sqlalchemy", "sqlite3"}),
    "saisei_cli": frozenset({"alembic", "psycopg", "sqlalchemy", "sqlite3"}),
}
# Inside the runtime's engine: pure ← shell, and in the shell machine ← journal ← scheduler.
PURE = ("machine", "steps", "retries", "outcome", "commands", "records")
PURE_FORBIDDEN = frozenset(
    {"asyncio", "grpc", "random", "secrets", "socket", "sqlalchemy", "threading", "time", "uuid"}
)
ENGINE = "saisei_runtime.workflow"


def imports(path: Path) -> Iterator[str]:
    """Absolute names of every module imported anywhere in the file; nothing here uses relative imports."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative imports hide the direction"
            assert node.module is not None
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


@pytest.mark.parametrize("package", sorted(ALLOWED))
def test_import_direction(package: str) -> None:
    """Design 1: contract ← service ← control, runtime, gateway, cli; the four never import each other."""
    faults = []
    for path in sorted((SERVICES / package).rglob("*.py")):
        for name in imports(path):
            top = name.split(".")[0]
            ours = top.startswith("saisei_") and top != package
            if (ours and top not in ALLOWED[package]) or top in FORBIDDEN.get(package, ()):
                faults.append(f"{path.relative_to(ROOT)} imports {name}")
    assert not faults, "\n".join(faults)


def test_each_package_has_its_row() -> None:
    """Design 1: no package escapes the rules of imports."""
    assert {path.name for path in SERVICES.iterdir() if path.is_dir() and path.name != "__pycache__"} == set(ALLOWED)


def test_the_engine_is_pure_inside() -> None:
    """Design 4: the machine has no I/O, no clock and no randomness."""
    folder = SERVICES / "saisei_runtime" / "workflow"
    faults = [
        f"{name}.py imports {imported}"
        for name in PURE
        if (folder / f"{name}.py").exists()
        for imported in imports(folder / f"{name}.py")
        if imported.split(".")[0] in PURE_FORBIDDEN
    ]
    assert not faults, "\n".join(faults)


def test_the_engine_imports_one_way() -> None:
    """Design 4: machine ← journal ← scheduler; nothing below reaches up."""
    folder = SERVICES / "saisei_runtime" / "workflow"
    above = {
        "machine": ("journal", "scheduler", "contexts", "subscriptions"),
        "steps": ("journal", "scheduler", "contexts", "subscriptions"),
        "journal": ("scheduler", "contexts"),
    }
    faults = [
        f"{name}.py imports {higher}"
        for name, forbidden in above.items()
        for higher in forbidden
        if f"{ENGINE}.{higher}" in set(imports(folder / f"{name}.py"))
    ]
    assert not faults, "\n".join(faults)


def test_a_cancellation_is_never_lost() -> None:
    """Design 6: until Python 3.12 wait_for drops a cancellation that meets the result, and a stop waits for ever."""
    sources = [path for path in (ROOT / "services").rglob("*.py") if "wait_for(" in path.read_text()]
    calls = {path.relative_to(ROOT) for path in sources if re.search(r"\bwait_for\(", path.read_text())}
    assert not calls, f"use asyncio.timeout there: {calls}"


def test_no_file_is_too_long() -> None:
    """Style: no source file passes 500 lines."""
    sources = [
        path
        for folder, endings in (
            ("services", (".py", ".mjs")),
            ("tests", (".py", ".mjs")),
            ("deploy", (".py", ".mjs", ".sh")),
        )
        for path in (ROOT / folder).rglob("*")
        if path.suffix in endings
    ]
    lengths = {path: len(path.read_text().splitlines()) for path in sources}
    assert not [f"{path.relative_to(ROOT)}: {n} lines" for path, n in lengths.items() if n > LONGEST_FILE_LINES]


def test_the_top_level_is_the_design() -> None:
    """Design 1: the top level has the folders and files that the design names and no others."""
    tracked = {
        "pyproject.toml",
        "README.md",
        "protos",
        "services",
        "gen",
        "tests",
        "deploy",
        "buf.yaml",
        "buf.gen.yaml",
    }
    build_leftovers = {"dist", "build"}
    present = {path.name for path in ROOT.iterdir() if not path.name.startswith(".")}
    assert present - build_leftovers == tracked
