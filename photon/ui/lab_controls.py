"""The Compare tab's controls: the workload, both sides' knobs, the presets; and how they are read."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from functools import partial
from pathlib import Path
from typing import Any

import gradio as gr

from photon.errors import InvalidRequestError
from photon.images import load_image
from photon.lab import Injected, Setting
from photon.ui.ask import LENGTHS, SPATIAL, TASKS, check_task, split_labels
from photon.ui.events import AT_ONCE
from photon.ui.image_input import image_input, path_of
from photon.ui.layout import DEPTHS
from photon.ui.markup import escape
from photon.ui.tasks import FIRST_PROMPT, prompt_label, prompt_update
from photon.workload import Workload, check_whole

BURST, POISSON = "all at once", "Poisson"
NATURAL, FIXED = "the model's own", "fixed length"
MAX_ROUNDS = 9
_NO_IMAGE = "There is no picture; drop one in, paste one, or pick a preset above."
# Which preset was pressed goes to Python as event data, as with the example cards.
_ON_LOAD = """
element.addEventListener('click', (event) => {
  const card = event.target.closest('[data-preset]');
  if (card) trigger('click', {index: Number(card.dataset.preset)});
});
"""


@dataclass(frozen=True)
class SideValues:
    """What the knobs of one side say, as typed."""

    depth: Any = 2
    copies: str = ""
    host_us: str = ""
    commit_us: str = ""
    sync_masks: bool = False

    def setting(self, side: str) -> Setting:
        """Raises InvalidRequestError that names the side."""
        try:
            injected = Injected(
                whole("host_us", self.host_us, 0),
                whole("commit_us", self.commit_us, 0),
                bool(self.sync_masks),
            )
            copies = whole("copies", self.copies, 0) if self.copies.strip() else None
            if copies is not None:
                Workload(copies=copies)
            return Setting(whole("depth", self.depth), copies, injected)
        except InvalidRequestError as error:
            raise InvalidRequestError(f"{side}: {error}") from None


@dataclass(frozen=True)
class Form:
    """Everything the controls say, as typed; the fields are in the order of `Controls`."""

    image: Any = None
    task: str = "detect"
    prompt: str = ""
    length: str = "normal"
    copies: str = "8"
    arrival: str = BURST
    rate: str = "20"
    answers: str = FIXED
    tokens: str = "60"
    early: str = "0"
    seed: str = "0"
    rounds: str = "3"
    a: SideValues = SideValues(1)
    b: SideValues = SideValues(2)

    @classmethod
    def of(cls, values: Sequence[Any]) -> Form:
        """From the components' values, flat."""
        shared, per_side = len(fields(cls)) - 2, len(fields(SideValues))
        a, b = values[shared : shared + per_side], values[shared + per_side :]
        return cls(*[*values[:shared], SideValues(*a), SideValues(*b)])

    @property
    def values(self) -> list[Any]:
        """Back again."""
        shared = [getattr(self, field.name) for field in fields(self)[:-2]]
        sides = [getattr(side, field.name) for side in (self.a, self.b) for field in fields(side)]
        return shared + sides

    def settings(self) -> tuple[Setting, Setting]:
        """Raises InvalidRequestError that names the side."""
        return self.a.setting("Side A"), self.b.setting("Side B")

    def num_rounds(self) -> int:
        """Raises InvalidRequestError."""
        rounds = whole("rounds", self.rounds, 1)
        check_whole("rounds", rounds, 1, MAX_ROUNDS)
        return rounds

    def workload(self) -> Workload:
        """Decodes the picture, which takes a moment.

        Raises:
            InvalidRequestError: one sentence about the first value that is wrong.
        """
        check_task(self.task, self.length)
        is_fixed = self.answers == FIXED
        checked = Workload(
            None,
            self.task,
            self._prompt(),
            self.length,
            copies=whole("copies", self.copies),
            rate_per_s=number("arrivals per second", self.rate) if self.arrival == POISSON else 0,
            num_tokens=whole("tokens", self.tokens) if is_fixed else None,
            early_stops_percent=number("early stops", self.early, 0) if is_fixed else 0,
            seed=whole("seed", self.seed, 0),
        )
        path = path_of(self.image)
        if path is None:
            raise InvalidRequestError(_NO_IMAGE)
        return replace(checked, image=load_image(path))

    def _prompt(self) -> str:
        labels = split_labels(self.prompt) if self.task in SPATIAL else (self.prompt,)
        if len(labels) > 1:
            raise InvalidRequestError("A comparison asks for one object; the copies repeat it.")
        return labels[0]


def whole(name: str, text: str, default: int | None = None) -> int:
    """A whole number as typed, or the default where nothing was. Raises InvalidRequestError."""
    value = number(name, text, default)
    if value != int(value):
        raise InvalidRequestError(f"{name} is {text!r}; it must be a whole number.")
    return int(value)


def number(name: str, text: str, default: float | None = None) -> float:
    """A number as typed, or the default where nothing was. Raises InvalidRequestError."""
    text = str(text if text is not None else "").strip()
    if not text and default is not None:
        return default
    try:
        value = float(text)
    except ValueError:
        value = float("nan")
    if not abs(value) < 1e15:
        raise InvalidRequestError(f"{name} is {text!r}; it must be a number.")
    return value


@dataclass(frozen=True)
class Preset:
    """A comparison in one click."""

    title: str
    words: str
    form: Form


def presets(image: Path, prompt: str) -> tuple[Preset, ...]:
    """Four, about one picture; `prompt` names an object in it."""
    form = Form(str(image), "detect", prompt)
    slow = "1500"
    return (
        Preset("Depth 1 vs 2", "What a second step in flight gains", form),
        Preset(
            "The sync leak",
            "Depth 2, and a host that waits for its uploads",
            replace(form, a=SideValues(2), b=SideValues(2, sync_masks=True)),
        ),
        Preset(
            "Slow host",
            f"{slow} µs more host work a step: in the way, and hidden",
            replace(form, a=SideValues(1, host_us=slow), b=SideValues(2, host_us=slow)),
        ),
        Preset(
            "Early stops: zombies",
            "16 rows that stop where nobody could foresee it",
            replace(form, copies="16", early="100"),
        ),
    )


def preset_cards(made: Sequence[Preset]) -> gr.HTML:
    """The strip of presets; its click event carries the index."""
    cards = "".join(
        f'<button type="button" data-preset="{i}"><b>{escape(preset.title)}</b>'
        f"<span>{escape(preset.words)}</span></button>"
        for i, preset in enumerate(made)
    )
    return gr.HTML(
        f'<div class="pw-presets" role="group" aria-label="Comparisons in one click">{cards}</div>',
        js_on_load=_ON_LOAD,
        elem_id="presets",
        apply_default_css=False,
    )


@dataclass(frozen=True)
class Controls:
    """The components, in the order of `Form`."""

    inputs: list[Any]
    run: gr.Button
    stop: gr.Button


def build_controls() -> Controls:
    """Workload on the left, the two sides on the right."""
    with gr.Row(elem_id="lab", equal_height=False):
        with gr.Column(scale=6, min_width=320, elem_id="lab_workload"):
            shared = _build_workload()
        with gr.Column(scale=6, min_width=320, elem_id="lab_sides"):
            with gr.Row(equal_height=False):
                sides = [_build_side("A", Form().a), _build_side("B", Form().b)]
            with gr.Row(elem_id="lab_buttons"):
                run = gr.Button("Compare", variant="primary", elem_id="lab_run")
                stop = gr.Button("Stop", variant="secondary", interactive=False, elem_id="lab_stop")
    return Controls([*shared, *sides[0], *sides[1]], run, stop)


_field: Callable[..., gr.Textbox] = partial(gr.Textbox, max_lines=1, min_width=84)


def _build_workload() -> list[Any]:
    form = Form()
    with gr.Row(equal_height=False):
        image = image_input(height=196, min_width=160, elem_id="lab_image")
        with gr.Column(min_width=200):
            task = gr.Dropdown(
                [(name.capitalize(), name) for name in TASKS],
                value=form.task,
                label="Task",
                elem_id="lab_task",
            )
            prompt = gr.Textbox(
                FIRST_PROMPT[form.task], label=prompt_label(form.task), max_lines=1, elem_id="lab_prompt"
            )
            length = gr.Radio(list(LENGTHS), value=form.length, label="Caption length", visible=False)
    with gr.Row():
        copies = _field(form.copies, label="Copies, 1 to 32", elem_id="lab_copies")
        arrival = gr.Radio(
            [BURST, POISSON],
            value=form.arrival,
            label="Arrivals",
            scale=2,
            min_width=230,
            elem_id="lab_arrival",
        )
        rate = _field(form.rate, label="Per second", visible=False, elem_id="lab_rate")
        rounds = _field(form.rounds, label="Rounds", elem_id="lab_rounds")
    with gr.Row():
        answers = gr.Radio(
            [FIXED, NATURAL],
            value=form.answers,
            label="Answers",
            scale=3,
            min_width=260,
            elem_id="lab_answers",
        )
        tokens = _field(form.tokens, label="Tokens", elem_id="lab_tokens")
        early = _field(form.early, label="Stop early, %", elem_id="lab_early")
        seed = _field(form.seed, label="Seed", elem_id="lab_seed")
    task.input(prompt_update, [task, prompt], [prompt, length], **AT_ONCE)
    arrival.change(lambda value: gr.update(visible=value == POISSON), arrival, rate, **AT_ONCE)
    answers.change(lambda value: [gr.update(visible=value == FIXED)] * 2, answers, [tokens, early], **AT_ONCE)
    return [image, task, prompt, length, copies, arrival, rate, answers, tokens, early, seed, rounds]


def _build_side(side: str, values: SideValues) -> list[Any]:
    with gr.Column(min_width=200, elem_id=f"lab_{side.lower()}", elem_classes="pw-side"):
        gr.HTML(f'<h3 class="pw-side-name">{side}</h3>', apply_default_css=False)
        depth = gr.Radio(DEPTHS, value=values.depth, label="Steps in flight")
        copies = _field(values.copies, label="Copies", placeholder="as in the workload")
        with gr.Row():
            host = _field(values.host_us, label="Host time, µs a step", placeholder="0")
            commit = _field(values.commit_us, label="Slow commit, µs", placeholder="0")
        sync = gr.Checkbox(values.sync_masks, label="Synchronous mask upload")
    return [depth, copies, host, commit, sync]
