"""All that tracing knows about a producer: the shape of its three kinds of record.

A span is a stretch of work on one track, a mark an instant of one request, a step what one commit did
with each of its rows. All carry integer nanoseconds of one clock. `rows` counts the rows that belong to a
sequence, zombies included; `padding` counts the rows added beside them to fill a bucket. Useful rows =
rows - zombies.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol


class SpanLike(Protocol):
    """track: "host" (plan, launch, sample, wait, commit, and inside or between them "sync: <call>" where the
    host waited for the device, "injected: <what>" where it was held up on purpose), "compute" (h2d, vision,
    prefill, forward, sample) or "copy" (h2d, d2h); slot: 0, 1, or -1 for work of no slot; kind: "prefill",
    "decode" or "".
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
    """name: arrival, admitted, first_token, finish, release or cancel; prefix_hit where a prefill was spared
    its image, whose keys and values were cached."""

    @property
    def name(self) -> str: ...
    @property
    def time_ns(self) -> int: ...
    @property
    def request_id(self) -> int: ...
    @property
    def step_id(self) -> int: ...


StepRowLike = tuple[int, int, int, float, float, str, bool, bool, int, int, int, int]
"""One row of a committed step, a plain or a named tuple, since there is one for each token: request_id;
position, the KV position it wrote last; token_id; x, y, the value of a coordinate (x) or a size, nan
otherwise; mask, the name of the allowed-token mask; is_zombie; is_delivered, the token went to the request;
refs_before and refs_after, the steps in flight that held the request around this commit; pages, the KV pages
held then; lora_slot, 0 = none."""


class StepLike(Protocol):
    """One committed step. time_ns: when its tokens count as committed; waits: what waited for which event,
    verb by verb, as "launch: nothing | sample: ... | commit: ...".
    """

    @property
    def step_id(self) -> int: ...
    @property
    def time_ns(self) -> int: ...
    @property
    def waits(self) -> str: ...
    @property
    def rows(self) -> Sequence[StepRowLike]: ...
