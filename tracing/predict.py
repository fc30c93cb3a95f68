"""What two steps in flight would gain, predicted from a trace of one step in flight.

    pipelined   max(device, host)                            both at once, the longer one shows
    period      measured from one forward to the next        = device + exposed host + hand-over
    gain        period / pipelined * (1 - zombie tax) - 1

All are medians over decode steps. Exposed host is the host's work while the device idled; what it did beside
the device is hidden already. The hand-over is what nobody worked in: the launch on its way to the device,
the tokens and the wake-up on their way back. Pipelining hides it as long as host and device do not compete
for the same cores, so two gains are told: with the hand-over hidden, and without.

The zombie tax is what finished requests cost by riding one step more: a whole step where nobody else rides
in it, else what one more row costs the device. Ends by length are known in advance and cost nothing, but a
trace does not tell them from the others, so each end is charged and the prediction is a cautious one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

from tracing.bubbles import device_busy, host_leaves, steps_overlap
from tracing.intervals import covered
from tracing.lanes import phase_of
from tracing.trace import Table, Trace, once
from tracing.values import Value


class StepTimes(NamedTuple):
    """Medians over the decode steps of a trace, in ms; `period` is None unless two follow each other."""

    period_ms: float | None
    device_ms: float
    host_ms: float
    num_steps: int


class Prediction(NamedTuple):
    """From a blocking trace; times per decode step in ms, zombie_tax a share of the pipelined time."""

    device_ms: float
    host_ms: float
    blocking_ms: float
    """device + exposed host: a blocking step without its hand-over."""
    pipelined_ms: float
    zombie_tax: float
    gain_percent: float
    """Of pipelined over blocking: the hand-over, if there is one, stays."""
    period_ms: float | None
    """Measured: from one forward's start to the next one's."""

    @property
    def hand_over_ms(self) -> float | None:
        """period - blocking."""
        return None if self.period_ms is None else self.period_ms - self.blocking_ms

    @property
    def gain_with_hand_over_percent(self) -> float | None:
        """Of pipelined over the period that was measured: the hand-over is hidden as well."""
        return None if self.period_ms is None else _gain(self.period_ms, self.pipelined_ms, self.zombie_tax)


def _gain(blocking_ms: float, pipelined_ms: float, tax: float) -> float:
    return 100 * (blocking_ms / pipelined_ms * (1 - tax) - 1)


@once
def step_times(trace: Trace) -> StepTimes | None:
    """Device time (compute spans) and host time (H) of a decode step, and the period from one forward's
    start to the next one's where step ids follow each other. None without a decode step."""
    forwards = trace.where("compute", "forward", kind="decode")
    if not len(forwards):
        return None
    steps, starts = forwards["step_id"], forwards["start_ns"]
    periods = np.diff(starts)[np.diff(steps) == 1]
    device = per_step(trace.where("compute", kind="decode"))
    work, _ = host_per_step(trace, steps.tolist())
    period = float(np.median(periods)) / 1e6 if len(periods) else None
    return StepTimes(period, _median_ms(device), _median_ms(work), len(forwards))


@once
def predict(trace: Trace) -> Prediction | None:
    """The gain of depth 2 over this trace; None unless it is blocking and has decode steps with host time.

    Blocking means depth 1, told by the spans: no step is launched before the one before it was committed.
    """
    times = step_times(trace)
    if times is None or not times.host_ms or not times.device_ms or steps_overlap(trace):
        return None
    _, exposed = host_per_step(trace, trace.where("compute", "forward", kind="decode")["step_id"].tolist())
    blocking, pipelined = times.device_ms + _median_ms(exposed), max(times.device_ms, times.host_ms)
    tax = _zombie_tax(trace, times, pipelined)
    gain = _gain(blocking, pipelined, tax)
    return Prediction(times.device_ms, times.host_ms, blocking, pipelined, tax, gain, times.period_ms)


def predicted_gain_percent(trace: Trace) -> Value:
    """100 * (period / max(device, host) * (1 - zombie tax) - 1), medians over decode steps. Of depth 2 over
    depth 1; None for a trace in which steps overlap, which is depth 2 already.
    """
    predicted = predict(trace)
    return None if predicted is None else predicted.gain_with_hand_over_percent


def _zombie_tax(trace: Trace, times: StepTimes, pipelined_ms: float) -> float:
    """Time of the zombies that two steps in flight would bring / time of the steps."""
    forwards = trace.where("compute", "forward", kind="decode")
    riders = dict(zip(forwards["step_id"].tolist(), forwards["rows"].tolist(), strict=True))
    ends = Counter(m.step_id for m in trace.marks if m.name == "finish" and m.step_id in riders)
    alone = sum(count >= riders[step] for step, count in ends.items())
    beside = sum(count for step, count in ends.items() if count < riders[step])
    later = max(times.device_ms + _row_ms(forwards), times.host_ms)
    cost = alone * pipelined_ms + beside * (later - pipelined_ms)
    return min(cost / (len(forwards) * pipelined_ms), 1.0)


def _row_ms(forwards: Table) -> float:
    """What one more row costs the device: the slope over the batch sizes seen, or a row's share of one."""
    sizes = forwards["rows"].astype(np.int64) + forwards["padding"]
    lengths = (forwards["end_ns"] - forwards["start_ns"]) / 1e6
    if len(np.unique(sizes)) > 1:
        return max(float(np.polyfit(sizes, lengths, 1)[0]), 0.0)
    return float(np.median(lengths) / max(sizes[0], 1))


def per_step(rows: Table) -> list[int]:
    """Sum of the lengths of each step's spans, in ns."""
    _, owner = np.unique(rows["step_id"], return_inverse=True)
    return np.bincount(owner, (rows["end_ns"] - rows["start_ns"]).astype(float)).astype(int).tolist()


def host_per_step(trace: Trace, steps: Iterable[int]) -> tuple[list[int], list[int]]:
    """H of each of the steps, its host spans without waits and sync leaks, and how much of it is exposed:
    done while the device idled; in ns."""
    work, exposed = dict.fromkeys(steps, 0), dict.fromkeys(steps, 0)
    leaves = [leaf for leaf in host_leaves(trace) if phase_of(leaf.name) not in ("wait", "sync")]
    busy = device_busy(trace)
    starts, ends = (np.array([leaf[i] for leaf in leaves], np.int64) for i in (0, 1))
    hidden = (covered(busy, ends) - covered(busy, starts)).tolist()
    for leaf, beside in zip(leaves, hidden, strict=True):
        if leaf.step_id in work:
            work[leaf.step_id] += leaf.end_ns - leaf.start_ns
            exposed[leaf.step_id] += leaf.end_ns - leaf.start_ns - beside
    return list(work.values()), list(exposed.values())


def _median_ms(lengths: list[int]) -> float:
    return float(np.median(lengths)) / 1e6 if lengths else 0.0
