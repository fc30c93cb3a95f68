"""Self-check: one fixed workload at depth 1 and depth 2 on a device, side by side in one run.

    python -m photon.selfcheck --device cpu [--json]
    python -m photon.selfcheck --trace-truth        is what the trace says true? see `trace_truth.py`
    python -m photon.selfcheck --overhead           what does observing cost? see `overhead.py`

Prints, for 1 and for 8 rows, the step's period, the device's and the host's share of it, how much of the
time the device was busy, and the gain of depth 2; and checks that both depths gave the same tokens, that
two steps really were in flight, and that the host waited in commit alone. Exit status 1 if a check failed.
The rounds alternate between the depths, so that both meet the same machine; figures are medians over the
rounds, with the lowest and the highest. On the deferred device times are those of its virtual clock and
mean nothing; the checks do.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from PIL import Image

from photon.config import EngineConfig
from photon.device import open_device
from photon.engine import Engine
from photon.errors import PhotonError
from photon.handle import Handle
from photon.model.config import TokenizerConfig
from photon.model.weights import load_model
from photon.observe import Mark, Span, StepRecord
from photon.sequence import Request, SamplingParams
from photon.skills.base import Mask, Skill, TextEncoder, Token
from photon.skills.text import TextSkill

MODEL = Path(__file__).parent.parent / "assets" / "tiny"
RECORDER = "tracing.recorder:Recorder"
ROWS = (1, 8)
DEPTHS = (1, 2)


class EndlessSkill(TextSkill):
    """Text whose end token is suppressed: every row runs to max_tokens, so the batch stays full."""

    def mask(self) -> Mask:
        return Mask.REASONING

    def consume(self, token: Token) -> str:
        self._started = True
        return ""


def endless(params: SamplingParams, encoder: TextEncoder, ids: TokenizerConfig) -> Skill:
    prompt = [Token(i) for i in ids.templates["caption"]["short"]]
    return EndlessSkill(encoder, ids, prompt, key="caption", max_tokens=params.max_tokens)


class Steps:
    """An observer that keeps the spans of full decode steps."""

    def __init__(self) -> None:
        self.spans: list[Span] = []

    def on_span(self, span: Span) -> None:
        if span.kind == "decode":
            self.spans.append(span)

    def on_mark(self, mark: Mark) -> None:
        """Marks are not needed."""

    def on_step(self, record: StepRecord) -> None:
        """Rows are not needed."""


@dataclass
class Round:
    """Medians over the steps of one round, in milliseconds."""

    period_ms: float
    device_ms: float
    host_ms: float
    device_busy: float


@dataclass
class Report:
    """One batch size at one depth, over all rounds."""

    rows: int
    depth: int
    max_in_flight: int = 0
    rounds: list[Round] = field(default_factory=list)

    def median(self, name: str) -> float:
        return statistics.median(getattr(item, name) for item in self.rounds)

    def spread(self, name: str) -> tuple[float, float]:
        values = [getattr(item, name) for item in self.rounds]
        return min(values), max(values)

    @property
    def period_over_limit(self) -> float:
        """Period / max(device, host): 1 is the roof of two overlapped resources."""
        return self.median("period_ms") / max(self.median("device_ms"), self.median("host_ms"))


def measure(spans: list[Span], rows: int) -> Round:
    """Medians of one round. Host time is plan + launch + sample + commit, without waits; device time runs
    from the upload to the sampled token; the period from one forward's start to the next one's.
    """
    spans = [span for span in spans if span.rows == rows]
    forwards = {span.step_id: span for span in spans if span.name == "forward"}
    periods = [
        forwards[step + 1].start_ns - span.start_ns for step, span in forwards.items() if step + 1 in forwards
    ]

    def median(track: str, *names: str) -> float:
        totals: dict[int, int] = {}
        for span in spans:
            if span.track == track and span.name in names:
                totals[span.step_id] = totals.get(span.step_id, 0) + span.end_ns - span.start_ns
        return statistics.median(totals.values()) / 1e6

    compute = [span for span in spans if span.track == "compute"]
    busy_ns = sum(span.end_ns - span.start_ns for span in compute)
    wall_ns = max(span.end_ns for span in compute) - min(span.start_ns for span in compute)
    return Round(
        period_ms=statistics.median(periods) / 1e6,
        device_ms=median("compute", "h2d", "forward", "sample"),
        host_ms=median("host", "plan", "launch", "sample", "commit"),
        device_busy=busy_ns / wall_ns,
    )


def play(engine: Engine, rows: int, num_tokens: int, *, is_threaded: bool) -> list[list[int]]:
    """One full batch from submit to end; returns its tokens, and when all its records are out."""
    image = engine.encode_image(Image.new("RGB", (engine.model.config.vision.crop_size,) * 2, "red"))
    settings = {"max_tokens": num_tokens}
    handles: list[Handle] = [engine.submit(Request(endless, image, settings=settings)) for _ in range(rows)]
    if not is_threaded:
        engine.run_until_idle()
    for handle in handles:
        handle.result(timeout=600)
    engine.stats()  # between two ticks: the last commit has reported its spans
    return [[token.id for token in handle.tokens] for handle in handles]


def run_round(
    engine: Engine, steps: Steps, rows: int, num_tokens: int, is_threaded: bool
) -> tuple[Round, list[list[int]]]:
    """One full batch: its figures and its tokens."""
    steps.spans.clear()
    tokens = play(engine, rows, num_tokens, is_threaded=is_threaded)
    return measure(steps.spans, rows), tokens


def check(device_name: str, *, num_tokens: int, num_rounds: int, model: Path = MODEL) -> dict[str, Any]:
    """Run the workload and return everything measured, as plain JSON values."""
    steps = Steps()
    device = open_device(device_name)
    config = EngineConfig(max_batch_size=max(ROWS), max_cached_images=0)
    is_threaded = device.name != "deferred"
    reports: list[Report] = []
    is_equal = True
    with Engine(load_model(model), device, config, observers=[steps], threaded=is_threaded) as engine:
        for rows in ROWS:
            by_depth = {depth: Report(rows, depth) for depth in DEPTHS}
            play(engine, rows, num_tokens, is_threaded=is_threaded)  # warm-up
            for _ in range(num_rounds):
                tokens = {}
                for depth, report in by_depth.items():
                    engine.set_depth(depth)
                    measured, tokens[depth] = run_round(engine, steps, rows, num_tokens, is_threaded)
                    report.rounds.append(measured)
                    report.max_in_flight = max(report.max_in_flight, engine.stats()["max_in_flight"])
                is_equal = is_equal and tokens[1] == tokens[2]
            reports += by_depth.values()
        return summary(engine, reports, is_equal)


def summary(engine: Engine, reports: list[Report], is_equal: bool) -> dict[str, Any]:
    batches = {}
    for rows in ROWS:
        blocking, pipelined = (next(r for r in reports if r.rows == rows and r.depth == d) for d in DEPTHS)
        gains = [
            (one.period_ms / two.period_ms - 1) * 100
            for one, two in zip(blocking.rounds, pipelined.rounds, strict=True)
        ]
        batches[str(rows)] = {
            "gain_percent": statistics.median(gains),
            "gain_spread": [min(gains), max(gains)],
            **{f"depth_{report.depth}": figures(report) for report in (blocking, pipelined)},
        }
    in_flight = {report.depth: report.max_in_flight for report in reports}
    return {
        "device": engine.device.name,
        "dtype": engine.dtype,
        "model": engine.model.config.name,
        "tokens_equal": is_equal,
        "max_in_flight": {str(depth): count for depth, count in in_flight.items()},
        "rows": batches,
        "ok": is_equal and in_flight == {1: 1, 2: 2},
    }


def figures(report: Report) -> dict[str, Any]:
    medians = {name: report.median(name) for name in asdict(report.rounds[0])}
    low, high = report.spread("period_ms")
    return {**medians, "period_spread_ms": [low, high], "period_over_limit": report.period_over_limit}


def show(result: dict[str, Any]) -> str:
    """The figures as a table for people."""
    lines = [
        f"{result['model']} on {result['device']}, {result['dtype']}",
        "rows depth   period ms (low..high)   device ms  host ms  device busy  period/limit  gain",
    ]
    for rows, batch in result["rows"].items():
        lines += [table_row(rows, depth, batch) for depth in DEPTHS]
    lines.append(f"tokens equal at depth 1 and 2: {'yes' if result['tokens_equal'] else 'NO'}")
    lines.append(f"most steps in flight, by depth: {result['max_in_flight']}")
    return "\n".join(lines)


def table_row(rows: str, depth: int, batch: dict[str, Any]) -> str:
    f = batch[f"depth_{depth}"]
    low, high = f["period_spread_ms"]
    gain = f"{batch['gain_percent']:+.1f} %" if depth == 2 else ""
    period = f"{f['period_ms']:>11.3f} ({low:.3f}..{high:.3f})"
    shares = f"{f['device_ms']:>11.3f} {f['host_ms']:>8.3f} {f['device_busy'] * 100:>10.1f} %"
    return f"{rows:>4} {depth:>5} {period} {shares} {f['period_over_limit']:>12.2f}  {gain}".rstrip()


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m photon.selfcheck", description=__doc__.split("\n")[0])
    parser.add_argument("--device", default="cpu", help="cpu, deferred, cuda or cuda:N (default: cpu)")
    parser.add_argument("--model", type=Path, default=MODEL, help="model folder (default: the embedded one)")
    parser.add_argument("--tokens", type=int, default=200, help="tokens of each row (default: 200)")
    parser.add_argument("--rounds", type=int, default=5, help="rounds at each depth (default: 5)")
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--trace-truth", action="store_true", help="hold the trace against other clocks")
    which.add_argument("--overhead", action="store_true", help="throughput with an observer and without")
    parser.add_argument(
        "--observer",
        default=RECORDER,
        metavar="MODULE:CLASS",
        help=f"the observer of --overhead (default: {RECORDER})",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object as the last line")
    args = parser.parse_args(argv)
    try:
        result, text = run(args)
    except PhotonError as error:
        print(f"selfcheck: {error}", file=sys.stderr)
        return 2
    print(text)
    if args.json:
        print(json.dumps(result))
    return 0 if result["ok"] else 1


def run(args: argparse.Namespace) -> tuple[dict[str, Any], str]:
    """The check that was asked for: its result, and that for people."""
    from photon import overhead, trace_truth  # they play the workload above

    options = {"num_tokens": args.tokens, "num_rounds": args.rounds, "model": args.model}
    if args.trace_truth:
        result = trace_truth.check(args.device, **options)
        return result, trace_truth.show(result)
    if args.overhead:
        result = overhead.check(args.device, args.observer, **options)
        return result, overhead.show(result)
    result = check(args.device, **options)
    return result, show(result)


if __name__ == "__main__":
    sys.exit(main())
