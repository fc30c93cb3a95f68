"""Image -> overlapping square crops, exactly as the reference cuts them.

    whole image, squashed to S x S                      crop 0
    image resized to (th * window + 2 margin) x ...     crops 1 .. th * tw, row-major, neighbours
                                                        share 2 * margin pixels

Sizes are pixels. For Moondream 2: S 378, margin 4 patches of 14 = 56, window 378 - 112 = 266.
Source: engine_facts 1.6 (reference vikhyat/moondream, image_crops.py, with Pillow's Lanczos).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from PIL import Image

from photon.model.config import VisionConfig
from photon.model.vision import num_crops


@dataclass(frozen=True, eq=False)
class Crops:
    """What the encoder reads: pixels (N, S, S, 3) uint8, N = `num_crops(tiling)`, and (rows, columns)."""

    pixels: np.ndarray
    tiling: tuple[int, int]


def select_tiling(height: int, width: int, config: VisionConfig) -> tuple[int, int]:
    """(rows, columns) of local crops for an image of this size.

    Follows the aspect ratio within `max_crops`. A very long image keeps the reference's behaviour of
    exceeding it: both counts shrink by the same factor, but neither below 1 (379 x 20000 -> 1 x 21).
    """
    margin, window = _margin_and_window(config)
    height, width, limit = height - 2 * margin, width - 2 * margin, config.max_crops
    if height <= window or width <= window:
        return 1, 1
    min_rows, min_columns = math.ceil(height / window), math.ceil(width / window)
    if min_rows * min_columns > limit:
        ratio = math.sqrt(limit / (min_rows * min_columns))
        return max(1, math.floor(min_rows * ratio)), max(1, math.floor(min_columns * ratio))
    rows = max(math.floor(math.sqrt(limit * height / width)), min_rows)
    columns = max(math.floor(math.sqrt(limit * width / height)), min_columns)
    if rows * columns > limit:
        if columns > rows:
            columns = limit // rows
        else:
            rows = limit // columns
    return max(1, rows), max(1, columns)


def prepare_crops(image: Image.Image, config: VisionConfig) -> Crops:
    """Cut an RGB image (see `photon.images.load_image`) into the crops the encoder reads.

    With tiling (1, 1) there is one crop: the local crop would be the same pixels as the whole image.
    """
    assert image.mode == "RGB", image.mode
    tiling = select_tiling(image.height, image.width, config)
    side = config.crop_size
    pixels = np.empty((num_crops(tiling), side, side, 3), dtype=np.uint8)
    pixels[0] = _resized(image, side, side)
    if len(pixels) > 1:
        _fill_local(pixels[1:], image, tiling, config)
    return Crops(pixels, tiling)


def _fill_local(
    pixels: np.ndarray, image: Image.Image, tiling: tuple[int, int], config: VisionConfig
) -> None:
    """Write the local crops (th * tw, S, S, 3) of `image` into `pixels`, row-major."""
    rows, columns = tiling
    margin, window = _margin_and_window(config)
    canvas = _resized(image, rows * window + 2 * margin, columns * window + 2 * margin)
    side = config.crop_size
    for index in range(rows * columns):
        top, left = index // columns * window, index % columns * window
        pixels[index] = canvas[top : top + side, left : left + side]


def _resized(image: Image.Image, height: int, width: int) -> np.ndarray:
    """(height, width, 3) uint8; the aspect ratio is not kept, as in the reference.

    Lanczos is two passes with rounding between them, so their order shows in the last bit. Pillow 13
    takes the vertical one first where it shrinks much more than the other, Pillow 12 does not. The
    order is spelled out here (as Pillow 13's), so that crops and tokens do not depend on the version.
    """
    shrink_rows, shrink_columns = image.height - height, image.width - width
    is_vertical_first = shrink_rows > max(0, 2 * shrink_columns)
    first = (image.width, height) if is_vertical_first else (width, image.height)
    half_way = image.resize(first, Image.Resampling.LANCZOS)
    return np.asarray(half_way.resize((width, height), Image.Resampling.LANCZOS))


def _margin_and_window(config: VisionConfig) -> tuple[int, int]:
    """Pixels dropped at an interior edge, and the stride between neighbouring crops."""
    margin = config.overlap_margin * config.enc_patch_size
    return margin, config.crop_size - 2 * margin
