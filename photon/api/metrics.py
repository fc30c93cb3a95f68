"""Meter: an observer of the engine that a Prometheus server can read.

The engine's thread adds to plain integers and lists; all formatting happens when somebody reads. Shares
are left to the reader, as is usual there:

    device busy   rate(photon_device_busy_seconds_total[1m])
    bubble        rate(photon_device_bubble_seconds_total[1m]) / rate(photon_demand_seconds_total[1m])
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

from photon.api.busy import DeviceTime
from photon.observe import Mark, Span, StepRecord

_TTFT_S = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)
_ITL_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5)
# metric, key of Engine.stats(), what it says
_GAUGES = (
    ("photon_engine_up", "alive", "1 while the engine takes requests"),
    ("photon_requests_waiting", "waiting", "Requests that wait for admission"),
    ("photon_rows_live", "schedulable", "Requests that can be in the next step"),
    ("photon_rows_zombie", "zombies", "Finished requests that a step in flight still holds"),
    ("photon_kv_pages_free", "free_pages", "KV pages that nobody holds"),
    ("photon_kv_pages_cached", "cached_pages", "KV pages kept for requests about the same image"),
    ("photon_kv_pages", "total_pages", "KV pages in all"),
)
_COUNTERS = (
    ("photon_tokens", "tokens", "Tokens delivered to requests"),
    ("photon_steps", "steps", "Steps launched"),
    ("photon_zombie_rows", "zombie_rows", "Rows whose token was dropped at commit"),
)


class Histogram:
    """Counts per bucket; one writer, any number of readers."""

    def __init__(self, bounds_s: tuple[float, ...]) -> None:
        self._bounds_s = bounds_s
        self._counts = [0] * (len(bounds_s) + 1)
        self._sum_ns = 0

    def observe(self, value_ns: int) -> None:
        self._counts[bisect_left(self._bounds_s, value_ns / 1e9)] += 1
        self._sum_ns += value_ns

    def family(self, name: str, text: str) -> Metric:
        buckets, total = [], 0
        for bound, count in zip((*self._bounds_s, float("inf")), tuple(self._counts), strict=True):
            total += count
            buckets.append((floatToGoString(bound), total))
        return HistogramMetricFamily(name, text, buckets=buckets, sum_value=self._sum_ns / 1e9)


class Meter(Collector):
    """Observer of one engine; counts HTTP requests besides."""

    def __init__(self) -> None:
        self._time = DeviceTime()
        self._ttft, self._itl = Histogram(_TTFT_S), Histogram(_ITL_S)
        self._num_ended = {"finish": 0, "cancel": 0}
        self._arrival_ns: dict[int, int] = {}
        self._last_token_ns: dict[int, int] = {}
        self._ended: list[int] = []
        self._stats: Mapping[str, Any] = {}
        self._registry = CollectorRegistry()
        self._over_http: Counter[tuple[str, str]] = Counter()
        self._registry.register(self)

    # Observer: the engine's thread -----------------------------------------------------------------

    def on_span(self, span: Span) -> None:
        if span.track == "compute":
            self._time.computed(span.start_ns, span.end_ns)

    def on_mark(self, mark: Mark) -> None:
        if mark.name == "arrival":
            self._arrival_ns[mark.request_id] = mark.time_ns
            self._time.wanted(mark.time_ns)
        elif mark.name == "first_token":
            self._ttft.observe(mark.time_ns - self._arrival_ns.get(mark.request_id, mark.time_ns))
        elif mark.name in self._num_ended and self._arrival_ns.pop(mark.request_id, None) is not None:
            self._num_ended[mark.name] += 1
            self._time.released(mark.time_ns)
            self._ended.append(mark.request_id)

    def on_step(self, record: StepRecord) -> None:
        for row in record.rows:
            if row.is_delivered:
                if (last := self._last_token_ns.get(row.request_id)) is not None:
                    self._itl.observe(record.time_ns - last)
                self._last_token_ns[row.request_id] = record.time_ns
        # A request's end is marked before the record of the step that ended it.
        for request_id in self._ended:
            self._last_token_ns.pop(request_id, None)
        self._ended.clear()

    # HTTP: the event loop --------------------------------------------------------------------------

    def count(self, task: str, outcome: str) -> None:
        """One request over HTTP has ended."""
        self._over_http[task, outcome] += 1

    def exposition(self, stats: Mapping[str, Any]) -> bytes:
        """Everything in Prometheus' text format; `stats` is a snapshot of the engine, or empty."""
        self._stats = stats
        return generate_latest(self._registry)

    def collect(self) -> Iterator[Metric]:
        for name, key, text in _GAUGES:
            if key in self._stats:
                yield GaugeMetricFamily(name, text, value=self._stats[key])
        for name, key, text in _COUNTERS:
            if key in self._stats:
                yield CounterMetricFamily(name, text, value=self._stats[key])
        ended = CounterMetricFamily("photon_requests", "Requests that ended, by how", labels=["outcome"])
        ended.add_metric(["finished"], self._num_ended["finish"])
        ended.add_metric(["cancelled"], self._num_ended["cancel"])
        yield ended
        text = "Requests over HTTP by task and outcome: stop, length, cancelled, failed, refused, busy, dead"
        over_http = CounterMetricFamily("photon_api_requests", text, labels=["task", "outcome"])
        for labels, count in self._over_http.items():
            over_http.add_metric(labels, count)
        yield over_http
        yield self._ttft.family("photon_ttft_seconds", "Arrival to the first token committed")
        yield self._itl.family("photon_itl_seconds", "Gap between consecutive tokens of one request")
        for name, value_ns, text in self._time.totals_ns():
            yield CounterMetricFamily(f"photon_{name}_seconds", text, value=value_ns / 1e9)
