"""compare(a, b) -> Report: every metric of two traces, how long their steps took, and their tokens. Pure.

    a, b   two traces of one workload, say at depth 1 and depth 2
    steps  phase_times(trace): period, device and host time of each decode step
    tokens the k-th request to arrive in a, and the k-th to arrive in b, token by token

A metric is better when it moved the way `HIGHER` or `LOWER` says; of the others there is no telling.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from tracing.intervals import covered
from tracing.latency import tokens_per_s
from tracing.metrics import METRICS, Metric
from tracing.predict import host_per_step, per_step, step_times
from tracing.requests import demand, request_lives
from tracing.trace import RowRecord, Table, Trace, once
from tracing.values import Value, percentile

HIGHER = {"device_busy_percent", "host_hidden_percent", "overlap_factor", "pipeline_efficiency"}
HIGHER |= {"d2h_hidden_percent", "tokens_per_s", "slo_requests_per_s"}
LOWER = {"bubble_percent", "bubble_count", "bubble_p50_us", "bubble_max_us", "host_exposed_ms"}
LOWER |= {"zombie_rows", "zombie_rows_percent", "zombie_tax_upper_percent", "zombie_tax_marginal_percent"}
LOWER |= {"all_zombie_steps", "all_zombie_ms", "sync_leaks", "sync_leak_ms"}
LOWER |= {"ttft_p50_ms", "ttft_p99_ms", "queue_p50_ms", "prefill_p50_ms"}
LOWER |= {"itl_p50_ms", "itl_p99_ms", "tpot_p50_ms"}
HOST_PHASES = ("plan", "launch", "sample", "commit")
PHASES = ("period", "device", "host", *HOST_PHASES)
Times = Mapping[str, npt.NDArray[np.float64]]


class Row(NamedTuple):
    """One metric in both traces; a value is None where there is nothing to divide."""

    metric: Metric
    a: Value
    b: Value

    @property
    def difference(self) -> Value:
        return None if self.a is None or self.b is None else self.b - self.a

    @property
    def verdict(self) -> str | None:
        """ "better" or "worse": b against a; None: equal, unknown, or no direction is the good one."""
        if not self.difference or self.metric.key not in HIGHER | LOWER:
            return None
        return "better" if (self.difference > 0) == (self.metric.key in HIGHER) else "worse"


class Token(NamedTuple):
    """A delivered token, the coordinate or size it stands for, and the step that made it."""

    token_id: int
    value: tuple[float, float]
    step_id: int


class Difference(NamedTuple):
    """The first token in which a pair of requests differs; None: that request ended before it."""

    pair: int
    request_a: int
    request_b: int
    place: int
    a: Token | None
    b: Token | None

    def __str__(self) -> str:
        said = [
            f"{name} has token {token.token_id} from step {token.step_id}" if token else f"{name} has ended"
            for name, token in (("A", self.a), ("B", self.b))
        ]
        requests = f"request {self.request_a} of A and request {self.request_b} of B"
        return f"Pair {self.pair}, {requests}, differ at token {self.place}: {' and '.join(said)}."


_ROUNDED = (
    " In 16 bits that alone is no error: of tokens that are almost equally likely, rounding takes one, and "
    "it depends on who shares the step and on what comes from the cache."
)


@dataclass(frozen=True)
class Tokens:
    """Requests paired by order of arrival; `num_tokens` were found equal."""

    num_pairs: int
    num_tokens: int
    num_unpaired: int
    differences: tuple[Difference, ...]
    is_rounded: bool = False
    """The arithmetic was of 16 bits."""

    @property
    def is_equal(self) -> bool | None:
        """None: there was no token to compare."""
        return False if self.differences else True if self.num_tokens else None

    @property
    def is_error(self) -> bool:
        """They differ, and no rounding explains it."""
        return bool(self.differences) and not self.is_rounded

    def __str__(self) -> str:
        verb = "request has" if self.num_unpaired == 1 else "requests have"
        alone = f" {self.num_unpaired} {verb} no counterpart." if self.num_unpaired else ""
        if self.differences:
            more, equal = len(self.differences) - 1, self.num_pairs - len(self.differences)
            others = f" {more} more pairs differ, {equal} are equal." if more else ""
            others = others or (f" The other {equal} pairs are equal." if equal > 1 else "")
            return f"{self.differences[0]}{others}{alone}{_ROUNDED if self.is_rounded else ''}"
        if not self.num_tokens:
            return f"There are no tokens to compare.{alone}"
        return f"All {self.num_tokens} tokens of {self.num_pairs} pairs of requests are equal.{alone}"


@dataclass(frozen=True)
class Report:
    """`steps` holds (a, b) per phase, in milliseconds."""

    rows: tuple[Row, ...]
    steps: Mapping[str, tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]]
    tokens: Tokens

    @property
    def medians(self) -> dict[str, tuple[Value, Value]]:
        """(a, b) per phase, milliseconds."""
        return {
            phase: (percentile(a.tolist(), 50), percentile(b.tolist(), 50))
            for phase, (a, b) in self.steps.items()
        }


def compare(a: Trace, b: Trace) -> Report:
    """b against a."""
    rows = tuple(Row(metric, metric.function(a), metric.function(b)) for metric in METRICS)
    times = phase_times(a), phase_times(b)
    return Report(rows, {phase: (times[0][phase], times[1][phase]) for phase in PHASES}, compare_tokens(a, b))


def is_alike(a: Trace, b: Trace) -> bool:
    """As many requests in both, so that one step of a is as much work as one of b."""
    return len(request_lives(a)) == len(request_lives(b))


def measured_gain(a: Trace, b: Trace) -> float | None:
    """Of b over a in %: by the median period of decode steps, or by goodput when the batches differ."""
    periods = [times.period_ms if (times := step_times(trace)) else None for trace in (a, b)]
    rates = [tokens_per_s(trace) for trace in (b, a)]
    over, under = periods if is_alike(a, b) and all(periods) else rates
    return None if not over or not under else 100 * (over / under - 1)


# --- step times -----------------------------------------------------------------------------------


@once
def phase_times(trace: Trace) -> Times:
    """Milliseconds of each decode step, by phase.

    period: from one forward's start to that of the next step, if some request wanted the device all the
    while; device: its compute spans together; host: its host spans without waits and sync leaks; the others:
    the spans of that name.
    """
    steps = np.unique(trace.where("compute", "forward", kind="decode")["step_id"])

    def sums(rows: Table) -> list[int]:
        return per_step(rows[np.isin(rows["step_id"], steps)])

    found = {"period": _periods(trace), "device": sums(trace.where("compute", kind="decode"))}
    found |= {"host": host_per_step(trace, steps.tolist())[0]}
    found |= {name: sums(trace.where("host", name)) for name in HOST_PHASES}
    return {phase: np.array(found[phase], np.float64) / 1e6 for phase in PHASES}


def _periods(trace: Trace) -> list[int]:
    forwards = trace.where("compute", "forward", kind="decode")
    starts = forwards["start_ns"]
    is_wanted = np.diff(covered(demand(trace), starts)) == np.diff(starts)
    return np.diff(starts)[is_wanted & (np.diff(forwards["step_id"]) == 1)].tolist()


# --- tokens ---------------------------------------------------------------------------------------


def compare_tokens(a: Trace, b: Trace) -> Tokens:
    """The tokens of the k-th request to arrive in each; of a request still running, those it has."""
    left, right = _answers(a), _answers(b)
    differences = []
    num_tokens = 0
    for k, (one, other) in enumerate(zip(left, right, strict=False)):
        same = _common(one.tokens, other.tokens)
        num_tokens += same
        sides = [answer.tokens[same] if same < len(answer.tokens) else None for answer in (one, other)]
        is_over = [
            answer.is_over or token is not None for answer, token in zip((one, other), sides, strict=True)
        ]
        if any(sides) and all(is_over):
            differences.append(Difference(k, one.request_id, other.request_id, same, *sides))
    pairs = min(len(left), len(right))
    is_rounded = any("16" in trace.info.get("dtype", "") for trace in (a, b))
    return Tokens(pairs, num_tokens, max(len(left), len(right)) - pairs, tuple(differences), is_rounded)


class _Answer(NamedTuple):
    request_id: int
    tokens: list[Token]
    is_over: bool


def _answers(trace: Trace) -> list[_Answer]:
    """One per request whose arrival is known, in order of arrival; others may have lost tokens."""
    tokens = _tokens(trace.rows)
    lives = [life for life in request_lives(trace) if life.arrival_ns is not None]
    lives.sort(key=lambda life: (life.arrival_ns, life.request_id))
    return [_Answer(r.request_id, tokens.get(r.request_id, []), r.end_ns is not None) for r in lives]


def _tokens(rows: Iterable[RowRecord]) -> dict[int, list[Token]]:
    found: dict[int, list[Token]] = {}
    for row in rows:
        if row.is_delivered:
            found.setdefault(row.request_id, []).append(Token(row.token_id, (row.x, row.y), row.step_id))
    return found


def _common(a: list[Token], b: list[Token]) -> int:
    """How many tokens are equal from the start; their steps may differ."""
    for i, (one, other) in enumerate(zip(a, b, strict=False)):
        is_same = np.array_equal(one.value, other.value, equal_nan=True)
        if one.token_id != other.token_id or not is_same:
            return i
    return min(len(a), len(b))


# --- text -----------------------------------------------------------------------------------------


def number(value: Value) -> str:
    """Four significant digits, thousands separated; a dash for None."""
    if value is None:
        return "–"
    if not value:
        return "0"
    digits = max(0, 3 - int(np.floor(np.log10(abs(value)))))
    return f"{value:,.{min(digits, 4)}f}" if isinstance(value, float) else f"{value:,}"


def as_text(report: Report) -> str:
    """The report for a terminal: metrics, median step times, tokens."""
    lines = [["metric", "unit", "A", "B", "B - A", ""]]
    for row in report.rows:
        values = (number(v) for v in (row.a, row.b, row.difference))
        lines.append([row.metric.name, row.metric.unit, *values, row.verdict or ""])
    for phase, (a, b) in report.medians.items():
        change = None if a is None or b is None else b - a
        lines.append([f"step {phase} p50", "ms", *(number(v) for v in (a, b, change)), ""])
    return f"{columns(lines, right=(2, 3, 4))}\n\n{report.tokens}"


def columns(lines: list[list[str]], right: Container[int] = ()) -> str:
    """Lines of equally many cells below each other; those of the `right` columns end together."""
    widths = [max(map(len, cells)) for cells in zip(*lines, strict=True)]
    aligned = (
        "  ".join(f"{cell:{'>' if i in right else '<'}{widths[i]}}" for i, cell in enumerate(line))
        for line in lines
    )
    return "\n".join(line.rstrip() for line in aligned)


def as_document(report: Report) -> dict[str, Any]:
    """The same, JSON-serialisable."""
    rows = {
        row.metric.key: {"unit": row.metric.unit, "a": row.a, "b": row.b}
        | {"difference": row.difference, "verdict": row.verdict}
        for row in report.rows
    }
    steps = {phase: {"unit": "ms", "a": a, "b": b} for phase, (a, b) in report.medians.items()}
    tokens = {"is_equal": report.tokens.is_equal, "text": str(report.tokens)}
    return {"metrics": rows, "step_p50": steps, "tokens": tokens}
