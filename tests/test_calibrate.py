"""Pins the fit of a machine from its blocking trace: it finds the machine that made the trace, and what it
predicts for depth 2 is what that machine then does.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from test_simulated import Records

from photon import calibrate
from photon.calibrate import fit
from photon.device.cost import CostModel, preset
from photon.errors import InvalidRequestError
from photon.measure.rounds import measure
from photon.observe import Span
from photon.simulation import Scenario, compare, simulate
from tracing.chrome import from_chrome, to_chrome
from tracing.files import load
from tracing.recorder import Recorder

ROOT = Path(__file__).resolve().parents[1]
B200 = preset("b200")


def spans_of(cost: CostModel, depth: int = 1, streams: int = 8, tokens: int = 60) -> list[Span]:
    records = Records()
    simulate(Scenario(cost, streams, tokens), depth, [records])
    return records.spans


@pytest.mark.parametrize("streams", [1, 8, 32])
@pytest.mark.parametrize("start_ms", [0.0, 0.15])
def test_the_machine_that_made_the_trace_is_found(streams: int, start_ms: float) -> None:
    cost = replace(B200, start_ms=start_ms)
    fitted = fit(spans_of(cost, streams=streams), "gpu")
    real, found = (compare(Scenario(c, streams, 60)) for c in (cost, fitted.cost))
    assert (fitted.rows, fitted.cost.label) == (streams, "fitted")
    assert fitted.period_ms == real.blocking.period_ms
    assert found.blocking.period_ms == pytest.approx(real.blocking.period_ms, rel=0.001)
    assert found.pipelined.period_ms == pytest.approx(real.pipelined.period_ms, rel=0.001)
    assert found.gain_percent == pytest.approx(real.gain_percent, abs=0.3)


def test_a_card_that_idles_between_the_upload_and_a_late_forward_waits_for_the_host() -> None:
    """On CUDA the upload runs while the host still launches the forward: that is no work of the device."""
    early_ns = 100_000
    spans = [
        span._replace(start_ns=span.start_ns - early_ns, end_ns=span.end_ns - early_ns)
        if (span.track, span.name) == ("compute", "h2d")
        else span
        for span in spans_of(B200)
    ]
    moved, plain = (fit(items, "gpu").cost for items in (spans, spans_of(B200)))
    periods = [compare(Scenario(cost, 8, 60)).pipelined.period_ms for cost in (moved, plain)]
    assert periods[0] == pytest.approx(periods[1], rel=0.001)


def test_a_trace_of_several_batch_sizes_tells_what_a_row_costs() -> None:
    fitted = fit(spans_of(B200, streams=32), "gpu")
    assert fitted.cost.forward.coefficient_ms > 0
    assert fitted.cost.forward.ns(32) / 1e6 == pytest.approx(3.8, abs=0.001)


def test_where_copies_have_no_engine_of_their_own_they_count_as_device_time() -> None:
    spans = spans_of(B200)
    assert fit(spans, "cpu").cost.upload_ms == pytest.approx(fit(spans, "gpu").cost.upload_ms + B200.copy_ms)
    assert fit(spans, "cpu").cost.copy_ms == pytest.approx(0, abs=1e-9)


def test_a_saved_trace_fits_as_the_live_one_does() -> None:
    recorder = Recorder()
    simulate(Scenario(B200, 8, 60), 1, [recorder])
    trace = from_chrome(json.loads(json.dumps(to_chrome(recorder.snapshot()))))
    assert fit(trace.spans, "gpu") == fit(spans_of(B200), "gpu")


def test_what_a_cards_blocking_trace_predicts_is_what_its_pipelined_trace_shows() -> None:
    """Both were recorded on one H200 under the same requests."""
    blocking, pipelined = (load(path) for path in sorted((ROOT / "assets" / "traces").iterdir()))
    fitted = fit(blocking.spans, "cuda:0")
    found = compare(Scenario(fitted.cost, fitted.rows, tokens=40, answers=1)).pipelined.period_ms
    shown = measure([span for span in pipelined.spans if span.kind == "decode"], fitted.rows)["period_ms"]
    assert found == pytest.approx(shown, rel=0.02)
    assert fitted.period_ms / shown > 1.15


def test_a_pipelined_trace_is_refused() -> None:
    with pytest.raises(InvalidRequestError, match=r"^The steps of the trace overlap; record it at depth 1"):
        fit(spans_of(B200, depth=2), "gpu")


@pytest.mark.parametrize("tokens", [1, 8])
def test_a_trace_of_too_few_steps_is_refused(tokens: int) -> None:
    with pytest.raises(InvalidRequestError, match=r"at least 20 are needed: record a longer answer\.$"):
        fit(spans_of(B200, streams=2, tokens=tokens)[: 40 * tokens], "gpu")


def test_the_command_predicts_depth_2_and_then_measures_it(capsys: pytest.CaptureFixture[str]) -> None:
    assert calibrate.main(["--device", "sim:b200", "--runs", "1", "--tokens", "8", "--json"]) == 0
    out = capsys.readouterr().out
    found = json.loads(out.splitlines()[-1])
    assert [run["rows"] for run in found] == [1, 8]
    for run in found:
        assert run["measured_gain_percent"] > 15
        assert abs(run["off_points"]) < 0.3
    assert "8 rows: off by" in out


def test_an_unknown_device_is_one_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    assert calibrate.main(["--device", "tpu"]) == 2
    assert capsys.readouterr().err.startswith("calibrate: There is no device 'tpu'")
