"""Pins the sources: the live recorder under its name, opened traces under random ids, bounded."""

from __future__ import annotations

from producer import run

from tracing.recorder import Recorder
from tracing.trace import SpanRecord, Trace
from tracing.ui.sources import MAX_TRACES, Sources


def test_the_live_source_is_a_snapshot_of_the_recorder() -> None:
    recorder = Recorder()
    run(recorder, 0, 0)
    live = Sources(recorder).get("live")
    assert live is not None
    assert len(live.span_table) == 355


def test_an_opened_trace_is_found_under_its_id_only() -> None:
    sources = Sources(Recorder())
    trace = Trace.of([SpanRecord("host", "plan", 1, 2)])
    source = sources.add(trace, "run.json")
    assert sources.get(source) is trace
    assert sources.title(source) == "run.json"
    assert sources.get("run.json") is sources.get("") is None


def test_the_oldest_trace_goes_when_there_are_too_many() -> None:
    sources = Sources(Recorder())
    ids = [sources.add(Trace.of(), str(i)) for i in range(MAX_TRACES + 2)]
    assert [sources.get(source) is None for source in ids] == [True] * 2 + [False] * MAX_TRACES
