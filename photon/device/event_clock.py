"""CUDA event times on the host clock. Pure: knows events only by `elapsed_time`.

CUDA gives the float32 milliseconds between two events. An anchor is an event on an idle stream, taken
between two looks at the host clock: of five tries the narrowest is kept, half its width is the uncertainty.

    host time of e = anchor's host time + ms(anchor, e) * rate        rate: drift between the last 2 anchors

For an e between the last two anchors that is their interpolation, for a later one an offset from the last.
Whatever the two clocks say, the card cannot reach an event before the host has recorded it, nor later than
the host asks: a time outside is moved to the nearer end and counted. So device spans never start before
their launch, nor end after their commit, and a copy never starts before what it waited for.

At one anchor a second the distance stays far below the 8 s from where float32 costs more than 0.5 us.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

ANCHOR_PERIOD_NS = 1_000_000_000
ANCHOR_TRIES = 5
MIN_DRIFT_GAP_MS = 500.0
MAX_DRIFT = 1e-3
QUANTUM_NS = 500


class _Anchor(NamedTuple):
    event: Any
    host_ns: int
    uncertainty_ns: int


class EventClock:
    """Maps timing events to the host clock.

    Args:
        record: makes a timing event, records it on an idle stream, waits for it and returns it.
        now_ns: the host clock.
    """

    def __init__(self, record: Callable[[], Any], now_ns: Callable[[], int]) -> None:
        self._record = record
        self._now_ns = now_ns
        self._rate = 1.0  # host ns per device ns
        self.num_clamped = 0
        self._anchor = self._measure()

    @property
    def uncertainty_ns(self) -> int:
        return self._anchor.uncertainty_ns + QUANTUM_NS

    def refresh(self) -> None:
        """Anchor again when the last anchor is a second old: about 0.1 ms, on the side stream."""
        if self._now_ns() - self._anchor.host_ns < ANCHOR_PERIOD_NS:
            return
        old, new = self._anchor, self._measure()
        gap_ms = _signed_ms(old.event, new.event)
        # over a short gap the anchors' jitter would pass for drift
        rate = (new.host_ns - old.host_ns) / (gap_ms * 1e6) if gap_ms > MIN_DRIFT_GAP_MS else 1.0
        self._rate = min(max(rate, 1 - MAX_DRIFT), 1 + MAX_DRIFT)
        self._anchor = new

    def host_ns(self, event: Any, recorded_ns: int) -> int:
        """The host's time of a torch event that was reached, between its record and now."""
        mapped = self._anchor.host_ns + round(_signed_ms(self._anchor.event, event) * 1e6 * self._rate)
        time_ns = min(max(mapped, recorded_ns), self._now_ns())
        self.num_clamped += time_ns != mapped
        return time_ns

    def _measure(self) -> _Anchor:
        return min((self._try() for _ in range(ANCHOR_TRIES)), key=lambda anchor: anchor.uncertainty_ns)

    def _try(self) -> _Anchor:
        before = self._now_ns()
        event = self._record()
        after = self._now_ns()
        return _Anchor(event, (before + after) // 2, (after - before + 1) // 2)


def _signed_ms(start: Any, end: Any) -> float:
    """Milliseconds from start to end; CUDA promises a sensible answer only when end is the later one."""
    forward = start.elapsed_time(end)
    return forward if forward > 0 else -end.elapsed_time(start)
