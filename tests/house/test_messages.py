"""What users read speaks of their things, not of the paragraphs that the rules came from."""

from __future__ import annotations

import ast
import re
from pathlib import Path

from tests.house.regenerate import ROOT

RULE = re.compile(r"\b(?:W|H|S|F|DW|WD|WV|EP|CD|MW|AR|AN|KV|SQ|MA|OB|Q|QC|CR)-\d{2,3}\b")


def docstrings(tree: ast.AST) -> set[int]:
    """Ids of the strings that no user reads: statements of their own, and what an `assert` says."""
    nodes = list(ast.walk(tree))
    statements = {id(node.value) for node in nodes if isinstance(node, ast.Expr)}
    return statements | {id(node.msg) for node in nodes if isinstance(node, ast.Assert)}


def test_no_message_cites_a_rule() -> None:
    """Style, H-182: messages say what was wrong and what to do; rule ids stay in comments and docstrings."""
    cited = []
    for path in sorted((ROOT / "services").rglob("*.py")):
        tree = ast.parse(path.read_text())
        documenting = docstrings(tree)
        for node in ast.walk(tree):
            is_text = isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in documenting
            if is_text and RULE.search(node.value):
                cited.append(f"{path.relative_to(ROOT)}:{node.lineno}")
    for path in sorted((ROOT / "services").rglob("*.mjs")):
        cited += [f"{path.relative_to(ROOT)}:{number}" for number in cited_lines(path)]
    assert cited == []


def cited_lines(path: Path) -> list[int]:
    code = re.sub(r"/\*.*?\*/", lambda found: "\n" * found[0].count("\n"), path.read_text(), flags=re.DOTALL)
    lines = (re.sub(r"(^|\s)//.*", "", line) for line in code.splitlines())
    return [number for number, line in enumerate(lines, 1) if RULE.search(line)]
