"""Pins the histograms of step times: one chart per phase, shares that add up, the same bins for both."""

from __future__ import annotations

import pytest
from traces import recorded

from tracing.histograms import histograms
from tracing.report import PHASES
from tracing.trace import Trace


def test_each_phase_has_a_chart_with_both_traces_in_the_same_bins() -> None:
    figure = histograms(recorded(), recorded(period_us=1500), ("depth 1", "depth 2"))
    assert [title.text for title in figure.layout.annotations] == list(PHASES)
    pairs = list(zip(figure.data[::2], figure.data[1::2], strict=True))
    assert len(pairs) == len(PHASES)
    for a, b in pairs:
        assert (a.name, b.name) == ("depth 1", "depth 2")
        assert list(a.x) == list(b.x)
        assert sum(a.y) == pytest.approx(100)


def test_the_periods_lie_where_they_are() -> None:
    a, b = histograms(recorded(), recorded(period_us=1500)).data[:2]
    assert a.x[a.y.argmax()] < 1.41 < 1.49 < b.x[b.y.argmax()]


def test_traces_without_steps_give_empty_charts() -> None:
    figure = histograms(Trace.of(), Trace.of())
    assert all(not any(bars.y) for bars in figure.data)
