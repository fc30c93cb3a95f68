"""Bubbles: when the device idled although some request wanted it, what it waited for, and what to do.

    D   demand       ###########################        union of [arrival, finish) over requests
    G   device busy  ..######....#####..########        union of all spans of the compute track
    D \\ G            ##      ####     ##                the bubbles, those longer than 2 us

The device work g that ends a gap [a, b) was enqueued by a host span of the same step (`sample` for
device sampling, `launch` for everything else). Until that span ended the host was late; the rest is
launch latency: g was enqueued and had not started. When no device work ends the gap (the last
commit of a run, an unknown launch) all of it is the host's. What the host did meanwhile is told by its
innermost spans: a wait inside a launch counts as that wait, not as launch.
"""

from __future__ import annotations

from bisect import bisect_right
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from tracing.intervals import Intervals, clip, pairs, subtract, union
from tracing.lanes import HOST_PHASES, phase_of
from tracing.requests import demand
from tracing.trace import Table, Trace, once
from tracing.values import in_ms

EPSILON_NS = 2_000
PHASES = (*HOST_PHASES, "sync", "injected", "other")
LATENCY = "launch latency"
MIN_SHARE = 0.05  # of a bubble that a part must have to be named in its sentence


class Part(NamedTuple):
    """What the host did for some of a bubble; name "other": nothing that is traced."""

    name: str
    step_id: int
    ns: int


class Bubble(NamedTuple):
    """[start_ns, end_ns); host_ns + latency_ns is its length; `parts` says what the host did in host_ns."""

    start_ns: int
    end_ns: int
    step_id: int  # of the device work that ended it; -1: none did
    host_ns: int
    latency_ns: int
    parts: tuple[Part, ...] = ()
    work: str = ""  # name of the device work that ended it
    case: str = ""  # "arrival": it began with a request; "end": no device work ended it; "blocking": it
    # ended in a decode that was launched only after the commit of the step before

    @property
    def phases(self) -> tuple[tuple[str, int], ...]:
        """(plan | launch | sample | wait | commit | sync | injected | other, ns), all of them."""
        sums = dict.fromkeys(PHASES, 0)
        for part in self.parts:
            phase = phase_of(part.name)
            sums[phase if phase in sums else "other"] += part.ns
        return tuple(sums.items())

    @property
    def cause(self) -> str:
        """What the largest part of it was spent on."""
        return max((*self.phases, (LATENCY, self.latency_ns)), key=lambda part: part[1])[0]

    @property
    def text(self) -> str:
        """One sentence: why the device idled, and what to do about it."""
        return f"The device idled {in_ms(self.end_ns - self.start_ns)} {self._because()}; {self._remedy()}."

    def _because(self) -> str:
        least = MIN_SHARE * (self.end_ns - self.start_ns)
        done = [part for part in self.parts if part.ns >= least]
        reasons = [f"{_doing(part)} ({in_ms(part.ns)})" for part in done]
        listed = " and ".join(filter(None, (", ".join(reasons[:-1]), *reasons[-1:])))
        host = f"because the host was still {listed}" if reasons else ""
        if self.latency_ns < least:
            return host
        work, late = f"{self.work} of step {self.step_id}, already enqueued", in_ms(self.latency_ns)
        if not host:
            return f"because it took {late} to go on to {work}"
        return f"{host}, and {work}, took {late} to begin"

    def _remedy(self) -> str:
        if self.cause in ("sync", "injected"):
            return _REMEDIES[self.cause]
        if not self.host_ns:
            return "the host was in time: this is the device's hand-over, or a wait for an upload"
        return _CASES.get(self.case) or _REMEDIES[self.cause]


_CASES = {
    "arrival": "the request came to an idle device, so nothing could hide its first launch",
    "end": "no step followed while a request was open, so there was nothing to launch earlier",
    "blocking": "at depth 2 the next forward would have been launched before that",
}
_LATE = "the host was slower than the device here: less host work per step, or more rows in each, closes it"
_REMEDIES = {
    "plan": _LATE,
    "launch": _LATE,
    "commit": _LATE,
    "sample": "sampling needs the commit before it: a shorter commit and sample on the host close it",
    "wait": "nothing further was in flight behind the step that the host waited for",
    "sync": "a launch or sample that does not wait for the device closes it",
    "injected": "the time was added on purpose and goes when its knob is at 0",
    "other": "this lies outside the engine's steps: a request in preparation, or the thread or core held"
    " by something else",
    LATENCY: "work that is launched while the device is still busy hides this",
}
_VERBS = {"plan": "planning", "launch": "launching", "commit": "committing", "wait": "waiting for"}
_VERBS["sample"] = "preparing the sampling of"


def _doing(part: Part) -> str:
    phase, _, detail = part.name.partition(": ")
    if phase == "sync":
        return f"waiting for the device in the middle of step {part.step_id} ({detail})"
    if phase == "injected":
        return f"held up on purpose by {detail}"
    if phase in _VERBS:
        return f"{_VERBS[phase]} step {part.step_id}"
    return "in no traced phase" if part.name == "other" else f"in {part.name} of step {part.step_id}"


# --- sets -----------------------------------------------------------------------------------------


@once
def device_busy(trace: Trace) -> Intervals:
    """G = union of the compute track's spans, in the window."""
    return clip(union_of(trace.where("compute")), *trace.window)


@once
def host_work(trace: Trace) -> Intervals:
    """H = union of the host track's spans without its waits and sync leaks, in the window."""
    waits = union_of(trace.where("host", "wait", "sync:"))
    return clip(subtract(union_of(trace.where("host")), waits), *trace.window)


@once
def gaps(trace: Trace) -> Intervals:
    """D \\ G, of any length."""
    return subtract(demand(trace), device_busy(trace))


def idle(trace: Trace) -> Intervals:
    """When the bubbles are: the gaps longer than EPSILON_NS."""
    found = gaps(trace)
    return found[found[:, 1] - found[:, 0] > EPSILON_NS]


def union_of(rows: Table) -> Intervals:
    """When any of the spans lasts."""
    return union(pairs(rows["start_ns"], rows["end_ns"]))


# --- causes ---------------------------------------------------------------------------------------


@once
def bubbles(trace: Trace) -> list[Bubble]:
    """The bubbles, each with its cause, in order of time."""
    found = idle(trace)
    if not len(found):
        return []
    device = trace.where("compute")
    begun, names, ids = (device[column].tolist() for column in ("start_ns", "name", "step_id"))
    enqueued = {name: by_step(trace.where("host", name), "end_ns") for name in ("launch", "sample")}
    following = np.searchsorted(device["start_ns"], found[:, 1]).tolist()
    leaves, blocking = host_leaves(trace), _blocking(trace)
    ends = [leaf.end_ns for leaf in leaves]
    arrivals = {mark.time_ns for mark in trace.marks if mark.name == "arrival"}
    bubbles = []
    for (a, b), i in zip(found.tolist(), following, strict=True):
        step, name, done = -1, "", None
        if i < len(begun) and begun[i] == b:
            step, name = ids[i], trace.names[names[i]]
            done = enqueued["sample" if name == "sample" else "launch"].get(step)
        host = b - a if done is None else min(max(done - a, 0), b - a)
        parts = _parts(leaves, bisect_right(ends, a), a, a + host)
        case = "end" if step < 0 else "blocking" if name != "sample" and step in blocking else ""
        case = "arrival" if a in arrivals else case
        bubbles.append(Bubble(a, b, step, host, b - a - host, parts, name, case))
    return bubbles


def by_step(rows: Table, column: str) -> dict[int, int]:
    """Step -> a column of its span; of several the last."""
    return dict(zip(rows["step_id"].tolist(), rows[column].tolist(), strict=True))


class Leaf(NamedTuple):
    """A stretch of the host's time and the innermost span that covers it."""

    start_ns: int
    end_ns: int
    name: str
    step_id: int


@once
def host_leaves(trace: Trace) -> list[Leaf]:
    """The host's spans cut into disjoint pieces, in order."""
    rows = trace.where("host")
    fields = (rows[name].tolist() for name in ("start_ns", "end_ns", "name", "step_id"))
    leaves: list[Leaf] = []
    opened: list[tuple[int, str, int]] = []  # end, name, step of the spans around `at`
    at = 0

    def until(time: int) -> None:
        nonlocal at
        while opened and at < time:
            end, name, step = opened[-1]
            if min(end, time) > at:
                leaves.append(Leaf(at, min(end, time), name, step))
                at = min(end, time)
            if end <= time:
                opened.pop()

    for start, end, code, step in zip(*fields, strict=True):
        until(start)
        at = start
        opened.append((end, trace.names[code], step))
    until(max((end for end, _, _ in opened), default=0))
    return leaves


def _parts(leaves: list[Leaf], first: int, start: int, end: int) -> tuple[Part, ...]:
    """What the host did in [start, end), in order; leaves[first] is the first that ends after `start`."""
    sums: dict[tuple[str, int], int] = {}
    for i in range(first, len(leaves)):
        a, b, name, step = leaves[i]
        if a >= end:
            break
        sums[name, step] = sums.get((name, step), 0) + min(b, end) - max(a, start)
    rest = end - start - sum(sums.values())
    parts = [Part(name, step, ns) for (name, step), ns in sums.items()]
    return (*parts, Part("other", -1, rest)) if rest else tuple(parts)


def steps_overlap(trace: Trace) -> bool:
    """True when some step was launched before the one launched before it was committed: depth 2."""
    flights = _flights(trace)
    return any(start < end for (_, end, _), (start, _, _) in pairwise(flights))


def _flights(trace: Trace) -> list[tuple[int, int, int]]:
    """(launch start, commit end, step) of the steps of which both are known, in order of launch."""
    starts = by_step(trace.where("host", "launch"), "start_ns")
    ends = by_step(trace.where("host", "commit"), "end_ns")
    return sorted((starts[step], ends[step], step) for step in starts.keys() & ends.keys())


def _blocking(trace: Trace) -> set[int]:
    """Decode steps launched after the commit of the step before, in a trace where all steps are."""
    decode = set(trace.where("host", "launch", kind="decode")["step_id"].tolist())
    if steps_overlap(trace):
        return set()
    return {step for (_, _, before), (_, _, step) in pairwise(_flights(trace)) if before == step - 1} & decode
