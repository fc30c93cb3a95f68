"""HTML and SVG of the page. Pure; every word that came from a person or a model is escaped.

The picture and the marks are two layers of one size: the picture is sent once per run, the marks (a few
kilobytes of SVG whose viewBox is the picture's own pixels) at every update.
"""

from __future__ import annotations

import base64
import io
from collections.abc import Iterable, Mapping, Sequence
from html import escape as _html_escape
from typing import Any

from PIL import Image

from photon.overlay import PALETTE
from photon.ui.results import tidy

_NAMED = dict(
    zip(("red", "blue", "green", "orange", "purple", "teal", "pink", "olive"), PALETTE, strict=True)
)
MAX_DISPLAY_PX = 1600
_CHAR_WIDTH = 0.58

_METRICS = (
    ("Queue", "queue_ms", "ms", "arrival to the first launch"),
    ("Preprocess", "preprocess_ms", "ms", "crops and prompt, on the host"),
    ("Prefill", "prefill_ms", "ms", "picture and prompt through the model"),
    ("First token", "ttft_ms", "ms", "arrival to the first committed token"),
    ("Decode", "decode_ms", "ms", "first to last committed token"),
    ("Total", "total_ms", "ms", "arrival to finish"),
    ("Tokens in", "input_tokens", "", "picture and prompt positions"),
    ("Tokens out", "output_tokens", "", "committed tokens"),
    ("Speed", "tokens_per_s", "tok/s", "committed tokens per second"),
    (
        "Zombie rows",
        "zombie_rows",
        "",
        "rows that rode along after the request had finished; their tokens are dropped",
    ),
)


def escape(text: str) -> str:
    """Text that stays text: for HTML, and for Gradio's templates, which read ${...} and {{...}}."""
    safe = _html_escape(text)
    return safe.replace("{", "&#123;").replace("}", "&#125;").replace("$", "&#36;")


def picture(image: Image.Image) -> str:
    """The bottom layer. Drawn at its own resolution up to MAX_DISPLAY_PX on the longer side."""
    width, height = image.size
    shown = image
    if max(image.size) > MAX_DISPLAY_PX:
        shown = image.copy()
        shown.thumbnail((MAX_DISPLAY_PX, MAX_DISPLAY_PX))
    data = io.BytesIO()
    lossless = shown.width * shown.height <= 512 * 512
    shown.save(data, "PNG") if lossless else shown.save(data, "JPEG", quality=90)
    kind = "png" if lossless else "jpeg"
    source = f"data:image/{kind};base64,{base64.b64encode(data.getvalue()).decode()}"
    alt = f"The picture, {width} by {height} pixels"
    return f'<div class="pw-fit" style="{fit(width, height)}"><img src="{source}" alt="{alt}"></div>'


def empty_picture(*sentences: str) -> str:
    """What stands where the picture will be."""
    return f'<div class="pw-empty">{"".join(f"<p>{escape(sentence)}</p>" for sentence in sentences)}</div>'


def marks(
    found: Mapping[str, Sequence[Mapping[str, float]]], size: tuple[int, int], labels: Iterable[str] = ()
) -> str:
    """The top layer: points and boxes by label, each label in its own colour.

    labels: all that were asked for, if `found` lacks some.
    """
    width, height = size
    groups = []
    colours = palette(labels or found)
    for label, places in found.items():
        draw = [_mark(dict(place), label, n, colours[label], size) for n, place in enumerate(places, 1)]
        groups.append(f'<g data-label="{escape(label)}">{"".join(draw)}</g>')
    return (
        f'<div class="pw-fit" style="{fit(width, height)}">'
        f'<svg viewBox="0 0 {width} {height}" preserveAspectRatio="none" role="img" '
        f'aria-label="Points and boxes">{"".join(groups)}</svg></div>'
    )


def palette(labels: Iterable[str]) -> dict[str, str]:
    """A colour per label, all different: the one its words name, or the next free one."""
    wanted = {
        label: next((c for name, c in _NAMED.items() if name in label.lower().split()), "")
        for label in labels
    }
    free = [c for c in PALETTE if c not in wanted.values()]
    chosen: dict[str, str] = {}
    for label, colour in wanted.items():
        is_free = colour and colour not in chosen.values()
        chosen[label] = colour if is_free else free.pop(0) if free else PALETTE[0]
    return chosen


def fit(width: int, height: int) -> str:
    """The shape of a layer, for the class pw-fit."""
    return f"--w:{width};--h:{height}"


def line_width(size: tuple[int, int]) -> float:
    """Stroke width in picture pixels: 1/180 of the shorter side, at least one pixel."""
    return max(1.0, min(size) / 180)


def _mark(place: dict[str, float], label: str, number: int, colour: str, size: tuple[int, int]) -> str:
    place = tidy(place)
    return (
        _point(place, label, number, colour, size)
        if "x" in place
        else _box(place, label, number, colour, size)
    )


def _point(place: dict[str, float], label: str, number: int, colour: str, size: tuple[int, int]) -> str:
    x, y = place["x"] * size[0], place["y"] * size[1]
    line = line_width(size)
    radius = 4.6 * line
    return (
        f'<g class="pw-point"><title>{escape(label)} {number}: {x:.0f}, {y:.0f} px</title>'
        f'<circle cx="{x:.2f}" cy="{y:.2f}" r="{radius:.2f}" fill="{colour}" stroke="#fff" '
        f'stroke-width="{line:.2f}"/>'
        f'<circle cx="{x:.2f}" cy="{y:.2f}" r="{radius + line:.2f}" fill="none" stroke="#111" '
        f'stroke-opacity=".65" stroke-width="{line / 2:.2f}"/>'
        f'<text x="{x:.2f}" y="{y:.2f}" font-size="{radius * 1.25:.2f}" fill="#fff" text-anchor="middle" '
        f'dominant-baseline="central" font-weight="700">{number}</text></g>'
    )


def _box(place: dict[str, float], label: str, number: int, colour: str, size: tuple[int, int]) -> str:
    line = line_width(size)
    x, y = place["x_min"] * size[0], place["y_min"] * size[1]
    width = max(1.0, place["x_max"] * size[0] - x)
    height = max(1.0, place["y_max"] * size[1] - y)
    rect = f'<rect x="{x:.2f}" y="{y:.2f}" width="{width:.2f}" height="{height:.2f}"'
    return (
        f'<g class="pw-box"><title>{escape(label)} {number}: {width:.0f} x {height:.0f} px</title>'
        f'{rect} fill="none" stroke="#fff" stroke-opacity=".85" stroke-width="{2 * line:.2f}"/>'
        f'{rect} fill="{colour}" fill-opacity=".10" stroke="{colour}" stroke-width="{line:.2f}"/>'
        f"{_tag(f'{label} {number}', (x, y, height), colour, size)}</g>"
    )


def _tag(text: str, box: tuple[float, float, float], colour: str, size: tuple[int, int]) -> str:
    """A label above the box, or inside the picture where there is no room above."""
    font = max(5.0, 6 * line_width(size))
    room = max(3, int(size[0] / (font * _CHAR_WIDTH)) - 2)
    shown = text if len(text) <= room else text[: room - 1] + "…"
    width, height = font * (_CHAR_WIDTH * len(shown) + 0.9), font * 1.45
    if width > size[0] or height > size[1]:
        return ""
    x = min(max(0.0, box[0]), max(0.0, size[0] - width))
    y = box[1] - height if box[1] >= height else min(box[1], max(0.0, size[1] - height))
    return (
        f'<rect x="{x:.2f}" y="{y:.2f}" width="{width:.2f}" height="{height:.2f}" rx="{font * 0.2:.2f}" '
        f'fill="{colour}"/><text x="{x + font * 0.45:.2f}" y="{y + height / 2:.2f}" fill="#fff" '
        f'font-size="{font:.2f}" font-weight="600" dominant-baseline="central">{escape(shown)}</text>'
    )


def status(
    state: str,
    headline: str,
    detail: str = "",
    counts: Mapping[str, str] | None = None,
    labels: Iterable[str] = (),
) -> str:
    """The line under the picture. state: idle, busy, done, stopped or error.

    counts: a sentence per label instead of the headline, each with the label's colour if there are several.
    labels: all that were asked for, if `counts` lacks some.
    """
    role = "alert" if state == "error" else "status"
    below = f'<p class="pw-detail">{escape(detail)}</p>' if detail else ""
    above = _counts(counts, palette(labels or counts)) if counts else escape(headline)
    return (
        f'<div class="pw-status" data-state="{state}" role="{role}" aria-live="polite">'
        f'<span class="pw-dot"></span><div><p class="pw-headline">{above}</p>{below}</div></div>'
    )


def _counts(counts: Mapping[str, str], colours: Mapping[str, str]) -> str:
    if len(colours) == 1:
        return "".join(map(escape, counts.values()))
    return "".join(
        f'<span class="pw-label"><i style="background:{colours[label]}"></i>{escape(sentence)}</span>'
        for label, sentence in counts.items()
    )


def answer(text: str) -> str:
    """The model's words as they are; "" while there are none."""
    if not text:
        return ""
    return f'<div class="pw-answer"><button type="button">Copy</button><pre>{escape(text)}</pre></div>'


def numbers(metrics: Mapping[str, Any], depth: int) -> str:
    """The strip of one run's numbers; "" when there are none."""
    if not metrics:
        return ""
    cells = [
        f'<div class="pw-cell" title="{hint}"><dt>{name}</dt><dd>{_figure(metrics.get(key))}'
        f"<small>{unit}</small></dd></div>"
        for name, key, unit, hint in _METRICS
    ]
    cells.append(
        '<div class="pw-cell" title="steps in flight when the run ended">'
        f"<dt>Depth</dt><dd>{depth}</dd></div>"
    )
    return f'<dl class="pw-numbers" aria-label="Numbers of this run">{"".join(cells)}</dl>'


def _figure(value: float | int | None) -> str:
    if value is None:
        return "–"
    if isinstance(value, int):
        return f"{value:,}"
    return f"{value:,.2f}" if value < 10 else f"{value:,.1f}" if value < 100 else f"{value:,.0f}"


def chips(pairs: Sequence[tuple[str, str]]) -> str:
    """Small labelled facts in a row."""
    return "".join(
        f'<span class="pw-chip"><span>{escape(name)}</span>{escape(value)}</span>' for name, value in pairs
    )


def header(facts: Sequence[tuple[str, str]]) -> str:
    """The top of the page."""
    return (
        '<header class="pw-header"><div><h1>Photon Workbench</h1>'
        "<p>Ask about a picture, and see the pipelined steps that answered.</p></div>"
        f'<div class="pw-chips">{chips(facts)}</div></header>'
    )
