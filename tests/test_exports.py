"""Pins what leaves: CSV with every column, metrics with formulas, facts, the newest seconds."""

from __future__ import annotations

import csv
import io
import json

from traces import INFO, recorded

from tracing.exports import clock_note, facts, last, metrics_document, settled, spans_csv
from tracing.metrics import METRICS
from tracing.trace import SpanRecord, Trace


def test_the_csv_has_every_column_of_every_span() -> None:
    lines = list(csv.reader(io.StringIO(spans_csv(recorded()))))
    assert lines[0] == list(SpanRecord._fields)
    assert lines[1:] == [list(map(str, span)) for span in recorded().spans]


def test_a_name_with_commas_and_quotes_is_one_cell() -> None:
    odd = SpanRecord("host", 'sync: f(a, "b")\n', 0, 1)
    assert next(csv.DictReader(io.StringIO(spans_csv(Trace.of([odd])))))["name"] == odd.name


def test_the_metrics_document_explains_itself() -> None:
    document = json.loads(json.dumps(metrics_document(recorded()), allow_nan=False))
    assert list(document["metrics"]) == [metric.key for metric in METRICS]
    busy = document["metrics"]["device_busy_percent"]
    assert (busy["name"], busy["unit"], busy["formula"]) == ("device busy", "%", "100 * |G| / |W|")
    assert 80 < busy["value"] < 100
    assert document["info"] == INFO
    start, end = document["window"]["start_ns"], document["window"]["end_ns"]
    assert (start, end) == recorded().window
    assert json.loads(json.dumps(metrics_document(Trace.of())))["metrics"]["ttft_p50_ms"]["value"] is None


def test_the_facts_say_what_ran_and_how_much_is_held() -> None:
    known = dict(facts(recorded()))
    assert known.items() >= INFO.items() - {("clock_uncertainty_ns", "0")}
    assert known["clocks of host and device"] == "are the same"
    assert (known["steps"], known["requests"], known["spans"]) == ("12", "3", "110")
    assert known["bound by"] == "device"
    assert dict(facts(Trace.of()))["steps"] == "0"


def test_metrics_that_compare_two_clocks_say_how_well_those_agree() -> None:
    spans = [SpanRecord("host", "launch", 0, 9)]
    assert "host and device agree within 4.2 us; bubble caused by" in clock_note(
        Trace.of(spans, info={"clock_uncertainty_ns": "4200"})
    )
    assert "unknown" in clock_note(Trace.of(spans))


def test_device_work_that_is_not_told_yet_is_no_bubble() -> None:
    spans = [s for s in recorded().spans if s.step_id < 51 or s.name in ("plan", "launch")]
    device = [s.end_ns for s in spans if s.track == "compute"]
    assert settled(Trace.of(spans)).window[1] == max(device)
    assert settled(recorded()).window == recorded().window


def test_the_last_seconds_end_where_the_trace_does() -> None:
    trace = recorded()
    start, end = last(trace, 0.005).window
    assert (end, end - start) == (trace.window[1], 5_000_000)
    assert last(trace, 60).window == trace.window
    assert last(trace, None) is trace
