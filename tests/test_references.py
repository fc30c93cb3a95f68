"""Pins references: what is typed or drawn is checked in one sentence, becomes one text and one request, and
is shown where it lies."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import gradio as gr
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from photon.errors import InvalidRequestError
from photon.ui import references
from photon.ui.ask import Ask
from photon.ui.session import Session
from photon.ui.stage import Stage

PLACE = st.floats(0, 1)


def test_a_line_is_a_point_or_a_box_and_empty_lines_are_none() -> None:
    assert references.parse("0.4,0.5\n\n 0.1, 0.2, 0.6,1 \n") == ((0.4, 0.5), (0.1, 0.2, 0.6, 1.0))
    assert references.parse("") == ()


@pytest.mark.parametrize(
    "line",
    ["0.4", "0.1,0.2,0.3", "x,y", "1.2,0", "-0.1,0", "nan,0", "0.6,0,0.4,1", "1e999,0", "0,,1", ";" * 99],
)
def test_anything_else_is_one_sentence_that_names_the_line(line: str) -> None:
    with pytest.raises(InvalidRequestError, match="from 0 to 1") as error:
        references.parse(f"0.5,0.5\n{line}")
    assert line[:20] in str(error.value)
    assert len(str(error.value)) < 200


@given(ends=st.tuples(PLACE, PLACE, PLACE, PLACE))
def test_what_is_drawn_is_the_same_request_as_what_is_typed(ends: tuple[float, ...]) -> None:
    """user_reports 40."""
    box = (*map(min, ends[:2], ends[2:]), *map(max, ends[:2], ends[2:]))
    for ref in (ends[:2], box):
        (parsed,) = references.parse(references.added("", {"ref": list(ref)}))
        assert parsed == pytest.approx(ref, abs=0.00051)
        assert Ask("query", Image.new("RGB", (1, 1)), "?", spatial_refs=(parsed,)).requests(None)[
            0
        ].spatial_refs == (parsed,)


@pytest.mark.parametrize(
    "data", [None, {}, {"ref": None}, {"ref": [2, 0]}, {"ref": ["a", "b"]}, {"ref": [[0], 1]}, 7, "ref"]
)
def test_an_event_that_no_picture_sends_changes_nothing(data: Any) -> None:
    """user_reports 39."""
    assert references.added("0.1,0.1", data) == "0.1,0.1"


def test_markers_lie_where_the_references_are_and_skip_what_is_wrong() -> None:
    html = references.markers("0.25,0.5\nwrong\n0,0,0.5,1", (200, 100))
    assert "--w:200;--h:100" in html
    assert re.findall(r'style="(left[^"]+)"', html) == [
        "left:25.00%;top:50.00%",
        "left:0.00%;top:0.00%;width:50.00%;height:100.00%",
    ]


def previewed(session: Session, path: Path, task: str = "query") -> dict[str, str]:
    view = SimpleNamespace(picture="picture", status="status", refs="refs")
    return asyncio.run(Stage(None, None, view).preview(session, {"path": str(path)}, task))  # type: ignore[arg-type]


def test_a_picture_is_shown_before_the_run_and_can_be_pointed_at(tmp_path: Path) -> None:
    Image.new("RGB", (30, 20)).save(tmp_path / "a.png")
    session = Session()
    shown = previewed(session, tmp_path / "a.png")
    assert "<img" in shown["picture"]
    assert "pw-refs" in shown["refs"]
    assert session.size == (30, 20)
    assert previewed(session, tmp_path / "a.png", "detect")["refs"] == ""


def test_a_file_that_is_no_picture_is_said_before_the_run(tmp_path: Path) -> None:
    (tmp_path / "a.png").write_text("no picture")
    session = Session()
    shown = previewed(session, tmp_path / "a.png")
    assert "not an image" in shown["status"]
    assert (session.size, shown["refs"]) == (None, "")


def test_a_preview_that_comes_late_is_dropped(tmp_path: Path) -> None:
    class Replaced(Session):
        """Its picture is another one by the time this one has been read."""

        @property
        def picture(self) -> int:
            self.asked = getattr(self, "asked", 0) + 1
            return self.asked

        @picture.setter
        def picture(self, number: int) -> None: ...

    Image.new("RGB", (30, 20)).save(tmp_path / "a.png")
    session = Replaced()
    assert previewed(session, tmp_path / "a.png") == gr.skip()
    assert session.size is None


def test_there_is_no_layer_without_a_picture() -> None:
    assert references.markers("0.5,0.5", None) == ""
