"""Pins `python -m tracing`: what it prints of one file and of two, what it writes, and how it refuses."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from traces import recorded

from tracing.__main__ import main
from tracing.files import save
from tracing.metrics import METRICS

ROOT = Path(__file__).parents[1]


@pytest.fixture
def run(tmp_path: Path) -> str:
    save(recorded(), tmp_path / "run.json.gz")
    return str(tmp_path / "run.json.gz")


def test_one_file_gives_facts_metrics_leaks_and_bubbles(run: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([run]) == 0
    printed = capsys.readouterr().out
    for metric in METRICS:
        assert metric.name in printed
        assert metric.formula in printed
    assert "The clocks of host and device are the same" in printed
    assert "in sample: Stream.synchronize in Runtime.sample  40.0 us" in printed
    assert "The device idled 0.50 ms because the host was still planning step 40" in printed


def test_two_files_give_what_changed(run: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    save(recorded(period_us=1500), tmp_path / "other.json")
    assert main([run, str(tmp_path / "other.json")]) == 0
    printed = capsys.readouterr().out
    assert "ITL p50" in printed
    assert "worse" in printed
    assert "All 35 tokens of 3 pairs of requests are equal." in printed


def test_json_is_json_for_one_and_for_two(run: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([run, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["metrics"]["sync_leaks"]["value"] == 1
    assert main([run, run, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["metrics"]["sync_leaks"]["difference"] == 0


def test_the_last_seconds_are_a_smaller_window(run: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([run, "--json", "--last", "0.004"]) == 0
    assert json.loads(capsys.readouterr().out)["window"]["length_ms"] == 4


def test_csv_and_html_are_written(run: str, tmp_path: Path) -> None:
    assert main([run, "--csv", str(tmp_path / "a.csv"), "--html", str(tmp_path / "a.html")]) == 0
    assert (tmp_path / "a.csv").read_text().startswith("track,name,start_ns")
    assert "run.json.gz" in (tmp_path / "a.html").read_text(encoding="utf-8")


def test_a_file_that_is_none_is_refused_in_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("absent.json", "empty.json"):
        (tmp_path / "empty.json").touch()
        assert main([str(tmp_path / name)]) == 2
        said = capsys.readouterr()
        assert said.out == ""
        assert said.err.count("\n") == 1
        assert name in said.err


def test_the_second_file_is_named_when_it_is_the_bad_one(
    run: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([run, str(tmp_path / "absent.json")]) == 2
    assert "absent.json" in capsys.readouterr().err


def test_an_output_that_cannot_be_written_is_named(run: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([run, "--csv", "/absent/spans.csv"]) == 2
    assert "/absent/spans.csv" in capsys.readouterr().err


def test_who_stops_reading_early_is_no_error(run: str) -> None:
    command = [sys.executable, "-m", "tracing", run]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=ROOT) as reading:
        assert reading.stdout is not None
        assert reading.stderr is not None
        reading.stdout.close()
        assert reading.stderr.read() == b""


@pytest.mark.parametrize("seconds", ["0", "-1", "nan", "soon"])
def test_seconds_that_are_none_are_refused(
    run: str, seconds: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as exit_:
        main([run, "--last", seconds])
    assert exit_.value.code == 2
    assert "--last" in capsys.readouterr().err
