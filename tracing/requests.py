"""What marks and rows say about each request, and demand: when some request wanted the device.

A token is one commit of one request, told by a delivered row; without any row the `first_token` mark tells
of one. A request ends at its first `finish` or `cancel`. Unknown instants are None: a
request whose arrival is not among the marks had arrived before the window, one without an end is still
running. One that is known by its tokens alone ended with the last of them.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from tracing.intervals import Intervals, clip, union
from tracing.trace import ENDS, Trace, once


class RequestLife(NamedTuple):
    request_id: int
    arrival_ns: int | None = None
    admitted_ns: int | None = None
    first_token_ns: int | None = None
    end_ns: int | None = None
    tokens_ns: tuple[int, ...] = ()
    is_cancelled: bool = False


@once
def request_lives(trace: Trace) -> list[RequestLife]:
    """One entry per request of the trace, in order of its first mark; then those without any."""
    instants: dict[int, dict[str, int]] = {}
    for time, request, _, code in trace.mark_table.tolist():
        instants.setdefault(request, {}).setdefault(trace.names[code], time)
    tokens = _tokens(trace)
    for request in sorted(tokens.keys() - instants.keys()):
        instants[request] = {"finish": tokens[request][-1]}
    return [_life(request, at, tokens.get(request, [])) for request, at in instants.items()]


def _tokens(trace: Trace) -> dict[int, list[int]]:
    """Request -> when its tokens were committed, in order."""
    rows = trace.row_table[trace.row_table["is_delivered"]]
    rows = rows[np.lexsort((rows["time_ns"], rows["request_id"]))]
    ids, first = np.unique(rows["request_id"], return_index=True)
    groups = np.split(rows["time_ns"], first[1:])
    return {request: times.tolist() for request, times in zip(ids.tolist(), groups, strict=False)}


def _life(request: int, at: dict[str, int], tokens: list[int]) -> RequestLife:
    first = at.get("first_token", tokens[0] if tokens and "arrival" in at else None)
    end = min((at[name] for name in ENDS if name in at), default=None)
    times = tuple(tokens) if tokens or first is None else (first,)
    return RequestLife(request, at.get("arrival"), at.get("admitted"), first, end, times, "cancel" in at)


@once
def demand(trace: Trace) -> Intervals:
    """D = union over requests of [arrival, finish), in the window."""
    start, end = trace.window
    lives = request_lives(trace)
    alive = [
        (start if r.arrival_ns is None else r.arrival_ns, end if r.end_ns is None else r.end_ns)
        for r in lives
    ]
    return clip(union(alive), start, end)
