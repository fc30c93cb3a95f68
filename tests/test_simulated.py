"""Pins the simulated device: its clock is exact to the nanosecond, its traces tell the truth about the cost
model, and the engine on it is the engine: the same tokens, the same invariants.
"""

from __future__ import annotations

import itertools
from collections import Counter
from dataclasses import replace

import engines
import pytest

from photon import open_device
from photon.device.base import Work
from photon.device.cost import COPY_MS, CostModel, Curve, host_phases, preset
from photon.device.simulated import SimulatedDevice
from photon.errors import DeviceError
from photon.observe import Mark, Span, StepRecord
from photon.simulation import Scenario, simulate
from tracing.leaks import leaks
from tracing.metrics import bubble_percent, device_busy_percent, host_hidden_percent, pipeline_depth
from tracing.recorder import Recorder

B200 = preset("b200")
HOST = ("plan", "launch", "sample", "commit")


class Records:
    """An observer that keeps everything."""

    def __init__(self) -> None:
        self.spans: list[Span] = []
        self.marks: list[Mark] = []
        self.steps: list[StepRecord] = []
        self.on_span, self.on_mark, self.on_step = self.spans.append, self.marks.append, self.steps.append

    def of(self, track: str, name: str, kind: str = "decode") -> list[Span]:
        return [s for s in self.spans if (s.track, s.name, s.kind) == (track, name, kind)]


def record(depth: int, scenario: Scenario | None = None) -> Records:
    records = Records()
    simulate(scenario or Scenario(B200, streams=4, tokens=20), depth, [records])
    return records


def periods(records: Records, rows: int) -> set[int]:
    """From one forward to the next, between decode steps of so many rows."""
    forwards = {span.step_id: span for span in records.of("compute", "forward") if span.rows == rows}
    return {
        forwards[step + 1].start_ns - span.start_ns for step, span in forwards.items() if step + 1 in forwards
    }


def durations(spans: list[Span]) -> list[int]:
    return [span.end_ns - span.start_ns for span in spans]


def host_ns(cost: CostModel, rows: int, *phases: str) -> int:
    return sum(cost.host_ns(phase, rows) for phase in phases)


@pytest.mark.parametrize("depth", [1, 2])
def test_device_spans_last_what_the_cost_model_says(depth: int) -> None:
    records = record(depth)
    forwards, samples = records.of("compute", "forward"), records.of("compute", "sample")
    assert forwards
    assert durations(forwards) == [B200.forward.ns(span.rows) for span in forwards]
    assert durations(samples) == [B200.sample.ns(span.rows) for span in samples]
    assert set(durations(records.of("compute", "h2d"))) == {round(B200.upload_ms * 1e6)}
    assert set(durations(records.of("copy", "d2h"))) == {round(COPY_MS * 1e6)}


@pytest.mark.parametrize("depth", [1, 2])
def test_host_spans_last_what_the_cost_model_says(depth: int) -> None:
    records = record(depth)
    for phase in HOST:
        spans = [span for span in records.spans if (span.track, span.name) == ("host", phase)]
        assert durations(spans) == [B200.host_ns(phase, span.rows) for span in spans]


def test_the_blocking_period_is_device_plus_copy_plus_host_to_the_nanosecond() -> None:
    hidden = host_ns(B200, 4, "commit", "plan", "launch")
    assert periods(record(1), 4) == {B200.step_ns(4) + round(COPY_MS * 1e6) + hidden}


def test_the_pipelined_period_is_the_device_alone_to_the_nanosecond() -> None:
    assert periods(record(2), 4) == {B200.step_ns(4)}


def test_the_pipelined_period_of_a_slow_host_is_the_host_alone_to_the_nanosecond() -> None:
    slow = replace(B200, host=host_phases(20.0, 0.5))
    records = record(2, Scenario(slow, streams=4, tokens=20, answers=1))
    alike = {step.step_id for step in records.steps[6:14]}  # behind the prefills, before the first end
    records.spans = [span for span in records.spans if span.step_id in alike]
    assert periods(records, 4) == {host_ns(slow, 4, *HOST)}


def test_a_start_delay_is_paid_once_a_step_when_blocking_and_hidden_when_pipelined() -> None:
    late = replace(B200, start_ms=0.1)
    scenario = Scenario(late, streams=4, tokens=20)
    more = 2 * 100_000  # the upload's, and that of the copy behind it
    assert min(periods(record(1, scenario), 4)) - min(periods(record(1), 4)) <= more
    assert periods(record(2, scenario), 4) == {B200.step_ns(4)}


def test_the_same_scenario_gives_the_same_records() -> None:
    first, second = record(2), record(2)
    assert first.spans == second.spans
    assert first.marks == second.marks
    assert [step.time_ns for step in first.steps] == [step.time_ns for step in second.steps]


def test_watching_costs_no_virtual_time() -> None:
    scenario = Scenario(B200, streams=4, tokens=20)
    assert simulate(scenario, 2) == simulate(scenario, 2, [Recorder(), Records()])


def test_device_spans_of_one_stream_never_overlap_and_steps_alternate_between_the_slots() -> None:
    records = record(2)
    for track in ("compute", "copy"):
        spans = sorted((s for s in records.spans if s.track == track), key=lambda span: span.start_ns)
        assert all(a.end_ns <= b.start_ns for a, b in itertools.pairwise(spans))
    slots = [step.slot for step in records.steps[:40]]
    assert all(a != b for a, b in itertools.pairwise(slots))


def test_the_trace_shows_two_steps_in_flight_and_no_bubble_at_depth_2_only() -> None:
    traces = {}
    for depth in (1, 2):
        recorder = Recorder()
        simulate(Scenario(B200, streams=1, tokens=60), depth, [recorder])
        spans = recorder.snapshot().where("compute", "forward")["start_ns"]
        traces[depth] = recorder.snapshot(int(spans[5]), int(spans[40]))
    assert leaks(traces[1]) == leaks(traces[2]) == []
    assert device_busy_percent(traces[2]) == 100
    assert bubble_percent(traces[2]) == 0
    assert host_hidden_percent(traces[2]) == 100
    assert pipeline_depth(traces[2]) == pytest.approx(1.9, abs=0.05)
    assert pipeline_depth(traces[1]) == pytest.approx(0.97, abs=0.03)
    assert bubble_percent(traces[1]) == pytest.approx(100 * (1 - 2.63 / 3.117), abs=0.1)
    assert host_hidden_percent(traces[1]) < 20


@pytest.mark.parametrize("depth", [1, 2])
def test_every_request_gets_the_tokens_of_the_real_model(depth: int) -> None:
    device = SimulatedDevice(B200)
    with engines.build(engines.small(depth=depth), device=device) as engine:
        outcomes = engines.run(engine, engines.requests())
    assert outcomes == [engines.oracle(index) for index in range(len(outcomes))]


def test_requests_are_timed_on_the_virtual_clock() -> None:
    with engines.build(engines.small(depth=1), device=SimulatedDevice(B200)) as engine:
        handle = engine.submit(engines.query(max_tokens=1))
        engines.finish(engine)
    assert handle.metrics is not None
    step = B200.work_ns(Work("prefill", (0, 1, 20, False, False))) + B200.sample.ns(1) + 40_000 + 20_000
    assert handle.metrics.first_token_ns == step + host_ns(B200, 1, "plan", "launch")


def test_an_event_is_reached_when_the_host_has_got_there() -> None:
    device = SimulatedDevice(B200, lambda spec: Counter())
    device.load(None)  # type: ignore[arg-type]
    event = device.event(timing=True)
    device.compute.enqueue(Work("clear"), label="free")
    device.compute.record_event(event)
    assert event.query()
    device.host_phase("commit", 8)
    assert device.now_ns() == B200.host_ns("commit", 8)
    assert device.time_ns(event) == 0


def test_work_of_an_idle_stream_starts_when_it_is_enqueued_and_of_a_busy_one_when_that_is_free() -> None:
    cost = replace(B200, forward=Curve(3.0), host={"plan": Curve(1.0)})
    device = SimulatedDevice(cost, lambda spec: Decoder())
    device.load(None)  # type: ignore[arg-type]
    times = []
    for _ in range(2):
        device.host_phase("plan", 1)
        device.compute.enqueue(Work("decode", (0, 1, 1, False, False)), label="forward")
        event = device.event(timing=True)
        device.compute.record_event(event)
        times.append(event)
    times[-1].synchronize()
    assert [device.time_ns(event) for event in times] == [4_000_000, 7_000_000]
    assert device.now_ns() == 7_000_000


class Decoder:
    def decode(self, *args: object) -> None:
        """Takes time."""


def test_it_is_opened_by_name() -> None:
    device = open_device("sim:h100")
    assert device.name == "sim:h100"
    assert device.now_ns() == 0
    with pytest.raises(DeviceError, match="There is no GPU ''; use one of"):
        open_device("sim")
