"""What the marks say about each request, and demand: when some request wanted the device.

A token is one commit of one request, told by a `token` or a `first_token` mark or both with the same
step. A request ends at its first `finish` or `cancel`. Unknown instants are None: a request whose
arrival is not among the marks had arrived before the window, one without an end is still running.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from tracing.intervals import Intervals, clip, union
from tracing.trace import ENDS, Trace


class RequestLife(NamedTuple):
    request_id: int
    arrival_ns: int | None = None
    admitted_ns: int | None = None
    first_token_ns: int | None = None
    end_ns: int | None = None
    tokens_ns: tuple[int, ...] = ()
    is_cancelled: bool = False


def request_lives(trace: Trace) -> list[RequestLife]:
    """One entry per request of the trace, in order of its first mark."""
    instants: dict[int, dict[str, int]] = {}
    tokens: dict[int, dict[tuple[int, int], int]] = {}
    for time, request, step, code in trace.mark_table.tolist():
        name = trace.names[code]
        instants.setdefault(request, {}).setdefault(name, time)
        if name in ("token", "first_token"):
            commit = (step, 0) if step >= 0 else (step, time)
            tokens.setdefault(request, {}).setdefault(commit, time)
    return [_life(request, at, tokens.get(request, {}).values()) for request, at in instants.items()]


def _life(request: int, at: dict[str, int], commits: Iterable[int]) -> RequestLife:
    times = tuple(sorted(commits))
    first = at.get("first_token", times[0] if times and "arrival" in at else None)
    end = min((at[name] for name in ENDS if name in at), default=None)
    return RequestLife(request, at.get("arrival"), at.get("admitted"), first, end, times, "cancel" in at)


def demand(trace: Trace) -> Intervals:
    """D = union over requests of [arrival, finish), in the window."""
    start, end = trace.window
    lives = request_lives(trace)
    alive = [
        (start if r.arrival_ns is None else r.arrival_ns, end if r.end_ns is None else r.end_ns)
        for r in lives
    ]
    return clip(union(alive), start, end)
