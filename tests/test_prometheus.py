"""Pins /metrics: that it parses, counts what the engine counts, and gives the shares of the trace."""

from __future__ import annotations

import asyncio
import queue
from collections.abc import Iterator
from typing import Any

import engines
import pytest
from prometheus_client.parser import text_string_to_metric_families
from served import Server, data_url, png, serving

from photon import Engine
from photon.api import Meter
from photon.api.busy import DeviceTime
from photon.api.server import Pulse
from photon.device.deferred import DeferredDevice
from tracing.bubbles import device_busy, gaps
from tracing.intervals import clip, total
from tracing.recorder import Recorder
from tracing.requests import demand


@pytest.fixture
def server() -> Iterator[Server]:
    meter = Meter()
    with (
        Engine(engines.tiny_model(), DeferredDevice(0), observers=[meter]) as engine,
        serving(engine, meter) as running,
    ):
        yield running


def values(exposition: str) -> dict[str, float]:
    """Every sample by its name and the values of its labels."""
    return {
        " ".join([sample.name, *sample.labels.values()]): sample.value
        for family in text_string_to_metric_families(exposition)
        for sample in family.samples
    }


def worked() -> tuple[Engine, Meter, Recorder]:
    """An engine that has answered requests of every kind, twice at once, and its observers."""
    meter, recorder = Meter(), Recorder()
    engine = engines.build(observers=[meter, recorder])
    for _ in range(2):
        engines.run(engine, engines.requests())
    return engine, meter, recorder


def test_counts_are_the_engines_own() -> None:
    engine, meter, recorder = worked()
    found, stats = values(meter.exposition(engine.stats()).decode()), engine.stats()
    delivered = sum(row.is_delivered for row in recorder.snapshot().rows)
    num_requests = 2 * len(engines.requests())
    assert found["photon_tokens_total"] == stats["tokens"] > 100
    assert found["photon_zombie_rows_total"] == stats["zombie_rows"] > 0
    assert found["photon_requests_total finished"] == num_requests
    assert found["photon_ttft_seconds_count"] == num_requests
    assert found["photon_itl_seconds_count"] == delivered - num_requests
    unused = found["photon_kv_pages_free"] + found["photon_kv_pages_cached"]
    assert unused == found["photon_kv_pages"] == stats["total_pages"]
    engine.close()


def test_shares_of_device_time_are_those_of_the_trace() -> None:
    engine, meter, recorder = worked()
    found, trace = values(meter.exposition({}).decode()), recorder.snapshot()
    until = max(span.end_ns for span in trace.spans if span.track == "compute")
    assert found["photon_device_busy_seconds_total"] == pytest.approx(total(device_busy(trace)) / 1e9)
    for name, intervals in (("device_bubble", gaps(trace)), ("demand", demand(trace))):
        expected = total(clip(intervals, 0, until)) / 1e9
        assert found[f"photon_{name}_seconds_total"] == pytest.approx(expected)
    engine.close()


def test_device_time_is_split_at_demand_and_computation() -> None:
    time = DeviceTime()
    time.wanted(100)
    time.wanted(110)
    time.computed(130, 150)
    time.released(160)
    time.computed(155, 170)
    time.released(180)
    time.wanted(200)
    time.computed(190, 230)  # a zombie's step, and then one that somebody wants
    assert (time.busy_ns, time.bubble_ns, time.wanted_ns) == (20 + 15 + 40, 30 + 5 + 10, 30 + 50 + 30)


def test_histograms_count_each_value_in_its_bucket_and_all_above() -> None:
    meter = Meter()
    found = values(meter.exposition({}).decode())
    assert found["photon_ttft_seconds_bucket +Inf"] == 0
    engine, meter, _ = worked()
    found = values(meter.exposition({}).decode())
    buckets = [value for name, value in found.items() if name.startswith("photon_itl_seconds_bucket")]
    assert buckets == sorted(buckets)
    assert buckets[-1] == found["photon_itl_seconds_count"]
    assert found["photon_itl_seconds_sum"] > 0
    engine.close()


def test_cancelled_requests_are_counted_apart_and_leave_nothing_behind() -> None:
    meter = Meter()
    engine = engines.build(observers=[meter])
    handles = [engine.submit(request) for request in engines.requests()]
    engine.run_until_idle(max_ticks=8)
    for handle in handles:
        handle.cancel()
    engine.run_until_idle()
    found = values(meter.exposition({}).decode())
    assert found["photon_requests_total cancelled"] > 0
    assert sum(found[f"photon_requests_total {how}"] for how in ("finished", "cancelled")) == len(handles)
    assert not meter._arrival_ns
    engine.close()


def test_requests_over_http_are_counted_by_task_and_outcome(server: Server) -> None:
    image, few = data_url(png()), {"max_tokens": 3}
    server.ask("query", question="go on", settings=few)
    server.ask("query", question="")
    server.ask("detect", image_url=image, object="dog", settings=few)
    server.ask("caption", image_url="nonsense")
    found = values(server.http.get("/metrics").text)
    counted = {name.split(" ", 1)[1]: n for name, n in found.items() if "api_requests_total" in name}
    assert counted == {"length query": 1, "refused query": 1, "length detect": 1, "refused caption": 1}


class Busy:
    """An engine whose ticks end when the test says so."""

    def __init__(self) -> None:
        self.ticks: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()

    def stats(self) -> dict[str, Any]:
        return self.ticks.get()


def test_a_long_tick_gives_the_figures_before_it() -> None:
    async def look(engine: Any) -> None:
        pulse = Pulse(engine, patience_s=0.05)
        assert await pulse.latest() == {}
        engine.ticks.put({"steps": 1})
        while await pulse.latest() == {}:
            pass
        assert await pulse.latest() == {"steps": 1}
        engine.ticks.put({"steps": 2})

    asyncio.run(look(Busy()))


def test_metrics_outlive_the_engine(server: Server) -> None:
    server.engine.close()
    found = values(server.http.get("/metrics").text)
    assert found["photon_engine_up"] == 0
    assert found["photon_requests_waiting"] == 0
