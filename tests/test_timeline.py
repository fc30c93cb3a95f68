"""Pins the static figure: one path per category however many spans, exact coordinates, honest lanes."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import plotly.graph_objects as go
import pytest
from traces import recorded

from tracing.lanes import CATEGORIES, LANES, category_of, lane_of
from tracing.timeline import timeline, timelines
from tracing.trace import MarkRecord, SpanRecord, Trace

MS = 1_000_000


def forward(start: float, end: float, slot: int = 0, rows: int = 4, zombies: int = 0) -> SpanRecord:
    return SpanRecord("compute", "forward", int(start * MS), int(end * MS), 0, slot, "decode", rows, zombies)


def path_of(figure: go.Figure, name: str) -> list[tuple[float, ...]]:
    """(x0, y0, x1, y1) of every rectangle of a category's last path."""
    shapes = [s for s in figure.layout.shapes if s.name == name]
    boxes = re.findall(r"M([-\d.e+]+),([-\d.e+]+)H([-\d.e+]+)V([-\d.e+]+)", shapes[-1].path)
    return [tuple(float(v) for v in box) for box in boxes]


def axis(figure: go.Figure) -> Mapping[str, Any]:
    return dict(zip(figure.layout.yaxis.ticktext, figure.layout.yaxis.tickvals, strict=True))


def test_an_empty_trace_is_an_empty_figure() -> None:
    figure = timeline(Trace.of())
    assert figure.layout.shapes == ()
    assert figure.layout.annotations[0].text == "no spans"


def test_a_span_is_drawn_where_it_was_on_the_lane_of_its_slot() -> None:
    spans = [forward(1000, 1001.5), forward(1001.5, 1003.25, slot=1)]
    figure = timeline(Trace.of(spans, info={"device": "cuda:0"}))
    first, second = path_of(figure, "decode")
    assert (first[0], first[2], second[0], second[2]) == (0, 1.5, 1.5, 3.25)
    assert first[1] < axis(figure)["cuda:0 · slot 0"] < first[3] < axis(figure)["cuda:0 · slot 1"]


def test_short_spans_keep_their_length() -> None:
    figure = timeline(Trace.of([forward(0, 0.00035), forward(1, 2)]))
    assert path_of(figure, "decode")[0][2] == pytest.approx(0.00035)


def test_the_number_of_shapes_does_not_depend_on_the_number_of_spans() -> None:
    few, many = (timeline(Trace.of([forward(i, i + 0.5) for i in range(n)])) for n in (10, 2000))
    assert len(few.layout.shapes) == len(many.layout.shapes) == 1


def test_a_zombie_strip_is_as_high_as_its_share_of_the_rows() -> None:
    figure = timeline(Trace.of([forward(0, 1, rows=4, zombies=1)]))
    whole, strip = path_of(figure, "decode")[0], path_of(figure, "zombie")[0]
    assert (strip[3] - strip[1]) / (whole[3] - whole[1]) == pytest.approx(0.25)


def test_bubbles_are_drawn_in_their_lane_and_shaded_behind_the_device() -> None:
    marks = [MarkRecord("arrival", 0, 0), MarkRecord("finish", 5 * MS, 0)]
    figure = timeline(Trace.of([forward(0, 1), forward(3, 5, slot=1)], marks))
    assert [s.name for s in figure.layout.shapes] == ["bubble", "decode", "bubble"]
    assert path_of(figure, "bubble")[0][::2] == (1, 3)


def test_panels_share_the_time_axis_and_name_their_figures() -> None:
    trace = Trace.of([forward(0, 1), forward(2, 4)], [MarkRecord("arrival", 0, 0)])
    figure = timelines([("depth 1", trace), ("depth 2", trace.within(0, 2 * MS))])
    assert tuple(figure.layout.xaxis.range) == (0, 4)
    assert {s.yref for s in figure.layout.shapes} == {"y", "y2"}
    assert figure.layout.yaxis.domain[0] > figure.layout.yaxis2.domain[1]
    captions = [a.text for a in figure.layout.annotations]
    assert captions[0].startswith("<b>depth 1</b>   device busy 75.0 %   bubble 25.0 %")


def test_two_traces_can_be_aligned_at_a_step() -> None:
    figure = timelines(
        [("A", recorded(6)), ("B", recorded(6, period_us=2000, first_step=90))], align=("step", 3)
    )
    launches = [
        [tuple(map(float, box)) for box in re.findall(r"M([-\d.e+]+),[-\d.e+]+H([-\d.e+]+)", shape.path)]
        for shape in figure.layout.shapes
        if shape.name == "launch"
    ]
    assert [boxes[3][0] for boxes in launches] == [0, 0]
    assert [boxes[2][0] for boxes in launches] == pytest.approx([-1.4, -2.0])
    assert figure.layout.xaxis.range[0] == pytest.approx(-6.3)


def test_a_trace_of_fewer_steps_is_aligned_at_its_last() -> None:
    one, empty = recorded(1), Trace.of()
    figure = timelines([("A", one), ("B", empty)], align=("step", 9))
    assert path_of(figure, "launch")[0][0] == 0


def test_sync_leaks_and_injected_time_have_lanes_of_their_own() -> None:
    figure = timeline(recorded())
    assert {"host.sync", "host.injected"} <= set(figure.layout.yaxis.ticktext)
    assert {"sync", "injected"} <= {shape.name for shape in figure.layout.shapes}


def test_what_a_trace_says_is_text_and_no_markup() -> None:
    trace = Trace.of([forward(0, 1)], info={"device": "<a href='x'>cpu</a>"})
    figure = timeline(trace, title="<b>A")
    assert figure.layout.yaxis.ticktext[5].startswith("&lt;a href='x'&gt;cpu")
    assert figure.layout.annotations[0].text.startswith("<b>&lt;b&gt;A</b>")


def test_a_device_that_is_no_gpu_is_not_called_one() -> None:
    figure = timeline(Trace.of([forward(0, 1)], info={"device": "cpu worker"}))
    figure.layout.template = None
    assert "gpu" not in figure.to_json().lower()
    assert "cpu worker · slot 0" in figure.layout.yaxis.ticktext


def test_every_span_has_a_lane_and_a_colour() -> None:
    for track in ("host", "compute", "copy", "unheard of"):
        for name in ("plan", "forward", "sample", "h2d", "detok"):
            for slot in (-1, 0, 1, 7):
                assert lane_of(track, name, slot) in LANES
                assert category_of(track, name, "decode") in CATEGORIES
