"""Scenes with known contents: `draw_scene(seed, style)` is a function of its arguments alone.

A scene is a picture plus the list of its objects. Positions and sizes are fractions of the picture
(x right, y down); a box is what the object's pixels, outline included, span.
"""

from __future__ import annotations

import io
import math
from dataclasses import dataclass, field
from random import Random

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFilter

from photon.tiny.backgrounds import add_noise, background
from photon.tiny.shapes import COLORS, SHAPES, Points, Rgb, outline, paint, wobble

Kind = tuple[str, str]
"""(shape, colour)."""


@dataclass(frozen=True)
class Thing:
    """One object: its kind, the centre and size of its box, and its outline, all in 0..1 of the picture."""

    shape: str
    color: str
    x: float
    y: float
    w: float
    h: float
    points: Points = field(repr=False, compare=False)

    @property
    def kind(self) -> Kind:
        return self.shape, self.color

    @property
    def order(self) -> float:
        """Targets list objects by rising order. A column of objects has equal x, so y counts a little."""
        return self.x + 0.25 * self.y


@dataclass(frozen=True)
class Scene:
    """A picture and what is on it, sorted by `Thing.order`."""

    image: Image.Image = field(repr=False)
    things: tuple[Thing, ...]


@dataclass(frozen=True)
class Style:
    """Limits of a scene. Radii are fractions of sqrt(width * height); sizes are the picture's, in px."""

    short_side: tuple[int, int] = (84, 112)
    aspect: tuple[float, float] = (1.0, 2.0)
    """Long side / short side; half of the scenes are upright."""
    min_things: int = 1
    max_things: int = 6
    min_radius: float = 0.09
    max_radius: float = 0.25
    palettes: bool = True
    """Draw most scenes from few kinds, so that counts above one occur."""
    shapes: tuple[str, ...] = SHAPES


MIN_ORDER_GAP = 0.02
CONTRAST = 85.0


def draw_scene(seed: int, style: Style, count: int | None = None) -> Scene:
    """Draw the scene of a seed, with `count` objects where they fit, else a random number."""
    rng = Random(seed)
    size = _size(rng, style)
    image = background(rng, size)
    wanted = _count(rng, style) if count is None else count
    places = _layout(rng, style, size, wanted)
    kinds = _kinds(rng, style, len(places))
    pen = _Pen(rng, size, style)
    things = [t for p, k in zip(places, kinds, strict=True) if (t := pen.draw(image, p, k)) is not None]
    return Scene(_finish(rng, image), tuple(sorted(things, key=lambda t: t.order)))


def _size(rng: Random, style: Style) -> tuple[int, int]:
    short = rng.randint(*style.short_side)
    low, high = style.aspect
    aspect = low if rng.random() < 0.3 else rng.uniform(low, high)
    long = round(short * aspect)
    return (long, short) if rng.random() < 0.5 else (short, long)


def _count(rng: Random, style: Style) -> int:
    if style.min_things == 1 and rng.random() < 0.012:
        return 0
    if style.min_things == 1 and rng.random() < 0.06:
        return rng.randint(7, 9)
    return rng.randint(style.min_things, style.max_things)


def _kinds(rng: Random, style: Style, count: int) -> list[Kind]:
    """Shapes and colours of the objects: from one to three kinds, one shape, one colour, or free."""
    free = [(rng.choice(style.shapes), rng.choice(COLORS)) for _ in range(count)]
    roll = rng.random() if style.palettes else 1.0
    if roll < 0.55:
        palette = [(rng.choice(style.shapes), rng.choice(COLORS)) for _ in range(rng.randint(1, 3))]
        return [rng.choice(palette) for _ in range(count)]
    if roll < 0.68:
        return [(free[0][0], color) for _, color in free]
    if roll < 0.8:
        return [(shape, free[0][1]) for shape, _ in free]
    return free


def _layout(rng: Random, style: Style, size: tuple[int, int], count: int) -> list[tuple[float, float, float]]:
    """(x, y, radius) in px of up to `count` circles that neither touch nor tie in reading order."""
    scale = math.sqrt(size[0] * size[1])
    tight = min(1.0, 1.9 / math.sqrt(max(count, 1)))
    top = max(style.min_radius * 1.15, style.max_radius * tight)
    lattice = _lattice(rng, size, count) if rng.random() < 0.15 else None
    even = rng.uniform(style.min_radius, top) if rng.random() < 0.25 else None
    placed: list[tuple[float, float, float]] = []
    for attempt in range(60 * count):
        radius = scale * (even or rng.uniform(style.min_radius, top)) * max(0.55, 1 - attempt / (60 * count))
        radius = max(radius, scale * style.min_radius)
        radius = min(radius, 0.46 * min(size))
        if lattice:
            x, y = lattice[len(placed)]
            radius = min(radius, 0.46 * lattice_step(lattice, size))
        else:
            x, y = (rng.uniform(radius + 2, n - radius - 2) for n in size)
        if lattice or _fits(placed, (x, y, radius), size):
            placed.append((x, y, radius))
        if len(placed) == count:
            break
    return placed


def _fits(
    placed: list[tuple[float, float, float]], new: tuple[float, float, float], size: tuple[int, int]
) -> bool:
    x, y, radius = new
    order = x / size[0] + 0.25 * y / size[1]
    return all(
        math.hypot(x - a, y - b) > (radius + r) * 1.03 + 1.5
        and abs(order - a / size[0] - 0.25 * b / size[1]) > MIN_ORDER_GAP
        for a, b, r in placed
    )


def _lattice(rng: Random, size: tuple[int, int], count: int) -> list[tuple[float, float]]:
    """Centres in rows and columns, as people arrange things; slightly uneven."""
    columns = max(1, min(count, round(math.sqrt(count * size[0] / size[1]) * rng.uniform(0.6, 1.6))))
    rows = -(-count // columns)
    jitter = rng.choice((0.0, 0.05))
    cells = [(i, j) for j in range(rows) for i in range(columns)][:count]
    return [
        (
            (i + 0.5 + rng.uniform(-jitter, jitter)) * size[0] / columns,
            (j + 0.5 + rng.uniform(-jitter, jitter)) * size[1] / rows,
        )
        for i, j in cells
    ]


def lattice_step(centres: list[tuple[float, float]], size: tuple[int, int]) -> float:
    """Smallest distance between two centres, or the picture's short side for a single one."""
    gaps = [math.dist(a, b) for i, a in enumerate(centres) for b in centres[:i]]
    return min([*gaps, *size, 2 * min(min(x, size[0] - x, y, size[1] - y) for x, y in centres)])


class _Pen:
    """How one scene draws: by which program's edges, with outlines or without."""

    def __init__(self, rng: Random, size: tuple[int, int], style: Style) -> None:
        self.rng, self.size = rng, size
        self.smooth = rng.random() < 0.5
        self.unsteady = rng.uniform(0.02, 0.065) if rng.random() < 0.15 else 0.0
        self.shaded = rng.random() < 0.25
        roll = rng.random()
        self.line: Rgb | None = None
        if roll < 0.42:
            self.line = (0, 0, 0) if roll < 0.3 else rng.choice(((40, 40, 40), (255, 255, 255), (90, 60, 30)))
        self.line_share = rng.uniform(0.05, 0.2)
        self.instead: dict[str, str] = {}

    def draw(self, image: Image.Image, place: tuple[float, float, float], kind: Kind) -> Thing | None:
        """Draw one object; None where no colour of a few tries stands out from the background."""
        rng, (x, y, radius) = self.rng, place
        behind = self._behind(image, place)
        color, fill = self._color(behind, radius, kind[1])
        if color is None:
            return None
        width = max(1, round(radius * self.line_share)) if self.line else 0
        points = outline(rng, kind[0])
        if self.unsteady:
            round_ish = kind[0] in ("circle", "hexagon")
            points = wobble(rng, points, self.unsteady * (0.5 if round_ish else 1.0))
        points = points * (radius - width / 2) + (x, y)
        self._stroke(image, points, fill, width)
        grow = width / 2 if self._line_shows(behind) else -width / 2
        low, high = points.min(0) - grow, points.max(0) + grow
        centre, extent = (low + high) / 2 / self.size, (high - low) / self.size
        at, box = centre.tolist(), extent.tolist()
        return Thing(kind[0], color, at[0], at[1], box[0], box[1], points / self.size)

    def _behind(self, image: Image.Image, place: tuple[float, float, float]) -> NDArray[np.float64]:
        """Mean colours (3, 3, 3) of what a place would cover."""
        x, y, radius = place
        box = (int(x - radius), int(y - radius), int(x + radius) + 1, int(y + radius) + 1)
        return np.asarray(image.resize((3, 3), Image.Resampling.BOX, box=_inside(box, self.size)), float)

    def _line_shows(self, behind: NDArray[np.float64]) -> bool:
        """Can the outline be seen? One of the background's own colour is not part of the thing."""
        return self.line is None or bool(np.sqrt(((behind - self.line) ** 2).sum(-1)).mean() > 40)

    def _color(self, behind: NDArray[np.float64], radius: float, wanted: str) -> tuple[str | None, Rgb]:
        """The wanted colour, or the one this scene uses instead where the wanted one would not show."""
        for color in (self.instead.get(wanted, wanted), *self.rng.sample(COLORS, 4)):
            fill = paint(self.rng, color)
            if self._shows(behind, radius, fill):
                self.instead[wanted] = color
                return color, fill
        return None, (0, 0, 0)

    def _shows(self, behind: NDArray[np.float64], radius: float, fill: Rgb) -> bool:
        """Does the fill, or a contrasting outline of enough width, stand out from what is behind it?"""
        gap = np.sqrt(((behind - fill) ** 2).sum(-1)).min()
        if self.line is None:
            return bool(gap > CONTRAST)
        edge = np.sqrt(((behind - self.line) ** 2).sum(-1)).min()
        return bool(gap > CONTRAST or (edge > 150 and radius * self.line_share > 1.6))

    def _stroke(self, image: Image.Image, points: Points, fill: Rgb, width: int) -> None:
        if self.smooth or self.shaded:
            self._stamp(image, points, fill, width)
            return
        _polygon(ImageDraw.Draw(image), points, fill, self.line, width)

    def _stamp(self, image: Image.Image, points: Points, fill: Rgb, width: int) -> None:
        """Draw through a mask at three times the size: soft edges, and a gradient where shaded."""
        zoom = 3 if self.smooth else 1
        low = np.floor(points.min(0) - width - 1).astype(int)
        extent = np.ceil(points.max(0) + width + 1).astype(int) - low
        big = (int(extent[0]) * zoom, int(extent[1]) * zoom)
        mask = Image.new("L", big, 0)
        local = (points - low) * zoom
        _polygon(ImageDraw.Draw(mask), local, 255, 255 if self.line else None, width * zoom)
        ink = Image.new("RGB", big, fill)
        if self.shaded:
            dark = Image.new("RGB", big, tuple(int(c * 0.8) for c in fill))
            ink = Image.composite(ink, dark, Image.linear_gradient("L").resize(big))
        if self.line:
            _polygon(ImageDraw.Draw(ink), local, None, self.line, (width + 1) * zoom)
        shape = (int(extent[0]), int(extent[1]))
        if zoom > 1:
            mask, ink = mask.reduce(zoom), ink.reduce(zoom)
        image.paste(ink.resize(shape), (int(low[0]), int(low[1])), mask.resize(shape))


def _inside(box: tuple[int, int, int, int], size: tuple[int, int]) -> tuple[int, int, int, int]:
    return max(0, box[0]), max(0, box[1]), min(size[0], box[2]), min(size[1], box[3])


def _polygon(
    draw: ImageDraw.ImageDraw, points: Points, fill: Rgb | int | None, line: Rgb | int | None, width: int
) -> None:
    corners = [(float(x), float(y)) for x, y in points]
    if fill is not None:
        draw.polygon(corners, fill=fill)
    if line is not None and width:
        draw.line([*corners, corners[0], corners[1]], fill=line, width=width, joint="curve")


def _finish(rng: Random, image: Image.Image) -> Image.Image:
    """What happens to a picture on its way: blur, sensor noise, JPEG."""
    roll = rng.random()
    if roll < 0.08:
        image = image.filter(ImageFilter.GaussianBlur(rng.uniform(0.3, 1.2)))
    elif roll < 0.14:
        image = add_noise(rng, image, rng.uniform(2, 8))
    if rng.random() < 0.25:
        buffer = io.BytesIO()
        image.save(buffer, "JPEG", quality=rng.randint(35, 95))
        image = Image.open(io.BytesIO(buffer.getvalue())).convert("RGB")
    return image
