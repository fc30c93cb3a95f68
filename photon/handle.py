"""Handle: the caller's side of one request; RequestMetrics: where its time went.

The engine's thread writes, any other thread reads. One ordered channel carries the text, its end mark is
always last and comes exactly once; text that was sent is never taken back.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from typing import Any

from photon.sequence import FinishReason, Sequence
from photon.skills.base import Token


@dataclass(frozen=True)
class RequestMetrics:
    """Times of one finished request on the device's host clock, and its counts.

    queue + prefill + decode = total - preprocess. A request that never got its first token has all its
    time after admission in prefill. Cached tokens are those of the input that its first prefill found in the
    prefix cache. Output tokens are delivered tokens, the end token left out.
    """

    arrival_ns: int
    queued_ns: int
    admitted_ns: int
    first_token_ns: int
    finished_ns: int
    input_tokens: int
    output_tokens: int
    cached_tokens: int
    zombie_rows: int
    preemptions: int
    first_step_id: int
    last_step_id: int

    @property
    def preprocess_ms(self) -> float:
        return (self.queued_ns - self.arrival_ns) / 1e6

    @property
    def queue_ms(self) -> float:
        return (self.admitted_ns - self.queued_ns) / 1e6

    @property
    def prefill_ms(self) -> float:
        return (self.first_token_ns - self.admitted_ns) / 1e6

    @property
    def decode_ms(self) -> float:
        return (self.finished_ns - self.first_token_ns) / 1e6

    @property
    def ttft_ms(self) -> float:
        """Arrival to the first token committed."""
        return (self.first_token_ns - self.arrival_ns) / 1e6

    @property
    def total_ms(self) -> float:
        return (self.finished_ns - self.arrival_ns) / 1e6

    @property
    def tokens_per_s(self) -> float | None:
        """Tokens after the first per second of decode; None where there is nothing to divide."""
        span_ns = self.finished_ns - self.first_token_ns
        return (self.output_tokens - 1) * 1e9 / span_ns if self.output_tokens > 1 and span_ns > 0 else None


class Handle:
    """A submitted request. Dropping or closing `stream()` early cancels it."""

    def __init__(
        self, sequence: Sequence, arrival_ns: int, queued_ns: int, cancel: Callable[[], None]
    ) -> None:
        self.request_id = sequence.request_id
        self._sequence = sequence
        self._cancel = cancel
        self._line: Collection[Sequence] = ()
        self._deltas: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        self._done = threading.Event()
        self._result: dict[str, Any] | None = None
        self._error: BaseException | None = None
        self.arrival_ns = arrival_ns
        self._queued_ns = queued_ns
        self._admitted_ns: int | None = None
        self._cached_tokens = 0
        self._first_token_ns: int | None = None
        self._metrics: RequestMetrics | None = None

    # The caller's side ---------------------------------------------------------------------------

    @property
    def stage(self) -> str:
        """ "queued", "prefill", "decode" or "finished"."""
        if self._done.is_set():
            return "finished"
        if self._admitted_ns is None:
            return "queued"
        return "prefill" if self._first_token_ns is None else "decode"

    @property
    def num_ahead(self) -> int:
        """Requests that wait for admission before this one; 0 when it does not wait. Takes no lock."""
        line = list(self._line)  # in one piece, whatever the engine's thread does to it meanwhile
        return line.index(self._sequence) if self._sequence in line else 0

    @property
    def num_tokens(self) -> int:
        """Tokens delivered so far."""
        return len(self._sequence.tokens)

    @property
    def tokens(self) -> tuple[Token, ...]:
        """Tokens delivered so far, with the values of coordinates and sizes."""
        return tuple(self._sequence.tokens)

    @property
    def metrics(self) -> RequestMetrics | None:
        """None until finished."""
        return self._metrics

    @property
    def error(self) -> BaseException | None:
        """What `result` raises, once finished."""
        return self._error

    def partial(self) -> dict[str, Any]:
        """The result as far as it goes."""
        return self._sequence.skill.result()

    def stream(self) -> _TextStream:
        """Text as it becomes certain; blocks between pieces. Raises what `result` raises."""
        return _TextStream(self)

    def result(self, timeout: float | None = None) -> dict[str, Any]:
        """Block until finished.

        Returns:
            The skill's result with "finish_reason" ("stop", "length", "cancelled") and "truncated".

        Raises:
            TimeoutError: not finished after `timeout` seconds; the request goes on.
            RequestFailedError, EngineDeadError: it failed.
        """
        if not self._done.wait(timeout):
            raise TimeoutError(f"Request {self.request_id} has not finished after {timeout} s.")
        if self._error is not None:
            raise self._error
        assert self._result is not None
        return self._result

    def cancel(self) -> None:
        """End the request now, in whatever stage it is; harmless when it has ended. Returns at once."""
        if not self._done.is_set():
            self._cancel()

    def next_delta(self) -> str | None:
        """The next piece of text, or None at its end, now and ever after; blocks."""
        delta = self._deltas.get()
        if delta is None:
            self._deltas.put(None)
        return delta

    # The engine's side ---------------------------------------------------------------------------

    def lined_up(self, line: Collection[Sequence]) -> None:
        """It waits in this line, which the engine goes on changing."""
        self._line = line

    def admitted(self, time_ns: int) -> bool:
        """Prefill was launched; False when it is a second time, after a preemption."""
        if self._admitted_ns is not None:
            return False
        self._admitted_ns, self._cached_tokens = time_ns, self._sequence.num_cached
        return True

    def token(self, delta: str, time_ns: int) -> bool:
        """A token was committed; True when it was the first."""
        if delta:
            self._deltas.put(delta)
        if self._first_token_ns is not None:
            return False
        self._first_token_ns = time_ns
        return True

    def finish(self, delta: str, time_ns: int, error: BaseException | None = None) -> None:
        """The terminal event: withheld text, then the end; exactly once."""
        assert not self._done.is_set(), "a request ends exactly once"
        if delta:
            self._deltas.put(delta)
        self._metrics = self._measure(time_ns)
        self._error = error
        if error is None:
            reason = self._sequence.finish_reason
            assert reason is not None
            self._result = {
                **self._sequence.skill.result(),
                "finish_reason": reason.value,
                "truncated": reason is FinishReason.LENGTH,
            }
        self._done.set()
        self._deltas.put(None)

    def _measure(self, finished_ns: int) -> RequestMetrics:
        sequence = self._sequence
        admitted = self._admitted_ns if self._admitted_ns is not None else finished_ns
        first = self._first_token_ns if self._first_token_ns is not None else finished_ns
        return RequestMetrics(
            arrival_ns=self.arrival_ns,
            queued_ns=self._queued_ns,
            admitted_ns=admitted,
            first_token_ns=first,
            finished_ns=finished_ns,
            input_tokens=sequence.prefix + len(sequence.prompt),
            output_tokens=len(sequence.tokens),
            cached_tokens=self._cached_tokens,
            zombie_rows=sequence.inflight_refs,
            preemptions=sequence.num_preemptions,
            first_step_id=sequence.first_step_id,
            last_step_id=sequence.last_step_id,
        )


class _TextStream(Iterator[str]):
    """An iterator, and not a generator, so that one dropped before its first piece cancels as well."""

    def __init__(self, handle: Handle) -> None:
        self._handle = handle
        self._is_closed = False

    def __next__(self) -> str:
        delta = None if self._is_closed else self._handle.next_delta()
        if delta is not None:
            return delta
        error = None if self._is_closed else self._handle.error
        self._is_closed = True
        if error is not None:
            raise error
        raise StopIteration

    def close(self) -> None:
        """End the request, unless it has ended."""
        self._is_closed = True
        self._handle.cancel()

    __del__ = close
