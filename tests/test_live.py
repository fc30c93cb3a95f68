"""Pins the live timeline: what the stream sends, and, in a real browser, that it grows, keeps the user's
view, is never mounted again, asks no other host, and shows the figures of tracing.metrics."""

from __future__ import annotations

import asyncio
import json
import os
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from tracing.bubbles import bubbles
from tracing.metrics import METRICS, summary
from tracing.recorder import Cursor, Recorder
from tracing.trace import MarkRecord, SpanRecord

os.environ["GRADIO_ANALYTICS_ENABLED"] = "False"
live = pytest.importorskip("tracing.ui.live")

# Gradio leaves the socket open with which it looks for a free port.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")

MS = 1_000_000
CHROMIUM = Path("/usr/bin/chromium")
FLAGS = (
    "--no-sandbox --disable-quic --no-first-run --disable-background-networking --disable-component-update"
)


# --- a producer --------------------------------------------------------------------------------------


def step(recorder: Recorder, step_id: int, start: int, depth: int = 2) -> int:
    """Records one step of three requests as an engine would; returns when the next one starts."""
    us, slot, kind = 1000, step_id % 2, "prefill" if step_id % 50 == 0 else "decode"
    tail = (step_id, slot, kind, 4, int(step_id % 7 == 0), 1)
    device = start + 300 * us
    rows = [
        ("host", "plan", start, start + 100 * us),
        ("host", "launch", start + 100 * us, start + 260 * us),
        ("host", "wait", start + 300 * us, start + 1700 * us),
        ("compute", "forward" if kind == "decode" else "prefill", device, device + 1300 * us),
        ("compute", "sample", device + 1300 * us, device + 1400 * us),
        ("copy", "d2h", device + 1400 * us, device + 1410 * us),
        ("host", "commit", start + 1720 * us, start + 1900 * us),
    ]
    for track, name, a, b in rows:
        recorder.on_span(SpanRecord(track, name, a, b, *tail))
    for request in range(3):
        recorder.on_mark(MarkRecord("token", start + 1900 * us, step_id // 50 * 3 + request, step_id))
    return start + (1400 if depth == 2 else 2000) * us


def run(recorder: Recorder, first: int, start: int, steps: int = 50, depth: int = 2) -> int:
    """Records a run of one to `steps` steps of three requests; returns its end."""
    ids = [first // 50 * 3 + i for i in range(3)]
    for i in ids:
        recorder.on_mark(MarkRecord("arrival", start - 200_000, i))
        recorder.on_mark(MarkRecord("admitted", start, i))
    for step_id in range(first, first + steps):
        start = step(recorder, step_id, start, depth)
    for i in ids:
        recorder.on_mark(MarkRecord("finish", start, i, first + steps - 1))
    return start


class Feed:
    """Runs that follow each other in real time on a thread, until stopped."""

    def __init__(self, recorder: Recorder) -> None:
        self.recorder, self.stop, self.pause = recorder, threading.Event(), threading.Event()
        self.next_step, self.end = 50_000, 0
        self.thread = threading.Thread(target=self._run, daemon=True)

    def _run(self) -> None:
        while not self.stop.wait(0.05):
            if not self.pause.is_set():
                self.end = run(
                    self.recorder, self.next_step, time.perf_counter_ns(), depth=1 + self.next_step % 2
                )
                self.next_step += 50


# --- the stream --------------------------------------------------------------------------------------


class Visitor:
    """A request whose client stays for `polls` polls."""

    def __init__(self, polls: int, last_id: str = "") -> None:
        self.polls, self.headers = polls, {"last-event-id": last_id}

    async def is_disconnected(self) -> bool:
        self.polls -= 1
        return self.polls < 0


def visit(stream: Any, polls: int = 2, last_id: str = "") -> list[dict[str, Any]]:
    """The messages that a client gets, with their ids."""

    async def collect() -> list[bytes]:
        visitor = Visitor(polls, last_id)
        cursor = stream.resume(visitor.headers)
        return [part async for part in stream._events(visitor, cursor)]

    text = b"".join(asyncio.run(collect())).decode()
    events = [e.split("\n") for e in text.split("\n\n") if "data: " in e]
    return [json.loads(data.removeprefix("data: ")) | {"id": i.removeprefix("id: ")} for i, data in events]


def test_a_new_client_gets_the_recent_past_exactly() -> None:
    recorder = Recorder()
    base = 1 << 61
    recorder.on_span(SpanRecord("compute", "forward", base + 7, base + 9, 3, 1, "decode", 4, 1, 2))
    recorder.on_mark(MarkRecord("arrival", base + 5, 11, -1))
    (message,) = visit(live.TraceStream(recorder))
    assert message["reset"] is True
    assert int(message["base"]) == base + 5
    spans, names = message["spans"], message["names"]
    assert spans["t0"] + spans["start"][0] == 2
    assert (spans["dur"], spans["step"], spans["slot"]) == ([2], [3], [1])
    assert [names[spans[c][0]] for c in ("track", "name", "kind")] == ["compute", "forward", "decode"]
    assert (spans["rows"], spans["zombies"], spans["padding"]) == ([4], [1], [2])
    marks = message["marks"]
    assert (marks["t0"] + marks["time"][0], names[marks["name"][0]], marks["request"]) == (0, "arrival", [11])


def test_a_client_that_comes_back_goes_on_where_it_was() -> None:
    recorder = Recorder()
    stream = live.TraceStream(recorder)
    run(recorder, 0, 0)
    first = visit(stream)
    run(recorder, 50, 200 * MS)
    (again,) = visit(stream, last_id=first[-1]["id"])
    assert again["reset"] is False
    assert set(again["spans"]["step"]) == set(range(50, 100))
    assert visit(live.TraceStream(recorder), last_id=first[-1]["id"])[0]["reset"] is True  # another process


def test_long_histories_come_in_capped_messages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live, "LIMIT", 100)
    recorder = Recorder()
    run(recorder, 0, 0)
    messages = visit(live.TraceStream(recorder), polls=5)
    assert [len(m["spans"]["start"]) for m in messages] == [100, 100, 100, 50]
    names = [name for m in messages for name in m["names"]]
    assert len(names) == len(set(names))


def test_a_client_too_slow_is_told_what_it_missed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live, "BACKLOG", 10)
    recorder = Recorder()
    stream = live.TraceStream(recorder)
    run(recorder, 0, 0)
    (message,) = visit(stream, polls=1, last_id=f"{stream.run}-0-0")
    assert len(message["spans"]["start"]) == 10
    assert message["skipped"] == 350 - 10 + 159 - 10


def test_nothing_is_sent_while_nothing_happens() -> None:
    recorder = Recorder()
    run(recorder, 0, 0)
    assert len(visit(live.TraceStream(recorder), polls=4)) == 1


def test_the_component_is_static_and_names_its_device() -> None:
    component = live.LiveTimeline("cpu worker")
    assert "${" not in component.html_template + component.css_template
    config = component.props["config"]
    assert config["device"] == "cpu worker"
    assert all(
        not url.startswith(("/", "http")) for url in (config["stream"], config["plotly"], *config["scripts"])
    )
    assert {k["key"] for k in config["kpis"]} <= {m.key for m in METRICS}
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
def url(feed: Feed) -> Iterator[str]:
    import gradio as gr

    with gr.Blocks(analytics_enabled=False) as demo:
        with gr.Tab("one", elem_id="one"):
            gr.Markdown("a page")
        with gr.Tab("two", elem_id="two"):
            gr.Markdown("another")
        live.LiveTimeline("cpu worker", window="60 ms")
    routes = {"routes": live.routes(feed.recorder)}
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


@pytest.fixture
def page(watched: Watched, feed: Feed) -> Iterator[Any]:
    """The page, live; fails the test on any script error or request to another host."""
    feed.pause.clear()
    watched.page.wait_for_function("window.photonTimeline && photonTimeline.draws > 2", timeout=60_000)
    watched.page.evaluate("() => { photonTimeline.setWindow('60 ms'); photonTimeline.live(); }")
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
    assert page.locator(".pt-plot .yaxislayer-above, .pt-plot .ytick").first.is_visible()
    assert "cpu worker · slot 0" in page.locator(".pt-plot").inner_text()


@pytest.mark.browser
def test_a_view_dragged_into_place_survives_refreshes_and_nothing_is_mounted_again(page: Any) -> None:
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
    feed.pause.set()
    time.sleep(0.3)
    start, end = feed.end - 130 * MS, feed.end - 7 * MS
    page.wait_for_function(
        "end => Number(BigInt(end) - BigInt(photonTimeline.base)) <= photonTimeline.latest", arg=str(feed.end)
    )
    trace = feed.recorder.snapshot(start, end)
    shown = value(page, "metrics(...a)", [str(start), str(end)])
    expected = summary(trace)
    assert len(shown) == 6
    assert shown == {key: pytest.approx(expected[key], rel=1e-9) for key in shown}
    gaps = value(page, "bubbles(...a)", [str(start), str(end)])
    found = bubbles(trace)
    base = int(value(page, "base"))
    assert gaps == [t - base for b in found for t in (b.start_ns, b.end_ns)]
    why = value(page, "cause(...a)", [str(found[1].start_ns), str(found[1].end_ns)])
    assert (why["host"], why["latency"]) == (found[1].host_ns, found[1].latency_ns)
    assert dict(why["phases"]) == {name: ns for name, ns in found[1].phases if ns}


@pytest.mark.browser
def test_a_run_can_be_shown_and_the_next_request_goes_live_again(page: Any, feed: Feed) -> None:
    feed.pause.set()
    time.sleep(0.3)
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
def test_a_smaller_view_leaves_no_rectangle_of_the_larger_one(page: Any) -> None:
    value(page, "setWindow('4 s')")
    more_draws(page)
    value(page, "pause()")
    value(page, "look(...a)", [value(page, "latest") - 5 * MS, value(page, "latest")])
    page.wait_for_timeout(600)
    plot = "document.querySelector('.pt-plot')"
    drawn = page.evaluate(f"{plot}.querySelectorAll('.shapelayer path').length")
    assert drawn == page.evaluate(f"{plot}.layout.shapes.length")


@pytest.mark.browser
def test_pointing_at_a_span_says_what_it_is(page: Any, feed: Feed) -> None:
    feed.pause.set()
    time.sleep(0.3)
    show_run(page, feed.end - 30 * MS, feed.end)
    start = int(value(page, "base"))
    device = next(
        s for s in feed.recorder.snapshot(feed.end - 20 * MS, feed.end).spans if s.name == "forward"
    )
    x, y = page.evaluate(
        """([ns, slot]) => {
          const plot = document.querySelector('.pt-plot'), full = plot._fullLayout;
          const box = plot.getBoundingClientRect(), [low, high] = photonTimeline.range();
          const lane = full.yaxis.ticktext.findIndex(t => t.endsWith(slot));
          const x = full.xaxis._offset + full.xaxis._length * (ns - low) / (high - low);
          return [box.left + x, box.top + full.yaxis._offset + full.yaxis.d2p(lane)];
        }""",
        [(device.start_ns + device.end_ns) / 2 - start, f"slot {device.slot}"],
    )
    page.mouse.move(x, y)
    tip = page.locator(".pt-tip").inner_text()
    assert "decode" in tip
    assert f"step {device.step_id} · slot {device.slot}" in tip
    assert "1.300 ms" in tip
    outline = page.locator(".pt-mark").bounding_box()
    assert outline["y"] + outline["height"] / 2 == pytest.approx(y, abs=1)
    assert outline["x"] + outline["width"] / 2 == pytest.approx(x, abs=1)


@pytest.mark.browser
def test_a_timeline_that_cannot_be_seen_does_not_draw(page: Any) -> None:
    page.evaluate("document.querySelector('#timeline').style.display = 'none'")
    page.wait_for_timeout(400)
    draws, spans = value(page, "draws"), value(page, "spans")
    page.wait_for_function("n => photonTimeline.spans > n + 500", arg=spans, timeout=30_000)
    assert value(page, "draws") == draws
    page.evaluate("document.querySelector('#timeline').style.display = ''")
    more_draws(page, 1)


@pytest.mark.browser
def test_nothing_is_drawn_while_nothing_happens(page: Any, feed: Feed) -> None:
    feed.pause.set()
    time.sleep(1.0)
    page.wait_for_timeout(500)
    draws = value(page, "draws")
    page.wait_for_timeout(1000)
    assert value(page, "draws") == draws


def test_a_cursor_of_the_future_is_no_cursor_of_ours() -> None:
    stream = live.TraceStream(Recorder())
    assert stream.resume({"last-event-id": f"{stream.run}-5-6"}) == Cursor(5, 6)
    assert stream.resume({"last-event-id": "other-5-6"}) is None
    assert stream.resume({"last-event-id": f"{stream.run}-x-6"}) is None
    assert stream.resume({}) is None
