"""A trace for others: its spans as CSV, its metrics as a document, the facts to know first, a part of it."""

from __future__ import annotations

import csv
import io
from typing import Any

import numpy as np

from tracing.metrics import METRICS, TWO_CLOCKS, bound, summary
from tracing.requests import request_lives
from tracing.trace import SpanRecord, Trace

UNCERTAINTY = "clock_uncertainty_ns"  # key of Trace.info: how far device times may be off the host's clock


def spans_csv(trace: Trace) -> str:
    """One line per span, every column; times in nanoseconds of the producer's clock."""
    text = io.StringIO()
    table = csv.writer(text, lineterminator="\n")
    table.writerow(SpanRecord._fields)
    table.writerows(trace.spans)
    return text.getvalue()


def metrics_document(trace: Trace) -> dict[str, Any]:
    """Every metric with name, unit and formula; the window, what ran, and how many records were lost."""
    values = summary(trace)
    metrics = {
        m.key: {"name": m.name, "unit": m.unit, "formula": m.formula, "value": values[m.key]}
        | {"compares_clocks": m.key in TWO_CLOCKS}
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
        *((name, text) for name, text in trace.info.items() if name != UNCERTAINTY),
        ("clocks of host and device", _clocks(trace)),
        ("bound by", bound(trace) or "nothing"),
        ("window", f"{(end - start) / 1e6:,.3f} ms"),
        *((name, f"{value:,}") for name, value in counts.items()),
        ("records lost before this window was saved", lost),
    ]


def _clocks(trace: Trace) -> str:
    text = trace.info.get(UNCERTAINTY, "")
    if not text.isdecimal():
        return "agree to an unknown degree"
    return f"agree within {int(text) / 1e3:,.1f} us" if int(text) else "are the same"


def clock_note(trace: Trace) -> str:
    """Which metrics depend on how well the clocks of host and device agree, and how well they do."""
    *names, final = (m.name for m in METRICS if m.key in TWO_CLOCKS)
    return f"The clocks of host and device {_clocks(trace)}; {', '.join(names)} and {final} compare them."


def settled(trace: Trace) -> Trace:
    """The trace up to the last device span, if steps are in flight: what the device does for them is told at
    their commit, and until then looks like a bubble."""
    launched, committed = (trace.where("host", name)["step_id"] for name in ("launch", "commit"))
    device = trace.where("compute")
    if np.isin(launched, committed).all() or not len(device):
        return trace
    return trace.within(trace.window[0], int(device["end_ns"].max()))


def last(trace: Trace, seconds: float | None) -> Trace:
    """The last seconds of the trace's window; all of it for None."""
    start, end = trace.window
    return trace if seconds is None else trace.within(max(start, end - round(seconds * 1e9)), end)
