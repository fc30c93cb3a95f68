"""Pins what marks and rows say about requests: tokens come from delivered rows, unknown instants are None."""

from __future__ import annotations

from tracing.requests import RequestLife, demand, request_lives
from tracing.trace import MarkRecord, RowRecord, Trace


def row(time: int, request: int, step: int, delivered: bool = True) -> RowRecord:
    return RowRecord(time, step, 0, request, is_delivered=delivered, is_zombie=not delivered)


def test_the_empty_trace_has_no_request() -> None:
    assert request_lives(Trace.of()) == []
    assert demand(Trace.of()).tolist() == []


def test_a_token_is_a_delivered_row() -> None:
    marks = [MarkRecord("arrival", 0, 1), MarkRecord("first_token", 10, 1, 0), MarkRecord("finish", 20, 1, 1)]
    rows = [row(20, 1, 1), row(10, 1, 0), row(30, 1, 2, delivered=False)]
    (life,) = request_lives(Trace.of(marks=marks, rows=rows))
    assert life == RequestLife(1, 0, None, 10, 20, (10, 20))


def test_requests_keep_their_tokens_apart() -> None:
    marks = [MarkRecord("arrival", 0, request) for request in (2, 1)]
    rows = [row(10, 1, 0), row(10, 2, 0), row(20, 2, 1)]
    assert [(r.request_id, r.tokens_ns) for r in request_lives(Trace.of(marks=marks, rows=rows))] == [
        (2, (10, 20)),
        (1, (10,)),
    ]


def test_without_rows_the_first_token_is_known_by_its_mark() -> None:
    (life,) = request_lives(Trace.of(marks=[MarkRecord("arrival", 0, 1), MarkRecord("first_token", 10, 1)]))
    assert life.tokens_ns == (10,)


def test_a_request_whose_marks_were_lost_wants_the_device_until_its_last_token() -> None:
    trace = Trace.of(rows=[row(10, 1, 0), row(20, 1, 1), row(30, 1, 2, delivered=False)], window=(0, 100))
    (life,) = request_lives(trace)
    assert (life.arrival_ns, life.first_token_ns, life.end_ns) == (None, None, 20)
    assert demand(trace).tolist() == [[0, 20]]


def test_a_zombie_row_alone_tells_of_no_request() -> None:
    assert request_lives(Trace.of(rows=[row(10, 1, 0, delivered=False)])) == []
