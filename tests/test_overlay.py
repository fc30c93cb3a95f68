"""Marks sit where the result says, scale with the picture, and never leave its frame."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image, ImageColor

from photon.overlay import PALETTE, colour_of, dot_radius_px, draw, line_px

RED = ImageColor.getrgb(PALETTE[0])
WHOLE = {"x_min": 0.0, "y_min": 0.0, "x_max": 1.0, "y_max": 1.0}

numbers = st.floats(-2, 3) | st.sampled_from([0.0, 1.0, 1 / 1024, math.nan, math.inf])
boxes = st.fixed_dictionaries(dict.fromkeys(WHOLE, numbers))
dots = st.fixed_dictionaries({"x": numbers, "y": numbers})


def grey(width: int, height: int) -> Image.Image:
    return Image.new("RGB", (width, height), (128, 128, 128))


def changed(image: Image.Image) -> tuple[int, int, int, int]:
    """left, top, right, bottom (exclusive) of all pixels that are not the ground's grey."""
    rows, columns = np.nonzero((np.asarray(image) != 128).any(axis=2))
    return int(columns.min()), int(rows.min()), int(columns.max()) + 1, int(rows.max()) + 1


def box(left: float, top: float, right: float, bottom: float) -> dict[str, Any]:
    return {"objects": [{"x_min": left, "y_min": top, "x_max": right, "y_max": bottom}]}


@pytest.mark.parametrize("result", [{}, {"points": []}, {"objects": []}, {"answer": "none", "objects": []}])
@pytest.mark.parametrize("mode", ["RGB", "RGBA", "P"])
def test_without_detections_the_copy_is_exact(result: dict[str, Any], mode: str) -> None:
    """user_reports 13."""
    image = Image.effect_noise((50, 40), 90).convert(mode)
    copy = draw(image, result, label="dog")
    assert copy is not image
    assert (copy.mode, copy.tobytes()) == (image.mode, image.tobytes())


def test_the_callers_image_is_not_drawn_on() -> None:
    image = grey(100, 80)
    draw(image, {"points": [{"x": 0.5, "y": 0.5}], "objects": [WHOLE]}, label="dog")
    assert image.tobytes() == grey(100, 80).tobytes()


@pytest.mark.parametrize("size", [(1000, 1000), (900, 600), (333, 777), (64, 64), (1600, 200)])
def test_a_box_covers_its_own_pixels_to_within_one(size: tuple[int, int]) -> None:
    """user_reports 27."""
    width, height = size
    edges = changed(draw(grey(*size), box(0.2, 0.3, 0.7, 0.9)))
    assert edges == pytest.approx((0.2 * width, 0.3 * height, 0.7 * width, 0.9 * height), abs=1)


@pytest.mark.parametrize("size", [(1000, 1000), (900, 600), (64, 64), (1600, 200)])
def test_a_dot_is_centred_on_its_position(size: tuple[int, int]) -> None:
    left, top, right, bottom = changed(draw(grey(*size), {"points": [{"x": 0.25, "y": 0.5}]}))
    assert (left + right) / 2 == pytest.approx(0.25 * size[0], abs=1)
    assert (top + bottom) / 2 == pytest.approx(0.5 * size[1], abs=1)


def test_widths_follow_the_shorter_side() -> None:
    """user_reports 36."""
    assert line_px((6000, 4000)) >= 10
    assert line_px((64, 64)) <= 2
    assert line_px((10_000, 64)) == line_px((64, 64))
    assert dot_radius_px((6000, 4000)) > 10 * dot_radius_px((640, 400)) / 2 > dot_radius_px((64, 64))


def test_the_drawn_line_is_as_wide_as_said() -> None:
    pixels = np.asarray(draw(grey(900, 720), box(0.1, 0.1, 0.9, 0.9)))
    line = (pixels[360] == RED).all(axis=1)
    assert line[:450].sum() == line_px((900, 720)) == 4


def test_a_point_shows_on_every_ground() -> None:
    for ground in ("white", "black", PALETTE[0], "grey"):
        drawn = draw(Image.new("RGB", (300, 300), ground), {"points": [{"x": 0.5, "y": 0.5}]})
        colours = {colour for _, colour in drawn.getcolors(1000)}
        assert {RED, (255, 255, 255), (17, 17, 17)} <= colours | {ImageColor.getrgb(ground)}


@pytest.mark.parametrize(
    "result",
    [
        box(0.5, 0.5, 0.5, 0.5),
        box(0.5, 0.5, 0.5 + 1 / 1024, 0.5 + 1 / 1024),
        box(0.5, 0.1, 0.5, 0.9),
        box(1, 1, 1, 1),
        box(0, 0, 0, 0),
        box(1.5, -0.5, 1.7, -0.2),
        box(0, 0, 1, 1),
        {"points": [{"x": 1.0, "y": 1.0}]},
        {"points": [{"x": -0.3, "y": 1.4}]},
    ],
)
@pytest.mark.parametrize("size", [(1, 1), (3, 2), (64, 64), (700, 500)])
def test_degenerate_marks_are_visible(result: dict[str, Any], size: tuple[int, int]) -> None:
    """user_reports 29."""
    left, top, right, bottom = changed(draw(grey(*size), result, label="dog"))
    assert right - left >= 1
    assert bottom - top >= 1


def test_swapped_ends_are_ordered() -> None:
    assert draw(grey(200, 100), box(0.8, 0.9, 0.2, 0.1)) == draw(grey(200, 100), box(0.2, 0.1, 0.8, 0.9))


@given(st.lists(boxes, max_size=3), st.lists(dots, max_size=3), st.text(max_size=12))
def test_no_result_and_no_label_crashes(objects: list[Any], points: list[Any], label: str) -> None:
    for size in ((1, 1), (7, 300), (120, 90)):
        drawn = draw(grey(*size), {"objects": objects, "points": points}, label=label)
        assert drawn.size == size


@pytest.mark.parametrize(
    "label", ["赤い丸", "円🙂", "x" * 5000, "two\nlines", "half \ud83d pair", "مرحبا", "\0"]
)
def test_any_label_is_drawn(label: str) -> None:
    """user_reports 37."""
    assert changed(draw(grey(300, 200), box(0.4, 0.4, 0.6, 0.6), label=label))[1] <= 80


@pytest.mark.parametrize("at", [(0.0, 0.0), (0.95, 0.0), (0.95, 0.95), (0.0, 0.95), (0.5, 0.02)])
def test_a_label_at_the_edge_is_moved_inside_whole(at: tuple[float, float]) -> None:
    """user_reports 37: the plate keeps its area wherever the box is."""
    size = (400, 300)
    plain = draw(grey(*size), box(*at, at[0] + 0.04, at[1] + 0.04), label="")
    named = draw(grey(*size), box(*at, at[0] + 0.04, at[1] + 0.04), label="elephant", colour=PALETTE[0])
    plates = (np.asarray(named) != np.asarray(plain)).any(axis=2)
    rows, columns = np.nonzero(plates)
    middle = draw(grey(*size), box(0.4, 0.4, 0.44, 0.44), label="elephant", colour=PALETTE[0])
    whole = (np.asarray(middle) != np.asarray(draw(grey(*size), box(0.4, 0.4, 0.44, 0.44)))).any(axis=2)
    wanted = np.nonzero(whole)
    assert np.ptp(columns) == np.ptp(wanted[1])
    assert np.ptp(rows) == np.ptp(wanted[0])


def test_each_label_has_its_own_colour_in_every_case() -> None:
    assert colour_of("Red Circle") == colour_of("red circle")
    assert len({colour_of(label) for label in ("circle", "square", "star", "heart")}) > 1
    assert colour_of("") == PALETTE[0]


def test_items_may_carry_their_own_label() -> None:
    result = {"objects": [{**WHOLE, "label": "star"}]}
    assert draw(grey(90, 90), result) == draw(grey(90, 90), {"objects": [WHOLE]}, label="star")


def test_a_given_colour_is_used() -> None:
    drawn = draw(grey(90, 90), {"objects": [WHOLE]}, label="star", colour="#010203")
    assert drawn.getpixel((0, 45)) == (1, 2, 3)
