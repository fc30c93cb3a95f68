"""Examples that run in one click: a picture, a task and a prompt, shown as cards."""

from __future__ import annotations

import base64
import io
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import gradio as gr
from PIL import Image

from photon.ui.markup import escape

_THUMB_PX = 224
Card = TypeVar("Card")

# The cards are buttons, so the keyboard reaches them; which one was pressed goes to Python as event data.
_ON_LOAD = """
element.addEventListener('click', (event) => {
  const card = event.target.closest('[data-example]');
  if (card) trigger('click', {index: Number(card.dataset.example)});
});
"""


@dataclass(frozen=True)
class Example:
    """One card."""

    image: str
    task: str
    prompt: str = ""
    length: str = "normal"


def read_examples(path: Path) -> tuple[Example, ...]:
    """Read the list; image paths in it are relative to the file. Pictures that are not there are left out."""
    entries = json.loads(path.read_text(encoding="utf-8"))
    made = [Example(**{**entry, "image": str(path.parent / entry["image"])}) for entry in entries]
    return tuple(example for example in made if Path(example.image).is_file())


def example_cards(examples: tuple[Example, ...]) -> gr.HTML:
    """The strip of cards; its click event carries the index of the card."""
    cards = "".join(_card(index, example) for index, example in enumerate(examples))
    return gr.HTML(
        f'<div class="pw-examples" role="group" aria-label="Examples that run in one click">{cards}</div>',
        js_on_load=_ON_LOAD,
        elem_id="examples",
        apply_default_css=False,
    )


def picked(cards: Sequence[Card], data: dict[str, Any]) -> Card | None:
    """The card an event names; None for anything else a browser may send."""
    index = data.get("index")
    return cards[index] if isinstance(index, int) and 0 <= index < len(cards) else None


def _card(index: int, example: Example) -> str:
    words = example.prompt or f"{example.length} caption"
    return (
        f'<button type="button" data-example="{index}" title="Run: {escape(example.task)}, {escape(words)}">'
        f'<img src="{_thumbnail(example.image)}" alt=""><span class="pw-task">{escape(example.task)}</span>'
        f"<span>{escape(words)}</span></button>"
    )


def _thumbnail(path: str) -> str:
    with Image.open(path) as image:
        small = image.convert("RGB")
    small.thumbnail((_THUMB_PX, _THUMB_PX))
    data = io.BytesIO()
    small.save(data, "JPEG", quality=82)
    return f"data:image/jpeg;base64,{base64.b64encode(data.getvalue()).decode()}"
