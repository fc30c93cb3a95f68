"""A device that does nothing, so that the host's own cost is all there is to measure.

    enqueue, record_event, wait_event, synchronize     return: everything has happened already
    fetch                                              writes the one token that every row is answered with

Streams are always dry, so an event is reached when it is recorded, and no wait waits. `cpu_ns` is the clock
that says what the host's Python took, however many other programs share the machine.
"""

from __future__ import annotations

import time
from typing import Any

from photon.device.base import Event, RunnerSpec, Stream, Work
from photon.device.failures import CLOSED, NO_TIME, NOT_RECORDED
from photon.device.waits import HostWaits, blocks_host
from photon.errors import DeviceError


class IdleEvent:
    """See `photon.device.base.Event`."""

    def __init__(self, waits: HostWaits, timing: bool) -> None:
        self.waits = waits
        self.timing = timing
        self.time_ns = 0
        """Of the last record; 0 before it."""

    def query(self) -> bool:
        return self.time_ns > 0

    @blocks_host("Event.synchronize")
    def synchronize(self) -> None:
        if not self.time_ns:
            raise RuntimeError(NOT_RECORDED)


class IdleStream:
    """See `photon.device.base.Stream`."""

    def __init__(self, device: IdleDevice, name: str) -> None:
        self._device = device
        self.waits = device.waits
        self.name = name

    def enqueue(self, work: Work, *, label: str, begun: Event | None = None) -> None:
        if begun is not None:
            self.record_event(begun)
        if work.program == "fetch":
            self._device.answer(work.args[0])

    def record_event(self, event: Event) -> None:
        assert isinstance(event, IdleEvent)
        event.time_ns = time.perf_counter_ns()

    def wait_event(self, event: Event) -> None:
        """It has been reached."""

    @blocks_host("Stream.synchronize")
    def synchronize(self) -> None:
        """There is nothing to wait for."""


class IdleDevice:
    """See `photon.device.base.Device`.

    Args:
        token_id: what every row of every step is answered with.
    """

    name = torch_device = "idle"
    poisons = False
    fixed_shapes = False
    clock_uncertainty_ns = clock_clamped = 0

    def __init__(self, token_id: int) -> None:
        self._token_id = token_id
        self._answers: list[Any] = []
        self._is_closed = False
        self.waits = HostWaits(self.now_ns)
        self.compute: Stream = IdleStream(self, "compute")
        self.copy: Stream = IdleStream(self, "copy")

    def host_buffer(self, num_bytes: int) -> Any:
        import torch

        return torch.zeros(num_bytes, dtype=torch.uint8)

    def load(self, spec: RunnerSpec) -> None:
        """Nothing is built: all that is needed of the spec is where the answers go."""
        model_spec: Any = spec
        for blocks in model_spec.host_blocks:
            self._answers.append(model_spec.shapes.views("results", blocks["results"]).token.numpy())

    def answer(self, slot: int) -> None:
        """All rows of the slot get the one token."""
        if self._is_closed:
            raise DeviceError(CLOSED)
        self._answers[slot].fill(self._token_id)

    @blocks_host("Device.call")
    def call(self, work: Work) -> Any:
        """No program has a result."""

    def event(self, *, timing: bool = False) -> IdleEvent:
        return IdleEvent(self.waits, timing)

    def capture(self, work: Work, *, begun: Event | None = None) -> None:
        """Nothing to prepare."""

    def free_bytes(self) -> int | None:
        return None

    def host_phase(self, name: str, num_rows: int) -> None:
        """Time passes by itself."""

    def forbid_syncs(self, is_forbidden: bool) -> None:
        """No program runs."""

    def now_ns(self) -> int:
        return time.perf_counter_ns()

    def cpu_ns(self) -> int:
        """CPU time of the calling thread: what others take of its core is not in it."""
        return time.thread_time_ns()

    def time_ns(self, event: Event) -> int:
        assert isinstance(event, IdleEvent)
        if not event.timing or not event.time_ns:
            raise RuntimeError(NO_TIME)
        return event.time_ns

    def close(self) -> None:
        self._is_closed = True
