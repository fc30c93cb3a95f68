"""What the engine tells whoever listens: spans (something took time), marks (something happened to a
request) and step records (what a step brought each of its rows).

The engine knows observers only by the protocol below. Times are integer nanoseconds on the device's
host clock (`Device.now_ns`). Device spans are reported at commit, from events that the commit has
waited for anyway, so observing adds no synchronisation.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence as Items
from typing import NamedTuple, Protocol

log = logging.getLogger(__name__)


class Span(NamedTuple):
    """One stretch of work. Waits are spans of their own, never part of the work next to them.

    track: "host" (plan, launch, sample, wait, commit), "compute" (h2d, vision, prefill, forward, sample)
    or "copy" (h2d, d2h). slot is -1 for host work that belongs to no slot. A host span "sync: CALL in
    FUNCTION" lies inside launch or sample: there the host waited for the device, which it must not (I13).
    """

    track: str
    name: str
    start_ns: int
    end_ns: int
    step_id: int = -1
    slot: int = -1
    kind: str = ""
    rows: int = 0
    zombies: int = 0
    padding: int = 0


class Mark(NamedTuple):
    """One instant of one request: arrival, admitted, first_token, finish, release, cancel; and prefix_hit at
    the launch of a prefill that finds its image in the prefix cache, so that it has no vision span."""

    name: str
    time_ns: int
    request_id: int
    step_id: int = -1


class StepRow(NamedTuple):
    """What a committed step meant for one of its rows."""

    request_id: int
    position: int
    """KV position this row's forward wrote last: of its input token, or of a prefill's last token."""
    token_id: int
    x: float
    """Value of a coordinate, or width of a size; NaN otherwise."""
    y: float
    """Height of a size; NaN otherwise."""
    mask: str
    """Name of the allowed-token mask it was sampled under."""
    is_zombie: bool
    """Its request had finished before this commit; its token was dropped."""
    is_delivered: bool
    """The request took the token, the end token included."""
    refs_before: int
    """inflight_refs before and after this commit."""
    refs_after: int
    pages: int
    """KV pages held at this commit, before any release."""
    lora_slot: int
    """0 = none."""


class StepRecord(NamedTuple):
    """A committed step: one record, sent at the end of its commit."""

    step_id: int
    slot: int
    kind: str
    time_ns: int
    """The one instant at which all its tokens count as committed."""
    padding: int
    waits: str
    """Who waited for which event, by verb: "launch: nothing | sample: copy for sampled | commit: ..."."""
    rows: Items[StepRow]


class Observer(Protocol):
    """Receives records on the engine's thread; must not block."""

    def on_span(self, span: Span) -> None: ...

    def on_mark(self, mark: Mark) -> None: ...

    def on_step(self, record: StepRecord) -> None: ...


class Observers:
    """Fans records out. An observer that raises is logged once and dropped; tokens never change."""

    def __init__(self, observers: Items[Observer] = ()) -> None:
        self.listening = tuple(observers)

    def span(self, span: Span) -> None:
        for observer in self.listening:  # written out three times: some ten spans a step come here
            try:
                observer.on_span(span)
            except Exception:
                self._drop(observer)

    def mark(self, mark: Mark) -> None:
        for observer in self.listening:
            try:
                observer.on_mark(mark)
            except Exception:
                self._drop(observer)

    def step(self, record: StepRecord) -> None:
        for observer in self.listening:
            try:
                observer.on_step(record)
            except Exception:
                self._drop(observer)

    def _drop(self, observer: Observer) -> None:
        log.exception("observer %r raised and was dropped", observer)
        self.listening = tuple(other for other in self.listening if other is not observer)
