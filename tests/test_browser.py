"""Pins what a person meets in a real browser: one click from an example to points and a timeline, text that
streams and can be stopped, outputs that leave with their picture, nobody else's data, no other host.

The app runs as `python app.py` does, in a process of its own.
"""

from __future__ import annotations

import contextlib
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

import app
from photon.api.serving import choose_port
from photon.model.weights import Model

sync_api = pytest.importorskip("playwright.sync_api")

CHROMIUM = Path("/usr/bin/chromium")
FLAGS = (
    "--no-sandbox --disable-quic --no-first-run --disable-background-networking "
    "--disable-component-update --disable-sync"
)
PATIENCE_MS = 90_000  # for a machine that does other work as well
GOLDEN_IMAGE = Path(__file__).parent / "data" / "golden" / "image2.png"

pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(not CHROMIUM.exists(), reason="there is no chromium at /usr/bin/chromium"),
]


@contextlib.contextmanager
def running(*flags: str) -> Iterator[str]:
    """The app in a process of its own; yields its address."""
    port = choose_port("127.0.0.1", None)
    command = [sys.executable, app.__file__, "--device", "cpu", "--port", str(port), *flags]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            said = ""
            for line in process.stdout:
                said += line
                if match := re.search(r"url\s+(http\S+)", line):
                    break
            else:
                pytest.fail(f"the app ended: {said}")
            yield match[1]
        finally:
            process.terminate()
            process.wait(30)


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    """The app as a visitor meets it: the embedded model."""
    with running() as address:
        yield address


@pytest.fixture(scope="module")
def talkative_url(golden_model: Model) -> Iterator[str]:
    """A model that talks for seconds, to have time to stop it."""
    with running("--model", str(golden_model.path)) as address:
        yield address


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=str(CHROMIUM), args=FLAGS.split())
        yield browser
        browser.close()


@dataclass
class Visitor:
    """One person: a page with its own cookies and session, and what went wrong on it."""

    page: Any
    errors: list[str] = field(default_factory=list)
    hosts: set[str] = field(default_factory=set)

    def visit(self, address: str) -> None:
        self.page.set_default_timeout(PATIENCE_MS)
        self.page.on("pageerror", lambda error: self.errors.append(str(error)))
        self.page.on("request", lambda request: self.hosts.add(urlsplit(request.url).hostname or "127.0.0.1"))
        self.page.goto(address)
        self.page.wait_for_selector("#run")
        self.page.wait_for_function("window.photonTimeline && photonTimeline.draws > 0")

    def example(self, task: str) -> None:
        self.page.locator("#examples button", has_text=re.compile(task, re.I)).first.click()

    def upload(self, path: Path) -> None:
        self.page.set_input_files("#image input[type=file]", str(path))
        self.page.wait_for_function("document.querySelector('#status').innerText.includes('Press Run')")

    def clear(self) -> None:
        self.page.locator(
            "#image button[aria-label='Clear'], #image button[aria-label='Remove Image']"
        ).click()

    def wait_for(self, state: str) -> str:
        """Wait for the status to reach a state and for Run to be there again; return its words."""
        self.page.wait_for_selector(f"#status [data-state={state}]")
        if state != "busy":
            self.page.wait_for_selector("#run:not([disabled])")
        return self.page.inner_text("#status")

    def text(self, selector: str) -> str:
        return self.page.inner_text(selector)

    def count(self, selector: str) -> int:
        return self.page.locator(selector).count()


@contextlib.contextmanager
def visiting(browser: Any, address: str, width: int = 1280) -> Iterator[Visitor]:
    context = browser.new_context(viewport={"width": width, "height": 900})
    visitor = Visitor(context.new_page())
    visitor.visit(address)
    yield visitor
    context.close()
    assert visitor.errors == []
    assert visitor.hosts == {"127.0.0.1"}


@pytest.fixture
def visitor(browser: Any, url: str) -> Iterator[Visitor]:
    with visiting(browser, url) as someone:
        yield someone


def test_one_click_on_an_example_draws_points_and_shows_the_steps(visitor: Visitor) -> None:
    """user_reports 67."""
    visitor.example("point")
    words = visitor.wait_for("done")
    found = int(re.findall(r"(\d+) found for", words)[0])
    assert visitor.count("#marks .pw-point") == found > 0
    assert "Zombie rows" in visitor.text("#numbers")
    visitor.page.wait_for_function("photonTimeline.drawn > 0 && !photonTimeline.following")
    start, end = (int(time) for time in visitor.page.input_value("#run_window textarea").split(","))
    assert end > start


def test_points_lie_on_the_shapes_and_both_layers_stay_aligned_at_any_width(visitor: Visitor) -> None:
    """user_reports 38."""
    visitor.example("point")
    visitor.wait_for("done")
    for width in (1280, 600, 390):
        visitor.page.set_viewport_size({"width": width, "height": 900})
        visitor.page.wait_for_timeout(300)
        picture, marks = (
            visitor.page.locator(selector).bounding_box() for selector in ("#picture img", "#marks svg")
        )
        assert marks == pytest.approx(picture, abs=0.6)
        overflow = visitor.page.evaluate("document.documentElement.scrollWidth - innerWidth")
        assert overflow <= 0, f"the page is wider than a window of {width} px"


def test_boxes_carry_their_labels_and_can_be_downloaded(visitor: Visitor) -> None:
    visitor.example("detect")
    visitor.wait_for("done")
    assert visitor.count("#marks .pw-box") == visitor.count("#marks .pw-box text") > 0
    with visitor.page.expect_download() as download:
        visitor.page.click("#save_png")
    assert Path(download.value.path()).read_bytes().startswith(b"\x89PNG")


def test_a_click_and_a_drag_in_the_picture_are_references_until_it_changes(visitor: Visitor) -> None:
    """user_reports 39."""
    page = visitor.page
    visitor.upload(GOLDEN_IMAGE)
    page.wait_for_selector("#refs .pw-refs", state="attached")
    box = page.locator("#picture img").bounding_box()
    at = [(box["x"] + part * box["width"], box["y"] + part * box["height"]) for part in (0.25, 0.75)]
    page.mouse.click(*at[0])
    page.wait_for_selector("#refs .pw-ref")
    page.mouse.move(*at[0])
    page.mouse.down()
    page.mouse.move(*at[1], steps=3)
    page.mouse.up()
    page.wait_for_selector("#refs .pw-ref-box")
    numbers = [float(value) for value in re.findall(r"[\d.]+", page.input_value("#refs_text textarea"))]
    assert numbers == pytest.approx([0.25, 0.25, 0.25, 0.25, 0.75, 0.75], abs=0.01)
    page.click("#run")
    visitor.wait_for("done")
    visitor.clear()
    visitor.wait_for("idle")
    assert page.input_value("#refs_text textarea") == ""
    assert visitor.count("#refs .pw-ref") == 0


def test_a_typed_reference_is_shown_and_a_wrong_one_is_one_sentence(visitor: Visitor) -> None:
    visitor.upload(GOLDEN_IMAGE)
    visitor.page.fill("#refs_text textarea", "0.5,0.5\n0.1,0.2,9")
    visitor.page.wait_for_selector("#refs .pw-ref")
    visitor.page.click("#run")
    assert "'0.1,0.2,9' must be" in visitor.wait_for("error")
    visitor.page.click("#clear_refs")
    visitor.page.wait_for_selector("#refs .pw-ref", state="detached")


def test_a_batch_shows_every_file_its_error_and_its_picture_and_is_known_after_a_reload(
    visitor: Visitor, tmp_path: Path
) -> None:
    page, broken = visitor.page, tmp_path / "broken.png"
    broken.write_bytes(b"\x89PNG\r\n\x1a\n" + bytes(40))
    samples = sorted((app.ASSETS / "samples").iterdir())[:3]

    def run() -> str:
        page.click("button[role=tab]:has-text('Batch')")
        page.set_input_files("#batch_files input[type=file]", [broken, *samples])
        page.wait_for_function("document.querySelector('#batch_files').innerText.includes('broken')")
        page.fill("#batch_prompt textarea", "red circle\nstar")
        page.click("#batch_run")
        page.wait_for_selector("#batch_status [data-state=error]")
        return page.inner_text("#batch_status")

    assert "4 of 4 · 1 with an error" in run()
    page.locator("#batch_table").get_by_text(samples[0].name).first.click()
    page.wait_for_selector("#batch_marks svg", state="attached")
    assert samples[0].name in page.inner_text("#batch_about")
    with page.expect_download() as download:
        page.click("#batch_yolo")
    assert Path(download.value.path()).read_bytes().startswith(b"PK")
    page.reload()
    page.wait_for_function("window.photonTimeline && photonTimeline.draws > 0")
    assert "3 known from before" in run()


def test_the_answer_is_shown_as_text_with_why_it_ended(visitor: Visitor) -> None:
    visitor.example("query")
    assert "Complete" in visitor.wait_for("done")
    assert visitor.text("#answer pre").strip()


def test_clearing_the_picture_empties_everything_that_belonged_to_it(visitor: Visitor) -> None:
    """user_reports 49."""
    visitor.example("detect")
    visitor.wait_for("done")
    visitor.clear()
    visitor.wait_for("idle")
    assert visitor.count("#marks svg") == visitor.count("#picture img") == 0
    assert visitor.text("#numbers").strip() == ""
    assert visitor.page.is_disabled("#save_json")


def test_a_run_without_a_picture_says_so_and_leaves_it_readable(visitor: Visitor) -> None:
    visitor.page.click("#run")
    assert "no picture" in visitor.wait_for("error")


def test_a_bad_setting_is_named_and_the_next_run_works(visitor: Visitor) -> None:
    visitor.example("point")
    visitor.wait_for("done")
    visitor.page.click("#settings button")
    visitor.page.fill("#temperature input", "-1")
    visitor.page.click("#run")
    assert "temperature" in visitor.wait_for("error")
    visitor.page.fill("#temperature input", "0")
    visitor.page.click("#run")
    assert "found" in visitor.wait_for("done")


def test_the_depth_switch_is_for_everybody(browser: Any, visitor: Visitor, url: str) -> None:
    visitor.page.click("#depth label:has-text('blocking')")
    visitor.example("point")
    visitor.wait_for("done")
    with visiting(browser, url) as another:
        assert another.page.is_checked("#depth input[value='1']")
        another.page.click("#depth label:has-text('pipelined')")
        another.page.wait_for_timeout(500)


def test_two_people_never_see_each_others_pictures(browser: Any, visitor: Visitor, url: str) -> None:
    """user_reports 44."""
    visitor.example("detect")
    visitor.wait_for("done")
    with visiting(browser, url) as another:
        assert another.count("#marks svg") == another.count("#picture img") == 0
        another.example("query")
        another.wait_for("done")
    assert visitor.count("#marks svg") == 1
    assert visitor.count("#answer pre") == 0


def test_stop_keeps_the_partial_text_and_ends_the_request(browser: Any, talkative_url: str) -> None:
    """user_reports 19, 45."""
    with visiting(browser, talkative_url) as someone:
        someone.page.click("#task label:has-text('Query')")
        someone.upload(GOLDEN_IMAGE)
        someone.page.click("#run")
        assert someone.wait_for("busy")
        someone.page.wait_for_selector("#answer pre")
        someone.page.click("#stop")
        assert "kept" in someone.wait_for("stopped")
        assert someone.text("#answer pre")


def test_a_stopped_batch_leaves_the_engine_and_others_were_served_meanwhile(
    browser: Any, talkative_url: str
) -> None:
    with visiting(browser, talkative_url) as batcher, visiting(browser, talkative_url) as other:
        page = batcher.page
        page.click("button[role=tab]:has-text('Batch')")
        page.set_input_files("#batch_files input[type=file]", sorted((app.ASSETS / "samples").iterdir()))
        page.wait_for_function("document.querySelectorAll('#batch_files tr').length > 5")
        page.click("#batch_task label:has-text('Caption')")
        page.click("#batch_run")
        page.wait_for_selector("#batch_status [data-state=busy]")
        other.page.click("#task label:has-text('Query')")
        other.upload(GOLDEN_IMAGE)
        other.page.click("#run")
        other.page.wait_for_selector("#answer pre")
        other.page.click("#stop")
        other.wait_for("stopped")
        page.click("#batch_stop")
        page.wait_for_selector("#batch_status [data-state=stopped]")
        page.wait_for_selector("#batch_run:not([disabled])")
        assert "press Run to go on" in page.inner_text("#batch_status")


def test_clearing_the_picture_drops_late_results(browser: Any, talkative_url: str) -> None:
    """user_reports 49."""
    with visiting(browser, talkative_url) as someone:
        someone.page.click("#task label:has-text('Query')")
        someone.upload(GOLDEN_IMAGE)
        someone.page.click("#run")
        someone.page.wait_for_selector("#answer pre")
        someone.clear()
        someone.wait_for("idle")
        someone.page.wait_for_timeout(1500)
        assert someone.count("#answer pre") == 0
        assert someone.count("#status [data-state=idle]") == 1


def test_closing_the_tab_ends_its_request(browser: Any, talkative_url: str) -> None:
    """user_reports 46."""
    with visiting(browser, talkative_url) as witness:
        with visiting(browser, talkative_url) as leaver:
            leaver.page.click("#task label:has-text('Query')")
            leaver.upload(GOLDEN_IMAGE)
            leaver.page.click("#run")
            leaver.page.wait_for_selector("#answer pre")
        witness.page.wait_for_timeout(2500)
        spans = witness.page.evaluate("photonTimeline.spans")
        witness.page.wait_for_timeout(1500)
        assert witness.page.evaluate("photonTimeline.spans") == spans > 0
