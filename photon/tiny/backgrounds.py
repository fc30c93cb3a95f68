"""What lies behind the shapes: flat, graded, noisy, gridded or photo-like, from white to black."""

from __future__ import annotations

from functools import lru_cache
from random import Random

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw

from photon.tiny.shapes import Rgb

Size = tuple[int, int]


def background(rng: Random, size: Size) -> Image.Image:
    """A random background, RGB, of the given (width, height)."""
    draw = rng.choices(
        (_white, _flat, _graded, _noisy, _gridded, _photo), weights=(0.30, 0.22, 0.13, 0.09, 0.11, 0.15)
    )[0]
    return draw(rng, size)


def _tone(rng: Random) -> Rgb:
    """A grey or a tint; seldom a strong colour."""
    level = rng.choice((255, 0)) if rng.random() < 0.2 else rng.randint(0, 255)
    tint = 0 if rng.random() < 0.35 else (22 if rng.random() < 0.75 else 70)
    red, green, blue = (min(255, max(0, level + rng.randint(-tint, tint))) for _ in range(3))
    return red, green, blue


def _white(rng: Random, size: Size) -> Image.Image:
    return Image.new("RGB", size, (255, 255, 255))


def _flat(rng: Random, size: Size) -> Image.Image:
    return Image.new("RGB", size, _tone(rng))


def _graded(rng: Random, size: Size) -> Image.Image:
    first, last = _tone(rng), _tone(rng)
    if rng.random() < 0.6:
        last = tuple(min(255, max(0, c + rng.randint(-60, 60))) for c in first)  # type: ignore[assignment]
    ramp = Image.linear_gradient("L") if rng.random() < 0.75 else Image.radial_gradient("L")
    if rng.random() < 0.5:
        ramp = ramp.transpose(Image.Transpose.ROTATE_90)
    return Image.composite(Image.new("RGB", size, first), Image.new("RGB", size, last), ramp.resize(size))


def _noisy(rng: Random, size: Size) -> Image.Image:
    return add_noise(rng, _flat(rng, size), rng.uniform(3, 14))


def _gridded(rng: Random, size: Size) -> Image.Image:
    """Squared or ruled paper, or a chessboard of two near tones."""
    base = (255, 255, 255) if rng.random() < 0.5 else _tone(rng)
    line = tuple(min(255, max(0, c + rng.choice((-1, 1)) * rng.randint(12, 55))) for c in base)
    image = Image.new("RGB", size, base)
    draw = ImageDraw.Draw(image)
    step = max(5, int(min(size) * rng.uniform(0.05, 0.2)))
    if rng.random() < 0.25:
        for j in range(0, size[1], step):
            for i in range((j // step % 2) * step, size[0], 2 * step):
                draw.rectangle((i, j, i + step - 1, j + step - 1), fill=line)
        return image
    width = rng.randint(1, max(1, step // 10))
    for y in range(step // 2, size[1], step):
        draw.line((0, y, size[0], y), fill=line, width=width)
    for x in range(step // 2, size[0] if rng.random() < 0.75 else 0, step):
        draw.line((x, 0, x, size[1]), fill=line, width=width)
    return image


def _photo(rng: Random, size: Size) -> Image.Image:
    """Coloured clouds of several sizes, some soft bands and grain: an out-of-focus photograph."""
    image = Image.new("RGB", size, _tone(rng))
    noise = np.random.default_rng(rng.getrandbits(64))
    contrast = rng.uniform(15, 60)
    for cells in (3, 7, 17):
        level = np.asarray(image.resize((1, 1)))[0, 0].astype(float)
        cloud = noise.normal(0, contrast, (cells, cells, 1))
        cloud = cloud + noise.normal(0, contrast / 4, (cells, cells, 3))
        layer = Image.fromarray(np.clip(level + cloud, 0, 255).astype(np.uint8))
        image = Image.blend(image, layer.resize(size, Image.Resampling.BICUBIC), 0.5)
    return add_noise(rng, image, rng.uniform(1, 7)) if rng.random() < 0.6 else image


@lru_cache(maxsize=1)
def _grain() -> NDArray[np.float32]:
    """One fixed field of unit noise that every noisy picture cuts its grain from."""
    return np.random.default_rng(7).normal(0, 1, (640, 640, 3)).astype(np.float32)


def add_noise(rng: Random, image: Image.Image, sigma: float) -> Image.Image:
    """Pixel noise of the given standard deviation (levels of 255), coloured or grey."""
    width, height = image.size
    rows, columns = (np.arange(n) + rng.randrange(640) for n in (height, width))
    grain = _grain().take(rows, axis=0, mode="wrap").take(columns, axis=1, mode="wrap")
    if rng.random() < 0.5:
        grain = grain[..., :1]
    return Image.fromarray(np.clip(np.asarray(image) + grain * sigma, 0, 255).astype(np.uint8))
