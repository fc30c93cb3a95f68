"""The benchmark plays both depths at every batch size and reports every figure; the host's cost is judged."""

from __future__ import annotations

import json

import pytest

from photon import bench
from photon.measure import host_cost
from photon.measure.rounds import Round
from photon.model.weights import Model

FIGURES = {*Round.__annotations__, "bubble_percent", "period_spread_ms", "period_over_limit"}


def test_on_a_simulated_gpu_every_batch_size_gains_and_every_figure_is_there(
    golden_model: Model, capsys: pytest.CaptureFixture[str]
) -> None:
    args = ["--device", "sim:b200", "--model", str(golden_model.path), "--tokens", "60", "--repeats", "1"]
    assert bench.main([*args, "--json"]) == 0
    result = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert list(result["rows"]) == ["1", "8", "32"]
    for batch in result["rows"].values():
        assert batch["gain_percent"] > 5
        blocking, pipelined = batch["depth_1"], batch["depth_2"]
        assert set(blocking) == FIGURES
        assert blocking["bubble_percent"] > pipelined["bubble_percent"]
        assert blocking["itl_p50_ms"] > pipelined["itl_p50_ms"]
        assert blocking["goodput"] < pipelined["goodput"]
        assert blocking["sync_leaks"] == pipelined["sync_leaks"] == 0
    assert {"cpu", "cores", "device", "torch", "python", "photon", "load"} <= set(result["machine"])


def test_the_hosts_cost_is_judged_by_cpu_time_at_every_batch_size(capsys: pytest.CaptureFixture[str]) -> None:
    status = bench.main(["--host", "--repeats", "1", "--json"])
    out = capsys.readouterr().out
    result = json.loads(out.splitlines()[-1])
    found = [(f[name]["cpu_ms"], f["bar_ms"]) for f in result["host"].values() for name in ("off", "on")]
    assert len(found) == 2 * len(host_cost.BARS_MS)
    assert all(cpu_ms > 0 for cpu_ms, _ in found)
    assert result["ok"] == all(cpu_ms <= bar_ms for cpu_ms, bar_ms in found)
    assert status == (0 if result["ok"] else 1)
    assert out.count("OVER") == sum(cpu_ms > bar_ms for cpu_ms, bar_ms in found)


def test_too_few_tokens_for_a_full_batch_and_a_missing_model_are_one_sentence_each(
    golden_model: Model, capsys: pytest.CaptureFixture[str]
) -> None:
    few = ["--device", "sim:b200", "--model", str(golden_model.path), "--tokens", "2", "--repeats", "1"]
    assert bench.main(few) == 2
    assert bench.main(["--model", "nowhere"]) == 2
    first, second = capsys.readouterr().err.splitlines()
    assert first.startswith("bench: No two steps had all")
    assert second.startswith("bench: There is no")
