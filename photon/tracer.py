"""Tracer: the engine's spans and marks, at one branch per site when nobody listens."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as Items

from photon.observe import Mark, Observer, Observers, Span
from photon.pipeline import Step


class Tracer:
    """Stamps host spans with the step they belong to. All calls come from the engine's thread."""

    def __init__(self, observers: Items[Observer], now_ns: Callable[[], int]) -> None:
        self._observers = Observers(observers)
        self._now_ns = now_ns

    def __bool__(self) -> bool:
        return bool(self._observers)

    def now(self) -> int:
        """The start of a span, or 0 when nobody listens."""
        return self._now_ns() if self._observers else 0

    def host(self, name: str, start_ns: int, step: Step, num_zombies: int = 0) -> None:
        """A host span from `start_ns` until now."""
        if not self._observers:
            return
        tail = (step.step_id, step.slot, step.kind, len(step.rows), num_zombies, step.padding)
        self._observers.span(Span("host", name, start_ns, self._now_ns(), *tail))

    def spans(self, spans: Items[Span]) -> None:
        for span in spans:
            self._observers.span(span)

    def mark(self, name: str, request_id: int, step_id: int, time_ns: int) -> None:
        if self._observers:
            self._observers.mark(Mark(name, time_ns, request_id, step_id))
