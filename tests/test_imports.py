"""Pins the dependency rules of the design over the AST: who may import whom, and what lives where."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
UI = ("photon.ui", "tracing.ui")
TORCH_FREE = (
    "photon.pipeline",
    "photon.scheduler",
    "photon.sequence",
    "photon.pages",
    "photon.prefix_cache",
    "photon.observe",
    "photon.config",
    "photon.errors",
    "photon.device.base",
    "photon.device.cost",
    "photon.skills",
    "tracing",
)


@cache
def modules() -> dict[str, ast.Module]:
    """Every module of the two packages by its dotted name."""
    found = {}
    for package in ("photon", "tracing"):
        for path in sorted((ROOT / package).rglob("*.py")):
            parts = path.relative_to(ROOT).with_suffix("").parts
            name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
            found[name] = ast.parse(path.read_text(encoding="utf-8"))
    return found


def is_inside(name: str, *packages: str) -> bool:
    """True when `name` is one of the packages or lies in one."""
    return any(name == package or name.startswith(package + ".") for package in packages)


def imported(node: ast.AST) -> Iterator[str]:
    """Names an import statement binds, modules first: `from a import b` gives a and a.b."""
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
    elif isinstance(node, ast.ImportFrom):
        assert node.level == 0, "imports are absolute"
        yield node.module or ""
        yield from (f"{node.module}.{alias.name}" for alias in node.names)


@cache
def imports_of(name: str) -> frozenset[str]:
    """Everything a module imports, at the top or inside functions."""
    return frozenset(target for node in ast.walk(modules()[name]) for target in imported(node))


def own_imports(name: str) -> set[str]:
    """Modules of ours that are loaded when this one is: imports at the top only."""
    tree = modules()[name]
    targets = {target for node in tree.body for target in imported(node)}
    return {target for target in targets if target in modules() and target != name}


def violations(*, of: tuple[str, ...], never: tuple[str, ...], but: tuple[str, ...] = ()) -> list[str]:
    return [
        f"{name} imports {target}"
        for name in modules()
        if is_inside(name, *of) and not is_inside(name, *but)
        for target in sorted(imports_of(name))
        if is_inside(target, *never)
    ]


def test_photon_never_imports_tracing() -> None:
    assert violations(of=("photon",), never=("tracing",)) == []


def test_only_commands_of_photon_name_a_module_of_tracing_to_load_it_when_asked() -> None:
    named = {
        name
        for name, tree in modules().items()
        for node in ast.walk(tree)
        if is_inside(name, "photon")
        and isinstance(node, ast.Constant)
        and isinstance(node.value, str)
        and is_inside(node.value.partition(":")[0], "tracing")
    }
    assert named == {"photon.selfcheck", "photon.whatif"}


def test_tracing_never_imports_photon_or_torch() -> None:
    assert violations(of=("tracing",), never=("photon", "torch")) == []


def test_only_the_ui_folders_import_gradio() -> None:
    assert violations(of=("photon", "tracing"), never=("gradio",), but=UI) == []


def test_only_the_figures_and_the_ui_folders_import_plotly() -> None:
    figures = ("tracing.timeline", "tracing.histograms")
    assert violations(of=("photon", "tracing"), never=("plotly",), but=(*UI, *figures)) == []


def test_the_engine_knows_nothing_of_http() -> None:
    web = ("fastapi", "starlette", "uvicorn", "prometheus_client", "photon.api")
    assert violations(of=("photon",), never=web, but=("photon.api", "photon.ui")) == []


@pytest.mark.parametrize("folder", UI)
def test_nothing_outside_a_ui_folder_imports_it(folder: str) -> None:
    assert violations(of=("photon", "tracing"), never=(folder,), but=(folder,)) == []


@pytest.mark.parametrize("name", TORCH_FREE)
def test_the_torch_free_modules_load_no_torch(name: str) -> None:
    todo = [module for module in modules() if is_inside(module, name)]
    assert todo, f"there is no module {name}"
    seen: set[str] = set()
    while todo:
        module = todo.pop()
        if module in seen:
            continue
        seen.add(module)
        at_top = {target for node in modules()[module].body for target in imported(node)}
        assert not any(is_inside(target, "torch") for target in at_top), f"{name} loads torch by {module}"
        todo += own_imports(module)


def test_torch_cuda_appears_only_in_the_cuda_device() -> None:
    users = {
        name
        for name, tree in modules().items()
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute)
        and node.attr == "cuda"
        and isinstance(node.value, ast.Name)
        and node.value.id == "torch"
    }
    users |= {name for name in modules() if any(is_inside(t, "torch.cuda") for t in imports_of(name))}
    assert users <= {"photon.device.cuda"}


def test_clocks_are_read_only_by_devices_the_tools_that_train_and_a_command_that_serves() -> None:
    allowed = ("photon.device", "photon.tiny", "photon.api.ray_serve")
    assert violations(of=("photon", "tracing"), never=("time",), but=allowed) == []


@pytest.mark.parametrize("folder", ["photon.model", "photon.skills"])
def test_model_and_skills_know_nothing_of_the_engine_above_them(folder: str) -> None:
    above = ("photon.engine", "photon.scheduler", "photon.pipeline", "photon.runtime", "photon.worker")
    assert violations(of=(folder,), never=above) == []


def test_there_are_no_import_cycles() -> None:
    state: dict[str, str] = {}

    def visit(name: str, path: tuple[str, ...]) -> None:
        assert state.get(name) != "open", f"cycle: {' -> '.join((*path[path.index(name) :], name))}"
        if state.get(name) == "done":
            return
        state[name] = "open"
        for target in sorted(own_imports(name)):
            visit(target, (*path, name))
        state[name] = "done"

    for name in modules():
        visit(name, ())


def test_nothing_hides_an_import_behind_type_checking() -> None:
    hidden = [
        name
        for name, tree in modules().items()
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)
    ]
    assert hidden == []


def test_app_py_is_where_the_two_meet() -> None:
    tree = ast.parse((ROOT / "app.py").read_text(encoding="utf-8"))
    targets = {target for node in ast.walk(tree) for target in imported(node)}
    assert any(is_inside(target, "photon.ui") for target in targets)
    assert any(is_inside(target, "tracing.ui") for target in targets)
    top = {target for node in tree.body for target in imported(node)}
    assert not any(is_inside(target, "gradio", "torch") for target in top), "a worker process imports app.py"
