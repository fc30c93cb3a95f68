"""The eight shapes as outlines: pure geometry and plain colours, no pixels.

An outline is an array (n, 2) of (x, y), y down, before placing: its bounding circle has radius 1.
"""

from __future__ import annotations

import math
from random import Random

import numpy as np
from numpy.typing import NDArray

SHAPES = ("circle", "square", "triangle", "star", "diamond", "cross", "hexagon", "heart")
COLORS = ("red", "orange", "yellow", "green", "blue", "purple", "white", "black")

Points = NDArray[np.float64]
Rgb = tuple[int, int, int]

PAINTS: dict[str, tuple[Rgb, ...]] = {
    "red": ((255, 0, 0), (237, 28, 36), (220, 20, 60), (200, 30, 30), (231, 76, 60)),
    "orange": ((255, 165, 0), (255, 127, 39), (255, 140, 0), (240, 125, 20), (243, 156, 18)),
    "yellow": ((255, 255, 0), (255, 242, 0), (255, 222, 40), (250, 215, 30), (241, 223, 70)),
    "green": ((0, 128, 0), (0, 255, 0), (34, 177, 76), (46, 204, 113), (50, 150, 60), (0, 200, 0)),
    "blue": ((0, 0, 255), (63, 72, 204), (30, 80, 220), (30, 120, 240), (0, 0, 160), (52, 110, 219)),
    "purple": ((128, 0, 128), (163, 73, 164), (112, 48, 160), (148, 0, 211), (130, 60, 190)),
    "white": ((255, 255, 255), (255, 255, 255), (246, 246, 244)),
    "black": ((0, 0, 0), (0, 0, 0), (24, 24, 26)),
}
"""Plain colours that drawing programs, browsers and people use; the first of each is the standard one."""


def paint(rng: Random, color: str) -> Rgb:
    """One RGB for a colour name: a listed one, two times in three with some jitter."""
    base = rng.choice(PAINTS[color])
    if rng.random() < 0.35:
        return base
    spread = 8 if color in ("white", "black") else 18
    red, green, blue = (min(255, max(0, c + rng.randint(-spread, spread))) for c in base)
    return red, green, blue


def outline(rng: Random, shape: str) -> Points:
    """A random variant of a shape: proportions, slight rotation and stretch."""
    points = _DRAW[shape](rng)
    if shape not in ("circle", "heart") and rng.random() < 0.04:
        points = points * (1.0, -1.0)
    angle = math.radians(rng.uniform(-13, 13)) if rng.random() < 0.6 else 0.0
    stretch = 1.0 if rng.random() < 0.4 else rng.uniform(0.85, 1.18)
    cos, sin = math.cos(angle), math.sin(angle)
    points = points * (stretch, 1.0) @ np.array(((cos, sin), (-sin, cos)))
    points -= (points.min(0) + points.max(0)) / 2
    return points / np.hypot(points[:, 0], points[:, 1]).max()


def wobble(rng: Random, points: Points, amount: float) -> Points:
    """The outline redrawn by an unsteady hand: edges subdivided, each vertex pushed smoothly about."""
    nxt = np.roll(points, -1, axis=0)
    steps = max(1, 36 // len(points))
    fine = np.concatenate([points + (nxt - points) * (k / steps) for k in range(steps)])
    order = np.arange(len(points) * steps).reshape(steps, len(points)).T.ravel()
    fine = fine[order]
    turn = np.linspace(0, 2 * math.pi, len(fine), endpoint=False)
    for wave in (3, 5, 8):
        phase = rng.uniform(0, 7), rng.uniform(0, 7)
        push = np.stack((np.sin(wave * turn + phase[0]), np.sin(wave * turn + phase[1])), axis=1)
        fine = fine + push * (amount * rng.uniform(0.3, 1.0) / math.sqrt(wave))
    return fine


def profile(points: Points, rays: int = 24) -> NDArray[np.float32]:
    """Distance from the origin to the outline in `rays` directions, in units of the mean half side.

    The farthest crossing counts. Points are centred on their bounding box; the result is (rays,).
    """
    angles = np.arange(rays) * (2 * math.pi / rays) + 1e-4
    ux, uy = np.cos(angles)[:, None], np.sin(angles)[:, None]
    ax, ay = points[:, 0], points[:, 1]
    dx, dy = np.roll(ax, -1) - ax, np.roll(ay, -1) - ay
    det = uy * dx - ux * dy
    det = np.where(np.abs(det) < 1e-9, 1e-9, det)
    along = (ay * dx - ax * dy) / det
    on_edge = (ay * ux - ax * uy) / det
    hit = (on_edge >= -1e-6) & (on_edge <= 1 + 1e-6) & (along > 0)
    far = np.where(hit, along, 0.0).max(1)
    size = np.ptp(points, axis=0)
    return (far / (math.sqrt(size[0] * size[1]) / 2)).astype(np.float32)


def _polygon(count: int, start: float) -> Points:
    angle = start + np.arange(count) * (2 * math.pi / count)
    return np.stack((np.sin(angle), -np.cos(angle)), axis=1)


def _circle(rng: Random) -> Points:
    return _polygon(40, 0.0)


def _square(rng: Random) -> Points:
    return _polygon(4, math.pi / 4)


def _triangle(rng: Random) -> Points:
    if rng.random() < 0.1:
        return np.array(((-0.8, -0.8), (0.8, 0.8), (-0.8, 0.8))) * (rng.choice((-1, 1)), 1)
    return np.array(((0.0, -1.0), (0.87, 0.5), (-0.87, 0.5))) * (rng.uniform(0.85, 1.15), 1)


def _star(rng: Random) -> Points:
    points = _polygon(10, 0.0)
    points[1::2] *= rng.uniform(0.37, 0.5)
    return points


def _diamond(rng: Random) -> Points:
    return _polygon(4, 0.0) * (rng.uniform(0.62, 1.0), 1)


def _cross(rng: Random) -> Points:
    t = rng.uniform(0.24, 0.4)
    corner = [(t, -1), (t, -t), (1, -t), (1, t), (t, t), (t, 1)]
    return np.array(corner + [(-x, -y) for x, y in corner], dtype=float)


def _hexagon(rng: Random) -> Points:
    return _polygon(6, rng.choice((0.0, math.pi / 6)))


def _heart(rng: Random) -> Points:
    t = np.linspace(0, 2 * math.pi, 40, endpoint=False)
    y = -(13 * np.cos(t) - 5 * np.cos(2 * t) - rng.uniform(1.6, 2.4) * np.cos(3 * t) - np.cos(4 * t))
    return np.stack((16 * np.sin(t) ** 3, y), axis=1) / 17


_DRAW = {
    "circle": _circle,
    "square": _square,
    "triangle": _triangle,
    "star": _star,
    "diamond": _diamond,
    "cross": _cross,
    "hexagon": _hexagon,
    "heart": _heart,
}
