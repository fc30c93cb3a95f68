"""Pins the sources: the live recorder under its name, opened traces under random ids, bounded."""

from __future__ import annotations

from producer import MS, run

from tracing.recorder import Recorder
from tracing.trace import SpanRecord, Trace
from tracing.ui.sources import AROUND_NS, MAX_TRACES, Sources


def test_the_live_source_is_a_snapshot_of_the_recorder() -> None:
    recorder = Recorder()
    run(recorder, 0, 0)
    live = Sources(recorder).get("live")
    assert live is not None
    assert len(live.span_table) == 355


def test_what_lies_around_a_time_is_the_part_of_the_trace_that_explains_it() -> None:
    recorder = Recorder()
    end = run(recorder, 0, 0, steps=4000)
    sources = Sources(recorder)
    live, opened = (
        sources.around(s, 10 * MS, 20 * MS) for s in ("live", sources.add(recorder.snapshot(), ""))
    )
    assert live is not None
    assert opened is not None
    assert live.window == (10 * MS - AROUND_NS, 20 * MS + AROUND_NS)
    assert opened.window == (-200_000, live.window[1])
    assert list(live.spans) == list(opened.spans)
    newest = sources.around("live", end, end)
    assert newest is not None
    assert newest.window[1] == recorder.snapshot().window[1]
    assert sources.around("gone", 0, 1) is None


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
