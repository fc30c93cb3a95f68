"""Pins the Trace: what goes in comes out, lookups by name, windows in windows, and results kept with it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tracing.requests import request_lives
from tracing.trace import MarkRecord, RowRecord, SpanRecord, Trace

ROW = RowRecord(7, 3, 1, 9, 100, 5, 0.25, 0.5, "SIZE", "launch: nothing", True, False, 2, 1, 12, 3)


def host(name: str, start: int, end: int) -> SpanRecord:
    return SpanRecord("host", name, start, end)


def test_the_empty_trace() -> None:
    trace = Trace.of()
    assert (list(trace.spans), list(trace.marks), list(trace.rows)) == ([], [], [])
    assert (trace.window, trace.dropped, trace.info) == ((0, 0), 0, {})


def test_what_goes_in_comes_out() -> None:
    span = SpanRecord("compute", "forward", 1, 9, 3, 1, "decode", 4, 2, 1)
    mark = MarkRecord("arrival", 0, 9)
    trace = Trace.of([span], [mark], rows=[ROW], info={"device": "cpu"})
    assert (list(trace.spans), list(trace.marks), list(trace.rows)) == ([span], [mark], [ROW])
    assert (trace.window, trace.info) == ((0, 9), {"device": "cpu"})


def test_one_row_is_a_trace() -> None:
    assert Trace.of(rows=[ROW]).window == (7, 7)
    assert list(Trace.of(rows=[ROW]).rows) == [ROW]


def test_rows_are_sorted_by_time_then_row_and_cannot_be_written() -> None:
    rows = [ROW._replace(time_ns=t, step_id=t, row=i) for t, i in [(8, 1), (5, 0), (8, 0)]]
    trace = Trace.of(rows=rows)
    assert [(r.time_ns, r.row) for r in trace.rows] == [(5, 0), (8, 0), (8, 1)]
    with pytest.raises(ValueError, match="read-only"):
        trace.row_table["pages"] = 0


def test_a_name_with_a_colon_stands_for_all_that_begin_with_it() -> None:
    spans = [host("sync: a", 0, 1), host("sync: b", 1, 2), host("sync", 2, 3), host("launch", 3, 4)]
    trace = Trace.of(spans)
    assert trace.where("host", "sync:")["start_ns"].tolist() == [0, 1]
    assert trace.where("host", "sync:", "launch")["start_ns"].tolist() == [0, 1, 3]
    assert trace.where("host", "launch")["start_ns"].tolist() == [3]
    assert trace.where("host", "absent").tolist() == []


def test_what_is_worked_out_once_belongs_to_one_trace_alone() -> None:
    trace = Trace.of(marks=[MarkRecord("arrival", 0, 1), MarkRecord("finish", 10, 1)])
    assert request_lives(trace) is request_lives(trace)
    other = replace(trace, dropped=3)
    assert request_lives(other) == request_lives(trace)
    assert request_lives(other) is not request_lives(trace)
    assert request_lives(trace.within(20, 30)) == []
