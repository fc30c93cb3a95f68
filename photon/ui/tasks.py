"""How the controls follow the chosen task, and how they turn into settings. Pure but for gr.update."""

from __future__ import annotations

from typing import Any

import gradio as gr

from photon.ui.ask import WITH_REFS

FIRST_PROMPT = {"query": "how many circles are there?", "point": "red circle", "detect": "star"}
_LABEL = {"query": "Question", "point": "Objects to point at", "detect": "Objects to detect"}
_NAMES = ("temperature", "top_p", "max_tokens", "max_objects", "seed")


def prompt_update(task: str, prompt: str) -> tuple[dict[str, Any], ...]:
    """Updates of prompt, caption length and references. A text the person typed is never replaced."""
    untouched = not prompt.strip() or prompt in FIRST_PROMPT.values()
    value = FIRST_PROMPT.get(task, prompt) if untouched else prompt
    is_caption = task == "caption"
    return (
        gr.update(
            label=_LABEL.get(task, "Prompt"),
            value=value,
            placeholder=f"for example: {FIRST_PROMPT.get(task, '')}",
            visible=not is_caption,
        ),
        gr.update(visible=is_caption),
        gr.update(visible=task in WITH_REFS),
    )


def prompt_label(task: str) -> str:
    return _LABEL.get(task, "Prompt")


def settings_from(*values: str | None) -> dict[str, Any]:
    """Settings of the form, empty fields left out; the engine checks them and names what is wrong."""
    *numbers, stop = values
    given = [(name, (value or "").strip()) for name, value in zip(_NAMES, numbers, strict=True)]
    settings: dict[str, Any] = {name: _number(value) for name, value in given if value}
    texts = [line for line in (stop or "").splitlines() if line]
    return settings | ({"stop": texts} if texts else {})


def _number(text: str) -> float | int | str:
    """As a number where it is one; the engine says what is wrong with anything else."""
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text
