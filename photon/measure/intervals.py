"""Intervals of a trace in nanoseconds: what spans cover, whether they nest, where they lie in their step."""

from __future__ import annotations

import itertools
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable
from collections.abc import Sequence as Items

from photon.observe import Span

Interval = tuple[int, int]


def union(spans: Iterable[Span]) -> list[Interval]:
    """The time that the spans cover, as disjoint intervals in order."""
    found: list[Interval] = []
    for start, end in sorted((span.start_ns, span.end_ns) for span in spans):
        if found and start <= found[-1][1]:
            found[-1] = found[-1][0], max(found[-1][1], end)
        else:
            found.append((start, end))
    return found


def shared_ns(some: Items[Interval], others: Items[Interval]) -> int:
    """How long both last; each disjoint and in order."""
    shared, first = 0, 0
    for start, end in others:
        first = bisect_left(some, start, lo=first, key=lambda interval: interval[1])
        for begin, stop in itertools.islice(some, first, None):
            if begin >= end:
                break
            shared += min(stop, end) - max(begin, start)
    return shared


def crossings(spans: Iterable[Span], slack_ns: int) -> int:
    """Spans that begin inside an earlier one of their track and end behind it."""
    count = 0
    tracks: dict[str, list[int]] = defaultdict(list)
    for span in sorted(spans, key=lambda span: (span.start_ns, -span.end_ns)):
        open_ends = tracks[span.track]
        while open_ends and open_ends[-1] <= span.start_ns + slack_ns:
            open_ends.pop()
        count += bool(open_ends) and span.end_ns > open_ends[-1] + slack_ns
        open_ends.append(span.end_ns)
    return count


def strays(spans: Iterable[Span], slack_ns: int) -> int:
    """Device spans that begin before their step's launch or end behind its commit."""
    steps: dict[int, list[Span]] = defaultdict(list)
    for span in spans:
        steps[span.step_id].append(span)
    count = 0
    for of_step in steps.values():
        first = min(span.start_ns for span in of_step if span.name == "launch") - slack_ns
        last = max(span.end_ns for span in of_step if span.name == "commit") + slack_ns
        on_device = [span for span in of_step if span.track != "host"]
        count += sum(not first <= span.start_ns <= span.end_ns <= last for span in on_device)
    return count


def host_and_gaps(spans: Iterable[Span], wall: Interval) -> Interval:
    """(total of the outermost host spans, total of the gaps before, between and behind them)."""
    outermost: list[Interval] = []
    for span in sorted((s for s in spans if s.track == "host"), key=lambda s: (s.start_ns, -s.end_ns)):
        if not outermost or span.end_ns > outermost[-1][1]:
            outermost.append((span.start_ns, span.end_ns))
    edges = [wall[0], *itertools.chain.from_iterable(outermost), wall[1]]
    gaps = [max(0, start - end) for end, start in zip(edges[::2], edges[1::2], strict=True)]
    return sum(end - start for start, end in outermost), sum(gaps)
