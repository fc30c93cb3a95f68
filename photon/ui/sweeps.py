"""Sweeps: the gain of depth 2 over streams for each GPU, and over the speed of the GPU; as plotly figures.

Each point is a run of the engine on the virtual clock, of one answer per stream. A line takes half a second
and is computed once per process.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from photon.device.cost import PRESETS, TABLE, CostModel
from photon.simulation import Scenario, compare

STREAMS = (1, 2, 4, 8, 16, 32)
SPEEDS = (0.25, 0.5, 1.0, 2.0, 4.0, 8.0)
TOKENS = 100
_COLOURS = {
    "rtx3090": "#d9682b",
    "b200": "#2069b8",
    "l4": "#8a8f98",
    "l40s": "#b3a51c",
    "a100": "#8759c4",
    "h100": "#55a06f",
    "h200": "#25a5c0",
}
_BY_STREAMS = {1: "#8fa2d4", 8: "#4f86c6", 32: "#2069b8"}


Gains = tuple[float | None, ...]


def _gain(cost: CostModel, streams: int) -> float | None:
    return compare(Scenario(cost, streams, TOKENS, answers=1, crops=0)).gain_percent


@functools.cache
def over_streams(key: str) -> Gains:
    """Gain in percent of a preset at each of STREAMS."""
    return tuple(_gain(PRESETS[key], streams) for streams in STREAMS)


@functools.cache
def over_speed(streams: int) -> Gains:
    """Gain in percent of a B200 whose device is faster by each of SPEEDS, on the same host."""
    b200 = PRESETS["b200"]
    return tuple(
        _gain(replace(b200, forward=b200.forward.scaled(1 / x), sample=b200.sample.scaled(1 / x)), streams)
        for x in SPEEDS
    )


def sweeps_figure(by_gpu: Mapping[str, Gains], by_streams: Mapping[int, Gains]) -> str:
    """The lines there are so far: over streams on the left, over speed on the right. JSON for plotly.js."""
    data = []
    for key, gains in by_gpu.items():
        cost = PRESETS[key]
        dash = "dash" if cost.label == "derived" else "solid"
        line = _line(f"{cost.name} ({cost.label})", STREAMS, gains, _COLOURS[key])
        data.append(line | {"line": {"dash": dash, "color": _COLOURS[key]}})
        known = {n: published.observed_percent for (name, n), published in TABLE.items() if name == cost.name}
        if known:
            marker = {"color": _COLOURS[key], "size": 11, "symbol": "circle-open", "line": {"width": 2.5}}
            named = {"name": f"{cost.name}, observed (published)", "mode": "markers", "marker": marker}
            data.append({"x": list(known), "y": list(known.values()), **named})
    for count, gains in by_streams.items():
        name = f"B200, {count} stream{'s' * (count > 1)}"
        data.append(_line(name, SPEEDS, gains, _BY_STREAMS[count]) | {"xaxis": "x2", "yaxis": "y2"})
    return json.dumps({"data": data, "layout": _layout()})


def _line(name: str, x: tuple[float, ...], y: Gains, colour: str) -> dict[str, Any]:
    how = {"mode": "lines+markers", "line": {"color": colour}, "marker": {"color": colour, "size": 6}}
    hover = "%{x:g}: %{y:+.1f} %<extra>" + name + "</extra>"
    return {"name": name, "x": list(x), "y": list(y), **how, "hovertemplate": hover}


def _layout() -> dict[str, Any]:
    titles = ["Gain of depth 2 over streams", "Gain of depth 2 over GPU speed, same host"]
    words = {"xref": "paper", "yref": "paper", "y": 1.1, "showarrow": False, "font": {"size": 14}}
    notes = [
        {"text": f"<b>{text}</b>, simulated", "x": x, "xanchor": "left", **words}
        for text, x in zip(titles, (0.0, 0.54), strict=True)
    ]
    percent = {"title": {"text": "gain, %", "standoff": 4}, "rangemode": "tozero"}
    return {
        "height": 460,
        "margin": {"l": 52, "r": 16, "t": 56, "b": 120},
        "annotations": notes,
        "xaxis": {**_axis("streams", STREAMS), "domain": [0, 0.46]},
        "xaxis2": {**_axis("times as fast as a B200", SPEEDS), "domain": [0.54, 1], "anchor": "y2"},
        "yaxis": percent,
        "yaxis2": {**percent, "anchor": "x2"},
        "legend": {"orientation": "h", "y": -0.2, "font": {"size": 11}},
        "hovermode": "closest",
    }


def _axis(title: str, ticks: tuple[float, ...]) -> dict[str, Any]:
    """Logarithmic, with a tick at each point."""
    texts = [f"{tick:g}" for tick in ticks]
    return {
        "type": "log",
        "tickvals": list(ticks),
        "ticktext": texts,
        "title": {"text": title, "standoff": 8},
    }
