"""Workload: one picture and one task asked many times, the same way each time; `run` plays it on an engine.

    arrivals   all at once, or Poisson at a rate; seeded
    lengths    as the model answers, or `num_tokens` for every row, of which a share stops early: at a
               seeded token that the scheduler cannot foresee, so that at depth 2 the row becomes a zombie

Decoding is greedy, so a workload has one right answer, whatever the depth or the batch (I12). Of rows
with a fixed length the grammar stays the task's own; only whether it ends is taken out of the model's
hands, through the mask, which the device applies like any other.
"""

from __future__ import annotations

import contextlib
import random
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from photon.admission import in_vocabulary
from photon.engine import Engine
from photon.errors import InvalidRequestError
from photon.handle import Handle
from photon.model.config import TokenizerConfig
from photon.sequence import Request, SamplingParams
from photon.skills.base import Mask, Skill, TextEncoder, Token
from photon.skills.build import build

MAX_COPIES = 32
MAX_TOKENS = 1000
MAX_RATE = 1000.0
LOOK_S = 0.05
_MANY_OBJECTS = 1000
_WITHOUT_END = {
    Mask.TEXT: Mask.UNENDING,
    Mask.FIRST_TEXT: Mask.UNENDING,
    Mask.OBJECT_OR_END: Mask.COORD,
}


@dataclass(frozen=True)
class Workload:
    """What is asked, how often and when; checked once.

    Attributes:
        image, task, prompt, length: as in Request; the image is decoded once for all copies.
        copies: requests, 1 to MAX_COPIES.
        rate_per_s: requests arrive as a Poisson process of this rate; 0 = all at once.
        num_tokens: every row answers with exactly so many tokens; None = as the model answers.
        early_stops_percent: of the rows, those that stop before `num_tokens`; needs it.
        seed: of arrivals, and of which rows stop early and where.

    Raises:
        InvalidRequestError: one sentence that names the value and its limits.
    """

    image: Any = None
    task: str = "query"
    prompt: str = ""
    length: str = "normal"
    copies: int = 8
    rate_per_s: float = 0.0
    num_tokens: int | None = None
    early_stops_percent: float = 0.0
    seed: int = 0

    def __post_init__(self) -> None:
        check_whole("copies", self.copies, 1, MAX_COPIES)
        check_range("rate_per_s", self.rate_per_s, 0, MAX_RATE)
        check_range("early_stops_percent", self.early_stops_percent, 0, 100)
        check_whole("seed", self.seed, 0, (1 << 53) - 1)
        if self.num_tokens is not None:
            check_whole("num_tokens", self.num_tokens, 1, MAX_TOKENS)
        if self.early_stops_percent and (self.num_tokens or 0) < 3:
            raise InvalidRequestError("Early stops need answers of a fixed length of at least 3 tokens.")

    @property
    def arrivals_ns(self) -> tuple[int, ...]:
        """When each request arrives, from the start of the run."""
        if not self.rate_per_s:
            return (0,) * self.copies
        dice, time, times = random.Random(self.seed), 0.0, [0]
        while len(times) < self.copies:
            time += dice.expovariate(self.rate_per_s)
            times.append(int(time * 1e9))
        return tuple(times)

    @property
    def stops(self) -> tuple[int | None, ...]:
        """Per request, after how many tokens the end token comes; None where it never does.

        So early that one more step would have been launched: the last token's end is known in advance.
        """
        dice = random.Random(self.seed + 1)
        early = set(dice.sample(range(self.copies), round(self.copies * self.early_stops_percent / 100)))
        longest = (self.num_tokens or 3) - 2
        return tuple(
            dice.randint(max(1, longest // 4), longest) if i in early else None for i in range(self.copies)
        )

    def requests(self, engine: Engine) -> list[Request]:
        """One per copy, the picture encoded. Raises InvalidRequestError."""
        image = None if self.image is None else engine.encode_image(self.image)
        settings: dict[str, Any] = {"temperature": 0, "seed": self.seed}
        asked = Request(self.task, image, self.prompt, self.length, settings=settings)
        asked = in_vocabulary(asked, engine.model.config)
        if self.num_tokens is None:
            return [asked] * self.copies
        settings = {**settings, "max_tokens": self.num_tokens, "max_objects": _MANY_OBJECTS}
        return [Request(_FixedLength(asked, stop), image, settings=settings) for stop in self.stops]


@dataclass(frozen=True)
class _FixedLength:
    """A SkillFactory: the skill of `asked`, with its end given."""

    asked: Request
    stop: int | None

    def __call__(self, params: SamplingParams, encoder: TextEncoder, ids: TokenizerConfig) -> Skill:
        return FixedLengthSkill(build(self.asked, params, encoder, ids), params.max_tokens, self.stop)


class FixedLengthSkill:
    """Another skill that ends after `num_tokens`, or by an end token after `stop` of them."""

    def __init__(self, inner: Skill, num_tokens: int, stop: int | None) -> None:
        self._inner, self._stop, self._consumed = inner, stop, 0
        self.is_spatial = inner.is_spatial
        self.max_tokens = num_tokens

    def prompt(self) -> list[Token]:
        return self._inner.prompt()

    def mask(self) -> Mask:
        if self._consumed == self._stop:
            return Mask.END
        mask = self._inner.mask()
        return _WITHOUT_END.get(mask, mask)

    def consume(self, token: Token) -> str:
        self._consumed += 1
        return self._inner.consume(token)

    @property
    def finished(self) -> bool:
        return self._inner.finished

    def close(self) -> str:
        return self._inner.close()

    def result(self) -> dict[str, Any]:
        return self._inner.result()


@dataclass(frozen=True)
class WorkloadResult:
    """What came of one run, request by request in order of arrival.

    start_ns and end_ns: first arrival and last finish, on the device's host clock.
    """

    tokens: tuple[tuple[Token, ...], ...]
    finish_reasons: tuple[str, ...]
    request_ids: tuple[int, ...]
    start_ns: int
    end_ns: int

    @property
    def num_tokens(self) -> int:
        return sum(map(len, self.tokens))

    @property
    def is_stopped(self) -> bool:
        return "cancelled" in self.finish_reasons


class WorkloadRun:
    """A workload on its way through an engine that has a thread. One thread calls `finish`; others may
    look and stop.
    """

    def __init__(self, engine: Engine, workload: Workload) -> None:
        self._engine, self._workload = engine, workload
        self._handles: list[Handle] = []
        self._stopped = threading.Event()

    @property
    def num_tokens(self) -> int:
        """Tokens delivered so far."""
        return sum(handle.num_tokens for handle in self._handles)

    def cancel(self) -> None:
        """End it now; `finish` returns what there is."""
        self._stopped.set()
        for handle in tuple(self._handles):
            handle.cancel()

    def finish(self) -> WorkloadResult:
        """Submit, and block until every request has ended and the engine stands idle.

        Raises:
            InvalidRequestError: the workload does not fit the engine's model.
            RequestFailedError, EngineDeadError: a request failed; the others are cancelled.
        """
        try:
            self._submit()
            reasons = tuple(self._wait(handle)["finish_reason"] for handle in self._handles)
        except BaseException:
            self.cancel()
            raise
        while self._engine.stats()["in_flight_steps"]:
            pass  # zombies ride one step more; each look takes place between two ticks
        return self._result(reasons)

    def _submit(self) -> None:
        requests = self._workload.requests(self._engine)
        start = self._engine.device.now_ns()
        with contextlib.nullcontext() if self._workload.rate_per_s else _between_ticks(self._engine):
            for request, due in zip(requests, self._workload.arrivals_ns, strict=True):
                early = start + due - self._engine.device.now_ns()
                if self._stopped.wait(early / 1e9) if due and early > 0 else self._stopped.is_set():
                    break
                self._handles.append(self._engine.submit(request))

    def _wait(self, handle: Handle) -> dict[str, Any]:
        while True:
            try:
                return handle.result(LOOK_S)
            except TimeoutError:
                if self._stopped.is_set():  # once more: it may have been submitted meanwhile
                    handle.cancel()

    def _result(self, reasons: tuple[str, ...]) -> WorkloadResult:
        metrics = [handle.metrics for handle in self._handles if handle.metrics is not None]
        return WorkloadResult(
            tokens=tuple(handle.tokens for handle in self._handles),
            finish_reasons=reasons or ("cancelled",),
            request_ids=tuple(handle.request_id for handle in self._handles),
            start_ns=min((m.arrival_ns for m in metrics), default=0),
            end_ns=max((m.finished_ns for m in metrics), default=0),
        )


def run(engine: Engine, workload: Workload) -> WorkloadResult:
    """Play the workload and block until its end. Raises as `WorkloadRun.finish` does."""
    return WorkloadRun(engine, workload).finish()


@contextlib.contextmanager
def _between_ticks(engine: Engine) -> Iterator[None]:
    """Keep the engine from ticking, so that requests submitted meanwhile arrive as one burst."""
    gate = threading.Event()

    def wait() -> None:
        gate.wait()

    engine._worker.post(wait)
    try:
        yield
    finally:
        gate.set()


def check_whole(name: str, value: Any, low: int, high: int) -> None:
    """Raise InvalidRequestError unless it is a whole number within the limits."""
    if type(value) is not int or not low <= value <= high:
        raise InvalidRequestError(f"{name} is {value!r}; it must be a whole number from {low} to {high}.")


def check_range(name: str, value: Any, low: float, high: float) -> None:
    """Raise InvalidRequestError unless it is a number within the limits."""
    if type(value) not in (int, float) or not low <= value <= high:
        raise InvalidRequestError(f"{name} is {value!r}; it must be a number from {low:g} to {high:g}.")
