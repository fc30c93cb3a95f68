"""Pins the Compare tab's engine side without a browser: what is typed, who waits, what Stop does."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import gradio as gr
import pytest
from engines import picture, tiny_model
from PIL import Image

from photon.errors import InvalidRequestError
from photon.lab import Lab, Setting
from photon.ui.lab import LabPanel, cost
from photon.ui.lab_controls import FIXED, NATURAL, POISSON, Form, SideValues, presets
from photon.ui.session import Session

pytestmark = [
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),  # Gradio's own loops
    pytest.mark.filterwarnings("ignore:'future.no_silent_downcasting' is deprecated"),  # Gradio with pandas
]

Updates = dict[Any, Any]


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """As the page sends an upload."""
    path = tmp_path_factory.mktemp("pictures") / "picture.png"
    Image.fromarray(picture(1)).save(path)
    return {"path": str(path)}


@pytest.fixture
def form(image: dict[str, str]) -> Form:
    return Form(image, "detect", "dog", copies="2", tokens="6", rounds="2")


class Page:
    """A panel over a lab on the deferred device; what `show` was given is what is shown."""

    def __init__(self) -> None:
        self.lab = Lab(tiny_model(), "deferred", "float32")
        with gr.Blocks(analytics_enabled=False):
            self.out = gr.HTML("")
            self.panel = LabPanel(self.lab, presets(Path("picture.png"), "dog"))
            self.panel.wire(lambda run: run.tokens, self)
        self.shown: list[Any] = []

    @property
    def outputs(self) -> list[Any]:
        return [self.out]

    def empty(self) -> Updates:
        return {self.out: ""}

    def document(self, rounds: Any) -> dict[str, Any]:
        return {"rounds": len(rounds)}

    def show(self, rounds: Any) -> Updates:
        self.shown.append(rounds)
        return {self.out: "compared"}

    def run(self, form: Form, session: Session | None = None) -> AsyncIterator[Updates]:
        return self.panel.run(session or Session(), *form.values)

    def status(self, updates: Updates) -> str:
        return updates[self.panel.status]


@pytest.fixture(scope="module")
def page() -> Iterator[Page]:
    page = Page()
    yield page
    page.lab.close()
    del page
    gc.collect()  # Gradio leaves event loops behind, whose warnings belong here and to no other test


async def collect(stream: AsyncIterator[Updates]) -> list[Updates]:
    return [updates async for updates in stream]


def endless(form: Form) -> Form:
    """Requests that take minutes to arrive."""
    return replace(form, copies="32", arrival=POISSON, rate="0.1")


async def until(page: Page, stream: AsyncIterator[Updates], words: str) -> Updates:
    """The first update whose status has the words."""
    while words not in page.status(updates := await anext(stream)):
        pass
    return updates


# ---- what is typed


def test_a_form_goes_to_the_components_and_back(form: Form) -> None:
    changed = replace(form, a=SideValues(1, "3", "10", "20", True))
    assert Form.of(changed.values) == changed


def test_a_form_becomes_a_workload_and_two_settings(form: Form) -> None:
    asked = replace(form, arrival=POISSON, rate="5", early="50", b=SideValues(2, "4", "10", "", True))
    workload = asked.workload()
    assert (workload.copies, workload.rate_per_s, workload.num_tokens) == (2, 5, 6)
    assert workload.early_stops_percent == 50
    assert asked.settings()[0] == Setting(1)
    assert str(asked.settings()[1]) == (
        "depth 2, 4 copies, injected: host time +10 us a step, synchronous mask upload"
    )


def test_natural_answers_have_no_length(form: Form) -> None:
    assert replace(form, answers=NATURAL, tokens="nonsense", early="7").workload().num_tokens is None
    assert form.answers == FIXED


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"copies": "33"}, "copies is 33; it must be a whole number from 1 to 32"),
        ({"copies": "many"}, "copies is 'many'"),
        ({"tokens": "1.5"}, "whole number"),
        ({"arrival": POISSON, "rate": "-3"}, "rate_per_s is -3"),
        ({"early": "200"}, "from 0 to 100"),
        ({"rounds": "0"}, "rounds is 0"),
        ({"seed": "1e99"}, "seed"),
        ({"prompt": "cat, dog"}, "one object"),
        ({"task": "fly"}, "no task 'fly'"),
        ({"image": None}, "no picture"),
        ({"a": SideValues(1, "", "-5")}, "Side A: host_us is -5"),
        ({"b": SideValues(2, "40")}, "Side B: copies is 40"),
    ],
)
def test_a_bad_value_is_one_sentence(form: Form, changes: dict[str, Any], words: str) -> None:
    wrong = replace(form, **changes)
    with pytest.raises(InvalidRequestError, match=words):
        _ = wrong.settings(), wrong.num_rounds(), wrong.workload()


def test_every_preset_is_a_valid_comparison(image: dict[str, str]) -> None:
    made = presets(Path(image["path"]), "dog")
    assert [preset.title for preset in made] == [
        "Depth 1 vs 2",
        "The sync leak",
        "Slow host",
        "Early stops: zombies",
    ]
    for preset in made:
        asked = replace(preset.form, image=image)
        assert asked.settings()[0] != asked.settings()[1] or asked.workload().early_stops_percent


def test_what_a_second_engine_takes_is_said(page: Page) -> None:
    assert " MB of memory" in cost(page.lab)


# ---- comparisons


def test_a_comparison_runs_both_sides_in_turn_and_shows_them(page: Page, form: Form) -> None:
    updates = asyncio.run(collect(page.run(form)))
    assert "Compared" in page.status(updates[-1])
    assert updates[-1][page.out] == "compared"
    rounds = page.shown.pop()
    assert [[side.name for side in sides] for sides in rounds] == [["A", "B"], ["A", "B"]]
    assert len({side.taken for sides in rounds for side in sides}) == 1, "the same tokens every time"
    assert all(page.out in update for update in updates), "each update is the whole of what is shown"


def test_a_bad_value_leaves_the_page_usable(page: Page, form: Form) -> None:
    seen: list[Updates] = []

    async def wrong() -> None:
        async for updates in page.run(replace(form, copies="0")):
            seen.append(updates)

    with pytest.raises(gr.Error, match="copies is 0"):
        asyncio.run(wrong())
    assert "Not run" in page.status(seen[-1])
    assert "Compared" in page.status(asyncio.run(collect(page.run(form)))[-1])


def test_a_second_comparison_waits_and_is_told_so(page: Page, form: Form) -> None:
    async def both() -> tuple[list[Updates], list[Updates]]:
        session = Session()
        first, second = page.run(endless(form), session), page.run(form)
        earlier = [await until(page, first, "Round 1")]
        later = [await until(page, second, "Waiting: 1 comparison before")]
        page.panel.stop(session)
        return earlier + await collect(first), later + await collect(second)

    first, second = asyncio.run(both())
    assert "Stopped" in page.status(first[-1])
    assert "Compared" in page.status(second[-1])


def test_stop_ends_the_run_and_compares_nothing(page: Page, form: Form) -> None:
    async def stopped() -> Updates:
        session = Session()
        running = page.run(endless(form), session)
        await until(page, running, "Round 1")
        page.panel.stop(session)
        return (await collect(running))[-1]

    page.shown.clear()
    assert "Stopped" in page.status(asyncio.run(stopped()))
    assert page.shown == []


def test_whoever_leaves_frees_the_lab_for_the_next(page: Page, form: Form) -> None:
    async def leave_and_come() -> list[Updates]:
        leaver = page.run(endless(form))
        await until(page, leaver, "Round 1")
        await leaver.aclose()  # type: ignore[attr-defined]
        return await collect(page.run(form))

    assert "Compared" in page.status(asyncio.run(leave_and_come())[-1])
    assert page.lab.open().stats()["resident"] == 0


def test_an_engine_that_cannot_be_opened_is_one_sentence(form: Form) -> None:
    page = Page()
    page.lab.device_name = "abacus"

    async def refused() -> None:
        with pytest.raises(gr.Error, match="no device 'abacus'"):
            await collect(page.run(form))

    asyncio.run(refused())
