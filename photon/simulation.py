"""Simulation: the engine itself on a virtual clock, and the figures that pipelining is judged by.

    Scenario   which GPU, how many streams, how long the answers, which task
    simulate   plays it at one depth                      -> Run
    compare    plays it at depth 1 and depth 2            -> Comparison

Engine, scheduler, pipeline and slots are the real ones; only durations come from `device/cost.py` and
tokens from `model/scripted.py`. Nothing is random, so a figure is the same each time.

A stream asks again as soon as it has its answer. Figures of the *steady state* are taken from decode
steps with every row in use, as the published ones are; `run` figures from first arrival to last token,
with prefill and the tail in which the batch drains.
"""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Sequence as Items
from dataclasses import dataclass, field

import numpy as np

from photon.admission import EncodedImage
from photon.config import MAX_ROWS, EngineConfig
from photon.device.cost import TABLE, CostModel, Published
from photon.device.simulated import SimulatedDevice
from photon.errors import InvalidRequestError
from photon.lab import Injected, LabEngine
from photon.model.config import TokenizerConfig
from photon.model.scripted import MAX_LENGTH, build_scripted, lengths, scripted_model
from photon.observe import Mark, Observer, Span, StepRecord
from photon.sequence import Request, SamplingParams
from photon.skills.base import Skill, TextEncoder, Token
from photon.skills.text import TextSkill
from photon.workload import check_whole

TASKS = ("query", "caption", "point", "detect")
MAX_STREAMS = MAX_TOKENS = 1024
MAX_CROPS = 13
ROUNDS = 3  # full batches of answers, so that a steady state lies between the first and the last


@dataclass(frozen=True)
class Scenario:
    """What is asked of which machine; checked once.

    Attributes:
        cost: the GPU and its host.
        streams: callers at once; the engine's batch holds MAX_ROWS of them, more than that wait.
        tokens: mean length of an answer; lengths spread from 3/4 to 5/4 of it.
        task: "query", "caption", "point" or "detect".
        answers: of each stream, one after the other; None = enough for a steady state.
        crops: of each picture: 2 up to 378 px, 9 for 640 x 480, at most 13; 0 = a query about none.
        sync_masks: the host waits for the device before it samples, a sync leak.
        seed: of the order in which long and short answers come.

    Raises:
        InvalidRequestError: one sentence with what is accepted.
    """

    cost: CostModel
    streams: int = 32
    tokens: int = 100
    task: str = "query"
    answers: int | None = None
    crops: int = 2
    sync_masks: bool = False
    seed: int = 0

    def __post_init__(self) -> None:
        check_whole("streams", self.streams, 1, MAX_STREAMS)
        check_whole("tokens", self.tokens, 1, MAX_TOKENS)
        check_whole("crops", self.crops, 0, MAX_CROPS)
        if self.answers is not None:
            check_whole("answers", self.answers, 1, 100)
        if self.task not in TASKS:
            raise InvalidRequestError(f"There is no task {self.task!r}; use one of {', '.join(TASKS)}.")
        if not self.crops and self.task != "query":
            raise InvalidRequestError(
                f"The task {self.task} needs a picture; give it 1 to {MAX_CROPS} crops."
            )

    @property
    def rows(self) -> int:
        """Rows of a full batch."""
        return min(self.streams, MAX_ROWS)

    def requests(self) -> list[Request]:
        """All that will be asked, each about a picture of its own."""
        count = self.streams * (self.answers or -(-ROUNDS * self.rows // self.streams))
        return [self._request(length) for length in lengths(count, self.tokens, self.seed)]

    def _request(self, length: int) -> Request:
        pixels = np.zeros((self.crops, 27, 27, 3), np.uint8)  # without a key: nothing of it is cached
        image = EncodedImage(pixels, (1, self.crops - 1), 378, 378) if self.crops else None
        settings = {"max_tokens": MAX_LENGTH + 4, "max_objects": 1000, "seed": 0}
        if self.task == "caption":
            return Request(lambda *args: _caption(length, *args), image, settings=settings)
        return Request(self.task, image, str(length), settings=settings)


def _caption(length: int, params: SamplingParams, encoder: TextEncoder, ids: TokenizerConfig) -> Skill:
    """A caption whose template holds the length."""
    *head, last = ids.templates["caption"]["normal"]
    prompt = [Token(i) for i in (*head, *encoder.encode(str(length)), last)]
    return TextSkill(encoder, ids, prompt, key="caption", max_tokens=params.max_tokens)


@dataclass(frozen=True)
class Run:
    """One depth. None where there is nothing to measure: answers of one token have no decode step.

    Attributes:
        period_ms: from one forward to the next, median over full decode steps.
        zombie_tax_percent: of device time in full decode steps, what leaving their zombies out would have
            saved (engine_facts 6.2).
        bubble_percent: of the run, the compute stream idle.
        duration_ms: first arrival to last token. tokens_per_s: delivered over that.
        first_finish_ns: when the first answer ended, which is where a steady state does.
    """

    depth: int
    period_ms: float | None
    zombie_tax_percent: float
    zombie_rows: int
    bubble_percent: float
    duration_ms: float
    tokens_per_s: float
    num_steps: int
    first_finish_ns: int


@dataclass
class _Steps:
    """An observer that keeps what the figures need."""

    forwards: list[Span] = field(default_factory=list)
    compute: list[Span] = field(default_factory=list)
    num_tokens: int = 0
    finishes_ns: list[int] = field(default_factory=list)

    def on_span(self, span: Span) -> None:
        if span.track == "compute":
            self.compute.append(span)
            if span.name in ("forward", "prefill"):
                self.forwards.append(span)

    def on_mark(self, mark: Mark) -> None:
        if mark.name == "finish":
            self.finishes_ns.append(mark.time_ns)

    def on_step(self, record: StepRecord) -> None:
        self.num_tokens += sum(row.is_delivered for row in record.rows)


def simulate(scenario: Scenario, depth: int, observers: Items[Observer] = ()) -> Run:
    """Play the scenario at one depth, to its end. Real time: about 0.2 ms a step."""
    steps = _Steps()
    config = EngineConfig(depth=depth, max_batch_size=scenario.rows, max_waiting=1 << 20)
    device = SimulatedDevice(scenario.cost, build_scripted)
    engine = LabEngine(
        scripted_model(), device, config, observers=[steps, *observers], dtype="bfloat16", threaded=False
    )
    with engine:
        engine.inject(Injected(sync_masks=scenario.sync_masks))
        handles = [engine.submit(request) for request in scenario.requests()]
        engine.run_until_idle()
        for handle in handles:
            handle.result(timeout=0)  # raises, should the engine have ended
    return _measure(steps, scenario, depth)


def _measure(steps: _Steps, scenario: Scenario, depth: int) -> Run:
    forwards, cost = steps.forwards, scenario.cost
    full = [span for span in forwards if span.kind == "decode" and span.rows == scenario.rows]
    ids = {span.step_id for span in full}
    pairs = itertools.pairwise(forwards)
    periods = [b.start_ns - a.start_ns for a, b in pairs if {a.step_id, b.step_id} <= ids]
    wasted = sum(cost.step_ns(span.rows) - cost.step_ns(span.rows - span.zombies) for span in full)
    end_ns = steps.finishes_ns[-1]
    busy = sum(min(span.end_ns, end_ns) - min(span.start_ns, end_ns) for span in steps.compute)
    return Run(
        depth=depth,
        period_ms=statistics.median(periods) / 1e6 if periods else None,
        zombie_tax_percent=100 * wasted / sum(cost.step_ns(span.rows) for span in full) if full else 0.0,
        zombie_rows=sum(span.zombies for span in forwards),
        bubble_percent=100 * (1 - busy / end_ns),
        duration_ms=end_ns / 1e6,
        tokens_per_s=steps.num_tokens * 1e9 / end_ns,
        num_steps=len(forwards),
        first_finish_ns=steps.finishes_ns[0],
    )


@dataclass(frozen=True)
class Comparison:
    """Blocking against pipelined, and what was published for the same machine and streams."""

    scenario: Scenario
    blocking: Run
    pipelined: Run

    @property
    def gain_percent(self) -> float | None:
        """Of the steady state: T_block / T_pipe * (1 - zombie tax) - 1, the source's formula."""
        if self.blocking.period_ms is None or self.pipelined.period_ms is None:
            return None
        tax = self.pipelined.zombie_tax_percent / 100
        return 100 * (self.blocking.period_ms / self.pipelined.period_ms * (1 - tax) - 1)

    @property
    def run_gain_percent(self) -> float:
        """Of the whole run: tokens per second, prefill and tail included."""
        return 100 * (self.pipelined.tokens_per_s / self.blocking.tokens_per_s - 1)

    @property
    def published(self) -> Published | None:
        """Of this machine and these streams, unless they were made worse on purpose."""
        scenario = self.scenario
        is_known = scenario.cost.label == "published" and not scenario.sync_masks
        return TABLE.get((scenario.cost.name, scenario.streams)) if is_known else None


def compare(scenario: Scenario, observers: tuple[Items[Observer], Items[Observer]] = ((), ())) -> Comparison:
    """Play the scenario at depth 1 and depth 2, each watched by observers of its own."""
    blocking, pipelined = (simulate(scenario, i, watching) for i, watching in enumerate(observers, 1))
    return Comparison(scenario, blocking, pipelined)
