"""Pins the trace file: nothing is lost on the way out and back, and nothing in it makes a viewer drop
spans or arrows (overlapping slices, negative or huge times, ids, unbalanced lanes)."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tracing.chrome import dumps, from_chrome, to_chrome
from tracing.trace import MarkRecord, SpanRecord, Trace

BASE = 1_795_963_318_211_123_457  # an epoch clock: beyond what a double holds exactly

small = st.integers(0, 300)
spans_strategy = st.lists(
    st.builds(
        lambda track, name, start, length, step, slot, kind, counts: SpanRecord(
            track, name, BASE + start, BASE + start + length, step, slot, kind, *counts
        ),
        st.sampled_from(["host", "compute", "copy"]),
        st.sampled_from(["plan", "launch", "forward", "sample", "d2h"]),
        small,
        small,
        st.integers(-1, 5),
        st.sampled_from([-1, 0, 1]),
        st.sampled_from(["prefill", "decode", ""]),
        st.tuples(small, small, small),
    ),
    max_size=25,
)
marks_strategy = st.lists(
    st.builds(
        lambda name, at, request, step: MarkRecord(name, BASE + at, request, step),
        st.sampled_from(["arrival", "admitted", "first_token", "token", "finish", "release", "cancel"]),
        small,
        st.integers(0, 3),
        st.integers(-1, 5),
    ),
    max_size=25,
)


def events(document: dict[str, Any], phase: str) -> list[dict[str, Any]]:
    return [e for e in document["traceEvents"] if e["ph"] == phase]


def step(launch: int = 0, start: int = 40) -> list[SpanRecord]:
    return [
        SpanRecord("host", "launch", BASE + launch, BASE + launch + 10, 7, 1, "decode"),
        SpanRecord("compute", "forward", BASE + start, BASE + start + 100, 7, 1, "decode", 4, 1, 2),
    ]


@given(spans_strategy, marks_strategy)
def test_a_file_read_back_is_the_same_trace(spans: list[SpanRecord], marks: list[MarkRecord]) -> None:
    trace = Trace.of(spans, marks)
    again = from_chrome(json.loads(dumps(to_chrome(trace))))
    assert sorted(again.spans) == sorted(trace.spans)
    assert sorted(again.marks) == sorted(trace.marks)
    assert (again.window, again.dropped) == (trace.window, trace.dropped)


@given(spans_strategy)
def test_spans_of_one_thread_nest_or_are_disjoint(spans: list[SpanRecord]) -> None:
    document = to_chrome(Trace.of(spans))
    threads: dict[tuple[int, int], list[tuple[int, int]]] = {}
    for e in events(document, "X"):
        start = round(e["ts"] * 1000)
        threads.setdefault((e["pid"], e["tid"]), []).append((start, start + round(e["dur"] * 1000)))
    for items in threads.values():
        for i, (a, b) in enumerate(items):
            assert all(
                d <= a or b <= c or (a <= c and d <= b) or (c <= a and b <= d) for c, d in items[i + 1 :]
            )
    assert len(events(document, "X")) == len(spans)


@given(spans_strategy, marks_strategy)
def test_times_are_small_positive_numbers_and_lanes_balanced(
    spans: list[SpanRecord], marks: list[MarkRecord]
) -> None:
    document = to_chrome(Trace.of(spans, marks))
    timed = [e for e in document["traceEvents"] if e["ph"] != "M"]
    assert all(isinstance(e["ts"], float) and 0 <= e["ts"] < 2**53 for e in timed)
    assert all(e["dur"] >= 0 for e in events(document, "X"))
    lanes = Counter(e["id"] for e in events(document, "b"))
    assert lanes == Counter(e["id"] for e in events(document, "e"))
    assert set(lanes.values()) <= {1}
    assert all(int(i, 16) < 2**53 for i in lanes)


def test_an_arrow_binds_to_the_enclosing_device_span() -> None:
    document = to_chrome(Trace.of(step()))
    (start,), (finish,) = events(document, "s"), events(document, "f")
    assert finish["bp"] == "e"
    assert [start[k] for k in ("id", "name", "cat")] == [finish[k] for k in ("id", "name", "cat")]
    work = next(e for e in events(document, "X") if e["cat"] == "compute")
    assert (finish["pid"], finish["tid"], finish["ts"]) == (work["pid"], work["tid"], work["ts"])


def test_arrow_ids_are_unique() -> None:
    many = [
        s._replace(step_id=i, start_ns=s.start_ns + i, end_ns=s.end_ns + i) for i in range(9) for s in step()
    ]
    ids = [e["id"] for e in events(to_chrome(Trace.of(many)), "s")]
    assert len(ids) == len(set(ids)) == 9


def test_a_device_span_before_its_launch_loses_its_arrow_and_keeps_its_time() -> None:
    trace = Trace.of(step(launch=50, start=40))
    document = to_chrome(trace)
    assert events(document, "s") == []
    assert document["otherData"]["arrows_left_out"] == 1
    assert list(from_chrome(document).spans) == list(trace.spans)


def test_slots_host_and_copies_are_separate_named_tracks() -> None:
    spans = [
        *step(),
        SpanRecord("compute", "forward", BASE, BASE + 5, 6, 0),
        SpanRecord("copy", "d2h", BASE, BASE + 1),
    ]
    document = to_chrome(Trace.of(spans), device_label="cpu worker")
    named = {e["args"]["name"] for e in events(document, "M") if e["name"] == "thread_name"}
    assert named == {"host", "slot 0", "slot 1", "copy"}
    processes = [e["args"]["name"] for e in events(document, "M") if e["name"] == "process_name"]
    assert processes == ["host", "cpu worker", "requests"]


def test_rows_are_counted_live_zombie_and_padding() -> None:
    (counter,) = events(to_chrome(Trace.of(step())), "C")
    assert counter["args"] == {"live": 3, "zombie": 1, "padding": 2}


def test_a_lane_of_a_running_request_is_closed_where_the_trace_ends() -> None:
    trace = Trace.of(step(), [MarkRecord("arrival", BASE, 3)])
    (end,) = events(to_chrome(trace), "e")
    assert end["ts"] == 0.14


@pytest.mark.parametrize("document", [None, [], {}, {"traceEvents": []}, {"otherData": {"format": "x"}}])
def test_a_foreign_document_is_named_as_such(document: object) -> None:
    with pytest.raises(ValueError, match="not a trace of Photon Workbench"):
        from_chrome(document)


def test_a_damaged_document_says_so() -> None:
    document = to_chrome(Trace.of(step()))
    del events(document, "X")[0]["args"]["step"]
    with pytest.raises(ValueError, match="damaged: KeyError: 'step'"):
        from_chrome(document)
