"""Pins that every row of the two tables of public reports is held: data/requirements.csv names for each row
the tests that hold it, whose docstrings cite it, or the reason why it needs none.
"""

from __future__ import annotations

import ast
import csv
import functools
import re
from pathlib import Path

import pytest

TESTS = Path(__file__).parent
SOURCES = ("pipeline_bugs", "user_reports")


def rows() -> list[dict[str, str]]:
    with open(TESTS / "data" / "requirements.csv", encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


@functools.cache
def docstrings(file: str) -> dict[str, str]:
    """Of a test file's test functions, by name."""
    tree = ast.parse((TESTS / file).read_text(encoding="utf-8"))
    functions = [node for node in tree.body if isinstance(node, ast.FunctionDef)]
    return {node.name: ast.get_docstring(node) or "" for node in functions if node.name.startswith("test_")}


def cited(docstring: str, source: str) -> set[int]:
    """Rows that a docstring cites: "pipeline_bugs 9, 35-37"."""
    numbers = set()
    for places in re.findall(rf"{source} (\d+(?:-\d+)?(?:, \d+(?:-\d+)?)*)", " ".join(docstring.split())):
        for place in places.split(", "):
            first, _, last = place.partition("-")
            numbers |= set(range(int(first), int(last or first) + 1))
    return numbers


@pytest.mark.parametrize("row", rows(), ids=lambda row: f"{row['source']}-{row['row']}")
def test_each_row_is_held_by_tests_that_cite_it_or_says_why_it_needs_none(row: dict[str, str]) -> None:
    assert bool(row["tests"]) != bool(row["reason"])
    for name in row["tests"].split():
        file, _, function = name.partition("::")
        assert function in docstrings(file), f"there is no {name}"
        assert int(row["row"]) in cited(docstrings(file)[function], row["source"]), f"{name} does not cite it"


def test_no_row_comes_twice_and_both_tables_are_whole() -> None:
    keys = [(row["source"], int(row["row"])) for row in rows()]
    assert len(set(keys)) == len(keys)
    assert keys == sorted(keys)
    assert [sum(source == name for source, _ in keys) for name in SOURCES] == [66, 62]


def test_citations_are_read_as_they_are_written() -> None:
    text = "Words. pipeline_bugs 9,\n 35-37; user_reports 4 and 5."
    assert cited(text, "pipeline_bugs") == {9, 35, 36, 37}
    assert cited(text, "user_reports") == {4}
