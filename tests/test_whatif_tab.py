"""Pins the What-if tab: what it shows is what the simulation gives, each figure says where it is from, and a
person meets it in a browser.
"""

from __future__ import annotations

import json
import re
from typing import Any, NamedTuple

import pytest
from test_browser import CHROMIUM, browser, running, visiting

from photon.device.cost import PRESETS, TABLE
from photon.errors import InvalidRequestError
from photon.simulation import Comparison, Scenario, compare
from photon.ui import sweeps
from photon.ui.whatif import BEGINNING, ENDS, PICTURES, SMALL, STEADY, Player, headline, table, window
from tracing.metrics import bubble_percent
from tracing.recorder import Recorder
from tracing.trace import Trace

__all__ = ["browser"]  # a fixture

Panels = list[tuple[str, Trace]]


class Played(NamedTuple):
    """What the tab would show: the figures, and the traces its timelines are drawn from."""

    found: Comparison
    panels: Panels

    @property
    def traces(self) -> list[Trace]:
        return [trace for _, trace in self.panels]


def play(**changes: Any) -> Played:
    panels: Panels = []
    player = Player(
        lambda facts: Recorder(info=lambda: facts), lambda drawn: panels.extend(drawn) or "figure"
    )
    asked = {"gpu": "b200", "streams": 4, "tokens": 30, "task": "query", "picture": SMALL, "leak": False}
    found, figure = player.play(*{**asked, "depth": "both", "view": STEADY, **changes}.values())
    assert figure == "figure"
    return Played(found, panels)


def test_the_figures_are_the_simulations() -> None:
    found = compare(Scenario(PRESETS["b200"], 4, 30))
    assert play().found == found
    assert f"{found.gain_percent:+.1f} %" in table(found)
    assert f"{found.gain_percent:+.1f} %" in headline(found)


def test_the_same_question_is_not_simulated_twice() -> None:
    player = Player(lambda facts: Recorder(), lambda drawn: "figure")
    asked = ("b200", 1, 5, "query", SMALL, False, "both", STEADY)
    assert player.play(*asked) is player.play(*asked)


def test_both_timelines_show_as_much_time_of_the_steady_state() -> None:
    one, two = play().traces
    assert one.window[1] - one.window[0] == two.window[1] - two.window[0]
    assert {span.kind for trace in (one, two) for span in trace.spans} == {"decode"}
    assert [trace.info["depth"] for trace in (one, two)] == ["1", "2"]
    assert bubble_percent(two) == 0 < bubble_percent(one)


def test_the_first_end_shows_the_zombie_that_depth_2_leaves() -> None:
    one, two = play(view=ENDS, streams=1).traces
    assert not any(span.zombies for span in one.spans)
    assert any(span.zombies for span in two.spans)


def test_one_depth_may_be_shown_alone() -> None:
    assert [title for title, _ in play(depth="2 · pipelined").panels] == ["depth 2, simulated"]


def test_the_beginning_shows_the_pictures_and_prompts() -> None:
    assert {"vision", "prefill"} <= {span.name for span in play(view=BEGINNING).traces[0].spans}


@pytest.mark.parametrize("picture", PICTURES)
@pytest.mark.parametrize("task", ["query", "detect"])
def test_every_task_runs_with_every_picture(task: str, picture: str) -> None:
    crops = play(task=task, picture=picture, tokens=4).found.scenario.crops
    assert crops == PICTURES[picture] or (task == "detect" and crops == PICTURES[SMALL])


def test_answers_of_one_token_are_shown_without_a_period() -> None:
    found = play(tokens=1).found
    assert "a whole run by -" in headline(found)
    assert "–" in table(found)


def test_what_cannot_be_simulated_is_one_sentence() -> None:
    with pytest.raises(
        InvalidRequestError, match=r"^tokens is 0; it must be a whole number from 1 to 1024\.$"
    ):
        play(tokens=0)


def test_each_figure_says_where_it_is_from() -> None:
    published = table(compare(Scenario(PRESETS["b200"], 8, 40)))
    assert "durations published" in published
    assert "+21.9 % observed<br>+22.2 % predicted" in published
    derived = table(compare(Scenario(PRESETS["h100"], 8, 40)))
    assert "durations derived" in derived
    assert "observed" not in derived


def test_a_leak_is_not_set_beside_what_was_published() -> None:
    found = compare(Scenario(PRESETS["b200"], 8, 40, sync_masks=True))
    assert found.published is None
    assert headline(found).startswith("B200, 8 streams: depth 2 gains +")


def test_a_window_never_starts_before_the_run() -> None:
    found = compare(Scenario(PRESETS["b200"], 1, 2))
    assert window(found, found.pipelined, STEADY)[0] == 0


def test_the_sweeps_draw_every_gpu_and_the_published_points() -> None:
    lines = {"b200": (1.0,) * 6, "l4": (0.5,) * 6}
    figure = json.loads(sweeps.sweeps_figure(lines, {8: (2.0,) * 6}))
    names = [line["name"] for line in figure["data"]]
    assert names == ["B200 (published)", "B200, observed (published)", "L4 (derived)", "B200, 8 streams"]
    observed = figure["data"][1]
    assert dict(zip(observed["x"], observed["y"], strict=True)) == {1: 17.6, 8: 21.9, 32: 35.4}
    assert [line.get("line", {}).get("dash") for line in figure["data"]] == ["solid", None, "dash", None]


def test_a_point_of_a_sweep_is_a_run_of_the_engine() -> None:
    gains = sweeps.over_streams("rtx3090")
    assert gains[0] == pytest.approx(TABLE["RTX 3090", 1].observed_percent, abs=1)
    assert gains[-1] == pytest.approx(TABLE["RTX 3090", 32].observed_percent, abs=1)
    assert sweeps.over_streams("rtx3090") is gains


@pytest.mark.browser
@pytest.mark.skipif(not CHROMIUM.exists(), reason="there is no chromium at /usr/bin/chromium")
def test_a_visitor_sees_a_gpu_at_both_depths_and_changes_it(browser: Any) -> None:
    with running() as url, visiting(browser, url) as visitor:
        page = visitor.page
        page.get_by_role("tab", name="What-if").click()
        page.wait_for_selector("#whatif_status [data-state=done]")
        assert "B200, 32 streams: depth 2 gains +39.4 %" in visitor.text("#whatif_status")
        page.wait_for_function("document.querySelectorAll('#whatif_timelines .shapelayer path').length > 10")
        page.locator("#whatif_gpu input").click()
        page.get_by_role("option", name="H100 · derived").click()
        page.wait_for_function("document.querySelector('#whatif_status').innerText.includes('H100, 32')")
        assert re.search(r"durations derived", visitor.text("#whatif_table"))
        shapes = "(() => { const plot = document.querySelector('#whatif_timelines .cmp-plot');"
        shapes += " return plot.layout.shapes.length == plot.querySelectorAll('path[data-index]').length })()"
        page.locator("#whatif_view").get_by_text(BEGINNING).click()
        page.wait_for_function("document.querySelector('#whatif_timelines').innerText.includes('prefill')")
        page.locator("#whatif_view").get_by_text(STEADY).click()
        page.wait_for_function("!document.querySelector('#whatif_timelines').innerText.includes('prefill')")
        assert page.evaluate(shapes), "shapes of an earlier figure are still there"
        page.wait_for_selector("#whatif_sweeps .scatterlayer .trace")
