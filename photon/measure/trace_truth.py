"""Is the trace true? One fixed workload, its records held against what must be so and against other clocks.

    python -m photon.selfcheck --trace-truth [--device cpu] [--json]

At 1 and 8 rows, at depth 1 and 2:
- structure: spans of one track nest or are disjoint; device spans lie between the start of their step's
  launch and the end of its commit (give or take `Device.clock_uncertainty_ns`)
- sums: outermost host spans and the gaps around them are the wall time of the run, to the nanosecond
- busy: the share of time the device is busy by the spans, and by a witness that knows nothing of them. Where
  the spans call idle time busy, the two part; the medians over the rounds are compared.
  cpu: the CPU clock of the worker's thread, read at the same events. The kernel stops that clock while the
  worker sleeps or waits for a core, so on a loaded machine the two part as well, and the load is printed.
  What the worker used besides, to take commands and to wake the host, is in JSON ("worker_percent", in all).
  cuda: when the kernels ran by torch's profiler, in one more round at depth 2, behind the last prefill
  (`device/kernel_clock.py`). JSON has, by span, what of it no kernel ran in ("idle_us"). On a card that
  idles, as at depth 1, the profiler itself delays a graph's kernels (0.2 ms behind their begin, on an H200),
  so what is held there is that a step takes the device as long as one at depth 2.
"""

from __future__ import annotations

import os
import statistics
from collections import defaultdict
from collections.abc import Sequence as Items
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from photon.config import EngineConfig
from photon.device import open_device
from photon.device.base import Device, Event
from photon.device.cpu import CpuDevice
from photon.device.kernel_clock import watch_kernels
from photon.engine import Engine
from photon.errors import InvalidRequestError
from photon.measure.intervals import Interval, crossings, host_and_gaps, shared_ns, strays, union
from photon.measure.rounds import DEPTHS, play
from photon.model.weights import load_model
from photon.observe import Mark, Span, StepRecord

ROWS = (1, 8)
MAX_BUSY_POINTS = 1.0
"""The most by which two busy shares may differ, in points, and a step at both depths, in percent."""


class Spans:
    """An observer that keeps all spans."""

    def __init__(self) -> None:
        self.spans: list[Span] = []

    def on_span(self, span: Span) -> None:
        self.spans.append(span)

    def on_mark(self, mark: Mark) -> None:
        """Marks are not needed."""

    def on_step(self, record: StepRecord) -> None:
        """Rows are not needed."""


class MeteredCpuDevice(CpuDevice):
    """Keeps, for every event time that is asked for, what the worker's CPU clock said then."""

    def __init__(self) -> None:
        super().__init__(is_metered=True)
        self.cpu_at: dict[int, int] = {}

    def time_ns(self, event: Event) -> int:
        time_ns = super().time_ns(event)
        self.cpu_at[time_ns] = self.cpu_ns(event)
        return time_ns


# One round -----------------------------------------------------------------------------------------


@dataclass
class Truth:
    """What the rounds of one batch size at one depth showed."""

    num_spans: int = 0
    crossings: int = 0
    strays: int = 0
    host_ns: int = 0
    gaps_ns: int = 0
    wall_ns: int = 0
    busy_percent: list[float] = field(default_factory=list)
    witness_percent: list[float] = field(default_factory=list)
    worker_percent: list[float] = field(default_factory=list)
    step_ms: list[float] = field(default_factory=list)
    """Device time of each decode step that no profiler watched."""
    idle_us: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    """By name, what of each span no kernel ran in."""

    def add(
        self, spans: list[Span], wall: Interval, device: Device, kernels: Items[Interval] | None = None
    ) -> None:
        """One round. kernels: when some ran, if a profiler was watching; none at all is no witness."""
        slack_ns = device.clock_uncertainty_ns
        self.num_spans += len(spans)
        self.crossings += crossings(spans, slack_ns)
        self.strays += strays(spans, slack_ns)
        host_ns, gaps_ns = host_and_gaps(spans, wall)
        self.host_ns, self.gaps_ns = self.host_ns + host_ns, self.gaps_ns + gaps_ns
        self.wall_ns += wall[1] - wall[0]
        if isinstance(device, MeteredCpuDevice):
            self._add_busy(spans, device.cpu_at)
        elif kernels is not None:
            self._add_kernels(spans, kernels)
        else:
            self._add_steps(spans)

    def _add_steps(self, spans: list[Span]) -> None:
        steps: dict[int, int] = defaultdict(int)
        for span in spans:
            if (span.track, span.kind) == ("compute", "decode"):
                steps[span.step_id] += span.end_ns - span.start_ns
        self.step_ms += [total / 1e6 for total in steps.values()]

    def _add_kernels(self, spans: list[Span], kernels: Items[Interval]) -> None:
        """Busy shares of the time from the first decode step behind all prefills to the last one's end."""
        compute = [span for span in spans if span.track == "compute"]
        prefilled_ns = max((span.end_ns for span in compute if span.kind == "prefill"), default=0)
        decodes = [span for span in compute if span.start_ns >= prefilled_ns]
        busy = union(decodes)
        window = busy[0][0], busy[-1][1]
        percent = 100 / (window[1] - window[0])
        self.busy_percent.append(sum(end - start for start, end in busy) * percent)
        self.witness_percent.append(shared_ns(kernels, [window]) * percent)
        for span in decodes:
            mine = [(span.start_ns, span.end_ns)]
            self.idle_us[span.name].append((span.end_ns - span.start_ns - shared_ns(kernels, mine)) / 1e3)

    def _add_busy(self, spans: list[Span], cpu_at: dict[int, int]) -> None:
        """Busy shares of the time between the first device span's start and the last one's end."""
        busy = union(span for span in spans if span.track != "host")
        first, last = busy[0][0], busy[-1][1]
        percent = 100 / (last - first)
        self.busy_percent.append(sum(end - start for start, end in busy) * percent)
        self.witness_percent.append(sum(cpu_at[end] - cpu_at[start] for start, end in busy) * percent)
        self.worker_percent.append((cpu_at[last] - cpu_at[first]) * percent)

    @property
    def differences(self) -> list[float]:
        return [busy - other for busy, other in zip(self.busy_percent, self.witness_percent, strict=True)]

    def figures(self) -> dict[str, Any]:
        """As plain JSON values, with "ok"."""
        found: dict[str, Any] = {
            name: getattr(self, name)
            for name in ("num_spans", "crossings", "strays", "host_ns", "gaps_ns", "wall_ns")
        }
        is_sum = self.host_ns + self.gaps_ns == self.wall_ns
        is_true = not self.crossings and not self.strays and is_sum
        if self.busy_percent:
            names = ("busy_percent", "witness_percent", "worker_percent")
            found |= {name: statistics.median(values) for name in names if (values := getattr(self, name))}
            found["difference_points"] = statistics.median(self.differences)
            found["difference_spread"] = [min(self.differences), max(self.differences)]
            is_true = is_true and abs(found["difference_points"]) <= MAX_BUSY_POINTS
        if self.step_ms:
            found["step_ms"] = statistics.median(self.step_ms)
        if self.idle_us:
            found["idle_us"] = {name: statistics.median(values) for name, values in self.idle_us.items()}
        return {**found, "ok": is_true}


def check(device_name: str, *, num_tokens: int, num_rounds: int, model: Path) -> dict[str, Any]:
    """Run the workload and return everything found, as plain JSON values; "ok" is the verdict.

    Raises InvalidRequestError for answers of one token, which no step decodes.
    """
    if num_tokens < 2:
        raise InvalidRequestError("No step decodes; ask for at least 2 tokens a row.")
    listener = Spans()
    device: Device = MeteredCpuDevice() if device_name == "cpu" else open_device(device_name)
    load = [os.getloadavg()[0]]
    batches: dict[str, Any] = {}
    config = EngineConfig(max_batch_size=max(ROWS), max_cached_images=0)
    with Engine(load_model(model), device, config, observers=[listener], threaded=False) as engine:
        for rows in ROWS:
            play(engine, rows, num_tokens, is_threaded=False)  # warm-up
            truths = {depth: Truth() for depth in DEPTHS}
            for depth in DEPTHS * num_rounds:
                wall = _round(engine, listener, depth, rows, num_tokens)
                truths[depth].add(listener.spans, wall, device)
            is_card = device.torch_device.startswith("cuda")
            if is_card:
                with watch_kernels() as kernels:
                    wall = _round(engine, listener, 2, rows, num_tokens)
                truths[2].add(listener.spans, wall, device, kernels)
            batches[str(rows)] = found = {f"depth_{depth}": truths[depth].figures() for depth in DEPTHS}
            if is_card:
                hold_against_depth_2(found)
        load.append(os.getloadavg()[0])
        return {
            "device": device.name,
            "model": engine.model.config.name,
            "dtype": engine.dtype,
            "load": load,
            "clock_uncertainty_ns": device.clock_uncertainty_ns,
            "clock_clamped": device.clock_clamped,
            "witness": _witness(device),
            "rows": batches,
            "ok": all(truth["ok"] for batch in batches.values() for truth in batch.values()),
        }


def _round(engine: Engine, listener: Spans, depth: int, rows: int, num_tokens: int) -> Interval:
    """Play one; the listener then holds its spans. Returns its wall time."""
    engine.set_depth(depth)
    listener.spans.clear()
    start_ns = engine.device.now_ns()
    play(engine, rows, num_tokens, is_threaded=False)
    return start_ns, engine.device.now_ns()


def hold_against_depth_2(found: dict[str, Any]) -> None:
    """A step's work is the same at both depths: what it takes longer at depth 1 is no work."""
    one, two = found["depth_1"], found["depth_2"]
    one["longer_percent"] = 100 * (one["step_ms"] / two["step_ms"] - 1)
    one["ok"] = one["ok"] and abs(one["longer_percent"]) <= MAX_BUSY_POINTS


def _witness(device: Device) -> str | None:
    if isinstance(device, MeteredCpuDevice):
        return "the worker's CPU clock"
    return "the profiler's kernel times" if device.torch_device.startswith("cuda") else None


def show(result: dict[str, Any]) -> str:
    """The findings as a table for people."""
    load = " to ".join(f"{value:.2f}" for value in result["load"])
    lines = [
        f"{result['model']} on {result['device']}, {result['dtype']}; load {load}; "
        f"clock +-{result['clock_uncertainty_ns']} ns, {result['clock_clamped']} times clamped",
        "rows depth   spans crossing astray  host + gaps - wall  busy by spans  by witness  points (range)",
    ]
    for rows, batch in result["rows"].items():
        for depth in DEPTHS:
            lines.append(_row(rows, depth, batch[f"depth_{depth}"]))
    if result["witness"]:
        lines.append(f"witness: {result['witness']}")
    lines.append(f"the trace is true: {'yes' if result['ok'] else 'NO'}")
    return "\n".join(lines)


def _row(rows: str, depth: int, found: dict[str, Any]) -> str:
    rest_ns = found["host_ns"] + found["gaps_ns"] - found["wall_ns"]
    head = f"{rows:>4} {depth:>5} {found['num_spans']:>7} {found['crossings']:>8} {found['strays']:>6}"
    if "busy_percent" not in found:
        longer = f"  a step {found['longer_percent']:+.2f} %" if "longer_percent" in found else ""
        return f"{head} {rest_ns:>17} ns{longer}"
    low, high = found["difference_spread"]
    shares = f"{found['busy_percent']:>13.2f} % {found['witness_percent']:>9.2f} %"
    return f"{head} {rest_ns:>17} ns {shares} {found['difference_points']:>+7.2f} ({low:+.2f}..{high:+.2f})"
