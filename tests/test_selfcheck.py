"""The self-check measures what it says, on spans made by hand and on a real run."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from photon import selfcheck
from photon.model.weights import Model
from photon.observe import Span


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
    measured = selfcheck.measure(spans, rows=1)
    assert measured.period_ms == 10
    assert measured.device_ms == 5
    assert measured.host_ms == 2
    assert measured.device_busy == pytest.approx(20 / 35)


def test_steps_of_another_batch_size_are_left_out() -> None:
    spans = [span for i in range(4) for span in decode_step(i, i * 10_000_000)]
    more = [span._replace(rows=8, end_ns=span.end_ns + 10**9) for span in decode_step(9, 10**9)]
    assert selfcheck.measure(spans + more, rows=1) == selfcheck.measure(spans, rows=1)


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
