"""The Batch tab's components, without their events."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import gradio as gr

from photon.ui import markup
from photon.ui.ask import LENGTHS, SPATIAL, TASKS
from photon.ui.batch_run import MAX_FILES
from photon.ui.files import KINDS
from photon.ui.layout import build_settings
from photon.ui.tasks import FIRST_PROMPT, prompt_label

_FIRST_TASK = "detect"
_IDLE = "Ready. Add files or a folder, and press Run."
_SAVES = {
    "png": "Pictures (zip)",
    "json": "JSON",
    "csv": "CSV",
    "coco": "COCO",
    "yolo": "YOLO (zip)",
    "voc": "VOC (zip)",
}
HINT = (
    f"Up to {MAX_FILES} files. Results are kept while the app runs, by file content and what is asked. After "
    "Stop, a lost connection or a reload, add the same files and press Run: only what is missing is run."
)


@dataclass(frozen=True)
class Controls:
    """The left column."""

    files: gr.File
    folder: gr.UploadButton
    task: gr.Radio
    prompt: gr.Textbox
    length: gr.Radio
    run: gr.Button
    stop: gr.Button
    settings: tuple[gr.Textbox, ...]


@dataclass(frozen=True)
class View:
    """The right column, and the row that is looked at below."""

    status: gr.HTML
    table: gr.Dataframe
    saves: dict[str, gr.Button]
    file: gr.DownloadButton
    picture: gr.HTML
    marks: gr.HTML
    about: gr.HTML
    answer: gr.HTML


def label_of(task: str) -> str:
    """Of the prompt, which here may have several lines."""
    return f"{prompt_label(task)}, one per line" + (" or comma" if task in SPATIAL else "")


def columns_of(task: str) -> dict[str, str]:
    """Names and widths of the table's columns."""
    if task in SPATIAL:
        return {"#": "44px", "file": "190px", "found": "270px", "ms": "60px", "state": "230px"}
    question = {"question": "170px"} if task == "query" else {}
    return {"#": "44px", "file": "160px", **question, "answer": "220px", "ms": "60px", "state": "190px"}


def build_controls() -> Controls:
    """The left column."""
    files = gr.File(file_count="multiple", label="Pictures", height=190, elem_id="batch_files")
    folder = gr.UploadButton("Add a folder", file_count="directory", size="sm", elem_id="batch_folder")
    task = gr.Radio(
        [(n.capitalize(), n) for n in TASKS], value=_FIRST_TASK, label="Task", elem_id="batch_task"
    )
    prompt = gr.Textbox(
        FIRST_PROMPT[_FIRST_TASK], label=label_of(_FIRST_TASK), lines=2, max_lines=8, elem_id="batch_prompt"
    )
    length = gr.Radio(list(LENGTHS), value="normal", label="Caption length", visible=False)
    with gr.Row(elem_id="batch_buttons"):
        run = gr.Button("Run", variant="primary", elem_id="batch_run")
        stop = gr.Button("Stop", interactive=False, elem_id="batch_stop")
    return Controls(files, folder, task, prompt, length, run, stop, build_settings("batch_"))


def build_view() -> View:
    """The right column."""
    html: Any = partial(gr.HTML, "", apply_default_css=False)
    status = gr.HTML(markup.status("idle", _IDLE), apply_default_css=False, elem_id="batch_status")
    columns = columns_of(_FIRST_TASK)
    table = gr.Dataframe(
        {"headers": list(columns), "data": []},
        column_widths=list(columns.values()),
        interactive=False,
        show_label=False,
        max_height=330,
        wrap=True,
        elem_id="batch_table",
        show_search="search",
    )
    with gr.Row(elem_id="batch_saves"):
        gr.HTML("<span>Save all as</span>", apply_default_css=False, elem_id="batch_saves_label")
        saves = {
            kind: gr.Button(_SAVES[kind], size="sm", min_width=60, interactive=False, elem_id=f"batch_{kind}")
            for kind in KINDS
        }
    file = gr.DownloadButton("File", visible="hidden", elem_id="batch_file")
    with gr.Group(elem_id="batch_stage", elem_classes="pw-stage"):
        picture = gr.HTML(markup.empty_picture("Click a row to see its picture."), apply_default_css=False)
        marks = html(elem_classes="pw-marks", elem_id="batch_marks")
    about, answer = html(elem_id="batch_about"), html(elem_id="batch_answer")
    return View(status, table, saves, file, picture, marks, about, answer)
