"""Rounds: one full batch of rows from submit to end, and what its records say; for checks and benchmarks.

    play        one batch of rows of a fixed length, on an engine with a Listener
    alternate   rounds of it at depth 1 and depth 2 in turn, so that both meet the same machine

Every figure comes from the engine's own records: spans, marks and step records.
"""

from __future__ import annotations

import itertools
import statistics
from collections import defaultdict
from collections.abc import Sequence as Items
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from PIL import Image

from photon.engine import Engine
from photon.errors import InvalidRequestError
from photon.handle import Handle
from photon.model.config import TokenizerConfig
from photon.observe import Mark, Span, StepRecord
from photon.sequence import Request, SamplingParams
from photon.skills.base import Mask, Skill, TextEncoder, Token
from photon.skills.text import TextSkill

EMBEDDED_MODEL = Path(__file__).parents[2] / "assets" / "tiny"
DEPTHS = (1, 2)


class EndlessSkill(TextSkill):
    """Text whose end token is suppressed: every row runs to max_tokens, so the batch stays full."""

    def mask(self) -> Mask:
        return Mask.UNENDING

    def consume(self, token: Token) -> str:
        self._started = True
        return ""


def endless(params: SamplingParams, encoder: TextEncoder, ids: TokenizerConfig) -> Skill:
    prompt = [Token(i) for i in ids.templates["caption"]["short"]]
    return EndlessSkill(encoder, ids, prompt, key="caption", max_tokens=params.max_tokens)


class Listener:
    """An observer that keeps the spans of decode steps, the marks, and the step records."""

    def __init__(self) -> None:
        self.spans: list[Span] = []
        self.marks: list[Mark] = []
        self.steps: list[StepRecord] = []

    def clear(self) -> None:
        for records in (self.spans, self.marks, self.steps):
            records.clear()

    def on_span(self, span: Span) -> None:
        if span.kind == "decode":
            self.spans.append(span)

    def on_mark(self, mark: Mark) -> None:
        self.marks.append(mark)

    def on_step(self, record: StepRecord) -> None:
        self.steps.append(record)


@dataclass
class Round:
    """What one round showed; times in milliseconds.

    Attributes:
        period_ms: from one forward's start to the next one's, median over decode steps with every row.
        device_ms: of such a step, from the upload to the sampled token. host_ms: its plan, launch, sample
            and commit, without waits.
        device_busy: share of the time from the first such step to the last in which the device worked;
            every row wants it all the time, so the rest is bubble.
        ttft_ms: arrival to first token, median over the rows.
        itl_p50_ms, itl_p99_ms: of the gaps between the commits of one row, pooled.
        goodput: tokens a second that rows took, from the first arrival to the last finish.
        sync_leaks: waits for the device inside launch or sample.
    """

    period_ms: float
    device_ms: float
    host_ms: float
    device_busy: float
    ttft_ms: float
    itl_p50_ms: float
    itl_p99_ms: float
    goodput: float
    sync_leaks: int


@dataclass
class Report:
    """One batch size at one depth, over all rounds."""

    rows: int
    depth: int
    max_in_flight: int = 0
    rounds: list[Round] = field(default_factory=list)

    def median(self, name: str) -> float:
        return statistics.median(getattr(item, name) for item in self.rounds)

    def spread(self, name: str) -> list[float]:
        values = [getattr(item, name) for item in self.rounds]
        return [min(values), max(values)]

    def figures(self) -> dict[str, Any]:
        """Medians over the rounds under their names, with the spread of the period."""
        found = {item.name: self.median(item.name) for item in fields(Round)}
        limit_ms = max(found["device_ms"], found["host_ms"])  # the roof of two overlapped resources
        ratio = found["period_ms"] / limit_ms
        found["bubble_percent"] = 100 * (1 - found["device_busy"])
        return {**found, "period_spread_ms": self.spread("period_ms"), "period_over_limit": ratio}


def measure(spans: Items[Span], rows: int) -> dict[str, float]:
    """The part of a Round that spans tell, of decode steps with so many rows."""
    spans = [span for span in spans if span.rows == rows]
    forwards = {span.step_id: span for span in spans if span.name == "forward"}
    periods = [
        forwards[step + 1].start_ns - span.start_ns for step, span in forwards.items() if step + 1 in forwards
    ]

    if not periods:
        raise InvalidRequestError(f"No two steps had all {rows} rows; ask for more tokens a row.")

    def median(track: str, *names: str) -> float:
        totals: dict[int, int] = defaultdict(int)
        for span in spans:
            if span.track == track and span.name in names:
                totals[span.step_id] += span.end_ns - span.start_ns
        return statistics.median(totals.values()) / 1e6

    compute = [span for span in spans if span.track == "compute"]
    busy_ns = sum(span.end_ns - span.start_ns for span in compute)
    wall_ns = max(span.end_ns for span in compute) - min(span.start_ns for span in compute)
    return {
        "period_ms": statistics.median(periods) / 1e6,
        "device_ms": median("compute", "h2d", "forward", "sample"),
        "host_ms": median("host", "plan", "launch", "sample", "commit"),
        "device_busy": busy_ns / wall_ns,
        "sync_leaks": sum(span.name.startswith("sync: ") for span in spans),
    }


def latencies(marks: Items[Mark], steps: Items[StepRecord]) -> dict[str, float]:
    """The part of a Round that its requests feel."""
    at: dict[str, dict[int, int]] = defaultdict(dict)
    for mark in marks:
        at[mark.name][mark.request_id] = mark.time_ns
    commits: dict[int, list[int]] = defaultdict(list)
    for record in steps:
        for row in record.rows:
            if row.is_delivered:
                commits[row.request_id].append(record.time_ns)
    gaps = sorted(b - a for times in commits.values() for a, b in itertools.pairwise(times))
    wall_ns = max(at["finish"].values()) - min(at["arrival"].values())
    firsts = [time_ns - at["arrival"][request] for request, time_ns in at["first_token"].items()]
    return {
        "ttft_ms": statistics.median(firsts) / 1e6,
        "itl_p50_ms": statistics.median(gaps) / 1e6,
        "itl_p99_ms": gaps[len(gaps) * 99 // 100] / 1e6,
        "goodput": sum(map(len, commits.values())) * 1e9 / wall_ns,
    }


def play(engine: Engine, rows: int, num_tokens: int, *, is_threaded: bool) -> list[Handle]:
    """One full batch from submit to end; returns when all its records are out.

    All rows arrive at once: in 16 bits a token may depend on who shares its prefill.
    """
    image = engine.encode_image(Image.new("RGB", (engine.model.config.vision.crop_size,) * 2, "red"))
    settings = {"max_tokens": num_tokens}
    handles = engine.submit_all([Request(endless, image, settings=settings)] * rows)
    if not is_threaded:
        engine.run_until_idle()
    for handle in handles:
        handle.result(timeout=600)
    engine.stats()  # between two ticks: the last commit has reported its spans
    return handles


def token_ids(handles: Items[Handle]) -> list[list[int]]:
    return [[token.id for token in handle.tokens] for handle in handles]


@dataclass
class Rounds:
    """How `alternate` plays: on which engine, who listens there, and how much."""

    engine: Engine
    listener: Listener
    num_tokens: int
    num_rounds: int
    is_threaded: bool = True

    def alternate(self, rows: int) -> tuple[dict[int, Report], bool]:
        """Rounds at both depths in turn: a report by depth, and whether all tokens were equal."""
        reports, is_equal = {depth: Report(rows, depth) for depth in DEPTHS}, True
        play(self.engine, rows, self.num_tokens, is_threaded=self.is_threaded)  # warm-up
        for _ in range(self.num_rounds):
            tokens = [self._round(rows, report) for report in reports.values()]
            is_equal = is_equal and tokens[0] == tokens[1]
        return reports, is_equal

    def _round(self, rows: int, report: Report) -> list[list[int]]:
        """One round at the report's depth; its tokens."""
        self.engine.set_depth(report.depth)
        self.listener.clear()
        handles = play(self.engine, rows, self.num_tokens, is_threaded=self.is_threaded)
        heard: Any = measure(self.listener.spans, rows)
        heard |= latencies(self.listener.marks, self.listener.steps)
        report.rounds.append(Round(**heard))
        report.max_in_flight = max(report.max_in_flight, self.engine.stats()["max_in_flight"])
        return token_ids(handles)


def gains(reports: dict[int, Report]) -> list[float]:
    """Of each pair of rounds, how much sooner depth 2 is back, in percent of its period."""
    pairs = zip(reports[1].rounds, reports[2].rounds, strict=True)
    return [(one.period_ms / two.period_ms - 1) * 100 for one, two in pairs]


def batch_figures(reports: dict[int, Report]) -> dict[str, Any]:
    """One batch size at both depths, as plain JSON values."""
    found = gains(reports)
    return {
        "gain_percent": statistics.median(found),
        "gain_spread": [min(found), max(found)],
        **{f"depth_{depth}": report.figures() for depth, report in reports.items()},
    }


def summary(engine: Engine, played: dict[int, tuple[dict[int, Report], bool]]) -> dict[str, Any]:
    """What `alternate` gave for each batch size, as plain JSON values; "ok" is the verdict."""
    is_equal = all(equal for _, equal in played.values())
    rounds = [item for reports, _ in played.values() for report in reports.values() for item in report.rounds]
    num_leaks = sum(item.sync_leaks for item in rounds)
    in_flight = {d: max(reports[d].max_in_flight for reports, _ in played.values()) for d in DEPTHS}
    return {
        "device": engine.device.name,
        "dtype": engine.dtype,
        "model": engine.model.config.name,
        "tokens_equal": is_equal,
        "max_in_flight": {str(depth): count for depth, count in in_flight.items()},
        "sync_leaks": num_leaks,
        "rows": {str(rows): batch_figures(reports) for rows, (reports, _) in played.items()},
        "ok": is_equal and in_flight == {1: 1, 2: 2} and not num_leaks,
    }


def table(rows: dict[str, Any]) -> list[str]:
    """The figures of `batch_figures`, by batch size, as lines for people."""
    lines = ["rows depth   period ms (low..high)   device ms  host ms  device busy  period/limit  gain"]
    return lines + [_table_row(count, depth, batch) for count, batch in rows.items() for depth in DEPTHS]


def _table_row(rows: str, depth: int, batch: dict[str, Any]) -> str:
    f = batch[f"depth_{depth}"]
    low, high = f["period_spread_ms"]
    gain = f"{batch['gain_percent']:+.1f} %" if depth == 2 else ""
    period = f"{f['period_ms']:>11.3f} ({low:.3f}..{high:.3f})"
    shares = f"{f['device_ms']:>11.3f} {f['host_ms']:>8.3f} {f['device_busy'] * 100:>10.1f} %"
    return f"{rows:>4} {depth:>5} {period} {shares} {f['period_over_limit']:>12.2f}  {gain}".rstrip()
