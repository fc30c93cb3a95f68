"""Calibrate: a cost model from a blocking trace, and how well it predicts depth 2 on the device itself.

    python -m photon.calibrate --device cpu --runs 5

records one step in flight, fits, plays the fitted machine at depth 2 on the virtual clock, measures depth 2
on the device, and prints both gains for 1 and for 8 rows. Figures are of the steady state: nothing
in it ends early, so there is no zombie tax in either.

At depth 1 everything of a step lies on one path, and the spans say how long each stretch of it took:

    host     |plan|launch     |sample|  wait                |commit          |plan|launch ...
    device              |h2d|forward      |sample|
             <--P--><--L+S--><--------D----------><---C-----><----R--------->

P plan; L launch, as far as the device waits for it, S start delay behind it; D device; C copy, and until
the host knows; R commit, and whatever the host does between ticks. `fit` takes the mean of each over the
middle half of the steps by period, so the fitted machine's blocking period is the trace's by construction,
and what it says about depth 2 is what follows from the engine's order of things. The copy itself counts as
D on the cpu device, which has no copy engine. What a fit cannot know is what changes when both sides run
at once: cores and memory that they share.
"""

from __future__ import annotations

import argparse
import math
import statistics
import sys
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Protocol

from photon.config import EngineConfig
from photon.device import open_device
from photon.device.cost import IMAGE_POSITIONS, CostModel, Curve
from photon.engine import Engine
from photon.errors import InvalidRequestError
from photon.measure.command import Answer, run_command
from photon.measure.rounds import DEPTHS, EMBEDDED_MODEL, Listener, measure, play
from photon.model.weights import load_model
from photon.observe import Span
from photon.simulation import Scenario, compare

ROWS = (1, 8)
MIN_STEPS = 20
NUM_TURNS = 8


class SpanLike(Protocol):
    """What is read of a span, whoever made it."""

    @property
    def track(self) -> str: ...
    @property
    def name(self) -> str: ...
    @property
    def kind(self) -> str: ...
    @property
    def rows(self) -> int: ...
    @property
    def step_id(self) -> int: ...
    @property
    def start_ns(self) -> int: ...
    @property
    def end_ns(self) -> int: ...


StepSpans = dict[tuple[str, str], SpanLike]
NEEDED = [("host", name) for name in ("plan", "launch", "sample", "wait", "commit")]
NEEDED += [("compute", name) for name in ("h2d", "forward", "sample")] + [("copy", "d2h")]


@dataclass(frozen=True)
class Fit:
    """A fitted machine, and the batch it was fitted at. period_ms: median of the trace itself."""

    cost: CostModel
    rows: int
    num_steps: int
    period_ms: float


def fit(spans: Iterable[SpanLike], name: str) -> Fit:
    """The machine that recorded these spans at depth 1; `name` is its device's.

    Raises:
        InvalidRequestError: fewer than MIN_STEPS decode steps of one batch size that follow each other, or
            steps that overlap.
    """
    spans = list(spans)
    steps = _steps(spans)
    sizes = Counter(step["compute", "forward"].rows for step in steps.values())
    rows, count = sizes.most_common(1)[0] if sizes else (0, 0)
    pairs = [
        (step, steps[i + 1]) for i, step in steps.items() if _rows(step) == rows == _rows(steps.get(i + 1))
    ]
    if len(pairs) < MIN_STEPS:
        raise InvalidRequestError(
            f"The trace has {count} decode steps of one batch size, of which {len(pairs)} follow each other; "
            f"at least {MIN_STEPS} are needed: record a longer answer."
        )
    if any(b["host", "launch"].start_ns < a["host", "commit"].start_ns for a, b in pairs):
        raise InvalidRequestError("The steps of the trace overlap; record it at depth 1 (blocking).")
    pairs.sort(key=_period_ns)
    middle = pairs[len(pairs) // 4 : -(len(pairs) // 4)]
    return Fit(
        _cost(middle, steps, spans, name), rows, len(pairs) + 1, _period_ns(pairs[len(pairs) // 2]) / 1e6
    )


def _rows(step: StepSpans | None) -> int:
    return step["compute", "forward"].rows if step else 0


def _period_ns(pair: tuple[StepSpans, StepSpans]) -> int:
    return pair[1]["compute", "forward"].start_ns - pair[0]["compute", "forward"].start_ns


def _steps(spans: Iterable[SpanLike]) -> dict[int, StepSpans]:
    """Spans of each whole decode step."""
    found: dict[int, StepSpans] = {}
    for span in spans:
        if span.kind == "decode" and (span.track, span.name) in NEEDED:
            found.setdefault(span.step_id, {})[span.track, span.name] = span
    return {step_id: parts for step_id, parts in found.items() if len(parts) == len(NEEDED)}


def _cost(
    pairs: list[tuple[StepSpans, StepSpans]], steps: dict[int, StepSpans], spans: list[SpanLike], name: str
) -> CostModel:
    def mean(length_ns: Callable[[StepSpans, StepSpans], int]) -> float:
        return max(0.0, statistics.fmean(length_ns(a, b) for a, b in pairs) / 1e6)

    launch = mean(lambda a, b: a["host", "launch"].end_ns - a["host", "launch"].start_ns)
    # A card that has run the upload idles until the host has launched the forward: the host's time, no work.
    late = mean(lambda a, b: a["compute", "forward"].start_ns - a["compute", "h2d"].end_ns)
    to_device = late + mean(lambda a, b: a["compute", "h2d"].start_ns - a["host", "launch"].start_ns)
    to_sampled = mean(lambda a, b: a["host", "sample"].end_ns - a["host", "launch"].start_ns)
    device = mean(lambda a, b: a["compute", "sample"].end_ns - a["compute", "h2d"].start_ns) - late
    copied = 0.0
    if name.startswith("cpu"):
        copied = mean(lambda a, b: a["copy", "d2h"].end_ns - a["copy", "d2h"].start_ns)
    handed = mean(lambda a, b: a["host", "wait"].end_ns - a["compute", "sample"].end_ns)
    plan = mean(lambda a, b: b["host", "launch"].start_ns - b["host", "plan"].start_ns)
    commit = mean(lambda a, b: b["host", "plan"].start_ns - a["host", "wait"].end_ns)
    exposed, rows = min(launch, to_device), _rows(pairs[0][0])
    forward, sample = _by_rows(steps, "forward", rows), _by_rows(steps, "sample", rows)
    host = {"plan": plan, "launch": exposed, "sample": to_sampled - exposed, "commit": commit}
    return CostModel(
        name,
        "fitted",
        f"{len(pairs)} pairs of blocking decode steps of {rows} rows",
        forward=forward,
        sample=sample,
        upload_ms=device + copied - forward.ns(rows) / 1e6 - sample.ns(rows) / 1e6,
        copy_ms=handed - copied,
        prefill_token_ms=_per_row(spans, "prefill") / IMAGE_POSITIONS,
        crop_ms=_per_row(spans, "vision") / 2,
        host={phase: Curve(ms) for phase, ms in host.items()},
        start_ms=to_device - exposed,
    )


def _by_rows(steps: dict[int, StepSpans], name: str, rows: int) -> Curve:
    """Through the median at `rows`, with the slope of the medians over all batch sizes that occur."""
    lengths: dict[int, list[float]] = {}
    for step in steps.values():
        span = step["compute", name]
        lengths.setdefault(span.rows, []).append((span.end_ns - span.start_ns) / 1e6)
    medians = {size: statistics.median(values) for size, values in lengths.items()}
    slope = (
        statistics.linear_regression(list(medians), list(medians.values())).slope if len(medians) > 1 else 0
    )
    slope = max(0.0, slope)
    return Curve(medians[rows] - slope * rows, slope)


def _per_row(spans: Iterable[SpanLike], name: str) -> float:
    """Median ms per row of the prefills' spans of a name; 0 where there is none."""
    shares = [
        (s.end_ns - s.start_ns) / 1e6 / s.rows
        for s in spans
        if (s.track, s.name) == ("compute", name) and s.rows
    ]
    return statistics.median(shares) if shares else 0.0


# The command ---------------------------------------------------------------------------------------


def check(device_name: str, *, num_runs: int, num_tokens: int) -> list[dict[str, Any]]:
    """One entry per run and batch size: what depth 1 predicted, and what depth 2 took.

    A run changes between the depths NUM_TURNS times, so that both meet the same machine.
    """
    found = []
    steps = Listener()
    config = EngineConfig(max_batch_size=max(ROWS), max_cached_images=0)
    model, device = load_model(EMBEDDED_MODEL), open_device(device_name)
    with Engine(model, device, config, observers=[steps]) as engine:
        for rows in ROWS:
            play(engine, rows, num_tokens, is_threaded=True)  # warm-up
            for _ in range(num_runs):
                spans: dict[int, list[Span]] = {depth: [] for depth in DEPTHS}
                for depth in DEPTHS * NUM_TURNS:
                    engine.set_depth(depth)
                    steps.spans.clear()
                    play(engine, rows, num_tokens, is_threaded=True)
                    spans[depth] += steps.spans
                fitted = fit(spans[1], engine.device.name)
                found.append(_figures(fitted, measure(spans[2], rows)["period_ms"]))
    return found


def _figures(fitted: Fit, pipelined_ms: float) -> dict[str, Any]:
    predicted = compare(Scenario(fitted.cost, streams=fitted.rows, tokens=40, answers=1))
    periods = [run.period_ms or math.nan for run in (predicted.blocking, predicted.pipelined)]
    gains = {
        "predicted_gain_percent": 100 * (periods[0] / periods[1] - 1),
        "measured_gain_percent": 100 * (fitted.period_ms / pipelined_ms - 1),
    }
    return {
        "rows": fitted.rows,
        "blocking_ms": fitted.period_ms,
        "fitted_blocking_ms": periods[0],
        "predicted_ms": periods[1],
        "pipelined_ms": pipelined_ms,
        **gains,
        "off_points": gains["predicted_gain_percent"] - gains["measured_gain_percent"],
    }


def show(found: list[dict[str, Any]]) -> str:
    """The figures as a table for people."""
    lines = ["rows  blocking ms (fitted)  pipelined ms (predicted)  gain, predicted gain    off"]
    lines += [
        f"{f['rows']:>4} {f['blocking_ms']:>12.3f} ({f['fitted_blocking_ms']:.3f}) "
        f"{f['pipelined_ms']:>14.3f} ({f['predicted_ms']:.3f}) {f['measured_gain_percent']:>13.1f} % "
        f"{f['predicted_gain_percent']:>8.1f} % {f['off_points']:>+8.1f}"
        for f in found
    ]
    for rows in sorted({f["rows"] for f in found}):
        off = [f["off_points"] for f in found if f["rows"] == rows]
        middle = statistics.median(off)
        lines.append(f"{rows} rows: off by {middle:+.1f} points (median), {min(off):+.1f} to {max(off):+.1f}")
    return "\n".join(lines)


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m photon.calibrate", description="Predict depth 2 from depth 1, then measure it."
    )
    parser.add_argument("--device", default="cpu", help="cpu, cuda, cuda:N or sim:b200 (default: cpu)")
    parser.add_argument("--runs", type=int, default=5, help="runs for each batch size (default: 5)")
    parser.add_argument("--tokens", type=int, default=100, help="tokens of each row (default: 100)")
    return run_command(parser, run, argv)


def run(args: argparse.Namespace) -> Answer:
    found = check(args.device, num_runs=args.runs, num_tokens=args.tokens)
    return found, show(found)


if __name__ == "__main__":
    sys.exit(main())
