"""Pins the trace file: nothing is lost on the way out and back, and nothing in it makes a viewer drop
spans or arrows (overlapping slices, negative or huge times, ids, unbalanced lanes)."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tracing.chrome import DERIVED, dumps, from_chrome, to_chrome
from tracing.trace import MarkRecord, RowRecord, SpanRecord, Trace

BASE = 1_795_963_318_211_123_457  # an epoch clock: beyond what a double holds exactly

small = st.integers(0, 300)
spans_strategy = st.lists(
    st.builds(
        lambda track, name, start, length, step, slot, kind, counts: SpanRecord(
            track, name, BASE + start, BASE + start + length, step, slot, kind, *counts
        ),
        st.sampled_from(["host", "compute", "copy", "another"]),
        st.sampled_from(
            ["plan", "launch", "forward", "sample", "commit", "d2h", "sync: f in g", "injected: x"]
        ),
        small,
        small,
        st.integers(-1, 5),
        st.sampled_from([-1, 0, 1, 32_767]),
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

halves = st.sampled_from([float("nan"), float("-inf"), 0.0, 0.1, 1 / 3, 1.0])
rows_strategy = st.lists(
    st.builds(
        lambda at, step, row, who, where, words, flags, counts: RowRecord(
            BASE + at, step, row, who, where, 51_000, *words, *flags, *counts
        ),
        small,
        st.integers(-1, 5),
        st.integers(0, 31),
        st.integers(0, 3),
        st.integers(-1, 2**31 - 1),
        st.tuples(
            halves, halves, st.sampled_from(["ANY", "COORD"]), st.sampled_from(["", "launch: nothing"])
        ),
        st.tuples(st.booleans(), st.booleans()),
        st.tuples(st.integers(0, 2), st.integers(0, 2), small, st.integers(0, 3)),
    ),
    max_size=25,
)
info_strategy = st.dictionaries(st.sampled_from(["device", "model", "depth"]), st.text(max_size=9))


def held(trace: Trace) -> list[list[str]]:
    """Everything in a trace, so that two can be compared: a number that is not one equals itself."""
    return [
        sorted(map(repr, trace.spans)),
        sorted(map(repr, trace.marks)),
        sorted(map(repr, trace.rows)),
        [repr(part) for part in (trace.window, trace.dropped, sorted(trace.info.items()))],
    ]


def events(document: dict[str, Any], phase: str) -> list[dict[str, Any]]:
    return [e for e in document["traceEvents"] if e["ph"] == phase]


def step(launch: int = 0, start: int = 40) -> list[SpanRecord]:
    return [
        SpanRecord("host", "launch", BASE + launch, BASE + launch + 10, 7, 1, "decode"),
        SpanRecord("compute", "forward", BASE + start, BASE + start + 100, 7, 1, "decode", 4, 1, 2),
    ]


@given(spans_strategy, marks_strategy, rows_strategy, info_strategy)
def test_a_file_read_back_is_the_same_trace(
    spans: list[SpanRecord], marks: list[MarkRecord], rows: list[RowRecord], info: dict[str, str]
) -> None:
    trace = replace(Trace.of(spans, marks, rows=rows, info=info), dropped=7)
    assert held(from_chrome(json.loads(dumps(to_chrome(trace))))) == held(trace)


@given(spans_strategy)
def test_spans_of_one_thread_nest_or_are_disjoint(spans: list[SpanRecord]) -> None:
    """pipeline_bugs 70."""
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
    assert len([e for e in events(document, "X") if e["cat"] != DERIVED]) == len(spans)


@given(spans_strategy, marks_strategy)
def test_times_are_small_positive_numbers_and_lanes_balanced(
    spans: list[SpanRecord], marks: list[MarkRecord]
) -> None:
    """pipeline_bugs 71."""
    document = to_chrome(Trace.of(spans, marks))
    timed = [e for e in document["traceEvents"] if e["ph"] != "M"]
    assert all(isinstance(e["ts"], float) and 0 <= e["ts"] < 2**53 for e in timed)
    assert all(e["dur"] >= 0 for e in events(document, "X"))
    lanes = Counter(e["id2"]["local"] for e in events(document, "b"))
    assert lanes == Counter(e["id2"]["local"] for e in events(document, "e"))
    assert set(lanes.values()) <= {1}
    assert all(int(i, 16) < 2**53 for i in lanes)


def test_an_arrow_joins_a_launch_and_the_first_device_span_of_its_step() -> None:
    late = SpanRecord("compute", "sample", BASE + 140, BASE + 150, 7, 1, "decode")
    launch, work, sample = events(to_chrome(Trace.of([*step(), late])), "X")
    assert launch["flow_out"] is work["flow_in"] is True
    assert launch["bind_id"] == work["bind_id"]
    assert "bind_id" not in sample


def test_arrow_ids_are_unique() -> None:
    many = [
        s._replace(step_id=i, start_ns=s.start_ns + i, end_ns=s.end_ns + i) for i in range(9) for s in step()
    ]
    ids = [e["bind_id"] for e in events(to_chrome(Trace.of(many)), "X") if "flow_out" in e]
    assert len(ids) == len(set(ids)) == 9


def test_a_device_span_before_its_launch_loses_its_arrow_and_keeps_its_time() -> None:
    trace = Trace.of(step(launch=50, start=40))
    document = to_chrome(trace)
    assert all("bind_id" not in e for e in events(document, "X"))
    assert document["otherData"]["arrows_left_out"] == 1
    assert list(from_chrome(document).spans) == list(trace.spans)


def test_slots_host_and_copies_are_separate_named_tracks() -> None:
    """pipeline_bugs 70."""
    spans = [
        *step(),
        SpanRecord("compute", "forward", BASE, BASE + 5, 6, 0),
        SpanRecord("copy", "d2h", BASE, BASE + 1),
    ]
    document = to_chrome(Trace.of(spans, info={"device": "cpu worker"}))
    named = {e["args"]["name"] for e in events(document, "M") if e["name"] == "thread_name"}
    assert named == {"host", "slot 0", "slot 1", "copy", "bubbles", "commits"}
    processes = [e["args"]["name"] for e in events(document, "M") if e["name"] == "process_name"]
    assert processes == ["host", "cpu worker", "requests"]


def test_rows_are_counted_live_zombie_and_padding() -> None:
    (counter,) = events(to_chrome(Trace.of(step())), "C")
    assert counter["args"] == {"live": 3, "zombie": 1, "padding": 2}


def test_steps_in_flight_are_counted_from_launch_to_commit() -> None:
    spans = [
        SpanRecord("host", name, BASE + a, BASE + b, step)
        for name, a, b, step in [
            ("launch", 0, 1, 1),
            ("launch", 2, 3, 2),
            ("commit", 4, 5, 1),
            ("commit", 6, 7, 2),
        ]
    ]
    counters = [(e["ts"], e["args"]["in flight"]) for e in events(to_chrome(Trace.of(spans)), "C")]
    assert counters == [(0, 1), (0.002, 2), (0.005, 1), (0.007, 0)]


def test_a_bubble_is_shown_with_its_cause_and_is_no_span_when_read_back() -> None:
    trace = Trace.of(step(0, 5_000), [MarkRecord("arrival", BASE, 3)])
    document = to_chrome(trace)
    (bubble,) = [e for e in events(document, "X") if e["cat"] == DERIVED]
    assert (bubble["name"], bubble["dur"], bubble["args"]["launch latency ns"]) == (
        "bubble: launch latency",
        5,
        4_990,
    )
    assert held(from_chrome(document)) == held(trace)


def test_the_rows_of_a_step_are_one_event() -> None:
    rows = [RowRecord(BASE + 9, 7, i, 3 + i, x=0.5) for i in range(2)]
    (event,) = events(to_chrome(Trace.of(step(), rows=rows)), "i")
    assert event["ts"] == 0.009
    assert [row[1] for row in event["args"]["rows"]] == [3, 4]


def test_a_cpu_is_never_called_a_gpu() -> None:
    """user_reports 73."""
    assert "gpu" not in dumps(to_chrome(Trace.of(step(), info={"device": "cpu"}))).lower()


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


@pytest.mark.parametrize(
    ("field", "value"),
    [("ts", float("nan")), ("ts", 1e300), ("ts", "now"), ("dur", -1), ("args", None), ("args", [])],
)
def test_a_span_that_cannot_be_is_damage(field: str, value: object) -> None:
    document = to_chrome(Trace.of(step()))
    events(document, "X")[0][field] = value
    with pytest.raises(ValueError, match="damaged"):
        from_chrome(document)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("window_ns", ["0"]),
        ("window_ns", ["0", str(1 << 62)]),
        ("base_ns", "x"),
        ("info", {"device": 3}),
        ("info", {"device": "\ud800"}),
        ("info", None),
        ("dropped_records", []),
    ],
)
def test_facts_that_cannot_be_are_damage(field: str, value: object) -> None:
    document = to_chrome(Trace.of(step()))
    document["otherData"][field] = value
    with pytest.raises(ValueError, match="damaged"):
        from_chrome(document)
