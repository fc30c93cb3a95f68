"""The truth check finds what is false in spans made by hand, and nothing false in a real run."""

from __future__ import annotations

import json

import pytest

from photon import selfcheck
from photon.device.deferred import DeferredDevice
from photon.measure import intervals, trace_truth
from photon.model.weights import Model
from photon.observe import Span


def host(name: str, start_ns: int, end_ns: int) -> Span:
    return Span("host", name, start_ns, end_ns, 1)


STEP = [
    host("launch", 100, 200),
    Span("compute", "forward", 150, 400, 1),
    host("sync: a wait", 220, 240),
    host("sample", 210, 250),
    Span("copy", "d2h", 400, 420, 1),
    host("commit", 430, 500),
]


def test_a_true_step_passes() -> None:
    assert intervals.crossings(STEP, 0) == intervals.strays(STEP, 0) == 0
    host_ns, gaps_ns = intervals.host_and_gaps(STEP, (90, 510))
    assert (host_ns, gaps_ns) == (100 + 40 + 70, 10 + 10 + 180 + 10)
    assert host_ns + gaps_ns == 510 - 90


@pytest.mark.parametrize(("slack_ns", "count"), [(0, 1), (50, 0)])
def test_a_span_that_crosses_another_is_found(slack_ns: int, count: int) -> None:
    spans = [*STEP, Span("compute", "sample", 360, 420, 1)]
    assert intervals.crossings(spans, slack_ns) == count


def test_tracks_do_not_cross_each_other() -> None:
    assert intervals.crossings([*STEP, Span("copy", "h2d", 140, 160, 1)], 0) == 0


@pytest.mark.parametrize(("start_ns", "end_ns"), [(99, 120), (420, 501)])
def test_a_device_span_outside_its_step_is_found(start_ns: int, end_ns: int) -> None:
    spans = [*STEP, Span("copy", "h2d", start_ns, end_ns, 1)]
    assert intervals.strays(spans, 0) == 1
    assert intervals.strays(spans, 1) == 0


@pytest.mark.parametrize("bad", [host("commit", 490, 520), host("plan", 80, 95)])
def test_host_spans_that_overlap_or_leave_the_run_break_the_sum(bad: Span) -> None:
    host_ns, gaps_ns = intervals.host_and_gaps([*STEP, bad], (90, 520))
    assert host_ns + gaps_ns != 520 - 90


def test_idle_time_inside_a_span_shows_as_a_difference() -> None:
    """The forward says 250 ns; the worker's CPU clock moved by 100."""
    device = trace_truth.MeteredCpuDevice()
    device.cpu_at = {150: 1000, 400: 1100, 420: 1120}
    truth = trace_truth.Truth()
    truth.add(STEP, (90, 510), device)
    device.close()
    found = truth.figures()
    assert found["busy_percent"] == 100
    assert found["witness_percent"] == pytest.approx(100 * 120 / 270)
    assert found["difference_points"] == pytest.approx(100 * 150 / 270)
    assert not found["ok"]


def test_what_two_lists_of_intervals_share() -> None:
    some, others = [(0, 10), (20, 30), (40, 50)], [(5, 25), (29, 41), (60, 70)]
    assert intervals.shared_ns(some, others) == intervals.shared_ns(others, some) == 5 + 5 + 1 + 1
    assert intervals.shared_ns([], others) == intervals.shared_ns(some, []) == 0


def test_kernels_that_ran_for_less_than_the_spans_say_show_as_a_difference() -> None:
    """The forward says 250 ns; its kernels ran for 150 of them."""
    device, truth = DeferredDevice(), trace_truth.Truth()
    step = [span._replace(kind="decode") for span in STEP]
    truth.add(step, (90, 510), device, [(0, 50), (250, 350), (350, 460)])
    found = truth.figures()
    assert (found["busy_percent"], found["witness_percent"]) == (100, 60)
    assert found["idle_us"] == {"forward": 0.1}
    assert "worker_percent" not in found
    assert not found["ok"]


def test_a_profiler_that_saw_no_kernel_is_no_witness() -> None:
    """As where the driver keeps its counters from the process."""
    truth = trace_truth.Truth()
    truth.add([span._replace(kind="decode") for span in STEP], (90, 510), DeferredDevice(), [])
    assert truth.figures()["witness_percent"] == 0
    assert not truth.figures()["ok"]


def test_a_run_without_decode_steps_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert selfcheck.main(["--trace-truth", "--device", "deferred", "--tokens", "1"]) == 2
    assert "2 tokens" in capsys.readouterr().err


@pytest.mark.parametrize(("longer_ns", "is_true"), [(0, True), (2, True), (3, False), (-3, False)])
def test_a_step_that_takes_the_device_longer_at_depth_1_is_not_believed(
    longer_ns: int, is_true: bool
) -> None:
    found = {}
    for depth, extra_ns in ((1, longer_ns), (2, 0)):
        forward = Span("compute", "forward", 150, 400 + extra_ns, 1, kind="decode")
        truth = trace_truth.Truth()
        truth.add([STEP[0], forward, STEP[-1]], (90, 510), DeferredDevice())
        found[f"depth_{depth}"] = truth.figures()
    trace_truth.hold_against_depth_2(found)
    assert found["depth_1"]["longer_percent"] == pytest.approx(100 * longer_ns / 250)
    assert found["depth_1"]["ok"] is is_true


@pytest.mark.parametrize("device", ["deferred", "cpu"])
def test_a_real_run_is_true(device: str, golden_model: Model, capsys: pytest.CaptureFixture[str]) -> None:
    """All but the busy share, which depends on what else this machine is doing."""
    args = ["--trace-truth", "--device", device, "--model", str(golden_model.path)]
    status = selfcheck.main([*args, "--tokens", "6", "--rounds", "1", "--json"])
    result = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert status == (0 if result["ok"] else 1)
    for batch in result["rows"].values():
        for found in batch.values():
            assert found["num_spans"] > 40
            assert found["crossings"] == found["strays"] == 0
            assert found["host_ns"] + found["gaps_ns"] == found["wall_ns"]
            assert ("busy_percent" in found) is (device == "cpu")
    assert result["ok"] or device == "cpu"
