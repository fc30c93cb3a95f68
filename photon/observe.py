"""What the engine tells whoever listens: spans (something took time) and marks (something happened).

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

    track: "host" (plan, launch, sample, wait, commit), "compute" (vision, prefill, forward, sample)
    or "copy" (d2h). slot is -1 for host work that belongs to no slot.
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
    """One instant of one request: arrival, admitted, first_token, token, finish, release, cancel."""

    name: str
    time_ns: int
    request_id: int
    step_id: int = -1


class Observer(Protocol):
    """Receives records on the engine's thread; must not block."""

    def on_span(self, span: Span) -> None: ...

    def on_mark(self, mark: Mark) -> None: ...


class Observers:
    """Fans records out. An observer that raises is logged once and dropped; tokens never change."""

    def __init__(self, observers: Items[Observer] = ()) -> None:
        self._observers = list(observers)

    def __bool__(self) -> bool:
        return bool(self._observers)

    def span(self, span: Span) -> None:
        for observer in tuple(self._observers):
            try:
                observer.on_span(span)
            except Exception:
                self._drop(observer)

    def mark(self, mark: Mark) -> None:
        for observer in tuple(self._observers):
            try:
                observer.on_mark(mark)
            except Exception:
                self._drop(observer)

    def _drop(self, observer: Observer) -> None:
        log.exception("observer %r raised and was dropped", observer)
        self._observers.remove(observer)
