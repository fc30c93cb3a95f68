"""Pins the predicted gain of depth 2: by hand from a blocking trace, None from any other, ends charged."""

from __future__ import annotations

import pytest

from photon.device.cost import COPY_MS, preset
from photon.simulation import Scenario, simulate
from tracing.predict import predict, predicted_gain_percent, step_times
from tracing.recorder import Recorder
from tracing.trace import MarkRecord, SpanRecord, Trace

US = 1_000


def blocking(num_steps: int = 4, rows: int = 1, device: int = 100, host: int = 50) -> list[SpanRecord]:
    """Steps of [plan|launch][forward][commit], 10 us of hand-over before each forward."""
    spans, at = [], 0
    for step in range(num_steps):
        launched, done = at + host // 2, at + host // 2 + 10 + device
        tail = (step, step % 2, "decode", rows)
        spans.append(SpanRecord("host", "launch", at * US, launched * US, *tail))
        spans.append(SpanRecord("compute", "forward", (launched + 10) * US, done * US, *tail))
        spans.append(SpanRecord("host", "wait", launched * US, done * US, *tail))
        at = done + host - host // 2
        spans.append(SpanRecord("host", "commit", done * US, at * US, *tail))
    return spans


def finish(step: int, request: int = 0) -> MarkRecord:
    return MarkRecord("finish", 0, request, step)


def test_the_empty_trace_predicts_nothing() -> None:
    assert step_times(Trace.of()) is predict(Trace.of()) is predicted_gain_percent(Trace.of()) is None


def test_one_step_has_times_and_no_period() -> None:
    times = step_times(Trace.of(blocking(1)))
    assert times == (None, pytest.approx(0.1), pytest.approx(0.05), 1)


def test_a_blocking_trace_by_hand() -> None:
    found = predict(Trace.of(blocking()))
    assert found is not None
    assert (found.blocking_ms, found.pipelined_ms) == (pytest.approx(0.15), pytest.approx(0.1))
    assert found.period_ms == pytest.approx(0.16)
    assert found.hand_over_ms == pytest.approx(0.01)
    assert found.gain_percent == pytest.approx(50)
    assert found.gain_with_hand_over_percent == pytest.approx(60)
    assert predicted_gain_percent(Trace.of(blocking())) == found.gain_with_hand_over_percent


def test_host_work_beside_the_device_is_hidden_already() -> None:
    beside = SpanRecord("host", "sample", 40 * US, 60 * US, 0, 0, "decode", 1)
    found = predict(Trace.of([*blocking(1), beside]))
    assert found is not None
    assert (found.host_ms, found.blocking_ms) == (pytest.approx(0.07), pytest.approx(0.15))


@pytest.mark.parametrize("streams", [1, 8, 32])
def test_on_the_virtual_clock_the_gain_is_what_was_predicted_and_a_little_more(streams: int) -> None:
    """The published figures' own sum, period and zombie tax of full steps; ours charges every end."""
    recorder, scenario = Recorder(), Scenario(preset("b200"), streams=streams, tokens=60)
    one, two = simulate(scenario, 1, [recorder]), simulate(scenario, 2)
    predicted = predict(recorder.snapshot())
    assert predicted is not None
    measured = 100 * (one.period_ms / two.period_ms * (1 - two.zombie_tax_percent / 100) - 1)
    assert predicted.gain_percent < predicted.gain_with_hand_over_percent
    assert measured - 1 < predicted.gain_with_hand_over_percent < measured + 0.1
    assert predicted.hand_over_ms == pytest.approx(COPY_MS, rel=0.1)


def test_where_the_host_is_slower_the_host_is_what_shows() -> None:
    found = predict(Trace.of(blocking(device=40, host=80)))
    assert found is not None
    assert found.gain_percent == pytest.approx(50)


def test_a_trace_of_two_steps_in_flight_predicts_nothing() -> None:
    spans = blocking(2)
    spans[4] = spans[4]._replace(start_ns=20 * US, end_ns=30 * US)  # launched before the first was committed
    assert predict(Trace.of(spans)) is None


def test_waits_and_leaks_are_no_host_time() -> None:
    leak = SpanRecord("host", "sync: x", 5 * US, 15 * US, 0, kind="decode")
    times = step_times(Trace.of([*blocking(1), leak]))
    assert times is not None
    assert times.host_ms == pytest.approx(0.04)


def test_an_answer_alone_pays_one_whole_step() -> None:
    """engine_facts: one stream of L tokens pays about 1/L."""
    found = predict(Trace.of(blocking(10), [finish(9)]))
    assert found is not None
    assert found.zombie_tax == pytest.approx(0.1)
    assert found.gain_percent == pytest.approx(100 * (1.5 * 0.9 - 1))


def test_an_answer_among_others_pays_what_its_row_costs() -> None:
    """z = (B / L) m / T: a row of a batch of 4 seen in no other size counts as a quarter of the step."""
    found = predict(Trace.of(blocking(10, rows=4), [finish(5)]))
    assert found is not None
    assert found.zombie_tax == pytest.approx(0.25 / 10)


def test_a_row_costs_the_slope_where_several_sizes_were_seen() -> None:
    spans = blocking(6, rows=4)
    small = SpanRecord("compute", "forward", 10**9, 10**9 + 97 * US, 99, 0, "decode", 1)
    found = predict(Trace.of([*spans, small], [finish(3)]))
    assert found is not None
    assert found.zombie_tax == pytest.approx(0.001 / (7 * 0.1), rel=1e-3)
