"""The self-check measures what it says, on spans made by hand and on a real run."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from photon import selfcheck
from photon.errors import InvalidRequestError
from photon.measure.rounds import latencies, measure
from photon.model.weights import Model
from photon.observe import Mark, Span, StepRecord, StepRow

MARKS = (
    (1, "arrival", 0),
    (2, "arrival", 1),
    (1, "first_token", 4),
    (2, "first_token", 7),
    (1, "finish", 10),
    (2, "finish", 10),
)


def decode_step(step_id: int, start_ns: int) -> list[Span]:
    """A step of 5 ms on the device (4 forward, 1 sample) and 2 ms on the host, beside 3 ms of waiting."""
    tail = (step_id, step_id % 2, "decode", 1)
    return [
        Span("compute", "forward", start_ns, start_ns + 4_000_000, *tail),
        Span("compute", "sample", start_ns + 4_000_000, start_ns + 5_000_000, *tail),
        Span("host", "launch", start_ns - 1_500_000, start_ns - 500_000, *tail),
        Span("host", "wait", start_ns, start_ns + 3_000_000, *tail),
        Span("host", "commit", start_ns + 6_000_000, start_ns + 7_000_000, *tail),
    ]


def test_a_round_separates_device_host_and_waiting() -> None:
    spans = [span for i in range(4) for span in decode_step(i, i * 10_000_000)]
    measured = measure(spans, rows=1)
    assert measured["period_ms"] == 10
    assert measured["device_ms"] == 5
    assert measured["host_ms"] == 2
    assert measured["device_busy"] == pytest.approx(20 / 35)


def test_waits_inside_launch_or_sample_are_counted() -> None:
    spans = [span for i in range(4) for span in decode_step(i, i * 10_000_000)]
    leak = Span("host", "sync: Event.synchronize in Runtime.sample", 5, 9, 1, 1, "decode", 1)
    assert measure([*spans, leak], rows=1)["sync_leaks"] == 1


def test_latencies_are_those_of_marks_and_delivered_rows() -> None:
    """Two rows with commits 1 ms apart; the first of the second comes 2 ms after the other's."""
    ms = 1_000_000
    marks = [Mark(name, at * ms, request) for request, name, at in MARKS]
    row = StepRow(1, 0, 9, 0.0, 0.0, "ANY", False, True, 1, 0, 1, 0)
    steps = [
        StepRecord(i, 0, "decode", i * ms, 0, "", [row, row._replace(request_id=2, is_delivered=i > 6)])
        for i in range(4, 11)
    ]
    found = latencies(marks, steps)
    assert found["ttft_ms"] == 5
    assert found["itl_p50_ms"] == found["itl_p99_ms"] == 1
    assert found["goodput"] == pytest.approx(11 / 0.010)


def test_too_few_tokens_for_a_full_batch_is_one_sentence() -> None:
    with pytest.raises(InvalidRequestError, match="No two steps had all 8 rows; ask for more tokens"):
        measure(decode_step(1, 0), rows=8)


def test_steps_of_another_batch_size_are_left_out() -> None:
    spans = [span for i in range(4) for span in decode_step(i, i * 10_000_000)]
    more = [span._replace(rows=8, end_ns=span.end_ns + 10**9) for span in decode_step(9, 10**9)]
    assert measure(spans + more, rows=1) == measure(spans, rows=1)


@pytest.mark.parametrize("device", ["cpu", "deferred"])
def test_both_depths_give_the_same_tokens_with_two_steps_in_flight(
    device: str, golden_model: Model, capsys: pytest.CaptureFixture[str]
) -> None:
    args = ["--device", device, "--model", str(golden_model.path), "--tokens", "6", "--rounds", "1", "--json"]
    assert selfcheck.main(args) == 0
    result = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert result["tokens_equal"]
    assert result["max_in_flight"] == {"1": 1, "2": 2}


def test_a_missing_model_is_one_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert selfcheck.main(["--model", str(tmp_path)]) == 2
    assert capsys.readouterr().err.startswith("selfcheck: There is no model.safetensors")
