"""Pins the standalone page of a trace: it opens from a file in a real browser, shows figure, metrics and
facts, asks for nothing, and shows a hostile trace instead of running it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from traces import recorded

from tracing.metrics import METRICS
from tracing.page import page
from tracing.trace import Trace

CHROMIUM = Path("/usr/bin/chromium")
HOSTILE = (
    "</script></table><script>window.ran=1</script><img src=http://example.invalid onerror=window.ran=1>"
)


def test_nothing_a_trace_says_is_markup() -> None:
    trace = recorded()
    spans = [span._replace(name=HOSTILE) if span.name == "plan" else span for span in trace.spans]
    html = page(Trace.of(spans, trace.marks, info={"device": HOSTILE, HOSTILE: "x"}), title=HOSTILE)
    assert HOSTILE not in html
    assert "<script>window.ran" not in html
    assert "<img src=http" not in html


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    sync_api = pytest.importorskip("playwright.sync_api")
    if not CHROMIUM.exists():
        pytest.skip("there is no chromium at /usr/bin/chromium")
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=str(CHROMIUM), args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.mark.browser
@pytest.mark.parametrize("device", ["cpu", HOSTILE])
def test_it_opens_offline_and_asks_for_nothing(browser: Any, tmp_path: Path, device: str) -> None:
    whole = recorded()
    trace = Trace.of(whole.spans, whole.marks, rows=whole.rows, info={"device": device})
    file = tmp_path / "run.html"
    file.write_text(page(trace, title=f"run of {device}"), encoding="utf-8")
    context = browser.new_context(offline=True)
    tab = context.new_page()
    errors: list[str] = []
    asked: list[str] = []
    tab.on("pageerror", lambda error: errors.append(str(error)))
    tab.on("console", lambda message: errors.append(message.text) if message.type == "error" else None)
    tab.on("request", lambda request: asked.append(request.url))
    tab.goto(file.as_uri())
    tab.wait_for_selector(".js-plotly-plot .shapelayer path", state="attached")
    assert tab.inner_text("h1") == f"run of {device}"
    assert tab.locator("#metrics tr").count() == len(METRICS) + 1
    assert device in tab.inner_text("#facts")
    assert f"{device} · slot 0" in tab.locator(".ytick").all_text_contents()
    assert tab.locator(".shapelayer path").count() > 8
    assert tab.evaluate("window.ran") is None
    assert errors == []
    assert asked == [file.as_uri()]
    context.close()
