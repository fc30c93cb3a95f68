"""Bubbles: when the device idled although some request wanted it, and what it waited for.

    D   demand       ###########################        union of [arrival, finish) over requests
    G   device busy  ..######....#####..########        union of all spans of the compute track
    D \\ G            ##      ####     ##                the bubbles, those longer than 2 us

The device work g that ends a gap [a, b) was enqueued by a host span of the same step (`sample` for
device sampling, `launch` for everything else). Until that span ended the host was late; the rest is
launch latency: g was enqueued and had not started. When no device work ends the gap (the last
commit of a run, an unknown launch) all of it is the host's.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from tracing.intervals import Intervals, clip, covered, pairs, subtract, union
from tracing.requests import demand
from tracing.trace import Table, Trace

EPSILON_NS = 2_000
HOST_WORK = ("plan", "launch", "sample", "commit")
LATENCY = "launch latency"


class Bubble(NamedTuple):
    """[start_ns, end_ns); host_ns + latency_ns is its length; `phases` says what the host did in host_ns."""

    start_ns: int
    end_ns: int
    step_id: int  # of the device work that ended it; -1: none did
    host_ns: int
    latency_ns: int
    phases: tuple[tuple[str, int], ...]  # (plan | launch | sample | commit | wait | other, ns)

    @property
    def cause(self) -> str:
        """What the largest part of it was spent on."""
        parts = [*self.phases, (LATENCY, self.latency_ns)]
        return max(parts, key=lambda part: part[1])[0]


def device_busy(trace: Trace) -> Intervals:
    """G = union of the compute track's spans, in the window."""
    rows = trace.where("compute")
    return clip(union(pairs(rows["start_ns"], rows["end_ns"])), *trace.window)


def gaps(trace: Trace) -> Intervals:
    """D \\ G, of any length."""
    return subtract(demand(trace), device_busy(trace))


def bubbles(trace: Trace) -> list[Bubble]:
    """The gaps longer than EPSILON_NS, each with its cause, in order of time."""
    found = gaps(trace)
    found = found[found[:, 1] - found[:, 0] > EPSILON_NS]
    steps, host = _host_parts(trace, found)
    ends = found[:, 0] + host
    parts = _phases(trace, found[:, 0], ends)
    return [
        Bubble(a, b, step, own, b - a - own, tuple(zip(parts, column, strict=True)))
        for (a, b), step, own, *column in zip(
            found.tolist(), steps, host.tolist(), *(p.tolist() for p in parts.values()), strict=True
        )
    ]


def _host_parts(trace: Trace, found: Intervals) -> tuple[list[int], np.ndarray]:
    """Per gap: the step of the device work that ends it, and for how much of it the host was late."""
    device = trace.where("compute")
    enqueued = {name: _ends(trace.where("host", name)) for name in ("launch", "sample")}
    following = np.searchsorted(device["start_ns"], found[:, 1])
    steps, host = [], []
    for (a, b), i in zip(found.tolist(), following.tolist(), strict=True):
        work = device[i] if i < len(device) and device["start_ns"][i] == b else None
        by = "sample" if work is not None and trace.names[work["name"]] == "sample" else "launch"
        done = None if work is None else enqueued[by].get(int(work["step_id"]))
        steps.append(-1 if work is None else int(work["step_id"]))
        host.append(b - a if done is None else min(max(done - a, 0), b - a))
    return steps, np.array(host, np.int64)


def _ends(rows: Table) -> dict[int, int]:
    return dict(zip(rows["step_id"].tolist(), rows["end_ns"].tolist(), strict=True))


def _phases(trace: Trace, starts: np.ndarray, ends: np.ndarray) -> dict[str, np.ndarray]:
    """Per name of host work: how much of each [start, end) it covers; "other": none of them did."""
    parts = {}
    for name in (*HOST_WORK, "wait"):
        rows = trace.where("host", name)
        spans = union(pairs(rows["start_ns"], rows["end_ns"]))
        parts[name] = covered(spans, ends) - covered(spans, starts)
    parts["other"] = np.maximum(ends - starts - sum(parts.values()), 0)
    return parts
