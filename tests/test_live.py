"""Pins the live timeline: in a real browser, that it grows, keeps the user's
view, is never mounted again, asks no other host, and shows the figures of tracing.metrics."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from producer import MS, Feed

from tracing.bubbles import bubbles
from tracing.inspect import inspect
from tracing.metrics import METRICS, summary
from tracing.recorder import Recorder
from tracing.trace import MarkRecord, SpanRecord, Trace
from tracing.ui.details import bubble_detail
from tracing.ui.sources import Sources

os.environ["GRADIO_ANALYTICS_ENABLED"] = "False"
live = pytest.importorskip("tracing.ui.live")

# Gradio leaves the socket open with which it looks for a free port.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")

CHROMIUM = Path("/usr/bin/chromium")
FLAGS = (
    "--no-sandbox --disable-quic --no-first-run --disable-background-networking --disable-component-update"
)


def test_the_component_is_static_and_names_its_device() -> None:
    component = live.LiveTimeline("cpu worker")
    assert "${" not in component.html_template + component.css_template
    config = component.props["config"]
    assert config["device"] == "cpu worker"
    assert all(
        not url.startswith(("/", "http")) for url in (config["stream"], config["plotly"], *config["scripts"])
    )
    formulas = {m.formula for m in METRICS}
    assert all(f.split(": ", 1)[-1] in formulas for k in config["kpis"] for f in k["formulas"])
    assert not list(Path(live.__file__).parent.glob("*.pyi"))


# --- the browser -------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def feed() -> Iterator[Feed]:
    feed = Feed(Recorder())
    feed.thread.start()
    yield feed
    feed.stop.set()
    feed.thread.join()


@pytest.fixture(scope="module")
def held(feed: Feed) -> Any:
    return Sources(feed.recorder)


@pytest.fixture(scope="module")
def url(held: Any) -> Iterator[str]:
    import gradio as gr

    with gr.Blocks(analytics_enabled=False) as demo:
        with gr.Tab("one", elem_id="one"):
            gr.Markdown("a page")
        with gr.Tab("two", elem_id="two"):
            gr.Markdown("another")
        live.LiveTimeline("cpu worker", window="60 ms")
    routes = {"routes": live.routes(held)}
    where = {"server_name": "127.0.0.1", "app_kwargs": routes, "prevent_thread_lock": True}
    _, address, _ = demo.launch(quiet=True, ssr_mode=False, run_history=False, **where)
    yield address
    demo.close()


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    sync_api = pytest.importorskip("playwright.sync_api")
    if not CHROMIUM.exists():
        pytest.skip("no chromium at /usr/bin/chromium")
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=str(CHROMIUM), args=FLAGS.split())
        yield browser
        browser.close()


@dataclass
class Watched:
    """A page and what went wrong on it."""

    page: Any
    errors: list[str] = field(default_factory=list)
    hosts: set[str] = field(default_factory=set)

    def watch(self) -> None:
        self.page.on("pageerror", lambda error: self.errors.append(str(error)))
        self.page.on("request", lambda request: self.hosts.add(urlsplit(request.url).hostname or "127.0.0.1"))


@pytest.fixture(scope="module")
def watched(browser: Any, url: str) -> Iterator[Watched]:
    watched = Watched(browser.new_page(viewport={"width": 1300, "height": 900}))
    watched.watch()
    watched.page.goto(url)
    yield watched
    watched.page.close()


def value(page: Any, expression: str, argument: object = None) -> Any:
    return page.evaluate(f"a => photonTimeline.{expression}", argument)


def more_draws(page: Any, count: int = 3) -> None:
    page.evaluate("n => { window.drawsThen = photonTimeline.draws + n; }", count)
    page.wait_for_function("photonTimeline.draws >= drawsThen", timeout=30_000)


def show_run(page: Any, start: int, end: int) -> None:
    """Show this window and wait until it is drawn; the count is taken before, as the draw comes at once."""
    page.evaluate(
        "run => { window.drawsThen = photonTimeline.draws + 1; photonTimeline.showRun(run); }",
        f"{start},{end}",
    )
    page.wait_for_function("photonTimeline.draws >= drawsThen", timeout=30_000)


def place(page: Any, row: str, time: float) -> list[float]:
    """Where on the page a time (ns after the base) lies on a row."""
    return page.evaluate(
        """([key, ns]) => {
          const plot = document.querySelector('.pt-plot'), full = plot._fullLayout;
          const box = plot.getBoundingClientRect();
          const row = photonTimeline.rows.find(r => r.key === key), [low, high] = photonTimeline.range();
          const x = full.xaxis._offset + full.xaxis._length * (ns - low) / (high - low);
          return [box.left + x, box.top + full.yaxis._offset + (row.top + row.bottom) / 2];
        }""",
        [row, time],
    )


@pytest.fixture
def page(watched: Watched, feed: Feed) -> Iterator[Any]:
    """The page, live; fails the test on any script error or request to another host."""
    feed.pause.clear()
    watched.page.wait_for_function("window.photonTimeline && photonTimeline.draws > 2", timeout=60_000)
    watched.page.evaluate(
        """() => {
          document.activeElement.blur(); photonTimeline.select(null);
          photonTimeline.setWindow('60 ms'); photonTimeline.live();
        }"""
    )
    more_draws(watched.page, 1)
    yield watched.page
    assert watched.errors == []
    assert watched.hosts == {"127.0.0.1"}


@pytest.mark.browser
def test_the_timeline_grows_while_the_engine_runs(page: Any) -> None:
    spans, latest = value(page, "spans"), value(page, "latest")
    more_draws(page)
    assert value(page, "spans") > spans
    assert value(page, "range()")[1] > latest
    assert value(page, "drawn") > 50
    assert value(page, "following")
    assert page.locator(".pt-plot .ytick").first.is_visible()
    assert "cpu worker · slot 0" in page.locator(".pt-plot").inner_text()


@pytest.mark.browser
def test_a_view_dragged_into_place_survives_refreshes_and_nothing_is_mounted_again(page: Any) -> None:
    """user_reports 69."""
    page.evaluate("document.querySelector('.pt-plot').mine = true")
    box = page.locator(".pt-plot").bounding_box()
    page.mouse.move(box["x"] + 700, box["y"] + 100)
    page.mouse.down()
    page.mouse.move(box["x"] + 820, box["y"] + 100, steps=5)
    page.mouse.up()
    page.wait_for_function("!photonTimeline.following")
    page.wait_for_timeout(300)
    before, spans = value(page, "range()"), value(page, "spans")
    page.wait_for_function("n => photonTimeline.spans > n + 1500", arg=spans, timeout=30_000)
    assert value(page, "range()") == before
    assert before[1] - before[0] == pytest.approx(60 * MS)
    shown = page.evaluate("document.querySelector('.pt-plot')._fullLayout.xaxis.range")
    assert [t * MS for t in shown] == pytest.approx(before)
    assert page.evaluate("document.querySelector('.pt-plot').mine")
    assert page.locator(".js-plotly-plot").count() == 1


@pytest.mark.browser
def test_keys_and_buttons_move_the_view(page: Any) -> None:
    """user_reports 70."""
    page.locator(".pt-help").hover()
    page.keyboard.press("Space")
    assert not value(page, "following")
    before = value(page, "range()")
    page.keyboard.press("w")
    after = value(page, "range()")
    assert after[1] - after[0] == pytest.approx(0.6 * (before[1] - before[0]))
    page.keyboard.press("d")
    assert value(page, "range()")[0] > after[0]
    page.get_by_role("button", name="4 s").click()
    low, high = value(page, "range()")
    assert high - low == pytest.approx(4000 * MS)
    page.get_by_role("button", name="Live").click()
    assert value(page, "following")


@pytest.mark.browser
def test_the_page_shows_the_figures_of_the_python_side(page: Any, feed: Feed) -> None:
    hold(page, feed)
    start, end = feed.end - 130 * MS, feed.end - 7 * MS
    trace = feed.recorder.snapshot(start, end)
    shown = value(page, "metrics(...a)", [str(start), str(end)])
    expected = summary(trace)
    assert set(shown) <= set(expected)
    assert shown == {key: pytest.approx(expected[key], rel=1e-9) for key in shown}
    assert page.locator("[data-key=sync_leaks]").is_visible()
    bars = "document.querySelector('.pt-spark path').getAttribute('d').split('Z').length"
    page.wait_for_function(f"{bars} > 2")  # a second or more of the past
    gaps = value(page, "bubbles(...a)", [str(start), str(end)])
    found = bubbles(trace)
    base = int(value(page, "base"))
    assert gaps == [t - base for b in found for t in (b.start_ns, b.end_ns)]
    for bubble in found[:8]:
        why = value(page, "cause(...a)", [str(bubble.start_ns), str(bubble.end_ns)])
        assert (why["host"], why["latency"]) == (bubble.host_ns, bubble.latency_ns)
        assert dict(why["phases"]) == {name: ns for name, ns in bubble.phases if ns}


@pytest.mark.browser
def test_a_run_can_be_shown_and_the_next_request_goes_live_again(page: Any, feed: Feed) -> None:
    hold(page, feed)
    end = feed.end
    show_run(page, end - 70 * MS, end)
    page.wait_for_function("!photonTimeline.following")
    base = int(value(page, "base"))
    low, high = value(page, "range()")
    assert low < end - 70 * MS - base < end - base < high
    assert high - low == pytest.approx(70 * MS * 1.04)
    assert page.locator("[data-window=run]").get_attribute("aria-pressed") == "true"
    busy = summary(feed.recorder.snapshot(end - 70 * MS, end))["device_busy_percent"]
    assert page.locator("[data-key=device_busy_percent] .pt-kpi-value").inner_text() == f"{busy:.1f}"
    value(page, "showRun(a)", "")  # no run: nothing changes
    assert value(page, "range()") == [low, high]
    feed.pause.clear()
    page.wait_for_function("photonTimeline.following", timeout=30_000)


@pytest.mark.browser
def test_pointing_at_a_span_says_what_it_is(page: Any, feed: Feed) -> None:
    hold(page, feed)
    show_run(page, feed.end - 30 * MS, feed.end)
    start = int(value(page, "base"))
    device = next(
        s for s in feed.recorder.snapshot(feed.end - 20 * MS, feed.end).spans if s.name == "forward"
    )
    x, y = place(page, f"slot {device.slot}", (device.start_ns + device.end_ns) / 2 - start)
    page.mouse.move(x, y)
    tip = page.locator(".pt-tip").inner_text()
    assert "decode" in tip
    assert f"step {device.step_id} · slot {device.slot}" in tip
    assert "1.300 ms" in tip
    outline = page.wait_for_selector(".pt-hovered").bounding_box()
    assert outline["y"] + outline["height"] / 2 == pytest.approx(y, abs=1)
    assert outline["x"] + outline["width"] / 2 == pytest.approx(x, abs=1)


@pytest.mark.browser
def test_a_timeline_that_cannot_be_seen_does_not_draw(page: Any) -> None:
    """user_reports 72."""
    page.evaluate("document.querySelector('#timeline').style.display = 'none'")
    page.wait_for_timeout(400)
    draws, spans = value(page, "draws"), value(page, "spans")
    page.wait_for_function("n => photonTimeline.spans > n + 500", arg=spans, timeout=30_000)
    assert value(page, "draws") == draws
    page.evaluate("document.querySelector('#timeline').style.display = ''")
    more_draws(page, 1)


@pytest.mark.browser
def test_nothing_is_drawn_while_nothing_happens(page: Any, feed: Feed) -> None:
    """user_reports 68."""
    hold(page, feed)
    page.wait_for_timeout(500)
    draws = value(page, "draws")
    page.wait_for_timeout(1000)
    assert value(page, "draws") == draws


def hold(page: Any, feed: Feed) -> None:
    """Nothing more to come, and all of it in the page."""
    feed.hold()
    arrived = "({base, latest}, end) => base && latest >= Number(BigInt(end) - BigInt(base))"
    page.wait_for_function(f"end => ({arrived})(photonTimeline, end)", arg=str(feed.end), timeout=30_000)


def still(page: Any, feed: Feed, length: int) -> tuple[Trace, int]:
    """The newest `length` ns, shown, with nothing more to come; their trace, and the page's base."""
    hold(page, feed)
    show_run(page, feed.end - length, feed.end)
    return feed.recorder.snapshot(feed.end - length, feed.end), int(value(page, "base"))


@pytest.mark.browser
def test_a_click_on_a_span_shows_its_arrow_and_its_step(page: Any, feed: Feed) -> None:
    trace, base = still(page, feed, 30 * MS)
    spans = [s for s in trace.spans if s.step_id % 7 == 0 and s.start_ns > feed.end - 25 * MS]
    device = next(s for s in spans if s.name == "forward")
    launch = next(s for s in spans if s.name == "launch" and s.step_id == device.step_id)
    for row, span in ((f"slot {device.slot}", device), ("host.launch", launch)):
        page.mouse.click(*place(page, row, (span.start_ns + span.end_ns) / 2 - base))
        assert value(page, "selected.step") == device.step_id
        page.wait_for_selector(".pt-arrow")
        outline = page.locator(".pt-chosen").bounding_box()
        x, y = page.locator(".pt-arrow").get_attribute("d").removeprefix("M").split("C")[0].split()
        frame = page.locator(".pt-frame").bounding_box()
        assert [frame["x"] + float(x), frame["y"] + float(y)] == pytest.approx(
            place(page, "host.launch", launch.end_ns - base), abs=2
        )
        middle = place(page, row, (span.start_ns + span.end_ns) / 2 - base)
        assert [outline["x"] + outline["width"] / 2, outline["y"] + outline["height"] / 2] == pytest.approx(
            middle, abs=2
        )
    page.wait_for_selector(".pt-rows")
    assert value(page, "step") == inspect(feed.recorder.snapshot(), device.step_id)
    panel = page.locator(".pt-panel").inner_text()
    assert f"Step {device.step_id}" in panel
    assert "zombie" in panel
    assert "rides along" in panel
    assert not value(page, "following")
    page.get_by_role("button", name="Next").click()
    assert value(page, "selected.step") == device.step_id + 1
    page.locator(".pt-status").hover()
    page.keyboard.press(",")
    page.keyboard.press(",")
    assert value(page, "selected.step") == device.step_id - 1
    page.keyboard.press("Escape")
    assert value(page, "selected") is None
    assert page.locator(".pt-panel").is_hidden()


@pytest.mark.browser
def test_a_click_on_a_bubble_says_its_cause(page: Any, feed: Feed) -> None:
    trace, base = still(page, feed, 30 * MS)
    bubble = bubbles(trace)[2]
    query = {"start": str(bubble.start_ns), "end": str(bubble.end_ns)}
    text = bubble_detail(Sources(feed.recorder), query)["text"]
    page.mouse.click(*place(page, "bubbles", (bubble.start_ns + bubble.end_ns) / 2 - base))
    page.wait_for_function(
        "text => document.querySelector('.pt-cause')?.textContent === text", arg=text, timeout=10_000
    )
    page.get_by_role("button", name=f"Inspect step {bubble.step_id}").click()
    assert value(page, "selected.step") == bubble.step_id


@pytest.mark.browser
def test_what_a_step_in_flight_does_is_no_bubble_yet(page: Any, feed: Feed) -> None:
    trace, base = still(page, feed, 30 * MS)
    known = max(s.end_ns for s in trace.spans if s.track == "compute")
    step, start = feed.next_step, feed.end + MS
    feed.next_step += 50
    feed.recorder.on_mark(MarkRecord("arrival", start, 3 * step))
    feed.recorder.on_span(SpanRecord("host", "launch", start, start + MS, step, 0, "decode", 1))
    page.wait_for_function("end => photonTimeline.latest >= end", arg=start + MS - base)
    asked = [str(known), str(start + MS)]
    assert value(page, "bubbles(...a)", asked) == []
    feed.recorder.on_span(SpanRecord("host", "commit", start + 5 * MS, start + 6 * MS, step, 0, "decode", 1))
    feed.recorder.on_mark(MarkRecord("finish", start + 6 * MS, 3 * step, step))
    page.wait_for_function("end => photonTimeline.latest >= end", arg=start + 6 * MS - base)
    assert value(page, "bubbles(...a)", asked)[-2:] == [start - base, start + MS - base]
    feed.end = start + 6 * MS


@pytest.mark.browser
def test_a_step_can_be_copied_as_json(browser: Any, url: str, feed: Feed) -> None:
    page = browser.new_context(permissions=["clipboard-read", "clipboard-write"]).new_page()
    page.goto(url)
    page.wait_for_function("window.photonTimeline && photonTimeline.draws > 0")
    trace, _ = still(page, feed, 30 * MS)
    value(page, "select(a)", int(trace.row_table["step_id"][-5]))
    page.wait_for_selector(".pt-rows")
    page.get_by_role("button", name="Copy JSON").click()
    page.wait_for_selector("text=Copied")
    assert json.loads(page.evaluate("navigator.clipboard.readText()")) == value(page, "step")
    page.context.close()


@pytest.mark.browser
def test_a_finger_selects_and_moves_as_a_mouse_does(browser: Any, url: str, feed: Feed) -> None:
    context = browser.new_context(viewport={"width": 390, "height": 900}, has_touch=True)
    page = context.new_page()
    page.goto(url)
    page.wait_for_function("window.photonTimeline && photonTimeline.draws > 0")
    trace, base = still(page, feed, 30 * MS)
    page.locator(".pt-frame").scroll_into_view_if_needed()
    span = next(s for s in trace.spans if s.name == "forward" and s.start_ns > feed.end - 20 * MS)
    x, y = place(page, f"slot {span.slot}", (span.start_ns + span.end_ns) / 2 - base)
    page.touchscreen.tap(x, y)
    page.wait_for_function("step => photonTimeline.selected?.step === step", arg=span.step_id)
    low, high = value(page, "range()")
    finger = context.new_cdp_session(page)
    for kind, moved in (("touchStart", 0), ("touchMove", -30), ("touchMove", -60), ("touchEnd", None)):
        points = [] if moved is None else [{"x": x + moved, "y": y}]
        finger.send("Input.dispatchTouchEvent", {"type": kind, "touchPoints": points})
    page.wait_for_function("low => photonTimeline.range()[0] > low", arg=low)
    after = value(page, "range()")
    assert after[1] - after[0] == pytest.approx(high - low)
    assert page.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0
    context.close()


@pytest.mark.browser
def test_find_jumps_to_a_step_and_to_a_request_and_says_what_is_not_held(page: Any, feed: Feed) -> None:
    _, base = still(page, feed, 30 * MS)
    held = feed.recorder.snapshot()
    step = sorted({span.step_id for span in held.spans})[-110]
    request = sorted({mark.request_id for mark in held.marks})[-8]
    box = page.get_by_label("find a step or a request")
    box.fill(f"step {step}")
    box.press("Enter")
    page.wait_for_function("step => photonTimeline.selected?.step === step", arg=step)
    start = min(s.start_ns for s in feed.recorder.snapshot().spans if s.step_id == step) - base
    low, high = value(page, "range()")
    assert low < start < high
    box.fill(f"r{request}")
    box.press("Enter")
    page.wait_for_function("id => photonTimeline.selected?.id === id", arg=request)
    box.fill("step 7")
    box.press("Enter")
    page.locator(".pt-found", has_text="Step 7 is not held").wait_for()
    assert value(page, "find(a)", "everything").startswith("Write a step")


@pytest.mark.browser
def test_a_marked_range_has_the_figures_of_the_python_side(page: Any, feed: Feed) -> None:
    trace, base = still(page, feed, 60 * MS)
    page.locator(".pt-status").hover()
    page.keyboard.press("m")
    x, y = place(page, "copy", feed.end - 50 * MS - base)
    page.mouse.move(x, y)
    page.mouse.down()
    page.mouse.move(x + 200, y, steps=4)
    page.mouse.up()
    marked = value(page, "selected")
    assert marked["type"] == "range"
    busy = summary(trace.within(round(marked["start"]) + base, round(marked["end"]) + base))
    text = page.locator(".pt-panel").inner_text()
    assert f"{busy['device_busy_percent']:.1f} %" in text
    assert f"{busy['overlap_factor']:.2f}" in text


@pytest.mark.browser
def test_the_overview_moves_the_view(page: Any, feed: Feed) -> None:
    still(page, feed, 100 * MS)
    before = value(page, "range()")
    box = page.locator(".pt-window").bounding_box()
    x, y = box["x"] + box["width"] / 2, box["y"] + box["height"] / 2
    page.mouse.move(x, y)
    page.mouse.down()
    page.mouse.move(x - 100, y, steps=4)
    page.mouse.up()
    after = value(page, "range()")
    assert after[0] < before[0]
    assert after[1] - after[0] == pytest.approx(before[1] - before[0])


@pytest.mark.browser
def test_rows_can_be_left_out_and_coloured_by_slot(page: Any, feed: Feed) -> None:
    still(page, feed, 100 * MS)
    page.get_by_label("host", exact=True).uncheck()
    page.wait_for_function("!photonTimeline.rows.some(r => r.key.startsWith('host.'))")
    page.get_by_label("host", exact=True).check()
    page.get_by_label("colour by").select_option("slot")
    page.wait_for_selector(".pt-rects path[fill='#c2571a']", state="attached")
    page.get_by_label("colour by").select_option("kind")


@pytest.mark.browser
def test_an_opened_trace_is_shown_whole_and_live_comes_back(page: Any, feed: Feed, held: Any) -> None:
    trace, _ = still(page, feed, 200 * MS)
    source = held.add(trace, "run.json.gz")
    value(page, "open(a, 'run <1>.json.gz')", source)
    page.wait_for_function("!photonTimeline.loading && photonTimeline.drawn > 0", timeout=10_000)
    assert value(page, "held") == len(trace.span_table)
    assert "run <1>.json.gz" in page.locator(".pt-banner").inner_text()
    low, high = value(page, "range()")
    assert low < int(trace.span_table["start_ns"].min()) - trace.window[0] < value(page, "latest") < high
    step = int(trace.span_table["step_id"].max()) - 20
    value(page, "select(a)", step)
    page.wait_for_selector(".pt-rows")
    assert value(page, "step") == inspect(trace, step)
    show_run(page, feed.end - 70 * MS, feed.end)  # a run of one's own: the file gives way
    page.wait_for_function("photonTimeline.source === 'live' && !photonTimeline.following")
    value(page, "open(a, 'again')", source)
    page.wait_for_function("!photonTimeline.loading && photonTimeline.drawn > 0", timeout=10_000)
    value(page, "open(a, 'gone')", "nobody")
    page.wait_for_function("document.querySelector('.pt-banner').innerText.includes('not held any more')")
    assert not value(page, "loading")
    page.get_by_role("button", name="back to live").click()
    feed.pause.clear()
    page.wait_for_function("photonTimeline.following && photonTimeline.spans > 0")
    assert page.locator(".pt-banner").is_hidden()
    assert value(page, "source") == "live"
