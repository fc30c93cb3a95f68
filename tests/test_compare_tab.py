"""Pins the Compare tab in a real browser: a preset in one click, a sync leak found, bad values, Stop, files.

Figures are not asserted: what is faster on a machine that does other work as well is anybody's guess.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from test_browser import Visitor, browser, pytestmark, url, visiting

__all__ = ["browser", "pytestmark", "url"]

PLOT = "#cmp_timelines .cmp-plot"
RANGE = f"document.querySelector('{PLOT}').layout?.xaxis.range"
PRESETS = {"gain": 0, "leak": 1, "host": 2, "zombies": 3}


@pytest.fixture
def visitor(browser: Any, url: str) -> Iterator[Visitor]:
    with visiting(browser, url) as someone:
        open_tab(someone)
        yield someone


def open_tab(someone: Visitor) -> None:
    someone.page.click("button[role=tab]:has-text('Compare')")
    someone.page.wait_for_selector("#presets button")


def compare(someone: Visitor, preset: str) -> str:
    """Press a preset and wait for its picture; returns what is said about it."""
    someone.page.locator("#presets button").nth(PRESETS[preset]).click()
    someone.page.wait_for_selector("#lab_status [data-state=busy]")
    wait_for(someone, "done")
    someone.page.wait_for_function(f"{RANGE} !== undefined")
    return someone.text("#cmp_summary")


def wait_for(someone: Visitor, state: str) -> str:
    """Wait until the comparison has ended, as it should; returns what is said about that."""
    ended = ", ".join(f"#lab_status [data-state={name}]" for name in ("done", "error", "stopped"))
    someone.page.wait_for_selector(ended)
    assert someone.count(f"#lab_status [data-state={state}]") == 1, someone.text("#lab_status")
    return someone.text("#lab_status")


def set_field(someone: Visitor, name: str, value: str) -> None:
    someone.page.fill(f"#lab_{name} input, #lab_{name} textarea", value)


def test_one_click_compares_both_depths_on_one_axis(visitor: Visitor) -> None:
    said = compare(visitor, "gain")
    assert "All 480 tokens of 8 pairs of requests are equal." in said
    assert "Predicted from A alone" in said
    assert "No sync leak" in said
    assert visitor.page.evaluate(f"document.querySelector('{PLOT}').layout.yaxis2 !== undefined")
    assert visitor.count("#cmp_histograms .js-plotly-plot") == 1
    assert "step period p50" in visitor.text("#cmp_table")


def test_an_injected_sync_leak_is_found_named_and_labelled(visitor: Visitor) -> None:
    said = compare(visitor, "leak")
    assert "Sync leak in B: the host waited for the device 60 times inside sample" in said
    assert "in Stream.synchronize in Runtime.sample" in said
    assert "Injected into B: synchronous mask upload." in said
    assert "Sync leak in A" not in said
    assert "tokens of 8 pairs of requests are equal" in said


def test_early_stops_leave_zombies_at_depth_2_only(visitor: Visitor) -> None:
    said = compare(visitor, "zombies")
    assert "B computed 16 zombie rows" in said
    assert "A computed" not in said


def test_a_run_opens_in_the_docked_timeline_and_can_be_saved(visitor: Visitor) -> None:
    compare(visitor, "leak")
    with visitor.page.expect_download() as download:
        visitor.page.locator("#cmp_summary a[href*=chrome]").first.click()
    assert Path(download.value.path()).read_bytes().startswith(b"\x1f\x8b")
    visitor.page.locator("#cmp_summary [data-source]").nth(1).click()
    visitor.page.wait_for_function("document.querySelector('#timeline').innerText.includes('back to live')")
    assert "synchronous mask upload" in visitor.text("#timeline")


def test_aligned_at_a_step_the_picture_zooms_in_and_survives_another_width(visitor: Visitor) -> None:
    compare(visitor, "host")
    whole = visitor.page.evaluate(RANGE)
    visitor.page.click("#cmp_align_at label:has-text('step')")
    visitor.page.wait_for_function(f"{RANGE}[0] < 0")
    assert visitor.page.evaluate(RANGE)[1] < whole[1]
    for width in (1280, 390):
        visitor.page.set_viewport_size({"width": width, "height": 900})
        visitor.page.wait_for_timeout(400)
        assert visitor.page.locator(PLOT).bounding_box()["height"] > 300
        overflow = visitor.page.evaluate("document.documentElement.scrollWidth - innerWidth")
        assert overflow <= 0, f"the page is wider than a window of {width} px"


def test_a_bad_value_is_named_and_the_next_comparison_works(visitor: Visitor) -> None:
    set_field(visitor, "copies", "33")
    visitor.page.click("#lab_run")
    assert "from 1 to 32" in wait_for(visitor, "error")
    compare(visitor, "gain")
    assert visitor.page.input_value("#lab_copies input, #lab_copies textarea") == "8"


def test_stop_ends_a_comparison_and_others_go_on(browser: Any, url: str, visitor: Visitor) -> None:
    compare(visitor, "gain")
    visitor.page.click("#lab_arrival label:has-text('Poisson')")
    visitor.page.wait_for_selector("#lab_rate input, #lab_rate textarea")
    set_field(visitor, "rate", "0.1")
    visitor.page.click("#lab_run")
    visitor.page.wait_for_function("document.querySelector('#lab_status').innerText.includes('Round 1')")
    with visiting(browser, url) as other:
        open_tab(other)
        other.page.locator("#presets button").first.click()
        other.page.wait_for_function("document.querySelector('#lab_status').innerText.includes('Waiting')")
        visitor.page.click("#lab_stop")
        assert "Nothing is compared" in wait_for(visitor, "stopped")
        wait_for(other, "done")
    assert visitor.count("#cmp_summary section") == 0


def test_a_file_that_is_no_trace_is_refused_and_two_saved_runs_are_compared(
    visitor: Visitor, tmp_path: Path
) -> None:
    compare(visitor, "gain")
    saved = []
    for i in range(2):
        with visitor.page.expect_download() as download:
            visitor.page.locator("#cmp_summary a[href*=chrome]").nth(i).click()
        saved.append(str(tmp_path / f"{'ab'[i]}.json.gz"))
        download.value.save_as(saved[-1])
    visitor.page.click("#cmp_files button")
    visitor.page.click("#cmp_files_run")
    visitor.page.wait_for_function(
        "document.querySelector('#cmp_summary').innerText.includes('no file for A')"
    )
    for side, path in zip("ab", saved, strict=True):
        visitor.page.set_input_files(f"#cmp_file_{side} input[type=file]", path)
        visitor.page.wait_for_selector(f"#cmp_file_{side} :text('.json.gz')")
    visitor.page.click("#cmp_files_run")
    visitor.page.wait_for_function("document.querySelector('#cmp_summary').innerText.includes('480 tokens')")
    assert "a.json.gz" in visitor.text("#cmp_summary")
