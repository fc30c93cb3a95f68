"""Spatial references: places in the picture that a question is about, as text, as numbers and as markers.

The text field is the truth: one reference a line, `x,y` or `x1,y1,x2,y2`, each from 0 to 1 of width and
height. A click in the picture adds a point to it, a drag a box. What is typed gives the same request as what
is drawn.
"""

from __future__ import annotations

import math
from typing import Any

import gradio as gr

from photon.errors import InvalidRequestError
from photon.ui.markup import fit

Ref = tuple[float, ...]

# The layer lies over the marks; events are taken from what is around both, so that marks keep their hints.
_ON_LOAD = """
const stage = element.closest('.pw-stage'), dragged = 6;  // pixels of the screen
let from = null;
const place = (event) => {
  const box = element.querySelector('.pw-refs')?.getBoundingClientRect();
  if (!box) return null;
  const part = (value, start, size) => Math.min(1, Math.max(0, (value - start) / size));
  return [part(event.clientX, box.left, box.width), part(event.clientY, box.top, box.height)];
};
const ends = (a, b) => [Math.min, Math.max].flatMap((pick) => [pick(a[0], b[0]), pick(a[1], b[1])]);
const far = (event) => Math.hypot(event.clientX - from.x, event.clientY - from.y) > dragged;
const band = (box) => {
  const shown = element.querySelector('.pw-band');
  if (!shown) return;
  shown.style.display = box ? 'block' : 'none';
  if (!box) return;
  const sides = {left: box[0], top: box[1], width: box[2] - box[0], height: box[3] - box[1]};
  for (const [side, part] of Object.entries(sides)) shown.style[side] = `${100 * part}%`;
};
stage.addEventListener('dragstart', (event) => event.preventDefault());
stage.addEventListener('pointerdown', (event) => {
  const box = element.querySelector('.pw-refs')?.getBoundingClientRect();
  const inside = box && event.clientX >= box.left && event.clientX <= box.right
    && event.clientY >= box.top && event.clientY <= box.bottom;
  if (!inside || !event.isPrimary || event.button) return;
  from = {x: event.clientX, y: event.clientY, at: place(event)};
  stage.setPointerCapture(event.pointerId);
});
stage.addEventListener('pointermove', (event) => {
  if (from && place(event)) band(far(event) ? ends(from.at, place(event)) : null);
});
stage.addEventListener('pointerup', (event) => {
  if (!from) return;
  const to = place(event), ref = to && (far(event) ? ends(from.at, to) : from.at);
  from = null;
  band(null);
  if (ref) trigger('click', {ref});
});
stage.addEventListener('pointercancel', () => { from = null; band(null); });
"""


def layer() -> gr.HTML:
    """The layer of markers; its click event carries a reference that was drawn."""
    return gr.HTML("", apply_default_css=False, js_on_load=_ON_LOAD, elem_id="refs")


def parse(text: str) -> tuple[Ref, ...]:
    """The references of a text; empty lines are left out.

    Raises:
        InvalidRequestError: a line that is no reference.
    """
    lines = [line.strip() for line in text.splitlines()]
    return tuple(_parse_line(line) for line in lines if line)


def _parse_line(line: str) -> Ref:
    try:
        return checked([float(part) for part in line.split(",")])
    except ValueError:
        shown = line if len(line) <= 60 else line[:60] + "…"
        raise InvalidRequestError(
            f"The reference {shown!r} must be x,y or x1,y1,x2,y2 with numbers from 0 to 1, left before right "
            "and top before bottom."
        ) from None


def checked(values: Any) -> Ref:
    """A point or a box. Raises ValueError for anything else."""
    ref = tuple(float(value) for value in values)
    is_place = len(ref) in (2, 4) and all(math.isfinite(value) and 0 <= value <= 1 for value in ref)
    if not is_place or (len(ref) == 4 and (ref[0] > ref[2] or ref[1] > ref[3])):
        raise ValueError("not a point or a box")
    return ref


def added(text: str, data: Any) -> str:
    """The text with a line more for what was drawn; unchanged for anything else that a browser may send."""
    try:
        ref = checked(data["ref"])
    except (TypeError, KeyError, ValueError, OverflowError):
        return text
    return "\n".join([*text.splitlines(), ",".join(f"{value:.3f}" for value in ref)])


def markers(text: str, size: tuple[int, int] | None) -> str:
    """The layer: what the text holds, as far as it is right, over a picture of this size; "" without one."""
    if size is None:
        return ""
    drawn = []
    for number, line in enumerate(filter(None, map(str.strip, text.splitlines())), 1):
        try:
            drawn.append(_marker(_parse_line(line), number))
        except InvalidRequestError:
            continue
    return (
        f'<div class="pw-fit pw-refs" style="{fit(*size)}" role="img" aria-label="{len(drawn)} references">'
        f'{"".join(drawn)}<i class="pw-band"></i></div>'
    )


def _marker(ref: Ref, number: int) -> str:
    left, top = (f"{100 * value:.2f}%" for value in ref[:2])
    if len(ref) == 2:
        return f'<i class="pw-ref" style="left:{left};top:{top}"><b>{number}</b></i>'
    width, height = (f"{100 * (ref[i + 2] - ref[i]):.2f}%" for i in range(2))
    style = f"left:{left};top:{top};width:{width};height:{height}"
    return f'<i class="pw-ref pw-ref-box" style="{style}"><b>{number}</b></i>'
