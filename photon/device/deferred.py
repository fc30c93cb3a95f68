"""A test double that runs nothing until somebody waits for it, in an order chosen to hurt.

    host     enqueue  record  enqueue  ...  copied.synchronize()
                                             |
    streams  (only queued, nothing runs)     +-> here, on the host's thread: exactly the work that the
                                                 awaited record needs, sometimes a little more, in any
                                                 order that the streams and events permit

Owns the runner and two queues; no thread, no process, no real clock. Every order it takes is one that a
real device could take, so a driver with all its waits gets the same bytes on every seed, and a driver
that lacks one (a host buffer rewritten before its upload ran, a result read before its event, a copy not
ordered behind its compute work) gets wrong ones on some. The order is a function of the seed and of the
calls made. `query` never makes progress: what has not been waited for has not happened.

The clock is virtual: each look at it, by the host or by a record, is 1000 ns after the last.
"""

from __future__ import annotations

import itertools
import random
from collections import deque
from dataclasses import dataclass, field
from typing import Any

from photon.device.base import Event, RunnerSpec, Stream, Work
from photon.device.failures import CLOSED, NO_TIME, NOT_RECORDED, build_failed, program_failed
from photon.device.host_memory import free_host_bytes
from photon.device.waits import HostWaits, blocks_host
from photon.errors import DeviceError

TICK_NS = 1000


@dataclass(slots=True, eq=False)
class _Record:
    """One recording of an event: the point just behind item `index` of a stream."""

    stream: DeferredStream
    index: int
    time_ns: int = -1

    @property
    def reached(self) -> bool:
        return self.time_ns >= 0


class DeferredEvent:
    """See `photon.device.base.Event`. Every record is an object of its own, so re-recording is safe."""

    def __init__(self, device: DeferredDevice, timing: bool) -> None:
        self._device = device
        self.waits = device.waits
        self.timing = timing
        self.last: _Record | None = None

    def query(self) -> bool:
        return self.last is not None and self.last.reached

    @blocks_host("Event.synchronize")
    def synchronize(self) -> None:
        if self.last is None:
            raise RuntimeError(NOT_RECORDED)
        self._device.run_until([self.last])


@dataclass(slots=True, eq=False)
class DeferredStream:
    """See `photon.device.base.Stream`. Items are a Work, a _Record to reach, or a _Record to wait for."""

    device: DeferredDevice
    name: str
    num_enqueued: int = 0
    num_run: int = 0
    queue: deque[tuple[str, Any]] = field(default_factory=deque)

    @property
    def waits(self) -> HostWaits:
        return self.device.waits

    def enqueue(self, work: Work, *, label: str, begun: Event | None = None) -> None:
        if begun is not None:
            self.record_event(begun)
        self._append("work", work)

    def record_event(self, event: Event) -> None:
        assert isinstance(event, DeferredEvent)
        event.last = self._mark()

    def wait_event(self, event: Event) -> None:
        assert isinstance(event, DeferredEvent)
        if event.last is not None:
            self._append("wait", event.last)

    @blocks_host("Stream.synchronize")
    def synchronize(self) -> None:
        self.device.run_until([self._mark()])

    def is_runnable(self, limit: int) -> bool:
        """Whether the head may run now and lies before item `limit`."""
        if self.num_run >= limit:
            return False
        kind, value = self.queue[0]
        return kind != "wait" or value.reached

    def pop(self) -> tuple[str, Any]:
        self.num_run += 1
        return self.queue.popleft()

    def _mark(self) -> _Record:
        record = _Record(self, self.num_enqueued)
        self._append("record", record)
        return record

    def _append(self, kind: str, value: Any) -> None:
        self.device.check_open()
        self.queue.append((kind, value))
        self.num_enqueued += 1


class DeferredDevice:
    """See `photon.device.base.Device`. Programs run on the thread that waits, inside its wait.

    Args:
        seed: chooses the order of the work; the same calls with the same seed run the same way.
    """

    name = "deferred"
    torch_device = "cpu"
    poisons = True
    fixed_shapes = False
    clock_uncertainty_ns = clock_clamped = 0

    def __init__(self, seed: int = 0) -> None:
        self.waits = HostWaits(self.now_ns)
        compute, copy = DeferredStream(self, "compute"), DeferredStream(self, "copy")
        self.compute: Stream = compute
        self.copy: Stream = copy
        self._streams = (compute, copy)
        self._rng = random.Random(seed)
        self._ticks = itertools.count(1)  # next() on it is atomic: now_ns is for any thread
        self._runner: Any = None
        self._failure: str | None = None
        self._closed = False

    def host_buffer(self, num_bytes: int) -> Any:
        import torch

        return torch.zeros(num_bytes, dtype=torch.uint8)

    def load(self, spec: RunnerSpec) -> None:
        self.check_open()
        try:
            self._runner = spec.build(self.torch_device)
        except Exception as error:
            raise DeviceError(build_failed(error)) from error

    @blocks_host("Device.call")
    def call(self, work: Work) -> Any:
        """See base. An exception of the called program is the caller's alone; the device lives on."""
        for stream in self._streams:
            stream.synchronize()
        try:
            return self._run(work)
        except Exception as error:
            raise DeviceError(program_failed(work.program, error)) from error

    def event(self, *, timing: bool = False) -> DeferredEvent:
        return DeferredEvent(self, timing)

    def capture(self, work: Work, *, begun: Event | None = None) -> None:
        """Nothing to prepare, and nothing runs."""
        self.check_open()

    def free_bytes(self) -> int | None:
        return free_host_bytes()

    def host_phase(self, name: str, num_rows: int) -> None:
        """Time passes by itself."""

    def forbid_syncs(self, is_forbidden: bool) -> None:
        """Programs run when the host waits anyway."""

    def now_ns(self) -> int:
        return next(self._ticks) * TICK_NS

    def time_ns(self, event: Event) -> int:
        assert isinstance(event, DeferredEvent)
        if not event.timing or not event.query():
            raise RuntimeError(NO_TIME)
        assert event.last is not None
        return event.last.time_ns

    def close(self) -> None:
        """Drop what was not waited for; it never runs."""
        self._closed = True
        self._runner = None
        for stream in self._streams:
            stream.queue.clear()

    def check_open(self) -> None:
        if self._closed:
            raise DeviceError(CLOSED)

    def run_until(self, targets: list[_Record]) -> None:
        """Run what the targets need, and perhaps more, in an order the seed chooses.

        Raises:
            DeviceError: some program failed, now or before, and a target was not reached.
        """
        if all(target.reached for target in targets):
            return
        limits = self._needed(targets)
        if self._rng.random() < 0.5:
            limits = self._needed([*targets, *self._run_ahead()])
        favourite = self._rng.choice([*self._streams, None])
        while not all(target.reached for target in targets) or self._runnable(limits):
            self.check_open()
            if self._failure is not None:
                if all(target.reached for target in targets):
                    return
                raise DeviceError(self._failure)
            runnable = self._runnable(limits)
            self._step(favourite if favourite in runnable else self._rng.choice(runnable))

    def _needed(self, targets: list[_Record]) -> dict[str, int]:
        """Per stream, how many of its items must run for the targets: follows waits until nothing grows."""
        limits = {stream.name: 0 for stream in self._streams}
        todo = list(targets)
        while todo:
            record = todo.pop()
            stream, end = record.stream, record.index + 1
            begin = max(limits[stream.name], stream.num_run)
            limits[stream.name] = max(limits[stream.name], end)
            items = itertools.islice(stream.queue, begin - stream.num_run, max(end - stream.num_run, 0))
            todo += [value for kind, value in items if kind == "wait"]
        return limits

    def _run_ahead(self) -> list[_Record]:
        """Points beyond the target that a faster device might have reached by now."""
        ends = [(s, self._rng.randint(s.num_run, s.num_enqueued)) for s in self._streams]
        return [_Record(stream, end - 1) for stream, end in ends if end > stream.num_run]

    def _runnable(self, limits: dict[str, int]) -> list[DeferredStream]:
        return [stream for stream in self._streams if stream.is_runnable(limits[stream.name])]

    def _step(self, stream: DeferredStream) -> None:
        kind, value = stream.pop()
        if kind == "record":
            value.time_ns = self.now_ns()
        elif kind == "work":
            try:
                self._run(value)
            except Exception as error:
                self._failure = program_failed(value.program, error)

    def _run(self, work: Work) -> Any:
        if self._runner is None:
            raise RuntimeError("no runner is loaded")
        return getattr(self._runner, work.program)(*work.args)
