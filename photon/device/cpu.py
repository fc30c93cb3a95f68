"""The cpu device: a worker process that owns runner, model and KV, behind streams and events.

    engine's thread                                   worker process (worker.py)
    enqueue, record, wait  -- a pipe of commands -->  two in-order streams, one executor loop
    query, time_ns         <= a shared table =======  items done per stream, times of records
    synchronize            <- a wake, if it blocks -
    host buffers           <= shared memory =======>  the same bytes, no copy

What is real: work is asynchronous to the host and overlaps with it on another core, each stream is in
order, streams are ordered by events, event times are CLOCK_MONOTONIC of both processes. What is not: there
is no copy engine, so copies run between compute work, in the same thread, as early as events permit.
Nothing but synchronize, call, load and close blocks (enqueue would, behind 1 MiB of unread commands).

Measured (2 cores of a cloud machine, torch 2.13, real-time priority as other jobs ran; microseconds):
- host: 1.4 per enqueue or record, 43 (p50) for the 10 calls of a step that finds the worker asleep
- worker: 23 per step of 10 commands besides the programs; 1 s to start
- an empty step, enqueue to awake again: 94 (p50), 126 (p90) with two sleeping cores to wake, of which
  37 from the record to the host; 25 where the worker's core is awake
- toy decode (4 layers, 128 wide, eager) and 400 us of Python on the host per step, depth 1 -> depth 2:

             1 row                       8 rows
    process  1316 -> 652 (+102 %)        2237 -> 1566 (+43 %)       the worker is busy all the time
    thread   1288 -> 1279 (+1 %)         2308 -> 2252 (+3 %)        same design; the lock serialises it
  and without host work: process 867 -> 693 and 1913 -> 1536, thread 777 -> 716 and 1831 -> 1850.
- with both cores taken by others, the kernel may wake the worker on the host's core: a launch then takes
  as long as the program that got in between (p90 0.7 ms), and depth 2 gains nothing.
"""

from __future__ import annotations

import sys
import time
from typing import Any

from photon.device.base import Event, RunnerSpec, Stream, Work
from photon.device.failures import NO_TIME, NOT_RECORDED
from photon.device.host_memory import free_host_bytes
from photon.device.link import WorkerLink
from photon.device.waits import HostWaits, blocks_host
from photon.device.worker import (
    CALL,
    CPU_CELLS,
    MAX_TIMING_EVENTS,
    NO_CELL,
    NOTIFY,
    NUM_STREAMS,
    RECORD,
    WAIT,
    WORK,
)
from photon.errors import DeviceError


class CpuEvent:
    """See `photon.device.base.Event`. A record is the number of an item of a stream."""

    def __init__(self, link: WorkerLink, waits: HostWaits, first_cell: int) -> None:
        self._link = link
        self.waits = waits
        self._first_cell = first_cell
        self.stream = 0
        self.number = 0  # 0: never recorded

    @property
    def cell(self) -> int:
        """Where the worker writes the last record's time: a cell per stream, as their records may race."""
        return NO_CELL if self._first_cell == NO_CELL else self._first_cell + self.stream

    def query(self) -> bool:
        return 0 < self.number <= self._link.table[self.stream]

    @blocks_host("Event.synchronize")
    def synchronize(self) -> None:
        if self.number == 0:
            raise RuntimeError(NOT_RECORDED)
        wait_for(self._link, self.stream, self.number)


class CpuStream:
    """See `photon.device.base.Stream`. Each item is one command to the worker."""

    def __init__(self, link: WorkerLink, waits: HostWaits, index: int, name: str) -> None:
        self._link = link
        self.waits = waits
        self._index = index
        self.name = name
        self._number = 0

    def enqueue(self, work: Work, *, label: str, begun: Event | None = None) -> None:
        """Raises ValueError when an argument is not a plain int, bool, float, str, None or tuple of these."""
        if begun is not None:
            self.record_event(begun)
        self._link.send((WORK, self._index, work.program, work.args))
        self._number += 1

    def record_event(self, event: Event) -> None:
        assert isinstance(event, CpuEvent)
        event.stream, event.number = self._index, self._number + 1
        self._link.send((RECORD, self._index, event.cell))
        self._number += 1

    def wait_event(self, event: Event) -> None:
        assert isinstance(event, CpuEvent)
        if event.number:
            self._link.send((WAIT, self._index, event.stream, event.number))
            self._number += 1

    @blocks_host("Stream.synchronize")
    def synchronize(self) -> None:
        wait_for(self._link, self._index, self._number)


def wait_for(link: WorkerLink, stream: int, number: int) -> None:
    """Block until so many items of the stream have run. Raises DeviceError when they never will."""
    if link.table[stream] >= number:
        return
    link.check()
    link.send((NOTIFY, stream, number))
    while link.table[stream] < number:
        link.check()
        link.receive()


class CpuDevice:
    """See `photon.device.base.Device`.

    Args:
        num_threads: torch threads of the worker. One is best for a small model.
        is_metered: every timing event also tells the worker's CPU time, at 0.3 us each.

    Raises:
        DeviceError: the worker could not be started.
    """

    name = "cpu"
    torch_device = "cpu"
    poisons = False
    fixed_shapes = False
    clock_uncertainty_ns = clock_clamped = 0

    def __init__(self, *, num_threads: int = 1, is_metered: bool = False) -> None:
        if sys.platform == "win32":
            raise DeviceError("The cpu device needs Linux or macOS; on Windows run it inside WSL.")
        if num_threads < 1:
            raise DeviceError(f"The cpu device cannot run on {num_threads} threads; give it one or more.")
        self._num_threads, self._is_metered = num_threads, is_metered
        self._num_timing_events = 0
        self._link = WorkerLink()
        self.waits = HostWaits(self.now_ns)
        self.compute: Stream = CpuStream(self._link, self.waits, 0, "compute")
        self.copy: Stream = CpuStream(self._link, self.waits, 1, "copy")

    @property
    def pid(self) -> int:
        """The worker's process id."""
        return self._link.process.pid

    def host_buffer(self, num_bytes: int) -> Any:
        return self._link.host_buffer(num_bytes)

    def load(self, spec: RunnerSpec) -> None:
        """See base. The spec's class must be importable by name, so not of `__main__`."""
        self._link.load(spec, self._num_threads, self._is_metered)

    @blocks_host("Device.call")
    def call(self, work: Work) -> Any:
        """See base. An exception of the called program is the caller's alone; the device lives on."""
        self._link.check()
        self.compute.synchronize()
        self.copy.synchronize()
        return self._link.exchange((CALL, work.program, work.args))

    def event(self, *, timing: bool = False) -> CpuEvent:
        if not timing:
            return CpuEvent(self._link, self.waits, NO_CELL)
        if self._num_timing_events == MAX_TIMING_EVENTS:
            raise DeviceError(f"The cpu device has {MAX_TIMING_EVENTS} timing events; record them again.")
        self._num_timing_events += 1
        return CpuEvent(self._link, self.waits, NUM_STREAMS * self._num_timing_events)

    def capture(self, work: Work, *, begun: Event | None = None) -> None:
        """Nothing to prepare, and nothing runs."""
        self._link.check()

    def free_bytes(self) -> int | None:
        return free_host_bytes()

    def host_phase(self, name: str, num_rows: int) -> None:
        """Time passes by itself."""

    def forbid_syncs(self, is_forbidden: bool) -> None:
        """Programs run in the worker, where none can make the host wait."""

    @staticmethod
    def now_ns() -> int:
        return time.perf_counter_ns()

    def time_ns(self, event: Event) -> int:
        assert isinstance(event, CpuEvent)
        if event.cell == NO_CELL or not event.query():
            raise RuntimeError(NO_TIME)
        return self._link.table[event.cell]

    def cpu_ns(self, event: Event) -> int:
        """CPU time that the worker's thread had used at the event; only of a metered device.

        A clock of its own: it stands still when the worker sleeps, or waits for a core.
        """
        assert self._is_metered
        assert isinstance(event, CpuEvent)
        return self._link.table[event.cell + CPU_CELLS]

    def close(self) -> None:
        """See base. Work that has not begun never runs; a program that takes over half a second is killed."""
        self._link.close()
