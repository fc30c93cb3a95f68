"""Pins how a profile of torch's is read: one stream, gaps closed, on the host clock; a real one on a card."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from photon import open_device
from photon.device.base import Work
from photon.device.cuda import is_available
from photon.device.kernel_clock import CLOSE_NS, busy_intervals, watch_kernels
from photon.measure.bandwidth import CopySpec


def event(category: str, start_us: float, length_us: float, stream: int = 7) -> dict[str, Any]:
    return {"cat": category, "name": "x", "ts": start_us, "dur": length_us, "args": {"stream": stream}}


def test_kernels_of_the_busiest_stream_become_intervals_of_the_host_clock() -> None:
    gap_us = CLOSE_NS / 1e3
    events = [
        event("kernel", 10, 5),
        event("gpu_memcpy", 15 + gap_us, 1.5),
        event("kernel", 60, 2),
        event("kernel", 61, 4),
        event("kernel", 30, 9, stream=9),
        {"cat": "cpu_op", "ts": 0, "dur": 99},
        {"name": "process_name", "ph": "M"},
    ]
    found = busy_intervals({"traceEvents": events, "baseTimeNanoseconds": 5_000_000}, 1_000_000)
    assert found == [(4_010_000, 4_026_500), (4_060_000, 4_065_000)]


def test_a_profile_without_kernels_is_empty() -> None:
    assert busy_intervals({"traceEvents": [{"cat": "cpu_op", "ts": 0, "dur": 99}]}, 0) == []


@pytest.mark.gpu
@pytest.mark.skipif(not is_available(), reason="no CUDA device")
def test_a_kernel_is_seen_where_its_events_are() -> None:
    device = open_device("cuda")
    device.load(CopySpec(1 << 28))
    begun, done = device.event(timing=True), device.event(timing=True)
    device.capture(Work("copy"), begun=begun)
    with watch_kernels() as kernels:
        device.compute.enqueue(Work("copy"), label="copy", begun=begun)
        device.compute.record_event(done)
        done.synchronize()
        torch.cuda.synchronize()
    times = device.time_ns(begun), device.time_ns(done)
    device.close()
    (found,) = kernels
    assert found == pytest.approx(times, abs=100_000)
