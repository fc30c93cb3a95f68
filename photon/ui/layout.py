"""The playground's components, without their events."""

from __future__ import annotations

from dataclasses import dataclass, fields
from functools import partial
from typing import Any

import gradio as gr

from photon import Engine
from photon.ui import markup, references
from photon.ui.ask import LENGTHS, TASKS
from photon.ui.image_input import image_input
from photon.ui.tasks import FIRST_PROMPT, prompt_label

_FIRST_TASK = "point"
# The answer is text, never markup; what is copied is exactly what the model said.
_COPY = """
element.addEventListener('click', async (event) => {
  const button = event.target.closest('button'), answer = element.querySelector('pre');
  if (!button) return;
  if (navigator.clipboard) await navigator.clipboard.writeText(answer.textContent);
  else getSelection().selectAllChildren(answer);  // browsers give the clipboard to https and localhost only
  button.textContent = navigator.clipboard ? 'Copied' : 'Selected';
  setTimeout(() => { button.textContent = 'Copy'; }, 1200);
});
"""
_DOWNLOADS = {
    "png": "Save picture",
    "json": "Save JSON",
    "coco": "Save COCO",
    "yolo": "Save YOLO",
    "voc": "Save VOC",
}
EMPTY_STAGE = (
    "The picture appears here, with its points and boxes.",
    "Click an example above, or add an image and press Run.",
)
DEPTHS = [("1 · blocking", 1), ("2 · pipelined", 2)]


@dataclass(frozen=True)
class Controls:
    """The left column."""

    image: gr.Image
    task: gr.Radio
    prompt: gr.Textbox
    length: gr.Radio
    refs: gr.Textbox
    clear_refs: gr.Button
    run: gr.Button
    stop: gr.Button
    settings: tuple[gr.Textbox, ...]


@dataclass(frozen=True)
class View:
    """The right column, and what lies under both."""

    picture: gr.HTML
    marks: gr.HTML
    refs: gr.HTML
    status: gr.HTML
    answer: gr.HTML
    downloads: dict[str, gr.DownloadButton]
    numbers: gr.HTML
    json: gr.JSON
    call: gr.Code
    window: gr.Textbox

    @property
    def outputs(self) -> list[Any]:
        """Everything a run writes."""
        single = [getattr(self, field.name) for field in fields(self) if field.name != "downloads"]
        return [*single, *self.downloads.values()]


def build_controls() -> Controls:
    """The left column: picture, task, prompt, Run and Stop, settings."""
    image = image_input(height=236, elem_id="image")
    task = gr.Radio(
        [(name.capitalize(), name) for name in TASKS], value=_FIRST_TASK, label="Task", elem_id="task"
    )
    prompt = gr.Textbox(
        FIRST_PROMPT[_FIRST_TASK],
        label=prompt_label(_FIRST_TASK),
        placeholder=f"for example: {FIRST_PROMPT[_FIRST_TASK]}",
        max_lines=4,
        elem_id="prompt",
    )
    length = gr.Radio(list(LENGTHS), value="normal", label="Caption length", visible=False, elem_id="length")
    refs = gr.Textbox(
        label="References: click or drag in the picture, or type",
        placeholder="x,y or x1,y1,x2,y2 from 0 to 1; one per line",
        max_lines=4,
        elem_id="refs_text",
    )
    clear_refs = gr.Button("Clear references", size="sm", elem_id="clear_refs")
    with gr.Row(elem_id="buttons"):
        run = gr.Button("Run", variant="primary", elem_id="run")
        stop = gr.Button("Stop", variant="secondary", interactive=False, elem_id="stop")
    return Controls(image, task, prompt, length, refs, clear_refs, run, stop, build_settings())


def build_settings(prefix: str = "") -> tuple[gr.Textbox, ...]:
    """In the order of tasks.settings_from; element ids begin with the prefix.

    Text fields: gr.Number cannot be empty (it shows 0), and the engine checks every value in one place.
    """
    fields_of = partial(gr.Textbox, max_lines=1, min_width=96)
    with gr.Accordion("Settings", open=False, elem_id=f"{prefix}settings"):
        with gr.Row():
            temperature = fields_of(label="temperature", placeholder="0", elem_id=f"{prefix}temperature")
            top_p = fields_of(label="top_p", placeholder="1")
            seed = fields_of(label="seed", placeholder="random")
        with gr.Row():
            max_tokens = fields_of(label="max_tokens", placeholder="768", elem_id=f"{prefix}max_tokens")
            max_objects = fields_of(label="max_objects", placeholder="50", elem_id=f"{prefix}max_objects")
        stop = gr.Textbox(label="stop strings, one per line", lines=1, max_lines=4)
    return temperature, top_p, max_tokens, max_objects, seed, stop


def build_depth(engine: Engine) -> gr.Radio:
    """The bar above the timeline: how many steps the engine keeps in flight."""
    with gr.Row(elem_id="engine_bar", equal_height=True):
        gr.HTML(
            "<p><strong>Steps in flight</strong> for the whole engine, for everybody on this page. "
            "Run the same thing at both and compare.</p>",
            apply_default_css=False,
        )
        return gr.Radio(DEPTHS, value=engine.depth, show_label=False, container=False, elem_id="depth")


def build_result(idle: str) -> tuple[Any, ...]:
    """The right column: picture with marks, status, answer, downloads."""
    with gr.Group(elem_id="stage", elem_classes="pw-stage"):
        picture = gr.HTML(markup.empty_picture(*EMPTY_STAGE), apply_default_css=False, elem_id="picture")
        marks = gr.HTML("", apply_default_css=False, elem_id="marks", elem_classes="pw-marks")
        refs = references.layer()
    status = gr.HTML(markup.status("idle", idle), apply_default_css=False, elem_id="status")
    answer = gr.HTML("", apply_default_css=False, js_on_load=_COPY, elem_id="answer")
    with gr.Row(elem_id="downloads"):
        downloads = {
            kind: gr.DownloadButton(label, size="sm", min_width=80, interactive=False, elem_id=f"save_{kind}")
            for kind, label in _DOWNLOADS.items()
        }
    return picture, marks, refs, status, answer, downloads


def build_details() -> tuple[Any, ...]:
    """Under both columns: numbers, JSON, code."""
    numbers = gr.HTML("", apply_default_css=False, elem_id="numbers")
    with gr.Row(elem_id="details", equal_height=False):
        with gr.Column(min_width=320), gr.Accordion("Result as JSON", open=False, elem_id="json_panel"):
            json = gr.JSON(show_label=False, max_height=360, elem_id="json")
        with (
            gr.Column(min_width=320),
            gr.Accordion("The same run in Python and over HTTP", open=False, elem_id="call_panel"),
        ):
            call = gr.Code(language="python", show_label=False, interactive=False, elem_id="call")
    window = gr.Textbox(visible="hidden", elem_id="run_window", show_label=False)
    return numbers, json, call, window
