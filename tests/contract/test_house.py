"""What this package may lean on."""

from __future__ import annotations

import ast
import sys
from pathlib import Path

import saisei_contract

ROOT = Path(saisei_contract.__file__).parent
SOURCES = sorted(ROOT.rglob("*.py"))


def imported(source: Path) -> set[str]:
    """The top-level packages that a file imports."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(source.read_text())):
        if isinstance(node, ast.Import):
            found.update(alias.name.split(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{source.name} imports relatively"
            found.add((node.module or "").split(".")[0])
    return found


def test_imports_nothing_of_the_others() -> None:
    """Design 1: the rules stand on the standard library and the canonicaliser alone."""
    foreign = {name for source in SOURCES for name in imported(source)} - set(sys.stdlib_module_names)
    assert foreign == {"saisei_contract", "rfc8785"}


def test_does_no_io_and_asks_no_clock() -> None:
    """Design 1: pure rules, no I/O; `now` is data."""
    impure = {
        "os",
        "io",
        "socket",
        "pathlib",
        "asyncio",
        "threading",
        "subprocess",
        "time",
        "random",
        "secrets",
        "logging",
    }
    for source in SOURCES:
        assert not imported(source) & impure, source.name
        assert "open(" not in source.read_text(), source.name


def test_files_stay_readable() -> None:
    """Style, habits: no file over about 500 lines."""
    assert all(len(source.read_text().splitlines()) <= 500 for source in SOURCES)
