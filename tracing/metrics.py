"""The metrics: one pure function of a Trace each, its formula in the docstring's first sentence.

    W  the trace's window, |W| its length        U  union of intervals, |.| total length
    G  U(compute spans) in W: device busy        H  U(host spans) \\ U(wait, sync: spans) in W: host work
    D  U([arrival, finish) of requests) in W     C  U(d2h spans) in W

Every function returns None where there is nothing to divide by. Device busy, bubble, zombie tax use
device times only; those in TWO_CLOCKS compare host with device times and are no more exact than the
clocks' alignment. Steps and tokens belong to W when they start or happen in it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from tracing.bubbles import bubbles, by_step, device_busy, gaps, host_work, idle, union_of
from tracing.intervals import clip, intersect, subtract, total
from tracing.latency import (
    itl_p50_ms,
    itl_p99_ms,
    prefill_p50_ms,
    queue_p50_ms,
    slo_requests_per_s,
    tokens_per_s,
    tpot_p50_ms,
    ttft_p50_ms,
    ttft_p99_ms,
)
from tracing.leaks import sync_leak_ms, sync_leaks
from tracing.predict import predicted_gain_percent
from tracing.requests import demand
from tracing.trace import Table, Trace
from tracing.values import Value, length, percent, percentile, ratio


@dataclass(frozen=True)
class Metric:
    """A row of the metric table; `function(trace)` is in `unit`."""

    name: str
    unit: str
    function: Callable[[Trace], Value]

    @property
    def key(self) -> str:
        return self.function.__name__

    @property
    def formula(self) -> str:
        """The first sentence of the function's docstring."""
        return (self.function.__doc__ or "").split(".\n")[0].split(". ")[0].strip().rstrip(".")


# --- device and host ------------------------------------------------------------------------------


def device_busy_percent(trace: Trace) -> Value:
    """100 * |G| / |W|."""
    return percent(total(device_busy(trace)), length(trace))


def bubble_percent(trace: Trace) -> Value:
    """100 * |D \\ G| / |D|. Without demand an idle device is no bubble."""
    return percent(total(gaps(trace)), total(demand(trace)))


def bubble_count(trace: Trace) -> Value:
    """number of maximal intervals of D \\ G longer than 2 us."""
    return len(idle(trace)) if total(demand(trace)) else None


def bubble_p50_us(trace: Trace) -> Value:
    """median length of the bubbles."""
    return percentile(_bubbles_us(trace), 50)


def bubble_max_us(trace: Trace) -> Value:
    """length of the longest bubble."""
    return percentile(_bubbles_us(trace), 100)


def bubble_host_percent(trace: Trace) -> Value:
    """100 * sum clip(launch end - bubble start, 0, bubble) / sum bubble. The rest is launch latency."""
    found = bubbles(trace)
    return percent(sum(b.host_ns for b in found), sum(b.end_ns - b.start_ns for b in found))


def host_hidden_percent(trace: Trace) -> Value:
    """100 * |H n G| / |H|."""
    host = host_work(trace)
    return percent(total(intersect(host, device_busy(trace))), total(host))


def host_exposed_ms(trace: Trace) -> Value:
    """|(H n D) \\ G|. Host work that a request waited for while the device idled."""
    host = host_work(trace)
    if not total(host):
        return None
    return total(subtract(intersect(host, demand(trace)), device_busy(trace))) / 1e6


def overlap_factor(trace: Trace) -> Value:
    """(|H| + |G|) / makespan, makespan = last span end - first span start in W. 1 is serial."""
    return ratio(total(host_work(trace)) + total(device_busy(trace)), _makespan(trace))


def pipeline_efficiency(trace: Trace) -> Value:
    """max(|H|, |G|) / makespan. 1 is the roof that the bound resource sets."""
    return ratio(max(total(host_work(trace)), total(device_busy(trace))), _makespan(trace))


def bound(trace: Trace) -> str | None:
    """ "device" if |G| >= |H| else "host"; None for a trace without either."""
    device, host = total(device_busy(trace)), total(host_work(trace))
    return None if not device + host else "device" if device >= host else "host"


def d2h_hidden_percent(trace: Trace) -> Value:
    """100 * |C n G| / |C|."""
    copies = clip(union_of(trace.where("copy", "d2h")), *trace.window)
    return percent(total(intersect(copies, device_busy(trace))), total(copies))


def pipeline_depth(trace: Trace) -> Value:
    """sum over steps of |[launch start, commit end) n W| / |D|. 2 when two steps are always in flight.

    Of a step that only one of the two is known of, the other lies outside of W.
    """
    starts = by_step(trace.where("host", "launch"), "start_ns")
    ends = by_step(trace.where("host", "commit"), "end_ns")
    first, last = trace.window
    steps = starts.keys() | ends.keys()
    held = [min(ends.get(step, last), last) - max(starts.get(step, first), first) for step in steps]
    return ratio(sum(held), total(demand(trace)))


def slot_balance(trace: Trace) -> Value:
    """|G of slot 0| / |G|."""
    rows = trace.where("compute")
    own = clip(union_of(rows[rows["slot"] == 0]), *trace.window)
    return ratio(total(own), total(device_busy(trace)))


def launch_latency_us(trace: Trace) -> Value:
    """median over steps of (first device span start - launch end). Above 0 the step was queued."""
    launched = by_step(trace.where("host", "launch"), "end_ns")
    rows = trace.where("compute")[::-1]  # the first of a step wins
    begun = by_step(rows, "start_ns")
    return percentile([(begun[s] - launched[s]) / 1e3 for s in begun.keys() & launched.keys()], 50)


# --- rows -----------------------------------------------------------------------------------------


def zombie_rows(trace: Trace) -> Value:
    """sum of zombies over decode steps. A zombie is finished and rides because its launch came first."""
    steps = _decode_steps(trace)
    return int(steps["zombies"].sum()) if len(steps) else None


def zombie_rows_percent(trace: Trace) -> Value:
    """100 * sum zombies / sum rows over decode steps."""
    steps = _decode_steps(trace)
    return percent(int(steps["zombies"].sum()), int(steps["rows"].sum()))


def zombie_tax_upper_percent(trace: Trace) -> Value:
    """100 * sum(duration * zombies / rows) / |G|. Each row pays its share of the step."""
    steps = _decode_steps(trace)
    steps = steps[steps["rows"] > 0]
    first, last = trace.window
    inside = np.minimum(steps["end_ns"], last) - np.maximum(steps["start_ns"], first)
    return percent(float((inside * (steps["zombies"] / steps["rows"])).sum()), total(device_busy(trace)))


def zombie_tax_marginal_percent(trace: Trace) -> Value:
    """100 * slope * sum(bucket(rows) - bucket(rows - zombies)) / |G|, slope = fitted ns per launched row.

    What leaving the zombies out would save. Launched rows = rows + padding; with padding in the trace
    the buckets are the launched sizes seen in it. None unless two sizes were seen.
    """
    steps = _decode_steps(trace)
    size = steps["rows"].astype(np.int64) + steps["padding"]
    seen = np.unique(size)
    if len(seen) < 2:
        return None
    slope = float(np.polyfit(size, (steps["end_ns"] - steps["start_ns"]).astype(float), 1)[0])
    useful = steps["rows"].astype(np.int64) - steps["zombies"]
    if steps["padding"].any():
        useful = np.where(useful > 0, seen[np.searchsorted(seen, useful)], 0)
    return percent(slope * float((size - useful).sum()), total(device_busy(trace)))


def all_zombie_steps(trace: Trace) -> Value:
    """number of decode steps whose rows are all zombies."""
    steps = _decode_steps(trace)
    return int((steps["zombies"] >= steps["rows"]).sum()) if len(steps) else None


def all_zombie_ms(trace: Trace) -> Value:
    """sum of the durations of decode steps whose rows are all zombies."""
    steps = _decode_steps(trace)
    wasted = steps[steps["zombies"] >= steps["rows"]]
    return float((wasted["end_ns"] - wasted["start_ns"]).sum()) / 1e6 if len(steps) else None


def rows_per_s(trace: Trace) -> Value:
    """sum rows of decode steps / |W|. Zombies included."""
    steps = _decode_steps(trace)
    return ratio(int(steps["rows"].sum()) * 1e9, length(trace)) if len(steps) else None


METRICS: tuple[Metric, ...] = (
    Metric("device busy", "%", device_busy_percent),
    Metric("bubble", "%", bubble_percent),
    Metric("bubbles", "", bubble_count),
    Metric("bubble p50", "us", bubble_p50_us),
    Metric("longest bubble", "us", bubble_max_us),
    Metric("bubble caused by the host", "%", bubble_host_percent),
    Metric("host hidden", "%", host_hidden_percent),
    Metric("host exposed", "ms", host_exposed_ms),
    Metric("overlap factor", "", overlap_factor),
    Metric("pipeline efficiency", "", pipeline_efficiency),
    Metric("D2H hidden", "%", d2h_hidden_percent),
    Metric("pipeline depth", "steps", pipeline_depth),
    Metric("slot balance", "", slot_balance),
    Metric("launch latency p50", "us", launch_latency_us),
    Metric("sync leaks", "", sync_leaks),
    Metric("sync leak time", "ms", sync_leak_ms),
    Metric("predicted gain of depth 2", "%", predicted_gain_percent),
    Metric("zombie rows, number", "rows", zombie_rows),
    Metric("zombie rows", "%", zombie_rows_percent),
    Metric("zombie tax, upper bound", "%", zombie_tax_upper_percent),
    Metric("zombie tax, marginal", "%", zombie_tax_marginal_percent),
    Metric("all-zombie steps", "steps", all_zombie_steps),
    Metric("all-zombie time", "ms", all_zombie_ms),
    Metric("raw rows", "rows/s", rows_per_s),
    Metric("goodput", "tokens/s", tokens_per_s),
    Metric("SLO goodput", "requests/s", slo_requests_per_s),
    Metric("TTFT p50", "ms", ttft_p50_ms),
    Metric("TTFT p99", "ms", ttft_p99_ms),
    Metric("queue p50", "ms", queue_p50_ms),
    Metric("prefill p50", "ms", prefill_p50_ms),
    Metric("ITL p50", "ms", itl_p50_ms),
    Metric("ITL p99", "ms", itl_p99_ms),
    Metric("TPOT p50", "ms", tpot_p50_ms),
)
TWO_CLOCKS = {"bubble_host_percent", "host_hidden_percent", "host_exposed_ms"}
TWO_CLOCKS |= {"launch_latency_us", "predicted_gain_percent"}


def summary(trace: Trace) -> dict[str, Value]:
    """Every metric of the trace by its key; None where it does not apply."""
    return {metric.key: metric.function(trace) for metric in METRICS}


# --- parts ----------------------------------------------------------------------------------------


def _bubbles_us(trace: Trace) -> list[Value]:
    return ((idle(trace) @ (-1, 1)) / 1e3).tolist()


def _decode_steps(trace: Trace) -> Table:
    """The forwards of decode steps that start in W."""
    rows = trace.where("compute", "forward", kind="decode")
    return rows[(rows["start_ns"] >= trace.window[0]) & (rows["start_ns"] < trace.window[1])]


def _makespan(trace: Trace) -> int:
    start, end = trace.window
    rows = trace.span_table
    if not len(rows):
        return 0
    return min(int(rows["end_ns"].max()), end) - max(int(rows["start_ns"].min()), start)
