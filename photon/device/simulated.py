"""A device on a virtual clock: programs run at once, and take as long as a cost model says.

    host time     --plan--launch--.---sample--........--commit--      `host_phase` and waits move it
                                   \\
    stream's end                    [ forward ][ sample ]              max(end, host time) + cost

A stream is in order, so all there is to know of its future is when it will run dry. Work begins when the
stream is free and the host has enqueued it; an event is reached at the stream's end; waiting for it moves
the host there. So every time is known when the work is enqueued, and no order of events is left to play:
no thread, no sleep, no real clock, and the same calls give the same nanoseconds.

The programs themselves do run, in the order of the calls, which is one the streams permit: with the
runner that the engine asks for (real tokens), or with another one given here (`model/scripted.py`).

Not modelled: contention between the two streams, and shapes (`fixed_shapes` is False: no padding).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from photon.device.base import Event, RunnerSpec, Stream, Work
from photon.device.cost import CostModel
from photon.device.failures import CLOSED, NO_TIME, NOT_RECORDED, build_failed, program_failed
from photon.device.waits import HostWaits, blocks_host
from photon.errors import DeviceError

NEVER = 1 << 62


class SimulatedEvent:
    """See `photon.device.base.Event`."""

    def __init__(self, device: SimulatedDevice, timing: bool) -> None:
        self._device = device
        self.waits = device.waits
        self.timing = timing
        self.time_ns: int | None = None
        """Of the last record; NEVER behind a failure."""

    def query(self) -> bool:
        return self.time_ns is not None and self.time_ns <= self._device.now_ns()

    @blocks_host("Event.synchronize")
    def synchronize(self) -> None:
        if self.time_ns is None:
            raise RuntimeError(NOT_RECORDED)
        self._device.wait_until(self.time_ns)


class SimulatedStream:
    """See `photon.device.base.Stream`."""

    def __init__(self, device: SimulatedDevice, name: str) -> None:
        self._device = device
        self.waits = device.waits
        self.name = name
        self._end_ns = 0

    def enqueue(self, work: Work, *, label: str, begun: Event | None = None) -> None:
        if begun is not None:
            self.record_event(begun)
        self._end_ns = self._device.run(work, self._end_ns)

    def record_event(self, event: Event) -> None:
        assert isinstance(event, SimulatedEvent)
        self._device.check_open()
        event.time_ns = self._end_ns = self._device.start_ns(self._end_ns)

    def wait_event(self, event: Event) -> None:
        assert isinstance(event, SimulatedEvent)
        self._device.check_open()
        self._end_ns = max(self._end_ns, event.time_ns or 0)

    @blocks_host("Stream.synchronize")
    def synchronize(self) -> None:
        self._device.wait_until(self._end_ns)


class SimulatedDevice:
    """See `photon.device.base.Device`.

    Args:
        cost: how long programs and host phases take.
        runner: builds the programs instead of the spec that is loaded.
    """

    torch_device = "cpu"
    poisons = False
    fixed_shapes = False
    clock_uncertainty_ns = clock_clamped = 0

    def __init__(self, cost: CostModel, runner: Callable[[Any], Any] | None = None) -> None:
        self.cost = cost
        self.name = "sim:" + cost.name.lower().replace(" ", "")
        self._build = runner
        self.waits = HostWaits(self.now_ns)
        self.compute: Stream = SimulatedStream(self, "compute")
        self.copy: Stream = SimulatedStream(self, "copy")
        self._runner: Any = None
        self._now_ns, self._start_ns = 0, round(cost.start_ms * 1e6)
        self._failure: str | None = None
        self._is_closed = False

    def host_buffer(self, num_bytes: int) -> Any:
        import torch

        return torch.zeros(num_bytes, dtype=torch.uint8)

    def load(self, spec: RunnerSpec) -> None:
        self.check_open()
        try:
            self._runner = self._build(spec) if self._build else spec.build(self.torch_device)
        except Exception as error:
            raise DeviceError(build_failed(error)) from error

    @blocks_host("Device.call")
    def call(self, work: Work) -> Any:
        """See base. An exception of the called program is the caller's alone; the device lives on."""
        self.check_open()
        for stream in (self.compute, self.copy):
            stream.synchronize()
        try:
            return getattr(self._runner, work.program)(*work.args)
        except Exception as error:
            raise DeviceError(program_failed(work.program, error)) from error

    def event(self, *, timing: bool = False) -> SimulatedEvent:
        return SimulatedEvent(self, timing)

    def capture(self, work: Work, *, begun: Event | None = None) -> None:
        """Nothing to prepare, and nothing runs."""
        self.check_open()

    def free_bytes(self) -> int | None:
        return None

    def host_phase(self, name: str, num_rows: int) -> None:
        """The host works on this phase, which takes as long as the cost model says."""
        self._now_ns += self.cost.host_ns(name, num_rows)

    def forbid_syncs(self, is_forbidden: bool) -> None:
        """Programs run at once."""

    def now_ns(self) -> int:
        return self._now_ns

    def time_ns(self, event: Event) -> int:
        assert isinstance(event, SimulatedEvent)
        if not event.timing or not event.query() or event.time_ns is None:
            raise RuntimeError(NO_TIME)
        return event.time_ns

    def close(self) -> None:
        self._is_closed = True
        self._runner = None

    def check_open(self) -> None:
        if self._is_closed:
            raise DeviceError(CLOSED)

    # The streams' side -------------------------------------------------------------------------------

    def start_ns(self, end_ns: int) -> int:
        """When a stream that is busy until `end_ns` begins what the host enqueues now."""
        return NEVER if self._failure else max(end_ns, self._now_ns + self._start_ns)

    def run(self, work: Work, end_ns: int) -> int:
        """Run the program; returns when the stream will have done so."""
        self.check_open()
        if self._failure:
            return NEVER
        try:
            getattr(self._runner, work.program)(*work.args)
        except Exception as error:
            self._failure = program_failed(work.program, error)
            return NEVER
        return self.start_ns(end_ns) + self.cost.work_ns(work)

    def wait_until(self, time_ns: int) -> None:
        """The host waits. Raises DeviceError where the time never comes."""
        self.check_open()
        if time_ns >= NEVER:
            raise DeviceError(self._failure or CLOSED)
        self._now_ns = max(self._now_ns, time_ns)
