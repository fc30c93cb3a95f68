"""The cuda device: real streams, timed events on the host clock, pinned buffers, graphs per captured work.

    host     enqueue ... record_event    enqueue ...      copied.synchronize()   time_ns(done)
               |  runner's method, or      |                 |  re-anchor the       |  offset from
               v  graph.replay()           v                 v  clock, 1 per second v  the last anchor
    compute  [ upload | forward ........ | sample ]--event
    copy                                             [ fetch ]--event
    side     (no work ever: only the anchors of the clock)

Programs run on the caller's thread with the stream as torch's current one; they launch kernels and return.
Nothing here waits for the card but synchronize, call, capture, load and close (I13); programs must keep to
that too. The only module in which torch.cuda appears; without CUDA it imports, and opening says why not.
Times of events are mapped to the host clock by `event_clock.py`, anchored on the side stream. An exception
in a program stops everything behind it, as an error of CUDA itself does, and is raised at the waits, so that
the engine meets both kinds at the same place.
"""

from __future__ import annotations

import contextlib
import time
import warnings
from collections.abc import Callable
from typing import Any

import torch

from photon.device.base import Event, RunnerSpec, Stream, Work
from photon.device.event_clock import EventClock
from photon.device.failures import (
    NO_TIME,
    NOT_RECORDED,
    StickyFailure,
    build_failed,
    cuda_failed,
    program_failed,
)
from photon.device.waits import HostWaits, blocks_host
from photon.errors import DeviceError

NUM_WARMUPS = 2


def is_available() -> bool:
    """Whether this torch build has CUDA and sees a card."""
    return torch.cuda.is_available()


class CudaEvent:
    """See `photon.device.base.Event`."""

    def __init__(self, device: CudaDevice, timing: bool) -> None:
        self._device = device
        self.waits = device.waits
        self.timing = timing
        self.event = torch.cuda.Event(enable_timing=timing, external=timing)  # a node where a graph has it
        self.is_recorded = False
        self.recorded_ns = 0  # the host's time of its last record, which the card reaches later
        self.is_lost = False  # its last record lies behind a failure and will never be reached

    def query(self) -> bool:
        if not self.is_recorded or self.is_lost:
            return False
        try:
            return self.event.query()
        except RuntimeError as error:
            self._device.fail(cuda_failed(error))
            return False

    @blocks_host("Event.synchronize")
    def synchronize(self) -> None:
        """See base. Also the place where the clock is anchored again: commits come here, launches do not."""
        if not self.is_recorded:
            raise RuntimeError(NOT_RECORDED)
        if self.is_lost:
            self._device.check()
        with self._device.errors():
            self.event.synchronize()
            self._device.clock.refresh()


class CudaStream:
    """See `photon.device.base.Stream`: a CUDA stream that is not the default one."""

    def __init__(self, device: CudaDevice, name: str) -> None:
        self._device = device
        self.waits = device.waits
        self.name = name
        self.stream = torch.cuda.Stream(device.torch_device)
        self.graphs: dict[Work, tuple[Any, Event | None]] = {}  # and the event that the graph records first

    def enqueue(self, work: Work, *, label: str, begun: Event | None = None) -> None:
        """Launch the program's kernels, or replay its graph if it was captured for this stream.

        begun: exact where a graph records it. Elsewhere the stream does, before the host launches a kernel:
        what the card waits for the first one, and for later ones, counts as the program's.
        """
        device = self._device
        if begun is not None:
            self._begin(work, begun)
        if not device.is_accepting():
            return
        try:
            self.run(work)
        except Exception as error:
            device.fail(program_failed(work.program, error))

    def run(self, work: Work) -> Any:
        """Run the program, or its graph, with this stream as torch's current one; raises what it raises."""
        captured = self.graphs.get(work)
        with torch.cuda.stream(self.stream):
            return captured[0].replay() if captured else self._device.run_program(work)

    def _begin(self, work: Work, begun: Event) -> None:
        if captured := self.graphs.get(work):
            assert begun is captured[1], "captured with another event"
            self._take(begun)
        else:
            self.record_event(begun)

    def record_event(self, event: Event) -> None:
        taken = self._take(event)
        if not taken.is_lost:
            taken.is_lost = not self._try(taken.event.record, self.stream)

    def _take(self, event: Event) -> CudaEvent:
        """The host's side of a record: from now on, what the event says is of this one."""
        assert isinstance(event, CudaEvent)
        event.is_lost = not self._device.is_accepting()
        event.is_recorded, event.recorded_ns = True, time.perf_counter_ns()
        return event

    def wait_event(self, event: Event) -> None:
        assert isinstance(event, CudaEvent)
        if event.is_recorded and self._device.is_accepting():
            self._try(self.stream.wait_event, event.event)

    @blocks_host("Stream.synchronize")
    def synchronize(self) -> None:
        self._device.check()
        with self._device.errors():
            self.stream.synchronize()

    def _try(self, call: Callable[[Any], None], argument: Any) -> bool:
        """Whether the call went well; an error of CUDA is raised at the next wait instead."""
        try:
            call(argument)
        except RuntimeError as error:
            self._device.fail(cuda_failed(error))
            return False
        return True


class CudaDevice(StickyFailure):
    """See `photon.device.base.Device`.

    Args:
        name: "cuda" (the first card) or "cuda:1".

    Raises:
        DeviceError: no CUDA in this torch build, no card, or not so many.
    """

    poisons = False
    fixed_shapes = True

    def __init__(self, name: str = "cuda") -> None:
        super().__init__()
        index = _card_index(name)
        self.torch_device = f"cuda:{index}"
        self.name = f"{self.torch_device} {torch.cuda.get_device_name(index)}"
        self.waits = HostWaits(self.now_ns)
        self._runner: Any = None
        with self.errors():
            self._compute, self._copy = CudaStream(self, "compute"), CudaStream(self, "copy")
            self._side = torch.cuda.Stream(self.torch_device)
            self._pool = torch.cuda.graph_pool_handle()
            self.clock = EventClock(self._anchor_event, self.now_ns)
        self.compute: Stream = self._compute
        self.copy: Stream = self._copy

    @property
    def clock_uncertainty_ns(self) -> int:
        return self.clock.uncertainty_ns

    @property
    def clock_clamped(self) -> int:
        return self.clock.num_clamped

    def host_buffer(self, num_bytes: int) -> Any:
        self.check()
        with self.errors():
            return torch.zeros(num_bytes, dtype=torch.uint8, pin_memory=True)

    def load(self, spec: RunnerSpec) -> None:
        """See base. The builder's memory belongs to the compute stream; it is complete on return."""
        self.check()
        try:
            with torch.cuda.stream(self._compute.stream):
                self._runner = spec.build(self.torch_device)
            torch.cuda.synchronize(self.torch_device)
        except Exception as error:
            raise DeviceError(build_failed(error)) from error

    @blocks_host("Device.call")
    def call(self, work: Work) -> Any:
        """See base. An exception of the called program is the caller's alone; an error of CUDA stays."""
        self.check()
        self._copy.synchronize()
        self._compute.synchronize()
        try:
            result = self._compute.run(work)
            self._compute.stream.synchronize()
        except Exception as error:
            raise DeviceError(program_failed(work.program, error)) from error
        return result

    def event(self, *, timing: bool = False) -> CudaEvent:
        with self.errors():
            return CudaEvent(self, timing)

    def capture(self, work: Work, *, begun: Event | None = None) -> None:
        """Record the program as a graph for the compute stream; it runs some times on the way.

        All graphs share one memory pool: they run one after the other on one stream, and what must outlive a
        replay is in the runner's own buffers. Other threads may use CUDA meanwhile, say for another engine.
        """
        self.check()
        graph = torch.cuda.CUDAGraph()
        try:
            for _ in range(NUM_WARMUPS):
                self._compute.run(work)
            torch.cuda.synchronize(self.torch_device)
            with torch.cuda.graph(graph, self._pool, self._compute.stream, "thread_local"):
                if begun is not None:
                    assert isinstance(begun, CudaEvent)
                    begun.event.record(self._compute.stream)
                self.run_program(work)
        except Exception as error:
            raise DeviceError(program_failed(work.program, error)) from error
        self._compute.graphs[work] = graph, begun

    def free_bytes(self) -> int | None:
        return torch.cuda.mem_get_info(self.torch_device)[0]

    def host_phase(self, name: str, num_rows: int) -> None:
        """Time passes by itself."""

    def forbid_syncs(self, is_forbidden: bool) -> None:
        """See base. Waiting for an event is not meant: that is how a commit waits."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch says once that it does not know all calls that wait
            torch.cuda.set_sync_debug_mode("error" if is_forbidden else "default")

    def now_ns(self) -> int:
        return time.perf_counter_ns()

    def time_ns(self, event: Event) -> int:
        assert isinstance(event, CudaEvent)
        if not event.timing or not event.query():
            raise RuntimeError(NO_TIME)
        with self.errors():
            return self.clock.host_ns(event.event, event.recorded_ns)

    def close(self) -> None:
        """See base. Waits for the work that has been launched, as its memory is given back."""
        if self._is_closed:
            return
        self._is_closed = True
        with contextlib.suppress(RuntimeError):
            torch.cuda.synchronize(self.torch_device)
        self._compute.graphs.clear()
        self._runner = None
        with contextlib.suppress(RuntimeError):
            torch.cuda.empty_cache()

    def run_program(self, work: Work) -> Any:
        if self._runner is None:
            raise RuntimeError("no runner is loaded")
        return getattr(self._runner, work.program)(*work.args)

    def _anchor_event(self) -> Any:
        event = torch.cuda.Event(enable_timing=True)
        event.record(self._side)
        event.synchronize()
        return event


def _card_index(name: str) -> int:
    """The number in "cuda:1", checked against the cards that are there."""
    if not torch.cuda.is_available():
        build = "sees no CUDA card" if torch.version.cuda else "has no CUDA"
        raise DeviceError(f"This torch build {build}; install a CUDA build of torch, or use --device cpu.")
    number, count = name.partition(":")[2] or "0", torch.cuda.device_count()
    if not number.isdecimal() or int(number) >= count:
        raise DeviceError(
            f"There is no device {name!r}; there are {count} cards, cuda:0 to cuda:{count - 1}."
        )
    return int(number)
