"""histograms(a, b) -> plotly Figure: how long the decode steps of two traces took, phase by phase."""

from __future__ import annotations

from html import escape

import numpy as np
import numpy.typing as npt
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from tracing.report import PHASES, phase_times
from tracing.trace import Trace

NUM_BINS = 40
COLOURS = ("#8fa2d4", "#2069b8")
COLUMNS, ROW_PX = 4, 190
Values = npt.NDArray[np.float64]


def histograms(a: Trace, b: Trace, names: tuple[str, str] = ("A", "B"), *, dark: bool = False) -> go.Figure:
    """One small chart per phase, both traces in the same bins; milliseconds, share of the steps in %.

    The slowest percent of the steps is counted in the last bin: one hiccup must not squeeze the rest.
    """
    times = phase_times(a), phase_times(b)
    num_rows = -(-len(PHASES) // COLUMNS)
    figure = make_subplots(rows=num_rows, cols=COLUMNS, subplot_titles=PHASES, vertical_spacing=0.22)
    for i, phase in enumerate(PHASES):
        values = times[0][phase], times[1][phase]
        edges = _edges(np.concatenate(values))
        for of, name, colour in zip(values, names, COLOURS, strict=True):
            bars = _bars(of, edges, name=escape(name, quote=False), colour=colour, is_first=i == 0)
            figure.add_trace(bars, row=i // COLUMNS + 1, col=i % COLUMNS + 1)
    paper, ink = ("#0f1420", "#d6dbe6") if dark else ("#ffffff", "#1f2937")
    figure.update_layout(
        height=num_rows * ROW_PX + 60,
        barmode="overlay",
        bargap=0,
        margin={"l": 40, "r": 16, "t": 56, "b": 36},
        paper_bgcolor=paper,
        plot_bgcolor=paper,
        font={"color": ink, "size": 11},
        legend={"orientation": "h", "y": 1, "yref": "container", "yanchor": "top", "x": 0},
    )
    figure.update_xaxes(ticksuffix=" ms", nticks=4)
    figure.update_yaxes(ticksuffix=" %", nticks=4, rangemode="tozero")
    return figure


def _edges(values: Values) -> Values:
    if not len(values):
        return np.linspace(0, 1, NUM_BINS + 1)
    low, high = float(values.min()), float(np.percentile(values, 99))
    margin = 0.05 * high + 1e-3  # steps of one length are a bar in the middle, not the whole chart
    return np.linspace(max(0.0, low - margin), high + margin, NUM_BINS + 1)


def _bars(values: Values, edges: Values, *, name: str, colour: str, is_first: bool) -> go.Bar:
    counts, _ = np.histogram(np.clip(values, edges[0], edges[-1]), edges)
    return go.Bar(
        x=(edges[:-1] + edges[1:]) / 2,
        y=100 * counts / max(1, len(values)),
        width=edges[1] - edges[0],
        name=name,
        marker={"color": colour, "line": {"width": 0}},
        opacity=0.65,
        legendgroup=name,
        showlegend=is_first,
        hovertemplate="%{x:.3f} ms: %{y:.1f} %<extra>" + name + "</extra>",
    )
