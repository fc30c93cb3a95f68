"""Pins what the README claims: file tree, commands, flags, code, metric table."""

from __future__ import annotations

import ast
import re
import tomllib
from pathlib import Path

import pytest

import app
import photon
from tracing.metrics import METRICS

ROOT = Path(__file__).resolve().parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def block_after(mark: str) -> str:
    """The fenced code that follows a mark."""
    found = re.search(re.escape(mark) + r".*?```\w*\n(.*?)```", README, re.DOTALL)
    assert found, f"the README has no code after {mark!r}"
    return found[1].strip()


def tree_paths() -> list[str]:
    """Paths of the file tree, folders with their slash."""
    paths, folder = [], ""
    for line in block_after("## Reading order").splitlines():
        name = line.split()[0]
        if not line.startswith(" "):
            folder = name if name.endswith("/") else ""
            paths.append(name)
        else:
            paths.append(folder + name)
    return paths


@pytest.mark.parametrize("path", tree_paths())
def test_what_the_tree_lists_exists(path: str) -> None:
    assert (ROOT / path).is_dir() if path.endswith("/") else (ROOT / path).is_file()


@pytest.mark.parametrize("package", ["photon", "tracing"])
def test_the_tree_lists_every_module_and_folder_of_a_package(package: str) -> None:
    modules = {f"{package}/{path.name}" for path in (ROOT / package).glob("*.py")} - {
        f"{package}/__init__.py"
    }
    folders = {f"{package}/{path.parent.name}/" for path in (ROOT / package).glob("*/__init__.py")}
    assert modules | folders <= set(tree_paths())


def test_folders_that_are_spelled_out_are_spelled_out_in_full() -> None:
    for line in block_after("## Reading order").splitlines():
        if " · " not in line:
            continue
        folder, _, names = line.strip().partition("/")
        real = {path.stem for path in (ROOT / "photon" / folder).glob("*.py")} - {"__init__"}
        assert set(names.strip().split(" · ")) == real, folder


def test_the_metric_table_is_the_code() -> None:
    rows = re.findall(
        r"^\| (.+?) \| (.+?) \| (.+) \|$", README.split("## What the timeline measures")[1], re.M
    )
    table = [(name, unit, formula.replace("\\|", "|")) for name, unit, formula in rows]
    expected = [(metric.name, metric.unit or "–", metric.formula) for metric in METRICS]
    assert table[1 : len(expected) + 1] == expected


def test_the_two_commands_install_then_start_and_install_then_test() -> None:
    install = r"python3 -m venv \.venv && \.venv/bin/pip install -e {} && \.venv/bin/python {}"
    assert re.fullmatch(install.format(r"\.", r"app\.py"), block_after("<!-- app -->"))
    assert re.fullmatch(install.format(r"'\.\[test\]'", "-m pytest"), block_after("<!-- tests -->"))


def test_the_extra_that_the_test_command_installs_exists() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert {"test", "dev"} <= set(project["optional-dependencies"])


def test_modules_that_are_run_by_name_exist() -> None:
    for module in re.findall(r"python -m (photon[\w.]*|tracing[\w.]*)", README):
        path = ROOT / module.replace(".", "/")
        assert path.with_suffix(".py").is_file() or (path / "__main__.py").is_file(), module


def test_flags_that_are_named_exist(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        app.parse_flags(["--help"])
    flags = capsys.readouterr().out
    mentioned = re.findall(r"`(--[a-z-]+)`", README)
    assert mentioned
    assert [flag for flag in mentioned if flag not in flags] == []


def test_the_python_example_uses_what_the_package_exports() -> None:
    tree = ast.parse(block_after("## Use it"))
    names = {alias.name for node in tree.body if isinstance(node, ast.ImportFrom) for alias in node.names}
    assert names <= set(photon.__all__)
    called = {
        node.func.attr
        for node in ast.walk(tree)
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and isinstance(node.func.value, ast.Name)
        and node.func.value.id == "engine"
    }
    assert all(hasattr(photon.Engine, name) for name in called)


def test_files_that_are_linked_exist() -> None:
    for path in re.findall(r"!?\[[^\]]*\]\((?!http)([^)]+)\)", README):
        assert (ROOT / path).exists(), path


def test_the_first_screen_says_that_the_project_is_not_affiliated() -> None:
    assert "Not affiliated" in "\n".join(README.splitlines()[:8])
