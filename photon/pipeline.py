"""Pipeline: the two-slot state machine of pipelined decoding. Read this first.

    depth 1   host     [plan|launch]            [wait][commit][plan|launch]            [wait][commit]
              compute          [forward|sample]                       [forward|sample]
                                               ^^^^^ bubble ^^^^^

    depth 2   host     [launch t+1][commit t][sample t+1][launch t+2][commit t+1] ...
              compute  [ forward t ][s][ forward t+1 ][s][ forward t+2 ]        slot 0, 1, 0
              copy                  [D2H t]            [D2H t+1]

A step is *launched* (its forward is enqueued), then *sampled* (its logits become token ids on the
device, its copy to the host is enqueued), then *committed* (the host has waited for the copy and has
handed the tokens out). Launch needs neither masks nor tokens on the host, because the next input is
gathered on the device; sampling needs masks, which depend on the previous commit. So one step may be
launched and unsampled while the one before it is sampled and uncommitted: two in flight, never three.

Owns: which step is where, and which slot is busy.
Does not own: buffers, sequences, pages, the device. It is pure and has no clock.

Invariants: I2 commits are FIFO. I4 at most one launched-unsampled step. I5 a slot is reusable only
after its commit completed. I16 a result is matched by its step, never by counting.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Literal

from photon.sequence import Sequence

NUM_SLOTS = 2
_SLOTS = frozenset(range(NUM_SLOTS))

StepKind = Literal["prefill", "decode"]


@dataclass(frozen=True, eq=False)
class Step:
    """One batch on its way through the pipeline. It owns its row list (I15): row i is rows[i]."""

    step_id: int
    slot: int
    kind: StepKind
    rows: tuple[Sequence, ...]
    padded_rows: int
    """Rows the device runs, >= len(rows)."""

    @property
    def padding(self) -> int:
        return self.padded_rows - len(self.rows)

    @property
    def num_zombies(self) -> int:
        """Rows whose sequence has finished meanwhile; their tokens will be dropped."""
        return len([1 for sequence in self.rows if sequence.finish_reason is not None])


class Pipeline:
    """Tracks the steps in flight. Misuse is our bug and asserts with the invariant's number."""

    def __init__(self) -> None:
        self._in_flight: deque[Step] = deque()
        self._launched: Step | None = None
        self._sampled: deque[Step] = deque()
        self._committing: Step | None = None

    @property
    def launched(self) -> Step | None:
        """The step whose forward is enqueued and whose sampling is not."""
        return self._launched

    @property
    def oldest_sampled(self) -> Step | None:
        """The step the next commit takes."""
        return self._sampled[0] if self._sampled else None

    @property
    def in_flight(self) -> tuple[Step, ...]:
        """Launched, uncommitted steps, oldest first; a committing step still counts."""
        return tuple(self._in_flight)

    @property
    def is_empty(self) -> bool:
        return not self._in_flight

    def free_slot(self) -> int | None:
        """The lowest slot that no step in flight uses, or None."""
        return min(_SLOTS - {step.slot for step in self._in_flight}, default=None)

    def can_launch(self) -> bool:
        return self._launched is None and self.free_slot() is not None

    def launch(self, step: Step) -> None:
        assert self._launched is None, "I4: a launched step is still unsampled"
        assert all(step.slot != other.slot for other in self._in_flight), f"I5: slot {step.slot} is busy"
        self._launched = step
        self._in_flight.append(step)

    def sample(self, step: Step) -> None:
        """`step` has been sampled and waits for its commit."""
        assert step is self._launched, "I16: sampling a step that is not the launched one"
        self._launched = None
        self._sampled.append(step)

    def begin_commit(self, step: Step) -> None:
        """The host starts to read the results of `step`; its slot stays busy."""
        assert self._committing is None, "I2: a commit inside a commit"
        assert step is self.oldest_sampled, "I2: commits are FIFO"
        self._committing = self._sampled.popleft()

    def end_commit(self, step: Step) -> None:
        """All of `step`'s results are out; its slot may be used again."""
        assert step is self._committing, "I16: completing a commit that was not begun"
        self._committing = None
        self._in_flight.popleft()

    def abandon(self, step: Step) -> None:
        """Take out the launched step after a failure; the caller has fenced the device."""
        assert step is self._launched, "I16: abandoning a step that is not the launched one"
        self._launched = None
        self._in_flight.pop()
