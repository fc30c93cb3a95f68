"""Points and boxes drawn on a copy of the picture, at the picture's own resolution.

Widths follow the shorter side, so that marks look alike on 64 and on 6000 pixels. A box's changed pixels
are exactly its own: the line grows inwards. Nothing is drawn outside the frame, labels included.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Mapping
from typing import Any

from PIL import Image, ImageDraw, ImageFont

PALETTE = ("#e6194b", "#0b6bcb", "#1a9850", "#b35806", "#7b3294", "#008080", "#c51b7d", "#5a5a00")

_LINES_PER_SIDE = 180
_DOTS_PER_SIDE = 55
_TEXT_LINES_PER_SIDE = 26
_MIN_FONT_PX = 9
_MAX_TAG_CHARS = 200
_WIDE_FONTS = ("NotoSansCJK-Regular.ttc", "wqy-zenhei.ttc", "msgothic.ttc", "Hiragino Sans GB.ttc")
"""Tried by name for text that Pillow's own font lacks; without them it shows boxes, which is no error."""

Box = tuple[int, int, int, int]
"""left, top, right, bottom in pixels, all inclusive."""


def draw(
    image: Image.Image, result: Mapping[str, Any], *, label: str = "", colour: str | None = None
) -> Image.Image:
    """A copy of `image` with what a result holds.

    `result["points"]` is a list of {"x", "y"}, `result["objects"]` of {"x_min", "y_min", "x_max", "y_max"},
    0..1 of width and height; an item's own "label" outranks `label`. Each label has its colour, unless
    `colour` is given. Values outside 0..1 are clamped, swapped ends ordered, NaN skipped. Nothing found: a
    byte-exact copy.
    """
    points = [item for item in result.get("points", ()) if _is_finite(item)]
    objects = [item for item in result.get("objects", ()) if _is_finite(item)]
    if not points and not objects:
        return image.copy()
    canvas = image.convert("RGB") if image.mode != "RGB" else image.copy()
    pen = _Pen(canvas)
    for item in objects:
        name = str(item.get("label", label))
        pen.box(_pixel_box(item, canvas.size), colour or colour_of(name), name)
    named: set[str] = set()
    for item in points:
        name = str(item.get("label", label))
        text = "" if name in named else name  # once is enough: the colour tells the others
        named.add(name)
        pen.point(_pixel(item["x"], item["y"], canvas.size), colour or colour_of(name), text)
    return canvas


def colour_of(label: str) -> str:
    """The same colour for the same label, in every picture and process; case is ignored."""
    return (
        PALETTE[zlib.crc32(label.casefold().encode("utf-8", "replace")) % len(PALETTE)]
        if label
        else PALETTE[0]
    )


def line_px(size: tuple[int, int]) -> int:
    """Width of a box's line."""
    return max(1, round(min(size) / _LINES_PER_SIDE))


def dot_radius_px(size: tuple[int, int]) -> int:
    """Radius of a point's dot, its rings not counted."""
    return max(1, round(min(size) / _DOTS_PER_SIDE))


class _Pen:
    """Draws on one canvas, in its pixels."""

    def __init__(self, canvas: Image.Image) -> None:
        self.canvas = canvas
        self.line = line_px(canvas.size)
        self.radius = dot_radius_px(canvas.size)
        self.font_px = max(_MIN_FONT_PX, round(min(canvas.size) / _TEXT_LINES_PER_SIDE))
        self._draw = ImageDraw.Draw(canvas)

    def box(self, box: Box, colour: str, text: str) -> None:
        """An outline inside the box, with a thin white line on its inner side where there is room."""
        self._draw.rectangle(box, outline=colour, width=self.line)
        edge = self.line // 4
        inner = (box[0] + self.line, box[1] + self.line, box[2] - self.line, box[3] - self.line)
        if edge and inner[2] - inner[0] > 2 * edge and inner[3] - inner[1] > 2 * edge:
            self._draw.rectangle(inner, outline="white", width=edge)
        self._tag(text, (box[0], box[1]), colour)

    def point(self, centre: tuple[int, int], colour: str, text: str) -> None:
        """A dot with a white ring and a dark one, so that it shows on every ground."""
        x, y = centre
        ring = max(1, self.radius // 4)
        for radius, fill in ((2 * ring, "#111111"), (ring, "#ffffff"), (0, colour)):
            reach = self.radius + radius
            self._draw.ellipse((x - reach, y - reach, x + reach, y + reach), fill=fill)
        reach = self.radius + 2 * ring
        self._tag(text, (x + reach, y - reach), colour)

    def _tag(self, text: str, corner: tuple[int, int], colour: str) -> None:
        """White text on a plate whose lower left corner is at `corner`, moved inside the frame."""
        text = "".join(char for char in " ".join(text.split()) if char.isprintable())[:_MAX_TAG_CHARS]
        font = _font(self.font_px, text)
        margin = max(1, self.font_px // 5)
        text = _fitting(text, font, self.canvas.size[0] - 2 * margin - 1)
        height = self.font_px + 2 * margin
        if not text or height > self.canvas.size[1]:
            return
        width = math.ceil(font.getlength(text)) + 2 * margin
        left = min(max(0, corner[0]), self.canvas.size[0] - width)
        top = (
            corner[1] - height
            if corner[1] >= height
            else min(max(0, corner[1]), self.canvas.size[1] - height)
        )
        plate = Image.new("RGB", (width, height), colour)
        ImageDraw.Draw(plate).text((margin, height / 2), text, fill="white", font=font, anchor="lm")
        self.canvas.paste(plate, (left, top))


def _fitting(text: str, font: ImageFont.FreeTypeFont, width: int) -> str:
    """The text, shortened until it fits; '' if nothing does."""
    if font.getlength(text) <= width:
        return text
    low, high = 0, len(text)  # the longest beginning that fits with an ellipsis
    while low < high:
        middle = (low + high + 1) // 2
        fits = font.getlength(text[:middle] + "…") <= width
        low, high = (middle, high) if fits else (low, middle - 1)
    return text[:low] + "…" if low else ""


def _font(size: int, text: str) -> ImageFont.FreeTypeFont:
    for name in _WIDE_FONTS if any(ord(char) > 0x2FFF for char in text) else ():
        try:
            return ImageFont.truetype(name, size)
        except OSError:
            continue
    font = ImageFont.load_default(size)
    assert isinstance(font, ImageFont.FreeTypeFont), "Pillow was built without FreeType"
    return font


def _is_finite(item: Mapping[str, Any]) -> bool:
    keys = ("x", "y") if "x" in item else ("x_min", "y_min", "x_max", "y_max")
    return all(math.isfinite(item[key]) for key in keys)


def _pixel(x: float, y: float, size: tuple[int, int]) -> tuple[int, int]:
    """The pixel that holds a normalised position."""
    clamped = (min(max(0.0, value), 1.0) for value in (x, y))
    left, top = (min(int(value * side), side - 1) for value, side in zip(clamped, size, strict=True))
    return left, top


def _pixel_box(item: Mapping[str, Any], size: tuple[int, int]) -> Box:
    """Pixels a normalised box covers, at least one."""
    (left, right), (top, bottom) = (sorted((item[f"{axis}_min"], item[f"{axis}_max"])) for axis in "xy")
    first = _pixel(left, top, size)
    last = _pixel(right - 1 / size[0] / 2, bottom - 1 / size[1] / 2, size)
    return *first, max(first[0], last[0]), max(first[1], last[1])
