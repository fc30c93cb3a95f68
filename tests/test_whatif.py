"""Pins the what-if command: its table and JSON, the trace it saves and reads, its sentences, and the figures
that the README says it gives.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from photon import whatif
from photon.device.cost import TABLE, preset
from photon.simulation import Scenario, compare
from tracing.files import load
from tracing.metrics import device_busy_percent
from tracing.predict import predicted_gain_percent

README = (Path(__file__).resolve().parents[1] / "README.md").read_text(encoding="utf-8")
SMALL = ["--gpu", "b200", "--streams", "4", "--tokens", "40"]


def run(capsys: pytest.CaptureFixture[str], *flags: str) -> tuple[str, dict[str, Any]]:
    """What is printed, and the object of its last line."""
    assert whatif.main([*flags, "--json"]) == 0
    out = capsys.readouterr().out
    return out, json.loads(out.splitlines()[-1])


def test_the_json_has_the_figures_of_both_depths(capsys: pytest.CaptureFixture[str]) -> None:
    _, found = run(capsys, *SMALL)
    expected = compare(Scenario(preset("b200"), 4, 40))
    assert found["blocking_ms"] == expected.blocking.period_ms
    assert found["pipelined_ms"] == expected.pipelined.period_ms
    assert found["gain_percent"] == expected.gain_percent
    assert found["zombie_tax_percent"] == expected.pipelined.zombie_tax_percent
    assert (found["label"], found["published"]) == ("published", None)


def test_the_table_sets_published_beside_simulated(capsys: pytest.CaptureFixture[str]) -> None:
    out, found = run(capsys, "--gpu", "rtx3090", "--streams", "1", "--tokens", "104")
    assert re.search(r"blocking period +5\.44 +5\.45 ms +\+0\.1 %", out)
    assert re.search(r"gain, as observed +6\.50 +5\.74 % +-0\.8 points", out)
    assert found["published"]["observed_percent"] == 6.5


def test_a_derived_machine_says_its_formula(capsys: pytest.CaptureFixture[str]) -> None:
    out, _ = run(capsys, "--gpu", "h200", "--streams", "2", "--tokens", "20")
    assert "H200 (derived)" in out
    assert "2 ms + (2.626 GB + rows x 0.163 GB) / 4,800 GB/s" in out


def test_a_custom_machine_is_five_numbers(capsys: pytest.CaptureFixture[str]) -> None:
    flags = [
        "--forward-ms",
        "3",
        "--row-ms",
        "0.1",
        "--sample-ms",
        "0.1",
        "--host-ms",
        "1",
        "--host-row-ms",
        "0.1",
    ]
    _, found = run(capsys, "--gpu", "custom", "--streams", "4", "--tokens", "40", *flags)
    assert found["pipelined_ms"] == pytest.approx(3 + 0.4 + 0.1 + 0.035)
    assert found["blocking_ms"] == pytest.approx(found["pipelined_ms"] + 1 + 0.4 + 0.02)


def test_the_saved_trace_is_the_pipelined_run(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = tmp_path / "run.json.gz"
    out, _ = run(capsys, *SMALL, "--trace", str(path))
    trace = load(path)
    assert str(path) in out
    assert device_busy_percent(trace) == pytest.approx(100, abs=0.2)
    assert (trace.info["device"], trace.info["depth"]) == ("simulated B200", "2")


def test_a_blocking_trace_predicts_what_the_simulation_of_depth_2_gives(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    path = tmp_path / "blocking.json.gz"
    _, real = run(capsys, *SMALL, "--trace", str(path), "--depth", "1")
    _, fitted = run(capsys, "--from-trace", str(path), "--tokens", "40")
    assert fitted["label"] == "fitted"
    assert fitted["streams"] == 4
    assert fitted["pipelined_ms"] == pytest.approx(real["pipelined_ms"], rel=0.001)
    assert fitted["gain_percent"] == pytest.approx(real["gain_percent"], abs=0.5)
    assert predicted_gain_percent(load(path)) == pytest.approx(real["gain_percent"], abs=5)


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        (["--streams", "0"], "streams is 0; it must be a whole number from 1 to 1024."),
        (["--streams", "1025"], "streams is 1025; it must be a whole number from 1 to 1024."),
        (["--tokens", "-3"], "tokens is -3; it must be a whole number from 1 to 1024."),
        (["--task", "chat"], "There is no task 'chat'; use one of query, caption, point, detect."),
        (
            ["--gpu", "h2000"],
            "There is no GPU 'h2000'; use one of rtx3090, l4, l40s, a100, h100, h200, b200.",
        ),
        (["--gpu", "custom"], "--gpu custom needs --forward-ms and --host-ms."),
        (["--host-ms", "1"], "host_ms: these describe --gpu custom; say so, or leave them out."),
        (
            ["--gpu", "custom", "--forward-ms", "0", "--host-ms", "1"],
            "forward_ms is 0.0; it must be a number from 0.001 to 10000.",
        ),
        (
            ["--from-trace", "no.json", "--streams", "2"],
            "--from-trace predicts for the batch that was recorded; leave --streams out.",
        ),
        (
            ["--from-trace", "no.json"],
            "no.json: The file cannot be read: No such file or directory; check its path.",
        ),
    ],
)
def test_bad_input_is_one_sentence(
    flags: list[str], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert whatif.main(flags) == 2
    assert capsys.readouterr().err == f"whatif: {sentence}\n"


def test_a_trace_that_cannot_be_written_is_one_sentence(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert whatif.main([*SMALL, "--trace", str(tmp_path / "none" / "run.json")]) == 2
    assert re.search(
        r"cannot be written: No such file or directory; check its folder\.$", capsys.readouterr().err
    )


def test_a_trace_with_too_few_steps_says_what_is_needed(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    path = str(tmp_path / "short.json")
    run(capsys, "--streams", "1", "--tokens", "4", "--trace", path, "--depth", "1")
    assert whatif.main(["--from-trace", path]) == 2
    assert "at least 20 are needed" in capsys.readouterr().err


def test_the_readme_names_what_the_simulation_gives() -> None:
    section = README.split("## What if")[1].split("\n## ")[0]
    rows = re.findall(r"^\| (RTX 3090|B200), (\d+) \| (.+) \| (.+) \| (.+) \|$", section, re.M)
    assert [row[:2] for row in rows] == [("RTX 3090", "1"), ("B200", "32")]
    for name, streams, published, steady, short in rows:
        found = compare(Scenario(preset(name), int(streams), 104))
        once = compare(Scenario(preset(name), int(streams), 104, answers=1, crops=0))
        known = TABLE[name, int(streams)]
        assert published == f"{known.observed_percent} % observed, {known.predicted_percent} % predicted"
        assert steady == f"{found.gain_percent:.1f} %"
        assert short == f"{once.run_gain_percent:.1f} %"
