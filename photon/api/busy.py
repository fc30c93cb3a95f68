"""DeviceTime: how long the device computed, was wanted, and idled although it was wanted.

wanted    |-----------------------|
computed     |####|   |######|
bubble    ---      ---               what follows the last computation counts when the next one comes
"""

from __future__ import annotations


class DeviceTime:
    """Running totals over spans and requests, told in the order in which the engine tells them."""

    def __init__(self) -> None:
        self.busy_ns = self.bubble_ns = self.wanted_ns = 0
        self._num_wanting = 0
        self._wanted: list[list[int | None]] = []
        """[start, end) of each stretch of demand not yet passed by the device; no end while it lasts."""
        self._until: int | None = None

    def wanted(self, time_ns: int) -> None:
        """A request arrived."""
        if self._num_wanting == 0:
            self._wanted.append([time_ns, None])
        self._num_wanting += 1

    def released(self, time_ns: int) -> None:
        """A request that had arrived ended."""
        self._num_wanting -= 1
        if self._num_wanting == 0:
            self._wanted[-1][1] = time_ns

    def computed(self, start_ns: int, end_ns: int) -> None:
        """The device computed in [start_ns, end_ns), later than or next to what it computed before."""
        if self._until is None:
            self._until = min([start_ns, *(start for start, _ in self._wanted if start is not None)])
        start_ns = max(start_ns, self._until)
        end_ns = max(end_ns, start_ns)
        self.busy_ns += end_ns - start_ns
        self.bubble_ns += self._demand(self._until, start_ns)
        self.wanted_ns += self._demand(self._until, end_ns)
        self._until = end_ns
        self._wanted = [stretch for stretch in self._wanted if stretch[1] is None or stretch[1] > end_ns]

    def _demand(self, start_ns: int, end_ns: int) -> int:
        """Length of [start_ns, end_ns) in which somebody wanted the device."""
        return sum(
            max(0, min(end_ns, end_ns if end is None else end) - max(start_ns, start or 0))
            for start, end in self._wanted
        )

    def totals_ns(self) -> tuple[tuple[str, int, str], ...]:
        """Name, total and meaning of each."""
        return (
            ("device_busy", self.busy_ns, "Time the device computed"),
            ("device_bubble", self.bubble_ns, "Time the device idled although some request was open"),
            ("demand", self.wanted_ns, "Time some request was open"),
        )
