"""Pins the shapes of steps on a device that replays recorded work: few, never too small, and all recorded."""

from __future__ import annotations

import pytest
from engines import build, oracle, picture, query, requests, run, small
from hypothesis import given
from hypothesis import strategies as st

from photon import EngineConfig, Request
from photon.buckets import MAX_PROMPT, PREFILL_ROWS, Buckets
from photon.device.base import Work
from photon.device.deferred import DeferredDevice
from photon.model.config import ModelConfig

CONFIG = EngineConfig(max_batch_size=12)
BUCKETS = Buckets(CONFIG, ModelConfig(), is_fixed=True)


@given(st.integers(1, 12), st.integers(1, 128), st.integers(1, 2048))
def test_no_bucket_is_too_small_and_free_shapes_stay_as_they_are(rows: int, pages: int, prompt: int) -> None:
    free = Buckets(CONFIG, ModelConfig(), is_fixed=False)
    assert (free.rows(rows), free.pages(pages), free.prompt(prompt, 1)) == (rows, pages, prompt)
    assert rows <= BUCKETS.rows(rows) <= CONFIG.max_batch_size
    assert pages <= BUCKETS.pages(pages) <= 128
    assert prompt <= BUCKETS.prompt(prompt, 1) < 2 * max(prompt, 5)


def test_prompts_of_many_rows_or_of_many_tokens_are_not_padded() -> None:
    assert [BUCKETS.prompt(9, rows) for rows in (1, 2, 3)] == [16, 16, 9]
    assert [BUCKETS.prompt(count, 1) for count in (1, MAX_PROMPT, MAX_PROMPT + 1)] == [8, 64, 65]


def test_all_shapes_of_moondream_2_are_some_hundred_works() -> None:
    works = list(BUCKETS.works(0))
    assert len(set(works)) == len(works) < 100
    assert Work("decode", (0, 12, 128, True, False)) in works
    assert Work("prefill_cached", (0, 1, 16, 64, False)) in works
    assert Work("vision", (0, 13)) in works


class Recorded(DeferredDevice):
    """Runs what is captured, and notes what is enqueued on the compute stream although it was not."""

    fixed_shapes = True

    def __init__(self) -> None:
        super().__init__()
        self.captured: set[Work] = set()
        self.eager: list[Work] = []
        enqueue = self.compute.enqueue

        def counted(work: Work, **how: object) -> None:
            self.eager += [work] * (work not in self.captured)
            enqueue(work, **how)

        self.compute = Spied(self.compute, counted)

    def capture(self, work: Work, *, begun: object = None) -> None:
        self.captured.add(work)
        self.call(work)  # as a card does before it records: over blocks that hold nothing yet


class Spied:
    """A stream whose enqueue is another function."""

    def __init__(self, inner: object, enqueue: object) -> None:
        self.inner, self.enqueue = inner, enqueue

    def __getattr__(self, name: str) -> object:
        return getattr(self.inner, name)


@pytest.fixture
def device() -> Recorded:
    return Recorded()


@pytest.mark.parametrize("request_", [query("what?", max_tokens=5), query("what?", picture(1), max_tokens=5)])
def test_a_request_alone_runs_on_recorded_work_but_for_the_joining_of_its_crops(
    device: Recorded, request_: Request
) -> None:
    with build(small(), device=device) as engine:
        device.eager.clear()  # of the warm-up
        run(engine, [request_])
    assert {work.program for work in device.eager} <= {"project", "poison_pages"}


@pytest.mark.parametrize("max_batch_size", [1, 2, 7])
def test_padded_prompts_change_no_token(device: Recorded, max_batch_size: int) -> None:
    with build(small(max_batch_size=max_batch_size), device=device) as engine:
        device.eager.clear()
        batches = [requests()[i : i + max_batch_size] for i in range(0, len(requests()), max_batch_size)]
        got = [answer for batch in batches for answer in run(engine, batch)]
    assert got == [oracle(index) for index in range(len(requests()))]
    prefills = [work.args for work in device.eager if work.program.startswith("prefill")]
    assert all(has_lora or rows not in PREFILL_ROWS for _, rows, *_, has_lora in prefills)


def test_an_image_that_is_asked_about_again_runs_on_recorded_work(device: Recorded) -> None:
    with build(small(max_cached_images=2), device=device) as engine:
        run(engine, [query("what?", picture(1), max_tokens=4)])
        device.eager.clear()
        run(engine, [query("why?", picture(1), max_tokens=4)])
    assert {work.program for work in device.eager} <= {"poison_pages"}
