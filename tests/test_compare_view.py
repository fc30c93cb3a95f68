"""Pins what a comparison says and shows: verdict, leak in words, which round is shown, table, files."""

from __future__ import annotations

import asyncio
import gc
import json
import re
from collections.abc import Iterator
from math import nan
from pathlib import Path
from typing import Any

import gradio as gr
import pytest
from traces import LEAK, recorded

from photon.observe import StepRecord, StepRow
from tracing.files import save
from tracing.leaks import Leak
from tracing.recorder import Recorder
from tracing.report import compare, measured_gain
from tracing.trace import MarkRecord, SpanRecord, Trace
from tracing.ui.compare import START, STEP, ComparisonView, choose, figure, run_trace
from tracing.ui.compare_html import Side, leak_sentence, steps, summary, table, verdict
from tracing.ui.sources import Sources

pytestmark = [
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),  # Gradio's own loops
    pytest.mark.filterwarnings("ignore:'future.no_silent_downcasting' is deprecated"),  # Gradio with pandas
]

SLOW, FAST = recorded(period_us=2000), recorded(period_us=1600)


def side(name: str, trace: Trace, words: str = "depth 1") -> Side:
    return Side(name, words, trace, "0" * 32)


def said(a: Trace, b: Trace, *gains: float) -> tuple[str, str]:
    return verdict(side("A", a), side("B", b), compare(a, b), gains)


def words(html: str) -> str:
    return re.sub(r"<[^>]+>", " ", html)


@pytest.fixture(scope="module")
def view() -> Iterator[ComparisonView]:
    with gr.Blocks(analytics_enabled=False):
        view = ComparisonView(Sources(Recorder()))
    yield view
    del view
    gc.collect()  # Gradio leaves event loops behind, whose warnings belong here and to no other test


def shown(view: ComparisonView, a: Trace = SLOW, b: Trace = FAST) -> dict[Any, Any]:
    return view.show([[("A", "depth 1", a), ("B", "depth 2", b)]])


# ---- words


def test_the_verdict_says_how_much_faster_and_whether_the_tokens_are_the_same() -> None:
    assert said(SLOW, FAST) == ("B is 25.0 % faster than A and gives the same tokens.", "better")
    assert said(FAST, SLOW) == ("B is 20.0 % slower than A and gives the same tokens.", "worse")
    assert said(SLOW, SLOW) == ("B is as fast as A and gives the same tokens.", "equal")


def test_other_tokens_are_said_before_any_speed_counts() -> None:
    headline, state = said(SLOW, recorded(steps=11, period_us=1600))
    assert (state, "other tokens" in headline) == ("differs", True)


def test_rounds_that_contradict_each_other_give_no_winner() -> None:
    headline, state = said(SLOW, FAST, -30.0, 25.0)
    assert (state, headline.startswith("The rounds disagree")) == ("equal", True)


def test_different_batches_are_compared_by_goodput() -> None:
    marks = [mark for mark in FAST.marks if mark.request_id < 5]
    rows = [row for row in FAST.rows if row.request_id < 5]
    fewer = Trace.of(FAST.spans, marks, FAST.window, rows=rows)
    gain = measured_gain(SLOW, fewer)
    assert gain is not None
    assert gain < 0


def test_nothing_to_time_is_said() -> None:
    assert "nothing to time" in said(SLOW, Trace.of())[0]


def test_a_leak_is_told_with_count_time_place_steps_and_remedy() -> None:
    found = [Leak(0, 2_000_000, step, "sample", "Stream.synchronize in Runtime.sample") for step in (4, 5, 9)]
    sentence = words(leak_sentence("B", found, 60_000_000))
    assert "Sync leak in B:" in sentence
    assert "3 times inside sample, 6.0 ms in all, 10 % of the run" in sentence
    assert "in Stream.synchronize in Runtime.sample, steps 4 to 5, 9." in sentence
    assert "Upload masks on the copy stream" in sentence


def test_steps_are_written_as_ranges_and_not_without_end() -> None:
    assert steps([4]) == "step 4"
    assert steps([12, 4, 5, 6]) == "steps 4 to 6, 12"
    assert steps(range(0, 40, 2)).endswith("and 15 more runs of steps")


def test_the_summary_names_leaks_injections_and_zombies() -> None:
    trace = Trace.of(SLOW.spans, SLOW.marks, rows=SLOW.rows, info={"injected": "host time +40 us a step"})
    a, b = side("A", trace), side("B", FAST, "depth 2")
    text = words(summary(a, b, compare(trace, FAST), [25.0, 20.0, 30.0]))
    assert "Injected into A: host time +40 us a step." in re.sub(r"\s+", " ", text)
    assert f"in {LEAK.removeprefix('sync: ')}, step 42." in text
    assert "computed 1 zombie rows" in text
    assert "Of 3 rounds" in text
    assert "+20.0 % to +30.0 %" in text


def test_a_device_that_was_itself_faster_is_said() -> None:
    spans = [s._replace(end_ns=s.end_ns - 300_000) if s.name == "forward" else s for s in FAST.spans]
    quicker = Trace.of(spans, FAST.marks, FAST.window, rows=FAST.rows, info=FAST.info)
    for b, is_told in ((quicker, True), (FAST, False)):
        html = summary(side("A", SLOW), side("B", b), compare(SLOW, b), [])
        assert ("own time a step differs by -" in html) == is_told


def test_what_a_trace_says_about_itself_is_never_markup() -> None:
    evil = "<script>alert(1)</script>${props}"
    trace = Trace.of(SLOW.spans, SLOW.marks, rows=SLOW.rows, info={"device": evil, "injected": evil})
    html = summary(side("A", trace, evil), side("B", FAST), compare(trace, FAST), [])
    assert "<script" not in html
    assert "${" not in html


def test_the_table_has_every_metric_with_its_verdict() -> None:
    report = compare(SLOW, FAST)
    html = table(report)
    assert html.count("<tr data-verdict") == len(report.rows) + len(report.medians)
    assert 'data-verdict="better"' in html
    assert "step period p50" in html


# ---- what is shown


def test_the_round_of_the_median_gain_is_shown() -> None:
    pairs = [(SLOW, recorded(period_us=us)) for us in (1500, 1900, 1600)]
    assert choose(pairs) == 2


def test_a_round_whose_tokens_differ_is_shown_whatever_its_gain() -> None:
    assert choose([(SLOW, FAST), (SLOW, recorded(steps=11)), (SLOW, FAST)]) == 1


def test_both_traces_are_held_and_drawn_on_one_axis(view: ComparisonView) -> None:
    updates = shown(view)
    assert set(updates) == set(view.outputs)
    titles = [view._sources.title(source) for source in updates[view.held]]
    assert titles == ["A: depth 1", "B: depth 2"]
    layout = json.loads(updates[view.timelines])["layout"]
    assert {"xaxis", "yaxis", "yaxis2"} <= set(layout)
    assert "xaxis2" not in layout


def test_aligned_at_a_step_the_steps_around_it_fill_the_picture(view: ComparisonView) -> None:
    held = shown(view)[view.held]
    whole = json.loads(view.align(held, START, "3")[view.timelines])["layout"]["xaxis"]["range"]
    around = json.loads(view.align(held, STEP, "3")[view.timelines])["layout"]["xaxis"]["range"]
    assert whole[0] == 0
    assert around[0] < 0 < around[1] < whole[1]


def test_a_step_that_is_no_number_is_refused_in_one_sentence(view: ComparisonView) -> None:
    held = shown(view)[view.held]
    with pytest.raises(gr.Error, match="whole number"):
        view.align(held, STEP, "x")
    assert view.align((), STEP, "3") == gr.skip()
    far = figure(SLOW, FAST, ("A", "B"), "9" * 40)
    assert far.layout.xaxis.range[0] < 0


def test_traces_that_are_held_no_more_are_said(view: ComparisonView) -> None:
    updates = view.align(("0" * 32, "1" * 32), STEP, "3")
    assert "not held any more" in updates[view.summary]
    assert updates[view.held] == ()


def test_two_files_are_compared_like_two_runs(view: ComparisonView, tmp_path: Path) -> None:
    for name, trace in (("a", SLOW), ("b", FAST)):
        save(trace, tmp_path / f"{name}.json.gz")
    updates = asyncio.run(view.show_files(str(tmp_path / "a.json.gz"), str(tmp_path / "b.json.gz")))
    assert "B is 25.0 % faster" in updates[view.summary]
    assert view._sources.title(updates[view.held][1]) == "B: b.json.gz"


def test_a_bad_file_is_one_sentence_that_names_it(view: ComparisonView, tmp_path: Path) -> None:
    good, bad = tmp_path / "a.json.gz", tmp_path / "b.json.gz"
    save(SLOW, good)
    bad.write_bytes(b"no trace")
    assert "B: The file is not a trace" in asyncio.run(view.show_files(str(good), str(bad)))[view.summary]
    assert "no file for A" in asyncio.run(view.show_files(None, str(good)))[view.summary]


def test_the_trace_of_a_run_ends_when_its_last_step_is_committed() -> None:
    """A zombie's step is committed after the last finish."""

    class Run:
        start_ns, end_ns = 0, 100

    recorder = Recorder()
    for name, time in (("arrival", 0), ("finish", 100)):
        recorder.on_mark(MarkRecord(name, time, 1, 1))
    recorder.on_span(SpanRecord("compute", "forward", 90, 140, 2, 1, "decode", 1, 1))
    row = StepRow(1, 5, 7, nan, nan, "ANY", True, False, 1, 0, 2, 0)
    recorder.on_step(StepRecord(2, 1, "decode", 150, 0, "commit: host for copied", [row]))
    trace = run_trace(recorder, Run())
    assert trace.window == (0, 150)
    assert [span.zombies for span in trace.spans] == [1]
