"""Pins the Batch tab's events without a browser: what is shown while it runs and in the end, rows that are
looked at, files that are made, all of it this session's."""

from __future__ import annotations

import asyncio
import json
import zipfile
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import gradio as gr
import pytest
from engines import picture, tiny_model
from PIL import Image
from test_app import close_gradios_loops

from photon import Engine, EngineConfig, open_device
from photon.images import load_image
from photon.ui.batch import BatchSession, BatchTab

pytestmark = [pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning")]  # Gradio's event loops
SETTINGS = ("", "", "", "2", "", "")
TOKEN = "f" * 32


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    with Engine(tiny_model(), open_device("cpu"), EngineConfig(max_batch_size=4)) as engine:
        yield engine


@pytest.fixture
def tab(engine: Engine) -> Iterator[BatchTab]:
    with gr.Blocks(analytics_enabled=False) as demo:
        tab = BatchTab(engine, demo, gr.BrowserState())
    yield tab
    close_gradios_loops()


@pytest.fixture
def files(tmp_path: Path) -> list[dict[str, str]]:
    for number in range(2):
        Image.fromarray(picture(number)).save(tmp_path / f"{number}.png")
    (tmp_path / "notes.txt").write_text("no picture")
    return [{"path": str(path), "orig_name": path.name} for path in sorted(tmp_path.iterdir())]


def played(
    tab: BatchTab, files: Any, prompt: str = "cat, dog", task: str = "detect"
) -> tuple[Any, list[Any]]:
    """The session, and every update of the run."""
    session = BatchSession()

    async def play() -> list[Any]:
        run = tab.run(session, TOKEN, files, task, prompt, "normal", *SETTINGS)
        return [updates async for updates in run]

    return session, asyncio.run(asyncio.wait_for(play(), 60))


def test_a_run_ends_with_every_row_and_what_its_task_can_be_saved_as(
    tab: BatchTab, files: list[dict[str, str]]
) -> None:
    _, updates = played(tab, files)
    assert "Reading" in updates[0][tab.view.status]
    last = updates[-1]
    assert "3 of 3 · 1 with an error" in last[tab.view.status]
    rows = last[tab.view.table]["value"]["data"]
    assert [row[1] for row in rows] == ["0.png", "1.png", "notes.txt"]
    assert rows[0][2].startswith("cat: ")
    assert "not an image" in rows[2][4]
    assert all(last[button]["interactive"] for button in tab.view.saves.values())
    assert last[tab.controls.run]["interactive"]


def test_text_can_be_saved_as_text_only(tab: BatchTab, files: list[dict[str, str]]) -> None:
    _, updates = played(tab, files[:1], "why?", "query")
    can = {kind for kind, button in tab.view.saves.items() if updates[-1][button]["interactive"]}
    assert can == {"json", "csv"}
    assert updates[-1][tab.view.table]["value"]["headers"] == [
        "#",
        "file",
        "question",
        "answer",
        "ms",
        "state",
    ]


@pytest.mark.parametrize(
    ("files", "prompt", "words"), [(None, "cat", "no pictures"), ([], "", "no pictures")]
)
def test_what_cannot_run_says_so_and_gives_the_button_back(
    tab: BatchTab, files: Any, prompt: str, words: str
) -> None:
    session, seen = BatchSession(), []

    async def play() -> None:
        async for updates in tab.run(session, TOKEN, files, "detect", prompt, "normal", *SETTINGS):
            seen.append(updates)

    with pytest.raises(gr.Error, match=words):
        asyncio.run(play())
    assert words in seen[-1][tab.view.status]
    assert seen[-1][tab.controls.run]["interactive"]


def test_a_row_is_looked_at_by_its_number_and_by_nothing_else(
    tab: BatchTab, files: list[dict[str, str]]
) -> None:
    session, _ = played(tab, files)

    def look(*cells: Any) -> Any:
        return asyncio.run(tab.look(session, SimpleNamespace(row_value=list(cells))))  # type: ignore[arg-type]

    assert "<svg" in look(2, "1.png")[tab.view.marks]
    broken = look(3)
    assert "not an image" in broken[tab.view.picture]
    assert broken[tab.view.marks] == ""
    assert [look(), look("x"), look(0), look(4), look(None)] == [gr.skip()] * 5


def test_all_results_leave_in_one_file(tab: BatchTab, files: list[dict[str, str]]) -> None:
    session, _ = played(tab, files)
    for updates in tab.save("json", session):
        document = json.loads(Path(updates[tab.view.file]["value"]).read_text())
        assert [entry["file"] for entry in document["files"]] == ["0.png", "1.png", "notes.txt"]
        assert "error" in document["files"][2]
    for updates in tab.save("png", session):
        with zipfile.ZipFile(updates[tab.view.file]["value"]) as archive:
            assert archive.namelist() == ["0.png", "1.png"]
            assert load_image(archive.read("0.png")).size == (24, 24)


def test_a_visitor_who_leaves_ends_the_batch(tab: BatchTab, files: list[dict[str, str]]) -> None:
    session = BatchSession()

    async def leave() -> None:
        run = tab.run(session, TOKEN, files, "query", "go on", "normal", *SETTINGS)
        async for _ in run:
            if session.batch:
                break
        await run.aclose()

    asyncio.run(asyncio.wait_for(leave(), 60))
    assert session.batch is not None
    assert session.batch.is_stopped


def test_a_folder_is_added_behind_the_files(tab: BatchTab) -> None:
    assert tab.add([{"path": "a", "orig_name": "a"}], [{"path": "b"}]) == ["a", "b"]
    assert tab.add(None, None) == []
