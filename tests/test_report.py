"""Pins the comparison of two traces: every metric once with the right verdict, step times worked out by
hand, tokens paired by order of arrival with the first difference named."""

from __future__ import annotations

import json
from collections.abc import Callable

import numpy as np
import pytest
from traces import recorded

from tracing.metrics import METRICS
from tracing.report import (
    HIGHER,
    LOWER,
    PHASES,
    as_document,
    as_text,
    compare,
    compare_tokens,
    number,
    phase_times,
)
from tracing.trace import RowRecord, Trace


def changed(trace: Trace, change: Callable[[RowRecord], RowRecord | None]) -> Trace:
    """The same trace with other rows; None leaves a row out."""
    rows = filter(None, map(change, trace.rows))
    return Trace.of(trace.spans, trace.marks, trace.window, rows=rows, info=trace.info)


def test_every_metric_is_compared_once() -> None:
    report = compare(recorded(), recorded(period_us=1500))
    assert [row.metric.key for row in report.rows] == [metric.key for metric in METRICS]


def test_only_metrics_that_exist_have_a_direction() -> None:
    assert {metric.key for metric in METRICS} >= HIGHER | LOWER
    assert not HIGHER & LOWER


def test_better_depends_on_the_metric_and_not_on_the_sign() -> None:
    rows = {row.metric.key: row for row in compare(recorded(period_us=1500), recorded()).rows}
    assert rows["itl_p50_ms"].difference == pytest.approx(-0.1)
    assert rows["itl_p50_ms"].verdict == "better"
    assert rows["device_busy_percent"].difference > 0
    assert rows["device_busy_percent"].verdict == "better"
    assert rows["sync_leaks"].verdict is None  # equal
    assert rows["pipeline_depth"].verdict is None  # neither way is the good one


def test_a_metric_that_one_trace_lacks_has_no_difference() -> None:
    rows = compare(Trace.of(), recorded()).rows
    assert all(row.difference is None and row.verdict is None for row in rows)


def test_step_times_are_those_of_the_decode_steps() -> None:
    times = phase_times(recorded(steps=5))
    expected = {"period": 1.4, "device": 1.3, "plan": 0.1, "launch": 0.16, "sample": 0.06, "commit": 0.18}
    for phase, value in expected.items():
        assert times[phase] == pytest.approx([value] * len(times[phase])), phase
    assert {phase: len(times[phase]) for phase in PHASES} == dict.fromkeys(PHASES, 4) | {"period": 3}
    assert times["host"] == pytest.approx([0.5, 0.46, 0.5, 0.5])  # the sync leak is no work


def test_the_time_between_two_runs_is_no_period() -> None:
    first, second = recorded(5), recorded(5, first_step=45, first_request=9)
    later = 10**9
    spans = [s._replace(start_ns=s.start_ns + later, end_ns=s.end_ns + later) for s in second.spans]
    marks = [m._replace(time_ns=m.time_ns + later) for m in second.marks]
    both = Trace.of([*first.spans, *spans], [*first.marks, *marks])
    assert max(phase_times(both)["period"]) == pytest.approx(1.4)


def test_the_empty_trace_has_no_steps_and_no_tokens() -> None:
    assert not any(len(times) for times in phase_times(Trace.of()).values())
    tokens = compare_tokens(Trace.of(), Trace.of())
    assert tokens.is_equal is None
    assert str(tokens) == "There are no tokens to compare."


def test_equal_tokens_are_equal_whatever_steps_they_came_from() -> None:
    tokens = compare_tokens(recorded(), recorded(first_step=400, first_request=70))
    assert tokens.is_equal
    assert str(tokens) == "All 35 tokens of 3 pairs of requests are equal."


def test_the_first_difference_names_request_token_and_steps() -> None:
    other = changed(
        recorded(first_step=400, first_request=70),
        lambda row: row._replace(token_id=9) if (row.request_id, row.step_id) == (71, 404) else row,
    )
    tokens = compare_tokens(recorded(), other)
    assert tokens.is_equal is False
    assert str(tokens) == (
        "Pair 1, request 4 of A and request 71 of B, differ at token 4: "
        "A has token 129 from step 44 and B has token 9 from step 404. The other 2 pairs are equal."
    )
    assert tokens.is_error


def test_in_16_bits_a_difference_is_explained_and_is_no_error() -> None:
    other = changed(recorded(), lambda row: row._replace(token_id=9) if row.step_id == 44 else row)
    rounded = Trace.of(other.spans, other.marks, other.window, rows=other.rows, info={"dtype": "bfloat16"})
    tokens = compare_tokens(recorded(), rounded)
    assert tokens.is_equal is False
    assert not tokens.is_error
    assert "In 16 bits that alone is no error" in str(tokens)


def test_another_coordinate_is_a_difference_and_no_coordinate_is_none() -> None:
    same = changed(recorded(), lambda row: row._replace(x=np.nan))
    assert compare_tokens(same, same).is_equal
    assert compare_tokens(recorded(), same).differences[0].place == 0


def test_an_answer_that_ended_earlier_differs_where_it_ends() -> None:
    shorter = changed(recorded(), lambda row: None if row.step_id == 51 else row)
    first = compare_tokens(recorded(), shorter).differences[0]
    assert (first.place, first.b) == (11, None)
    assert "B has ended" in str(first)


def test_of_a_request_that_still_runs_only_what_both_have_is_compared() -> None:
    whole = recorded()
    marks = [mark for mark in whole.marks if mark.name != "finish"]
    running = Trace.of(whole.spans, marks, rows=[row for row in whole.rows if row.step_id < 45])
    tokens = compare_tokens(whole, running)
    assert (tokens.is_equal, tokens.num_tokens) == (True, 15)


def test_requests_are_paired_by_arrival_and_the_rest_is_counted() -> None:
    whole = recorded()
    fewer = Trace.of(whole.spans, [m for m in whole.marks if m.request_id < 5], rows=whole.rows)
    tokens = compare_tokens(whole, fewer)
    assert (tokens.num_pairs, tokens.num_unpaired) == (2, 1)
    assert str(tokens).endswith("1 request has no counterpart.")


def test_the_report_is_text_and_a_document() -> None:
    report = compare(recorded(), recorded(period_us=1500))
    text = as_text(report)
    assert len({line.index("worse") + 5 for line in text.splitlines() if line.endswith("worse")}) == 1
    assert text.endswith("equal.")
    document = json.loads(json.dumps(as_document(report), allow_nan=False))
    assert document["tokens"]["is_equal"] is True
    assert document["step_p50"]["period"] == {"unit": "ms", "a": pytest.approx(1.4), "b": pytest.approx(1.5)}


def test_numbers_have_four_digits_that_count() -> None:
    values = (None, 0, -0.0, 7, 1234567, 0.12345, -1.23456, 1234.5)
    assert [number(v) for v in values] == ["–", "0", "0", "7", "1,234,567", "0.1235", "-1.235", "1,234"]
