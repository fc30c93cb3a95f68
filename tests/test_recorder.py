"""Pins the recorder: bounded bytes with a drop count, constant cost, readers that never block writers,
snapshots that are sorted and immutable, and a live stream whose increments add up to the whole."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import pytest
from producer import Row

from photon.observe import StepRow
from tracing.recorder import Cursor, Recorder
from tracing.trace import MarkRecord, RowRecord, SpanRecord, Trace


class Step(NamedTuple):
    step_id: int
    time_ns: int
    rows: Sequence[StepRow]
    waits: str = "launch: nothing"


def span(start: int, end: int, step: int = 0, name: str = "plan", track: str = "host") -> SpanRecord:
    return SpanRecord(track, name, start, end, step)


def record(step: Step, row: StepRow, index: int) -> RowRecord:
    own = row._asdict()
    return RowRecord(time_ns=step.time_ns, step_id=step.step_id, row=index, waits=step.waits, **own)


def filled(count: int, max_bytes: int = 1 << 20) -> Recorder:
    recorder = Recorder(max_bytes)
    for i in range(count):
        recorder.on_span(span(10 * i, 10 * i + 5, step=i))
    return recorder


def test_every_column_survives() -> None:
    one = SpanRecord("compute", "forward", 1 << 61, (1 << 61) + 7, 1 << 40, 1, "decode", 32, 3, 5)
    mark = MarkRecord("arrival", 1 << 61, 1 << 40, -1)
    row = StepRow(1 << 40, 2047, 51_199, 0.1, 0.7, "SIZE", True, False, 2, 1, 2000, 31)
    recorder = Recorder()
    recorder.on_span(one)
    recorder.on_mark(mark)
    recorder.on_step(Step(1 << 40, (1 << 61) + 6, [Row(1), row], "commit: host for copied"))
    trace = recorder.snapshot()
    assert list(trace.spans) == [one]
    assert list(trace.marks) == [mark]
    assert list(trace.rows)[1] == record(Step(1 << 40, (1 << 61) + 6, [], "commit: host for copied"), row, 1)
    assert trace.window == (1 << 61, (1 << 61) + 7)


def test_an_empty_recorder_gives_an_empty_trace() -> None:
    trace = Recorder().snapshot()
    assert list(trace.spans) == []
    assert list(trace.marks) == list(trace.rows) == []
    assert trace.info == {}
    assert trace.window == (0, 0)
    assert trace.dropped == 0


def test_a_full_ring_keeps_the_newest_and_counts_the_rest() -> None:
    """user_reports 71."""
    recorder = filled(1000, max_bytes=4096)
    steps = [s.step_id for s in recorder.snapshot().spans]
    assert steps == list(range(1000 - 42, 1000))  # half of 4096 bytes, 48 a span
    assert recorder.dropped == recorder.snapshot().dropped == 1000 - 42


def test_a_full_ring_of_rows_keeps_the_newest_and_counts_the_rest() -> None:
    recorder = Recorder(max_bytes=4096)
    steps = [Step(i, 10 * i, [Row(7 * i + k) for k in range(i % 4 + 1)]) for i in range(60)]
    for step in steps:
        recorder.on_step(step)
    sent = [record(step, row, index)[:4] for step in steps for index, row in enumerate(step.rows)]
    trace = recorder.snapshot()
    assert [row[:4] for row in trace.rows] == sent[-24:]  # three eighths of 4096 bytes, 64 a row
    assert trace.dropped == len(sent) - 24


def test_a_step_of_more_rows_than_fit_is_refused_and_counted() -> None:
    recorder = Recorder(max_bytes=1024)
    recorder.on_step(Step(0, 0, [Row(i) for i in range(7)]))
    assert recorder.refused == 7
    assert list(recorder.snapshot().rows) == []


def test_without_bounds_the_window_begins_where_every_kind_of_record_is_held() -> None:
    """Else a device whose spans were dropped would look idle."""
    recorder = filled(1000, max_bytes=4096)
    recorder.on_mark(MarkRecord("arrival", 0, 1))
    assert recorder.snapshot().window[0] == 10 * (1000 - 42)
    assert recorder.snapshot(since_ns=5).window[0] == 5


def test_a_snapshot_says_where_its_records_come_from() -> None:
    facts = {"device": "cpu"}
    recorder = Recorder(info=lambda: dict(facts))
    trace = recorder.snapshot()
    facts["device"] = "another"
    assert trace.info == {"device": "cpu"}
    assert trace.within(0, 1).info == {"device": "cpu"}
    assert recorder.snapshot().info == {"device": "another"}


def test_memory_does_not_grow_with_the_number_of_records() -> None:
    """pipeline_bugs 73, user_reports 71."""
    recorder = filled(10, max_bytes=8192)
    size = sum(ring.memory.nbytes for ring in recorder._rings())
    for i in range(5000):
        recorder.on_span(span(i, i + 1))
        recorder.on_mark(MarkRecord("arrival", i, i))
        recorder.on_step(Step(i, i, [Row(i)] * (i % 9)))
    assert sum(ring.memory.nbytes for ring in recorder._rings()) == size <= 8192


def test_a_snapshot_is_sorted_and_cannot_be_written() -> None:
    recorder = Recorder()
    for start, end in [(50, 60), (0, 5), (0, 40), (7, 8)]:
        recorder.on_span(span(start, end))
    trace = recorder.snapshot()
    assert [(s.start_ns, s.end_ns) for s in trace.spans] == [(0, 40), (0, 5), (7, 8), (50, 60)]
    with pytest.raises(ValueError, match="read-only"):
        trace.span_table["rows"] = 1


def test_a_snapshot_does_not_change_afterwards() -> None:
    recorder = filled(64, max_bytes=4096)
    trace = recorder.snapshot()
    before = list(trace.spans)
    for i in range(64):
        recorder.on_span(span(0, 1, step=-i))
    assert list(trace.spans) == before


def test_a_window_takes_what_touches_it() -> None:
    recorder = filled(10)  # [0,5) [10,15) ... [90,95)
    trace = recorder.snapshot(since_ns=15, until_ns=41)
    assert [s.start_ns for s in trace.spans] == [20, 30, 40]
    assert trace.window == (15, 41)


def test_the_time_of_a_step_is_that_of_its_spans() -> None:
    recorder = Recorder()
    for start, step in ((10, 1), (30, 2), (20, 1)):
        recorder.on_span(SpanRecord("host", "plan", start, start + 5, step))
    assert recorder.when(1) == (10, 25)
    assert recorder.when(3) is None


def test_a_window_keeps_all_marks_of_the_requests_that_lived_in_it() -> None:
    marks = [MarkRecord("arrival", 0, 1), MarkRecord("finish", 10, 1)]
    marks += [MarkRecord("arrival", 5, 2), MarkRecord("finish", 90, 2), MarkRecord("arrival", 80, 3)]
    trace = Trace.of(marks=marks, window=(20, 60))
    assert {m.request_id for m in trace.marks} == {2}
    assert [m.time_ns for m in trace.marks] == [5, 90]


def test_a_window_keeps_the_rows_of_its_steps_and_of_the_requests_that_lived_in_it() -> None:
    marks = [MarkRecord("arrival", 0, 1), MarkRecord("arrival", 0, 2), MarkRecord("finish", 10, 2)]
    rows = [
        RowRecord(t, step, 0, request) for t, step, request in [(5, 1, 1), (5, 1, 2), (30, 2, 1), (61, 3, 9)]
    ]
    spans = [span(20, 29, step=2), span(50, 70, step=3)]
    trace = Trace.of(spans, marks, (20, 60), rows=rows)
    assert [(r.step_id, r.request_id) for r in trace.rows] == [(1, 1), (2, 1), (3, 9)]
    assert [(r.step_id, r.request_id) for r in trace.within(20, 40).rows] == [(1, 1), (2, 1)]


def test_a_span_that_ends_before_it_starts_is_refused_and_counted() -> None:
    recorder = Recorder()
    recorder.on_span(span(10, 9))
    recorder.on_span(span(10, 10))
    assert recorder.refused == 1
    assert len(list(recorder.snapshot().spans)) == 1


def test_increments_of_the_stream_add_up_to_the_whole() -> None:
    recorder, cursor, seen = filled(0), Cursor(), []
    for i in range(100):
        recorder.on_span(span(i, i + 1, step=i))
        if i % 7 == 0:
            cursor, columns = recorder.columns_since(cursor)
            seen += columns.spans["step_id"].tolist()
    cursor, columns = recorder.columns_since(cursor)
    assert seen + columns.spans["step_id"].tolist() == list(range(100))
    assert columns.skipped == 0


def test_increments_carry_rows_as_well() -> None:
    recorder = Recorder(max_bytes=4096)  # 24 rows
    recorder.on_step(Step(0, 5, [Row(1), Row(2)]))
    cursor, columns = recorder.columns_since(Cursor())
    assert columns.rows["request_id"].tolist() == [1, 2]
    assert cursor == recorder.newest() == Cursor(0, 0, 2)
    for i in range(1, 20):
        recorder.on_step(Step(i, i, [Row(1), Row(2)]))
    _, columns = recorder.columns_since(cursor)
    assert columns.rows["step_id"].tolist() == sorted([*range(8, 20), *range(8, 20)])
    assert columns.skipped == 14


def test_the_stream_is_capped_per_message_and_tells_what_it_missed() -> None:
    recorder = filled(1000, max_bytes=4096)
    cursor, columns = recorder.columns_since(Cursor(), limit=10)
    assert columns.spans["step_id"].tolist() == list(range(958, 968))
    assert columns.skipped == 958
    assert recorder.columns_since(cursor, limit=100)[1].skipped == 0


def test_a_new_reader_starts_in_the_recent_past_and_gets_living_requests_whole() -> None:
    recorder = filled(100)  # up to 995 ns
    for mark in [MarkRecord("arrival", 1, 1), MarkRecord("finish", 2, 1), MarkRecord("arrival", 3, 2)]:
        recorder.on_mark(mark)
    for i, request in enumerate([1, 2, 1, 3]):
        recorder.on_step(Step(i, i, [Row(request)]))
    cursor = recorder.cursor_at(last_ns=100)
    _, columns = recorder.columns_since(cursor)
    assert columns.spans["start_ns"].min() == 890
    assert columns.marks["request_id"].tolist() == [2]
    assert columns.rows["request_id"].tolist() == [2, 1, 3]  # from the first that is wanted


def test_readers_see_whole_records_while_writers_overwrite_them() -> None:
    recorder, stop = Recorder(max_bytes=8192), threading.Event()

    def write(step: int) -> None:
        rows = [Row(step, position=step, token_id=index, pages=step) for index in range(3)]
        while not stop.is_set():
            recorder.on_span(SpanRecord("host", "plan", step, step + 1, step, 0, "", step, step, step))
            recorder.on_step(Step(step, step, rows))

    writers = [threading.Thread(target=write, args=(i,)) for i in (1, 2)]
    for writer in writers:
        writer.start()
    try:
        for _ in range(300):
            trace = recorder.snapshot()
            for column in ("rows", "zombies", "padding", "step_id"):
                assert np.array_equal(trace.span_table["start_ns"], trace.span_table[column])
            for column in ("request_id", "step_id", "position", "pages"):
                assert np.array_equal(trace.row_table["time_ns"], trace.row_table[column])
            assert np.array_equal(trace.row_table["row"], trace.row_table["token_id"])
    finally:
        stop.set()
        for writer in writers:
            writer.join()


def test_rows_of_a_step_become_visible_together() -> None:
    recorder, stop = Recorder(), threading.Event()

    def write() -> None:
        rows = [Row(index) for index in range(16)]
        while not stop.is_set() and recorder.dropped == 0:
            recorder.on_step(Step(0, 0, rows))

    writer = threading.Thread(target=write)
    writer.start()
    try:
        assert {recorder.newest().rows % 16 for _ in range(2000)} == {0}
    finally:
        stop.set()
        writer.join()


def test_recording_costs_a_few_microseconds(capsys: pytest.CaptureFixture[str]) -> None:
    recorder, one = Recorder(), span(1, 2)
    costs = {"span": best_us(lambda: recorder.on_span(one))}
    for count in (1, 8, 32):
        step = Step(1, 2, [Row(1)] * count)
        costs[f"step of {count} rows"] = best_us(lambda step=step: recorder.on_step(step))
    with capsys.disabled():
        print("\nrecording:", ", ".join(f"{us:.2f} us per {what}" for what, us in costs.items()))
    assert costs["span"] < 25  # a loaded CI machine; 1 us a span and a row on a quiet one
    assert costs["step of 32 rows"] < 32 * 25


def best_us(call: Callable[[], None], count: int = 2000) -> float:
    times = []
    for _ in range(5):
        start = time.perf_counter_ns()
        for _ in range(count):
            call()
        times.append(time.perf_counter_ns() - start)
    return min(times) / count / 1000
