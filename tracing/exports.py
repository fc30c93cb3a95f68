"""A trace for others: its spans as CSV, its metrics as a document, and the facts to know first."""

from __future__ import annotations

import csv
import io
from typing import Any

import numpy as np

from tracing.metrics import METRICS, bound
from tracing.requests import request_lives
from tracing.trace import SpanRecord, Trace


def spans_csv(trace: Trace) -> str:
    """One line per span, every column; times in nanoseconds of the producer's clock."""
    text = io.StringIO()
    table = csv.writer(text, lineterminator="\n")
    table.writerow(SpanRecord._fields)
    table.writerows(trace.spans)
    return text.getvalue()


def metrics_document(trace: Trace) -> dict[str, Any]:
    """Every metric with name, unit and formula; the window, what ran, and how many records were lost."""
    metrics = {
        m.key: {"name": m.name, "unit": m.unit, "formula": m.formula, "value": m.function(trace)}
        for m in METRICS
    }
    start, end = trace.window
    return {
        "info": dict(trace.info),
        "window": {"start_ns": start, "end_ns": end, "length_ms": (end - start) / 1e6},
        "dropped_records": trace.dropped,
        "bound": bound(trace),
        "metrics": metrics,
    }


def facts(trace: Trace) -> list[tuple[str, str]]:
    """What a reader wants to know before the metrics, as (name, text)."""
    start, end = trace.window
    steps = len(np.unique(trace.where("host", "launch")["step_id"]))
    counts = {"steps": steps, "requests": len(request_lives(trace)), "spans": len(trace.span_table)}
    lost = f"{trace.dropped:,}" if trace.dropped else "none"
    return [
        *trace.info.items(),
        ("window", f"{(end - start) / 1e6:,.3f} ms"),
        *((name, f"{value:,}") for name, value in counts.items()),
        ("records lost before this window was saved", lost),
    ]


def last(trace: Trace, seconds: float | None) -> Trace:
    """The last seconds of the trace's window; all of it for None."""
    start, end = trace.window
    return trace if seconds is None else trace.within(max(start, end - round(seconds * 1e9)), end)
