"""Sync leaks: where the host waited for the device inside a launch or a sample.

    host   [launch t+1 ...[sync: Stream.synchronize in Runtime.sample]...]   <- nothing on this path may wait
    host   [wait t][commit t]                                                <- the one place that may

Such a wait holds the host until the device has run dry, so the next forward comes late: at depth 2 it costs
what two steps in flight had gained. The producer reports each as a host span "sync: <call>" nested in the
launch or sample it happened in; a producer that does not watch for them reports none.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from tracing.intervals import clip, pairs, total, union
from tracing.trace import Trace
from tracing.values import Value


class Leak(NamedTuple):
    """The host waited in [start_ns, end_ns) for the device; `call` says in which call and function."""

    start_ns: int
    end_ns: int
    step_id: int
    inside: str  # launch or sample
    call: str


def leaks(trace: Trace) -> list[Leak]:
    """The sync spans inside launch and sample spans, in order of time."""
    outer = trace.where("host", "launch", "sample")
    waits = trace.where("host", "sync:")
    around = np.searchsorted(outer["start_ns"], waits["start_ns"], side="right") - 1
    found = []
    for wait, i in zip(waits, around.tolist(), strict=True):
        if i >= 0 and wait["end_ns"] <= outer[i]["end_ns"]:
            call = trace.names[wait["name"]].partition(": ")[2]
            times = int(wait["start_ns"]), int(wait["end_ns"])
            found.append(Leak(*times, int(outer[i]["step_id"]), trace.names[outer[i]["name"]], call))
    return found


def sync_leaks(trace: Trace) -> Value:
    """number of waits for the device inside launch or sample spans. 0 is what pipelining needs."""
    return len(leaks(trace)) if len(trace.where("host", "launch", "sample")) else None


def sync_leak_ms(trace: Trace) -> Value:
    """length of the waits for the device inside launch or sample spans, in W."""
    if not len(trace.where("host", "launch", "sample")):
        return None
    found = leaks(trace)
    spans = union(pairs([leak.start_ns for leak in found], [leak.end_ns for leak in found]))
    return total(clip(spans, *trace.window)) / 1e6
