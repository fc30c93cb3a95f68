"""Arithmetic of the metrics: None where there is nothing to divide, and what lies in the window."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tracing.trace import Trace

Value = float | None


def ratio(part: float, whole: float) -> Value:
    return part / whole if whole else None


def percent(part: float, whole: float) -> Value:
    return ratio(100.0 * part, whole)


def percentile(values: Sequence[Value], q: float) -> Value:
    known = [v for v in values if v is not None]
    return float(np.percentile(known, q)) if known else None


def in_ms(ns: int) -> str:
    """A duration for sentences: two decimals, three below 0.1 ms."""
    return f"{ns / 1e6:.2f} ms" if ns >= 100_000 else f"{ns / 1e6:.3f} ms"


def length(trace: Trace) -> int:
    return trace.window[1] - trace.window[0]


def inside(trace: Trace, instant: int) -> bool:
    """The window's end counts: the last token of a run is committed there."""
    return trace.window[0] <= instant <= trace.window[1]
