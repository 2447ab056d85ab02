"""Each test says which rule it proves, and tests/README.md says it back."""

from __future__ import annotations

from tests.house.rule_table import TABLE, read_rules, read_tests, table


def test_each_test_names_its_rule() -> None:
    """Style: a test's docstring begins with the rules that it proves, and they exist."""
    known = frozenset(rule.id for rule in read_rules())
    faults = [
        f"{test.file}::{test.name} names {', '.join(sorted(test.ids - known)) or 'no rule'}"
        for test in read_tests(known)
        if not (test.ids or test.others) or not test.ids <= known
    ]
    assert not faults, "\n".join(faults)


def test_the_table_is_fresh() -> None:
    """Style: tests/README.md is what `python tests/house/rule_table.py` writes."""
    assert TABLE.read_text() == table(), "run: python tests/house/rule_table.py"
