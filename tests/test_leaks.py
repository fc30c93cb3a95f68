"""Pins the detector of sync leaks: a wait inside launch or sample is one, a wait anywhere else is none."""

from __future__ import annotations

from tracing.leaks import Leak, leaks, sync_leak_ms, sync_leaks
from tracing.trace import SpanRecord, Trace

CALL = "Stream.synchronize in Runtime.sample"


def host(name: str, start: int, end: int, step: int = 0) -> SpanRecord:
    return SpanRecord("host", name, start, end, step)


def test_the_empty_trace_has_no_leak_and_no_count() -> None:
    assert leaks(Trace.of()) == []
    assert sync_leaks(Trace.of()) is None
    assert sync_leak_ms(Trace.of()) is None


def test_a_launch_without_a_wait_leaks_nothing() -> None:
    trace = Trace.of([host("launch", 0, 10), host("wait", 10, 20)])
    assert leaks(trace) == []
    assert (sync_leaks(trace), sync_leak_ms(trace)) == (0, 0)


def test_a_leak_says_when_where_and_by_which_call() -> None:
    spans = [host("launch", 0, 10, 4), host("sample", 10, 40, 5), host(f"sync: {CALL}", 12, 40, 5)]
    assert leaks(Trace.of(spans)) == [Leak(12, 40, 5, "sample", CALL)]


def test_a_wait_outside_launch_and_sample_is_no_leak() -> None:
    spans = [host("launch", 0, 10), host("commit", 10, 30), host("sync: x", 11, 12), host("sync: y", 40, 50)]
    assert leaks(Trace.of(spans)) == []


def test_the_time_is_that_inside_the_window() -> None:
    spans = [host("launch", 0, 5_000_000), host("sync: x", 1_000_000, 4_000_000)]
    trace = Trace.of(spans, window=(2_000_000, 9_000_000))
    assert (sync_leaks(trace), sync_leak_ms(trace)) == (1, 2)
