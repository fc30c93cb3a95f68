"""All that tracing knows about a producer: the shape of its two kinds of record.

A span is a stretch of work on one track, a mark an instant of one request. Both carry integer
nanoseconds of one clock. `rows` counts the rows that belong to a sequence, zombies included;
`padding` counts the rows added beside them to fill a bucket. Useful rows = rows - zombies.
"""

from __future__ import annotations

from typing import Protocol


class SpanLike(Protocol):
    """track: "host" (plan, launch, sample, wait, commit), "compute" (vision, prefill, forward, sample)
    or "copy" (h2d, d2h); slot: 0, 1, or -1 for work of no slot; kind: "prefill", "decode" or "".
    """

    @property
    def track(self) -> str: ...
    @property
    def name(self) -> str: ...
    @property
    def start_ns(self) -> int: ...
    @property
    def end_ns(self) -> int: ...
    @property
    def step_id(self) -> int: ...
    @property
    def slot(self) -> int: ...
    @property
    def kind(self) -> str: ...
    @property
    def rows(self) -> int: ...
    @property
    def zombies(self) -> int: ...
    @property
    def padding(self) -> int: ...


class MarkLike(Protocol):
    """name: arrival, admitted, first_token, token, finish, release or cancel."""

    @property
    def name(self) -> str: ...
    @property
    def time_ns(self) -> int: ...
    @property
    def request_id(self) -> int: ...
    @property
    def step_id(self) -> int: ...
