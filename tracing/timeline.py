"""timeline(trace) -> plotly Figure: the static picture; returned, never shown.

Rectangles are sub-paths of one `layout.shapes` path per category, not marks of a trace: a figure of ten
thousand spans has a dozen shapes and draws in a tenth of a second. The x axis is in milliseconds. Zombie
steps carry a red strip as high as their share of the rows; bubbles are shaded across the device lanes and
drawn in their own.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from typing import Literal

import plotly.graph_objects as go

from tracing.bubbles import bubbles
from tracing.lanes import CATEGORIES, DEVICE_LANES, LANES, OPTIONAL_LANES, category_of, lane_of
from tracing.metrics import bubble_percent, device_busy_percent, overlap_factor
from tracing.trace import SpanRecord, Trace, once

HALF = 0.38  # of a lane's height that a span fills, above and below its middle
LANE_PX, MARGIN_PX, GAP_PX = 26, 64, 58
Box = tuple[float, float, float, float]
Align = Literal["start"] | tuple[Literal["step"], int]


def timeline(trace: Trace, title: str = "", *, dark: bool = False) -> go.Figure:
    """One trace. Its `info["device"]`, say "cpu" or "cuda:0", names what ran the compute track."""
    return timelines([(title, trace)], dark=dark)


def timelines(
    panels: Sequence[tuple[str, Trace]], *, align: Align = "start", dark: bool = False
) -> go.Figure:
    """Several traces below each other on one time axis.

    align: what lies at 0 ms: "start", each window's start, or ("step", k), the launch of the k-th step in
    each trace, counted from 0. A trace of fewer steps is aligned at its last one.
    """
    zeros = [_zero(trace, align) for _, trace in panels]
    heights = [len(_lanes(trace)) * LANE_PX for _, trace in panels]
    inner = sum(heights) + GAP_PX * (len(panels) - 1)
    figure = go.Figure(layout=_layout(inner + 2 * MARGIN_PX, dark))
    top = float(inner)
    for i, ((title, trace), height, zero) in enumerate(zip(panels, heights, zeros, strict=True), start=1):
        axis = "" if i == 1 else str(i)
        figure.update_layout({f"yaxis{axis}": _axis(trace, (top - height) / inner, top / inner)})
        figure.add_annotation(_caption(title, trace, top / inner))
        figure.add_trace(
            go.Scatter(x=[0], y=[0], yaxis=f"y{axis}", mode="markers", opacity=0, showlegend=False)
        )
        figure.update_layout(shapes=[*figure.layout.shapes, *_shapes(trace, zero, f"y{axis}", dark)])
        top -= height + GAP_PX
    traces = [trace for _, trace in panels]
    first = min((t.window[0] - zero for t, zero in zip(traces, zeros, strict=True)), default=0) / 1e6
    last = max((t.window[1] - zero for t, zero in zip(traces, zeros, strict=True)), default=0) / 1e6
    range_ms = [first, last if last > first else first + 1]
    figure.update_xaxes(range=range_ms, anchor=f"y{len(panels)}" if len(panels) > 1 else "y")
    _legend(figure, traces, dark)
    return figure


def _zero(trace: Trace, align: Align) -> int:
    """The instant that lies at 0 ms."""
    if align == "start":
        return trace.window[0]
    launches = trace.where("host", "launch")["start_ns"]
    return int(launches[min(int(align[1]), len(launches) - 1)]) if len(launches) else trace.window[0]


def _shapes(trace: Trace, zero: int, axis: str, dark: bool) -> list[dict[str, object]]:
    """One path per category that occurs, bubbles behind the spans and zombie strips before them."""
    middle = {lane: i for i, lane in enumerate(_lanes(trace))}
    boxes: dict[str, list[Box]] = {}
    strips: list[Box] = []
    for span in trace.spans:
        y = middle[lane_of(span.track, span.name, span.slot)]
        x0, x1 = _clipped(span, trace, zero)
        boxes.setdefault(category_of(span.track, span.name, span.kind), []).append(
            (x0, x1, y - HALF, y + HALF)
        )
        if span.track == "compute" and span.zombies and span.rows:
            strips.append((x0, x1, y + HALF - 2 * HALF * span.zombies / span.rows, y + HALF))
    idle = [((b.start_ns - zero) / 1e6, (b.end_ns - zero) / 1e6) for b in bubbles(trace)]
    rows = [middle[lane] for lane in DEVICE_LANES if lane in middle]
    last = middle["bubbles"]
    band: list[Box] = [(a, b, min(rows) - 0.5, last) for a, b in idle]
    own: list[Box] = [(a, b, last - HALF, last + HALF) for a, b in idle]
    layers = [("bubble", band, 0.12), *((k, v, 1.0) for k, v in boxes.items())]
    layers += [("bubble", own, 0.75), ("zombie", strips, 1.0)]
    return [_path(key, items, axis, opacity, dark) for key, items, opacity in layers if items]


def _path(key: str, boxes: Iterable[Box], axis: str, opacity: float, dark: bool) -> dict[str, object]:
    path = "".join(f"M{a:.6g},{c:.4g}H{b:.6g}V{d:.4g}H{a:.6g}Z" for a, b, c, d in boxes)
    colour = _colour(key, dark)
    return {
        "type": "path",
        "path": path,
        "xref": "x",
        "yref": axis,
        "fillcolor": colour,
        "opacity": opacity,
        # A hairline keeps spans narrower than a pixel visible; coordinates stay exact.
        "line": {"width": 0.6 if opacity == 1 else 0, "color": colour},
        "name": key,
        "layer": "between",
    }


def _clipped(span: SpanRecord, trace: Trace, zero: int) -> tuple[float, float]:
    start, end = trace.window
    return (max(span.start_ns, start) - zero) / 1e6, (min(span.end_ns, end) - zero) / 1e6


@once
def _lanes(trace: Trace) -> list[str]:
    """The lanes to draw, from the top: all but the optional ones that are empty."""
    used = {lane_of(s.track, s.name, s.slot) for s in trace.spans}
    return [lane for lane in LANES if lane in used or lane not in OPTIONAL_LANES]


def _axis(trace: Trace, bottom: float, top: float) -> dict[str, object]:
    lanes = _lanes(trace)
    device = escape(trace.info.get("device", "device"), quote=False)  # plotly reads tags in its texts
    names = [f"{device} · {lane}" if lane.startswith("slot") else lane for lane in lanes]
    return {
        "domain": [max(bottom, 0.0), min(top, 1.0)],
        "range": [len(lanes) - 0.5, -0.5],
        "tickvals": list(range(len(lanes))),
        "ticktext": names,
        "showgrid": False,
        "zeroline": False,
        "fixedrange": True,
    }


def _caption(title: str, trace: Trace, top: float) -> dict[str, object]:
    """The title and the three figures that the picture is about."""
    busy, bubble, overlap = (f(trace) for f in (device_busy_percent, bubble_percent, overlap_factor))
    parts = [f"<b>{escape(title, quote=False)}</b>"] if title else []
    parts += [f"device busy {busy:.1f} %"] if busy is not None else []
    parts += [f"bubble {bubble:.1f} %"] if bubble is not None else []
    parts += [f"overlap factor {overlap:.2f}"] if overlap is not None else []
    text = "   ".join(parts) or "no spans"
    place = {"xref": "paper", "yref": "paper", "x": 0, "y": top, "xanchor": "left", "yanchor": "bottom"}
    return {"text": text, **place, "showarrow": False, "yshift": 4, "font": {"size": 13}}


def _legend(figure: go.Figure, traces: list[Trace], dark: bool) -> None:
    used = {category_of(s.track, s.name, s.kind) for t in traces for s in t.spans}
    used |= {"bubble"} if any(bubbles(t) for t in traces) else set()
    used |= {"zombie"} if any(t.span_table["zombies"].any() for t in traces) else set()
    for key, category in CATEGORIES.items():
        if key in used:
            marker = {"symbol": "square", "size": 11, "color": _colour(key, dark)}
            figure.add_trace(
                go.Scatter(x=[None], y=[None], mode="markers", marker=marker, name=category.name)
            )


def _colour(key: str, dark: bool) -> str:
    return CATEGORIES[key].dark if dark else CATEGORIES[key].light


def _layout(height: float, dark: bool) -> dict[str, object]:
    paper, ink, grid = ("#0f1420", "#d6dbe6", "#232b3b") if dark else ("#ffffff", "#1f2937", "#e8ebf0")
    return {
        "height": height,
        "margin": {"l": 150, "r": 24, "t": MARGIN_PX, "b": MARGIN_PX},
        "paper_bgcolor": paper,
        "plot_bgcolor": paper,
        "font": {"color": ink, "size": 12, "family": "ui-monospace, SFMono-Regular, Menlo, monospace"},
        "xaxis": {"gridcolor": grid, "zeroline": False, "ticksuffix": " ms", "tickformat": ",.6~f"},
        "legend": {"orientation": "h", "y": 0, "yref": "container", "x": 0, "itemclick": False},
        "hovermode": False,
        "showlegend": True,
    }
