"""The committed weights, through the engine: what a visitor draws is found, and unknown words are refused."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from PIL import Image, ImageDraw

from photon import Engine, load_model, open_device
from photon.errors import InvalidRequestError

MODEL = Path(__file__).resolve().parents[1] / "assets" / "tiny"


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    with Engine(load_model(MODEL), open_device("cpu")) as engine:
        yield engine


@pytest.fixture(scope="module")
def drawing() -> Image.Image:
    """What somebody draws in two minutes: two red circles and a blue square on white, hard edges."""
    image = Image.new("RGB", (640, 480), "white")
    pen = ImageDraw.Draw(image)
    pen.ellipse((70, 60, 210, 200), fill="#ff0000")
    pen.ellipse((120, 290, 240, 410), fill="#ff0000")
    pen.rectangle((420, 180, 560, 320), fill="#0000ff")
    return image


def test_the_things_somebody_draws_are_pointed_at(engine: Engine, drawing: Image.Image) -> None:
    points = sorted((p["x"], p["y"]) for p in engine.point(drawing, "red circle")["points"])
    expected = [(140 / 640, 130 / 480), (180 / 640, 350 / 480)]
    assert points == [pytest.approx(place, abs=0.05) for place in expected]


def test_a_box_covers_the_thing(engine: Engine, drawing: Image.Image) -> None:
    (box,) = engine.detect(drawing, "blue square")["objects"]
    expected = {"x_min": 420 / 640, "y_min": 180 / 480, "x_max": 560 / 640, "y_max": 320 / 480}
    assert box == pytest.approx(expected, abs=0.05)


def test_questions_are_answered_in_any_letter_case(engine: Engine, drawing: Image.Image) -> None:
    for question in ("how many red circles are there?", "How many RED circles are there?"):
        assert engine.query(drawing, question)["answer"].strip() == "2"
    assert engine.query(drawing, "what color is the square?")["answer"].strip() == "blue"


def test_what_is_absent_is_not_found(engine: Engine, drawing: Image.Image) -> None:
    assert engine.point(drawing, "green star")["points"] == []
    assert engine.detect(drawing, "yellow heart")["objects"] == []


def test_an_unknown_word_is_refused_by_name(engine: Engine, drawing: Image.Image) -> None:
    with pytest.raises(InvalidRequestError, match=r"does not know 'dog'.*need Moondream 2"):
        engine.point(drawing, "dog")
