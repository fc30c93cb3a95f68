"""Pins the step inspector: what a step's record says, which sentence explains a zombie, what is said when
little is held; and the table of the newest steps."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tracing.inspect import inspect, steps
from tracing.trace import MarkRecord, RowRecord, SpanRecord, Trace

US = 1_000
WAITS = "launch: nothing | sample: copy for sampled | commit: host for copied"


def span(
    track: str, name: str, start: int, end: int, step: int, zombies: int = 0, padding: int = 0
) -> SpanRecord:
    return SpanRecord(track, name, start * US, end * US, step, step % 2, "decode", 2, zombies, padding)


def row(time: int, step: int, index: int, request: int, **fields: Any) -> RowRecord:
    return RowRecord(time * US, step, index, request, 10 + step, mask="TEXT", waits=WAITS, **fields)


def pipelined() -> Trace:
    """Steps 41 and 42 in flight together; request 7 finishes at the commit of 41, so it is a zombie of 42."""
    spans = [span("host", "launch", 0, 20, 41), span("host", "launch", 50, 70, 42, padding=1)]
    spans += [span("compute", "h2d", 30, 35, 41), span("compute", "forward", 35, 90, 41)]
    spans += [span("host", "commit", 100, 110, 41), span("host", "plan", 40, 50, 42)]
    spans += [span("compute", "forward", 95, 150, 42, 1, 1), span("copy", "d2h", 150, 155, 42, 1, 1)]
    spans += [span("host", "wait", 110, 156, 42), span("host", "commit", 156, 170, 42, 1, 1)]
    spans += [SpanRecord("compute", "sample", 85 * US, 90 * US, 41, 1, "decode", 2)]
    marks = [MarkRecord("arrival", 0, 7), MarkRecord("arrival", 0, 8), MarkRecord("finish", 100 * US, 7, 41)]
    rows = [row(100, 41, 0, 7, token_id=3, refs_before=2, refs_after=1, pages=4)]
    rows += [row(100, 41, 1, 8, token_id=5, x=0.25, refs_before=2, refs_after=1, pages=5, lora_slot=1)]
    rows += [row(156, 42, 0, 7, is_zombie=True, is_delivered=False, refs_before=1, refs_after=0, pages=4)]
    rows += [row(156, 42, 1, 8, x=0.25, y=0.5, refs_before=2, refs_after=1, pages=5)]
    return Trace.of(spans, marks, rows=rows)


def test_the_empty_trace_holds_no_step() -> None:
    assert steps(Trace.of()) == []
    with pytest.raises(LookupError, match=r"^Step 3 is not held; the trace holds no steps\.$"):
        inspect(Trace.of(), 3)


def test_a_step_that_is_not_held_is_named_beside_those_that_are() -> None:
    with pytest.raises(LookupError, match=r"^Step 40 is not held; the trace holds steps 41 to 42\.$"):
        inspect(pipelined(), 40)


def test_one_span_says_what_it_can() -> None:
    found = inspect(Trace.of([span("compute", "forward", 0, 10, 1)]), 1)
    assert (found["slot"], found["kind"], found["rows"], found["table"], found["waits"]) == (
        1,
        "decode",
        2,
        [],
        [],
    )
    assert found["spans"] == [
        {"track": "compute", "name": "forward", "start_ns": "0", "dur_us": 10.0, "offset_us": None}
    ]
    assert found["launch_latency_us"] is found["bubble_before"] is found["previous"] is found["next"] is None


def test_one_row_says_what_it_can() -> None:
    found = inspect(Trace.of(rows=[row(5, 1, 0, 9, is_zombie=True)]), 1)
    assert (found["rows"], found["zombies"], found["slot"], found["spans"]) == (1, 1, None, [])
    assert found["table"][0]["why"] == (
        "Request 9 had finished when step 1 was committed, so its row rides along, its token is dropped, and "
        "its pages are released now."
    )


def test_a_step_as_the_engine_saw_it() -> None:
    found = inspect(pipelined(), 42)
    heading = {key: found[key] for key in ("step", "slot", "kind", "rows", "zombies", "padding")}
    assert heading == {"step": 42, "slot": 0, "kind": "decode", "rows": 2, "zombies": 1, "padding": 1}
    assert found["waits"] == WAITS.split(" | ")
    assert [(s["track"], s["name"], s["offset_us"], s["dur_us"]) for s in found["spans"]] == [
        ("host", "plan", -10, 10),
        ("host", "launch", 0, 20),
        ("compute", "forward", 45, 55),
        ("host", "wait", 60, 46),
        ("copy", "d2h", 100, 5),
        ("host", "commit", 106, 14),
    ]
    assert found["launch_latency_us"] == 25
    assert (found["previous"], found["next"]) == (41, None)
    json.dumps(found, allow_nan=False)


def test_the_bubble_before_a_step_has_its_cause_and_its_sentence() -> None:
    bubble = inspect(pipelined(), 42)["bubble_before"]
    assert (bubble["us"], bubble["cause"]) == (5, "launch latency")
    assert bubble["text"].startswith(
        "The device idled 0.005 ms because it took 0.005 ms to go on to forward of"
    )


def test_rows_are_live_zombie_or_padding() -> None:
    table = inspect(pipelined(), 42)["table"]
    assert [(r["row"], r["request"], r["state"]) for r in table] == [
        (0, 7, "zombie"),
        (1, 8, "live"),
        (2, None, "padding"),
    ]
    assert len({tuple(r) for r in table}) == 1
    live = table[1]
    assert (live["x"], live["y"], live["mask"], live["why"]) == (0.25, 0.5, "TEXT", None)
    assert (live["position"], live["refs_before"], live["refs_after"], live["pages"]) == (52, 2, 1, 5)
    assert inspect(pipelined(), 41)["table"][1]["y"] is None


def test_a_zombie_that_finished_is_explained() -> None:
    assert inspect(pipelined(), 42)["table"][0]["why"] == (
        "Request 7 finished (with token 3) when step 41 was committed; step 42 had been launched 0.030 ms "
        "before that, so its row rides along, its token is dropped, and its pages are released now."
    )


def test_a_zombie_that_was_cancelled_is_explained() -> None:
    rows = [row(156, 42, 0, 7, is_zombie=True, refs_before=2, refs_after=1)]
    marks = [MarkRecord("arrival", 0, 7), MarkRecord("cancel", 400 * US, 7)]
    trace = Trace.of([span("host", "launch", 50, 70, 42)], marks, rows=rows)
    assert inspect(trace, 42)["table"][0]["why"] == (
        "Request 7 was cancelled; step 42 had been launched 0.33 ms before that, so its row rides along, its "
        "token is dropped, and its pages stay until the last step that holds it is committed."
    )


def test_the_table_of_the_newest_steps() -> None:
    first, second = steps(pipelined())
    assert (first["step"], first["launch_us"], first["device_us"], first["plan_us"]) == (41, 20, 65, None)
    assert {**second, "cause": ""} == {
        "step": 42,
        "slot": 0,
        "kind": "decode",
        "rows": 2,
        "zombies": 1,
        "padding": 1,
        "plan_us": 10,
        "launch_us": 20,
        "sample_us": None,
        "device_us": 55,
        "d2h_us": 5,
        "wait_us": 46,
        "commit_us": 14,
        "bubble_us": 5,
        "cause": "",
    }
    assert steps(pipelined(), 1) == [second]
    assert steps(pipelined(), 0) == []
