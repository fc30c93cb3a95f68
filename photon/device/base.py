"""The device protocol: two in-order streams, events, and programs that run where the model lives.

The words are torch.cuda's. One verb is added, `enqueue`: it names a *program*, a method of the runner
that was built on the device's side, with small picklable arguments. A program works on buffers whose
addresses never change (the discipline of CUDA graphs), which is why a worker process, a CUDA stream
and a test double can all run the same ones:

    device.load(spec)                         # spec.build(torch_device) -> runner, on the device's side
    device.compute.enqueue(Work("upload", (0,)), label="h2d")
    device.compute.enqueue(Work("decode", (0, 8, 16)), label="forward")
    device.compute.record_event(done)         # returns at once
    device.copy.wait_event(done)              # ordered on the device, the host does not wait
    device.copy.enqueue(Work("fetch", (0, 8)), label="d2h")
    device.copy.record_event(copied)
    copied.synchronize()                      # the only place where the host waits

Rules: work of one stream runs in the order it was enqueued; between streams only events order it. A host
buffer is read when the work that reads it *runs*, and is valid to read only after an event recorded
behind the work that writes it.
"""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

from photon.device.waits import HostWaits


class Work(NamedTuple):
    """One call of a program: the runner's method `program` with `args` (ints, bools, strings, tuples)."""

    program: str
    args: tuple[Any, ...] = ()


class RunnerSpec(Protocol):
    """A picklable recipe of a runner; `build` is called once, on the device's side."""

    def build(self, torch_device: str) -> Any:
        """Return the object whose methods are the programs. torch_device: "cpu", "cuda:0", ..."""


class Event(Protocol):
    """A point in a stream. One object may be recorded again and again; the last record counts."""

    def query(self) -> bool:
        """True when the last record has been reached; False when it was never recorded."""

    def synchronize(self) -> None:
        """Block the host until the last record is reached.

        Raises:
            DeviceError: work before it failed, or the device died; the message has the cause.
            RuntimeError: the event was never recorded.
        """


class Stream(Protocol):
    """An in-order queue of work. Every method but `synchronize` returns at once."""

    name: str

    def enqueue(self, work: Work, *, label: str, begun: Event | None = None) -> None:
        """Run the program behind all that was enqueued before.

        begun: recorded when the program's own work begins, which on a card that replays a graph is later
        than the end of what came before: until the host has launched the graph, the card idles.
        """

    def record_event(self, event: Event) -> None: ...

    def wait_event(self, event: Event) -> None:
        """Work enqueued on this stream from now on runs after the event's last record."""

    def synchronize(self) -> None:
        """Block the host until all work enqueued so far has run. Raises DeviceError as Event does."""


class Device(Protocol):
    """Where a runner lives. Used by one host thread (the engine's), except `now_ns`."""

    name: str
    """What it is, for people: "cpu", "deferred", "cuda:0 NVIDIA H200"."""
    torch_device: str
    compute: Stream
    copy: Stream
    poisons: bool
    """True where freed pages must be overwritten, so that a read after free changes a token."""

    fixed_shapes: bool
    """True where a step must have one of a few captured shapes; the rows it lacks are padding."""

    waits: HostWaits
    """Says whenever the host has waited in Event.synchronize, Stream.synchronize or call."""

    @property
    def clock_uncertainty_ns(self) -> int:
        """How far a `time_ns` may be off the host clock; 0 where the device shares it."""

    @property
    def clock_clamped(self) -> int:
        """How many `time_ns` were moved because they contradicted cause and effect."""

    def host_buffer(self, num_bytes: int) -> Any:
        """A zeroed uint8 torch tensor that host and programs both see (pinned or shared memory).

        Put it into the spec; `tensor.numpy()` is the host's view. Only before `load`.
        """

    def load(self, spec: RunnerSpec) -> None:
        """Build the runner. Blocks until it stands. Raises DeviceError with the builder's message."""

    def call(self, work: Work) -> Any:
        """Run a program after all work enqueued so far and return its (picklable) result. Blocks."""

    def event(self, *, timing: bool = False) -> Event:
        """A new event; `time_ns` needs timing=True."""

    def capture(self, work: Work, *, begun: Event | None = None) -> None:
        """Prepare this work for replay (a CUDA graph where there is one). Blocks; before serving.

        begun: as `enqueue` will be given it with this work, each time.
        """

    def host_phase(self, name: str, num_rows: int) -> None:
        """The host begins to "plan", "launch", "sample" or "commit" so many rows.

        Only a device on a virtual clock minds: there, this is how the host's work takes time.
        """

    def free_bytes(self) -> int | None:
        """Memory that a runner may still take on the device; None where nothing would run out."""

    def forbid_syncs(self, is_forbidden: bool) -> None:
        """From now on a program fails that makes the host wait (I13), where programs could: on CUDA.

        For checks, not for serving: it holds for the whole process, and costs time.
        """

    def now_ns(self) -> int:
        """The host clock all times of this device are on (monotonic)."""

    def time_ns(self, event: Event) -> int:
        """When the last record of a reached timing event happened, on the host clock."""

    def close(self) -> None:
        """Stop the workers and free the memory; idempotent."""


def enqueue_span(stream: Stream, label: str, begun: Event, done: Event, work: Work, *more: Work) -> None:
    """Enqueue works that are one span of the timeline, from `begun` to `done`."""
    stream.enqueue(work, label=label, begun=begun)
    for another in more:
        stream.enqueue(another, label=label)
    stream.record_event(done)
