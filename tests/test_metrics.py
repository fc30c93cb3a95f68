"""Pins every metric: None where there is nothing to divide, one span, one request, then a small run
whose values are worked out by hand, at depth 1 (serial) and depth 2 (overlapped)."""

from __future__ import annotations

import pytest

from tracing.bubbles import bubbles
from tracing.metrics import METRICS, bound, summary
from tracing.requests import request_lives
from tracing.trace import MarkRecord, RowRecord, SpanRecord, Trace

US, MS = 1_000, 1_000_000


def host(name: str, start: int, end: int, step: int = 0) -> SpanRecord:
    return SpanRecord("host", name, start * US, end * US, step)


def device(start: int, end: int, step: int = 0, slot: int = 0, rows: int = 1, zombies: int = 0) -> SpanRecord:
    return SpanRecord("compute", "forward", start * US, end * US, step, slot, "decode", rows, zombies)


def mark(name: str, time: int, request: int = 0, step: int = -1) -> MarkRecord:
    return MarkRecord(name, time * US, request, step)


def row(time: int, request: int = 0, step: int = -1, delivered: bool = True) -> RowRecord:
    return RowRecord(time * US, step, 0, request, is_delivered=delivered, is_zombie=not delivered)


def serial() -> Trace:
    """Two steps, one after the other; request 0 from 0 to 1000 us.

    host    plan [0,50) launch [50,100) wait [100,400) commit [400,500)
            launch [500,600) wait [600,900) commit [900,1000)
    device  forward [150,400) forward [650,900)
    """
    spans = [host("plan", 0, 50), host("launch", 50, 100), host("wait", 100, 400), host("commit", 400, 500)]
    spans += [host("launch", 500, 600, 1), host("wait", 600, 900, 1), host("commit", 900, 1000, 1)]
    spans += [device(150, 400, 0, 0, rows=2), device(650, 900, 1, 1, rows=2, zombies=1)]
    spans += [SpanRecord("copy", "d2h", 390 * US, 410 * US, 0)]
    marks = [mark("arrival", 0), mark("admitted", 50), mark("first_token", 500, step=0)]
    marks.append(mark("finish", 1000))
    rows = [row(500, 0, 0), row(1000, 0, 1), row(1000, 9, 1, delivered=False)]
    return Trace.of(spans, marks, rows=rows)


def overlapped() -> Trace:
    """Two steps back to back on the device; the second is launched while the first runs."""
    spans = [host("launch", 0, 100, 0), host("launch", 100, 200, 1), host("commit", 500, 600, 0)]
    spans += [host("commit", 900, 1000, 1), device(100, 500, 0, 0), device(500, 900, 1, 1)]
    return Trace.of(spans, [mark("arrival", 0), mark("finish", 1000)])


def test_the_empty_trace_has_no_metric() -> None:
    assert set(summary(Trace.of()).values()) == {None}
    assert bubbles(Trace.of()) == []
    assert bound(Trace.of()) is None


def test_an_empty_window_has_no_metric_either() -> None:
    values = summary(Trace.of(window=(0, 1000)))
    assert values.pop("device_busy_percent") == 0  # the window has a length: the device was idle in it
    assert set(values.values()) == {None}


def test_one_device_span() -> None:
    values = summary(Trace.of([device(0, 10)]))
    assert values["device_busy_percent"] == 100
    assert values["bubble_percent"] is None  # nobody asked for it
    assert values["host_hidden_percent"] is None
    assert values["overlap_factor"] == values["slot_balance"] == values["pipeline_efficiency"] == 1
    assert values["zombie_rows_percent"] == values["zombie_tax_upper_percent"] == 0


def test_one_host_span() -> None:
    values = summary(Trace.of([host("plan", 0, 10)]))
    assert values["device_busy_percent"] == values["host_hidden_percent"] == 0
    assert values["host_exposed_ms"] == 0
    assert values["overlap_factor"] == 1
    assert values["slot_balance"] is None


def test_a_span_of_no_length_divides_nothing() -> None:
    values = summary(Trace.of([device(5, 5)]))
    assert values["device_busy_percent"] is None
    assert values["overlap_factor"] is None


def test_one_request_without_any_span_is_one_bubble() -> None:
    trace = Trace.of(marks=[mark("arrival", 0), mark("finish", 10)])
    values = summary(trace)
    assert values["bubble_percent"] == 100
    assert values["tokens_per_s"] == 0
    assert values["ttft_p50_ms"] is None
    assert bubbles(trace)[0].cause == "other"


@pytest.mark.parametrize(
    ("key", "expected"),
    [
        ("device_busy_percent", 50),
        ("bubble_percent", 50),
        ("bubble_count", 3),
        ("bubble_p50_us", 150),
        ("bubble_max_us", 250),
        ("bubble_host_percent", 80),  # 100 of 150, 200 of 250, 100 of 100
        ("host_hidden_percent", 0),
        ("host_exposed_ms", 0.4),
        ("overlap_factor", 0.9),  # 400 us of host + 500 us of device in 1000 us
        ("pipeline_efficiency", 0.5),
        ("d2h_hidden_percent", 50),
        ("pipeline_depth", 0.95),
        ("slot_balance", 0.5),
        ("launch_latency_us", 50),
        ("sync_leaks", 0),
        ("sync_leak_ms", 0),
        ("predicted_gain_percent", 100),  # a step every 500 us, 250 of them on the device
        ("zombie_rows", 1),
        ("zombie_rows_percent", 25),
        ("zombie_tax_upper_percent", 25),
        ("zombie_tax_marginal_percent", None),  # one batch size only: no slope
        ("all_zombie_steps", 0),
        ("all_zombie_ms", 0),
        ("rows_per_s", 4000),
        ("tokens_per_s", 2000),  # first_token and row of one commit are one token
        ("slo_requests_per_s", 1000),
        ("ttft_p50_ms", 0.5),
        ("ttft_p99_ms", 0.5),
        ("queue_p50_ms", 0.05),
        ("prefill_p50_ms", 0.45),
        ("itl_p50_ms", 0.5),
        ("itl_p99_ms", 0.5),
        ("tpot_p50_ms", 0.5),
    ],
)
def test_a_serial_run_by_hand(key: str, expected: float | None) -> None:
    assert summary(serial())[key] == (None if expected is None else pytest.approx(expected))


def test_every_metric_has_a_value_in_the_hand_worked_table() -> None:
    cases = next(m for m in test_a_serial_run_by_hand.pytestmark if m.name == "parametrize").args[1]
    assert [key for key, _ in cases] == [m.key for m in METRICS]


def test_overlap_by_hand() -> None:
    values = summary(overlapped())
    assert values["device_busy_percent"] == pytest.approx(80)
    assert values["host_hidden_percent"] == pytest.approx(50)  # [100,200) and [500,600) of 400 us
    assert values["overlap_factor"] == pytest.approx(1.2)
    assert values["pipeline_depth"] == pytest.approx(1.5)  # 600 us and 900 us
    assert bound(overlapped()) == "device"


def test_idle_without_demand_is_no_bubble() -> None:
    spans = [device(0, 10), device(90, 100)]
    marks = [mark("arrival", 0, 1), mark("finish", 10, 1), mark("arrival", 90, 2), mark("finish", 100, 2)]
    values = summary(Trace.of(spans, marks))
    assert values["bubble_percent"] == 0
    assert values["device_busy_percent"] == pytest.approx(20)


def test_a_request_without_an_end_wants_the_device_until_the_window_ends() -> None:
    trace = Trace.of([device(0, 10)], [mark("arrival", 0)], window=(0, 40 * US))
    assert summary(trace)["bubble_percent"] == pytest.approx(75)


def test_a_request_whose_arrival_was_lost_wanted_it_from_the_start() -> None:
    trace = Trace.of([device(30, 40)], [mark("finish", 40)], window=(0, 40 * US))
    assert summary(trace)["bubble_percent"] == pytest.approx(75)


def test_a_window_cuts_what_reaches_over_its_edges() -> None:
    values = summary(serial().within(200 * US, 500 * US))
    assert values["device_busy_percent"] == pytest.approx(100 * 200 / 300)
    assert values["bubble_percent"] == pytest.approx(100 * 100 / 300)
    assert values["tokens_per_s"] == pytest.approx(1e6 / 300)
    assert values["zombie_rows_percent"] is None  # no step starts here
    assert values["overlap_factor"] == pytest.approx(1)


def test_tokens_of_a_cancelled_request_are_no_goodput() -> None:
    marks = [mark("arrival", 0, 1), mark("cancel", 6, 1), mark("finish", 6, 1), mark("arrival", 0, 2)]
    values = summary(Trace.of(marks=marks, rows=[row(5, 1), row(9, 2)]))
    assert values["tokens_per_s"] == pytest.approx(1e6 / 9)


def test_zombies_cost_at_most_their_share_and_at_least_the_slope() -> None:
    spans = [device(0, 100, 0, rows=2), device(100, 230, 1, rows=5, zombies=2)]  # slope 10 us a row
    values = summary(Trace.of(spans))
    assert values["zombie_tax_upper_percent"] == pytest.approx(100 * 130 * 2 / 5 / 230)
    assert values["zombie_tax_marginal_percent"] == pytest.approx(100 * 10 * 2 / 230)


def test_zombies_inside_one_bucket_cost_nothing_more() -> None:
    small = SpanRecord("compute", "forward", 0, 100 * US, 0, 0, "decode", 3, 0, 1)
    large = SpanRecord("compute", "forward", 100 * US, 300 * US, 1, 1, "decode", 7, 1, 1)
    assert summary(Trace.of([small, large]))["zombie_tax_marginal_percent"] == pytest.approx(0)


def test_steps_of_zombies_only_are_counted() -> None:
    values = summary(Trace.of([device(0, 10, rows=2, zombies=2), device(10, 20, 1)]))
    assert (values["all_zombie_steps"], values["all_zombie_ms"]) == (1, pytest.approx(0.01))


def test_lives_of_requests() -> None:
    (life,) = request_lives(serial())  # the zombie row tells of no life
    assert (life.arrival_ns, life.admitted_ns, life.first_token_ns) == (0, 50_000, 500_000)
    assert life.end_ns == MS
    assert life.tokens_ns == (500_000, MS)


def test_the_upload_of_a_step_is_device_work_and_its_first() -> None:
    spans = [
        host("launch", 0, 10),
        SpanRecord("compute", "h2d", 20 * US, 30 * US, 0, 0, "decode"),
        device(30, 50),
    ]
    values = summary(Trace.of(spans))
    assert values["device_busy_percent"] == pytest.approx(60)
    assert values["launch_latency_us"] == pytest.approx(10)


def test_waits_inside_a_launch_are_no_host_work_and_count_as_leaks() -> None:
    spans = [host("launch", 0, 100), host("sync: Event.synchronize in Runtime.launch", 20, 60)]
    spans += [host("injected: slow commit", 100, 130), host("wait", 130, 200), device(0, 200)]
    values = summary(Trace.of(spans))
    assert values["host_hidden_percent"] == 100
    assert values["overlap_factor"] == pytest.approx((60 + 30 + 200) / 200)
    assert (values["sync_leaks"], values["sync_leak_ms"]) == (1, pytest.approx(0.04))


def test_the_table_says_each_formula_once() -> None:
    assert len({m.name for m in METRICS}) == len({m.key for m in METRICS}) == len(METRICS)
    assert all(m.formula and not m.formula.endswith(".") for m in METRICS)
    assert not any("GPU" in m.name + m.formula for m in METRICS)


def test_a_step_whose_launch_or_commit_lies_outside_of_the_window_was_in_flight_up_to_its_edge() -> None:
    spans = [
        SpanRecord("host", name, t, t + 1, step) for name, t, step in (("launch", 0, 1), ("commit", 50, 1))
    ]
    spans += [SpanRecord("host", name, t, t + 1, 2) for name, t in (("launch", 40), ("commit", 90))]
    whole = Trace.of(spans, [MarkRecord("arrival", 0, 7)])
    assert summary(whole.within(20, 70))["pipeline_depth"] == pytest.approx((31 + 30) / 50)
