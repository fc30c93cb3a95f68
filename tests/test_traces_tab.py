"""Pins the Traces tab: what opened files show, that a bad one is answered in one sentence and harms nothing,
and, in a real browser, the whole way from the live timeline into a file and back."""

from __future__ import annotations

import asyncio
import gc
import json
import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from traces import BASE, recorded

from tracing.files import load, save
from tracing.metrics import bubble_percent
from tracing.predict import step_times
from tracing.recorder import Recorder
from tracing.trace import Trace

os.environ["GRADIO_ANALYTICS_ENABLED"] = "False"
gr = pytest.importorskip("gradio")

from tracing.ui.files import TracesTab  # noqa: E402
from tracing.ui.live import LiveTimeline, routes  # noqa: E402
from tracing.ui.sources import Sources  # noqa: E402

# Gradio leaves the socket open with which it looks for a free port, and event loops.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")

CHROMIUM = Path("/usr/bin/chromium")
FLAGS = "--no-sandbox --disable-quic --no-first-run --disable-background-networking --disable-sync"
RECORDED = Path(__file__).parents[1] / "assets" / "traces"
HOSTILE = "<script>window.ran=1</script>${window.ran=1}{{window.ran=1}}"


@pytest.fixture(scope="module")
def tab() -> Iterator[TracesTab]:
    with gr.Blocks(analytics_enabled=False):
        tab = TracesTab(Sources(Recorder()))
    yield tab
    del tab
    gc.collect()  # Gradio leaves event loops behind, whose warnings belong here and to no other test


@pytest.fixture
def run(tmp_path: Path) -> str:
    save(recorded(), tmp_path / "run.json.gz")
    return str(tmp_path / "run.json.gz")


def shown(tab: TracesTab, *paths: str | None, held: tuple[Any, ...] = (None, None)) -> dict[str, Any]:
    """What the page gets, by the components' ids; "held" is the session's state."""
    updates = asyncio.run(tab.show(held, *paths))
    return {getattr(part, "elem_id", None) or "held": value for part, value in updates.items()}


def test_one_file_shows_facts_metrics_steps_and_the_leak(tab: TracesTab, run: str) -> None:
    page = shown(tab, run, None)
    html = page["traces_a"]
    for words in ("run.json.gz", "tiny", "ITL p50", "Sync leak in this trace", "prefill"):
        assert words in html
    assert html.count("data-step=") == 12
    assert page["traces_difference"] == page["traces_histograms"] == page["traces_b"] == ""


def test_two_files_show_their_difference(tab: TracesTab, run: str, tmp_path: Path) -> None:
    save(recorded(period_us=1500), tmp_path / "slow.json")
    page = shown(tab, run, str(tmp_path / "slow.json"))
    assert "A: run.json.gz → B: slow.json" in page["traces_difference"]
    assert "All 35 tokens of 3 pairs of requests are equal." in page["traces_difference"]
    assert "worse" in page["traces_difference"]
    drawn = json.loads(page["traces_histograms"])
    assert {bars["name"] for bars in drawn["data"]} == {"A: run.json.gz", "B: slow.json"}


def test_a_file_that_stays_is_not_opened_again(tab: TracesTab, run: str) -> None:
    held = shown(tab, run, None)["held"]
    page = shown(tab, run, run, held=held)
    assert "traces_a" not in page
    assert page["held"][0] == held[0]


def test_a_bad_file_is_answered_and_the_other_stays(tab: TracesTab, run: str, tmp_path: Path) -> None:
    bad = tmp_path / "picture.png"
    bad.write_bytes(b"\x89PNG" + bytes(99))
    held = shown(tab, run, None)["held"]
    page = shown(tab, run, str(bad), held=held)
    assert "picture.png: The file is a PNG picture, not a trace" in page["traces_b"]
    assert 'data-state="error"' in page["traces_b"]
    assert "traces_a" not in page
    assert page["traces_difference"] == ""
    assert page["held"] == (held[0], None)


def test_the_pair_that_comes_with_the_page_is_one_cards_at_both_depths_and_says_what_it_ran() -> None:
    a, b = (load(path) for path in sorted(RECORDED.iterdir()))
    assert (a.info["depth"], b.info["depth"]) == ("1", "2")
    for trace in (a, b):
        assert trace.info["device"] == "cuda:0 NVIDIA H200"
        assert trace.info["model"] == "random weights in Moondream 2's shapes"
    bubbles, device = zip(
        *((bubble_percent(trace), step_times(trace).device_ms) for trace in (a, b)), strict=True
    )
    assert bubbles[1] < bubbles[0] / 5
    assert device[0] == pytest.approx(device[1], rel=0.01)  # a step's work is the same, so the spans are true


def test_a_file_without_steps_can_be_opened(tab: TracesTab, tmp_path: Path) -> None:
    save(Trace.of(), tmp_path / "nothing.json")
    assert "no steps" in shown(tab, str(tmp_path / "nothing.json"), None)["traces_a"]


def test_what_a_file_says_is_text(tab: TracesTab, tmp_path: Path) -> None:
    spans = [span._replace(name="sync: " + HOSTILE, kind=HOSTILE) for span in recorded().spans]
    trace = Trace.of([*recorded().spans, *spans], recorded().marks)
    save(replace(trace, info={"device": HOSTILE, HOSTILE: "x"}), tmp_path / "x.json")
    html = shown(tab, str(tmp_path / "x.json"), None)["traces_a"]
    assert "window.ran" in html
    for markup in ("<script", "${", "{{"):
        assert markup not in html


# --- the browser ----------------------------------------------------------------------------------


@pytest.fixture
def page() -> Iterator[Any]:
    """The tab above a timeline of a recorder that holds a run; fails on script errors and other hosts."""
    sync_api = pytest.importorskip("playwright.sync_api")
    if not CHROMIUM.exists():
        pytest.skip("there is no chromium at /usr/bin/chromium")
    recorder = Recorder()
    for span in recorded().spans:
        recorder.on_span(span)
    for mark in recorded().marks:
        recorder.on_mark(mark)
    sources = Sources(recorder)
    with gr.Blocks(analytics_enabled=False) as demo:
        TracesTab(sources, RECORDED)
        LiveTimeline("cpu")
    where = {
        "server_name": "127.0.0.1",
        "app_kwargs": {"routes": routes(sources)},
        "allowed_paths": [str(RECORDED)],
        "prevent_thread_lock": True,
    }
    _, address, _ = demo.launch(quiet=True, ssr_mode=False, run_history=False, **where)
    errors: list[str] = []
    hosts: set[str] = set()
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=str(CHROMIUM), args=FLAGS.split())
        page = browser.new_page(viewport={"width": 1300, "height": 1000})
        page.set_default_timeout(60_000)
        page.on("pageerror", lambda error: errors.append(str(error)))
        page.on("request", lambda request: hosts.add(urlsplit(request.url).hostname or "127.0.0.1"))
        page.goto(address)
        page.wait_for_function("window.photonTimeline && photonTimeline.draws > 0")
        yield page
        browser.close()
    demo.close()
    del demo
    gc.collect()
    assert errors == []
    assert hosts == {"127.0.0.1"}


def download(page: Any, kind: str, to: Path) -> Path:
    with page.expect_download() as arriving:
        page.click(f"#traces_save a[data-format={kind}]")
    arriving.value.save_as(to / arriving.value.suggested_filename)
    return to / arriving.value.suggested_filename


@pytest.mark.browser
def test_the_recorded_pair_opens_at_a_click(page: Any) -> None:
    page.click("#traces_recorded")
    page.locator("#traces_b button", has_text="Show in the timeline").click()
    page.wait_for_function("photonTimeline.title === 'h200_depth_2.json.gz' && photonTimeline.spans > 0")
    assert "A: h200_depth_1.json.gz → B: h200_depth_2.json.gz" in page.inner_text("#traces_difference")
    assert "NVIDIA H200" in page.inner_text("#traces_a")


@pytest.mark.browser
def test_from_the_live_timeline_into_a_file_and_back(page: Any, tmp_path: Path) -> None:
    whole = load(download(page, "chrome", tmp_path))
    assert list(whole.spans) == list(recorded().spans)
    page.fill("#traces_save input[name=seconds]", "0.004")
    assert load(download(page, "chrome", tmp_path)).window[0] == whole.window[1] - 4_000_000
    page.evaluate("base => photonTimeline.showRun(`${base}`, `${base + 5000000}`)", BASE)
    page.check("#traces_save input[value=shown]")
    start, end = load(download(page, "chrome", tmp_path)).window
    assert start <= BASE < BASE + 5_000_000 <= end < whole.window[1]

    save(recorded(), tmp_path / "run.json.gz")
    page.set_input_files("#traces_file input[type=file]", str(tmp_path / "run.json.gz"))
    page.locator("#traces_a button", has_text="Show in the timeline").click()
    page.wait_for_function("photonTimeline.title === 'run.json.gz' && photonTimeline.spans > 0")
    assert page.evaluate("photonTimeline.spans") == len(recorded().span_table)
    page.locator("#traces_a summary", has_text="Steps").click()
    page.locator("#traces_a button[data-step='44']").click()
    page.wait_for_function("photonTimeline.selected?.step === 44")

    (tmp_path / "bad.json").write_text("{}")
    page.set_input_files("#traces_other input[type=file]", str(tmp_path / "bad.json"))
    page.wait_for_selector("#traces_b [data-state=error]")
    assert "JSON of something else" in page.inner_text("#traces_b")
    assert "ITL p50" in page.inner_text("#traces_a")
