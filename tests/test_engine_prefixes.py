"""Pins the image prefix cache in the engine: an image asked again is not encoded again, and nobody can tell.

Every answer is SEQ, that of an engine that caches nothing, whoever computed the prefix, whatever has been
evicted, shared, cancelled or preempted meanwhile. The device is deferred and poisons what is free, so that
reading a page that was given up changes a token. pipeline_bugs 20, 45, 47, 49-53; Kestrel's collision of
arrays with the same bytes.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from engines import (
    FlakyDevice,
    Outcome,
    adapter_path,
    audit,
    build,
    counters,
    finish,
    oracle,
    outcome,
    picture,
    query,
    requests,
    run,
    sequential,
    small,
    tick,
)

from photon import Engine, Request, open_device
from photon.admission import EncodedImage
from photon.device.base import Work
from photon.device.deferred import DeferredDevice

PREFIX = 5
ALL = range(len(requests()))


def asked(image: Any, text: str = "is there a dog?", **settings: Any) -> Request:
    return query(text, image, **{"max_tokens": 12, **settings})


class Programs(DeferredDevice):
    """Remembers the names of the programs that ran."""

    def __init__(self, seed: int = 0) -> None:
        super().__init__(seed)
        self.names: list[str] = []

    def _run(self, work: Work) -> Any:
        self.names.append(work.program)
        return super()._run(work)


def run_one(engine: Engine, request: Request) -> tuple[Outcome, int]:
    """The answer, and how many of its prompt's positions were cached."""
    handle = engine.submit(request)
    finish(engine)
    assert handle.metrics is not None
    return outcome(handle), handle.metrics.cached_tokens


# Hits ----------------------------------------------------------------------------------------------------


def test_the_second_question_about_an_image_runs_no_encoder_and_no_image_prefill() -> None:
    device = Programs()
    with build(device=device) as engine:
        assert run_one(engine, asked(picture(3, 56, 40)))[1] == 0
        device.names.clear()
        answer, cached = run_one(engine, asked(picture(3, 56, 40), "what colour is it?"))
        assert (cached, engine.stats()["prefix_hits"]) == (PREFIX, 1)
    assert answer == sequential(asked(picture(3, 56, 40), "what colour is it?"))
    assert device.names.count("prefill_cached") == 1
    assert not {"vision", "prefill"} & set(device.names)


@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("page_size", [1, 4, 5, 16, 1024])
def test_the_same_question_five_times_in_series_and_at_once_has_one_answer(
    page_size: int, depth: int
) -> None:
    """pipeline_bugs 49."""
    request, config = asked(picture(1)), small(page_size=page_size, depth=depth, max_batch_size=3)
    with build(config) as engine:
        answers = [run_one(engine, request) for _ in range(5)]
        assert answers == [(sequential(request), cached) for cached in (0, *[PREFIX] * 4)]
    with build(config, seed=1) as engine:
        assert run(engine, [request] * 5) == [sequential(request)] * 5
        assert engine.stats()["cached_images"] == 1


def test_every_task_reads_what_any_other_has_computed() -> None:
    about_one = [index for index in ALL if requests()[index].image is not None]
    with build(small(max_batch_size=1)) as engine:
        for _ in range(2):
            answers = [run_one(engine, requests()[index]) for index in about_one]
            assert [answer for answer, _ in answers] == [oracle(index) for index in about_one]
        assert all(cached == PREFIX for _, cached in answers)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("page_size", [1, 4, 16])
def test_rows_that_read_different_images_share_a_prefill(page_size: int, seed: int) -> None:
    images = [picture(1), picture(2), picture(3, 56, 40)]
    mixed = [asked(image, text) for text in ("what is it?", "name it", "x") for image in images]
    device = Programs(seed)
    with build(small(page_size=page_size, max_batch_size=8), device=device) as engine:
        run(engine, [asked(image, "look") for image in images])
        device.names.clear()
        assert run(engine, mixed) == [sequential(request) for request in mixed]
        assert engine.stats()["prefix_hits"] == len(mixed)
        assert device.names.count("prefill_cached") == 2
        assert engine.stats()["cached_images"] == 3


@pytest.mark.parametrize("page_size", [1, 4, 16])
def test_a_prompt_that_fills_its_pages_exactly_is_asked_again(page_size: int) -> None:
    """pipeline_bugs 51: all lengths from one position past the prefix to two pages on, each twice."""
    longest = min(2 * page_size, 20)
    with build(small(page_size=page_size)) as engine:
        for length in range(1, longest + 1):
            request = asked(picture(1), "x" * length, max_tokens=page_size + 2)
            for _ in range(2):
                assert run_one(engine, request)[0] == sequential(request)


def test_pictures_of_one_size_or_of_the_same_bytes_are_told_apart() -> None:
    """pipeline_bugs 53, and black images of 100 x 200 and 200 x 100: X, Y, X, one by one and at once."""
    wide, high = (np.zeros((*size, 3), np.uint8) for size in ((20, 40), (40, 20)))
    for x, y in ((picture(1), picture(2)), (wide, high)):
        three = [asked(image) for image in (x, y, x)]
        with build() as engine:
            answers = [run_one(engine, request) for request in three]
            assert [cached for _, cached in answers] == [0, 0, PREFIX]
            assert [answer for answer, _ in answers] == [sequential(request) for request in three]
            assert run(engine, three) == [sequential(request) for request in three]


def test_adapters_have_prefixes_of_their_own() -> None:
    """pipeline_bugs 45, 47: base, a, b, base, a, and a loaded again under its name."""
    names = (None, "a", "b", None, "a")
    five = [asked(picture(2), "name it", adapter=name) for name in names]
    with build() as engine:
        answers = [run_one(engine, request) for request in five]
        assert [cached for _, cached in answers] == [0, 0, 0, PREFIX, PREFIX]
        assert [answer for answer, _ in answers] == [sequential(request) for request in five]
        assert len({answer.tokens for answer, _ in answers}) == 3
        engine.load_adapter("a", adapter_path("b"))
        assert run_one(engine, five[1]) == (sequential(five[2]), 0)
        assert run_one(engine, five[1]) == (sequential(five[2]), PREFIX)
        assert run(engine, [request for request in five for _ in range(2)])[0] == sequential(five[0])


def test_an_image_that_came_without_a_key_is_never_found() -> None:
    with build() as engine:
        encoded = engine.encode_image(picture(1))
        bare = EncodedImage(encoded.pixels, encoded.tiling, encoded.width, encoded.height)
        assert [run_one(engine, asked(image))[1] for image in (bare, bare, encoded, bare)] == [0] * 4
        assert run_one(engine, asked(encoded)) == (sequential(asked(picture(1))), PREFIX)


@pytest.mark.parametrize(("most", "found"), [(0, 0), (1, 0), (2, 0), (3, 3), (64, 3)])
def test_no_more_images_are_kept_than_were_asked_for(most: int, found: int) -> None:
    images = [picture(1), picture(2), picture(3, 56, 40)]
    with build(small(max_cached_images=most)) as engine:
        start = counters(engine)
        for request in map(asked, images * 2):
            assert run_one(engine, request)[0] == sequential(request)
        stats = engine.stats()
        assert (stats["cached_images"], stats["prefix_hits"]) == (min(most, 3), found)
        assert stats["cached_pages"] == 2 * min(most, 3)
        assert counters(engine) == start


def test_the_cpu_device_reads_what_it_kept() -> None:
    device = open_device("cpu")
    with build(device=device, threaded=True) as engine:
        for index in (*ALL, *ALL):
            handle = engine.submit(requests()[index])
            handle.result(timeout=120)
            assert outcome(handle) == oracle(index)
        assert engine.stats()["prefix_hits"] > len(ALL)


# Ends, failures and pressure -----------------------------------------------------------------------------


@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("age", range(7))
def test_a_cancelled_request_leaves_its_prefix_only_if_its_prefill_was_committed(
    age: int, depth: int
) -> None:
    """pipeline_bugs 20: also as a zombie, whose step is committed after the request has ended."""
    request = asked(picture(1), max_tokens=30, temperature=1.0, seed=2)
    with build(small(depth=depth), seed=age) as engine:
        handle = engine.submit(request)
        for _ in range(age):
            tick(engine)
        handle.cancel()
        finish(engine)
        was_launched = handle.metrics.first_step_id > 0
        assert engine.stats()["cached_images"] == was_launched
        answer, cached = run_one(engine, request)
        assert answer == sequential(request)
        assert cached == (PREFIX if was_launched else 0)


@pytest.mark.parametrize("fault", ["upload", "vision", "project", "prefill", "sample", "fetch"])
def test_a_step_that_failed_leaves_no_prefix(fault: str) -> None:
    with build(device=FlakyDevice(fault, 1)) as engine:
        start = counters(engine)
        handle = engine.submit(asked(picture(1)))
        finish(engine)
        assert handle.error is not None
        assert engine.stats()["cached_images"] == 0
        assert counters(engine) == start
        assert run_one(engine, asked(picture(1))) == (sequential(asked(picture(1))), 0)


@pytest.mark.parametrize("fault", ["upload", "prefill_cached", "sample"])
def test_a_failed_step_that_read_a_prefix_leaves_it_as_it_was(fault: str) -> None:
    countdown = 1 if fault == "prefill_cached" else 2
    with build(device=FlakyDevice(fault, countdown)) as engine:
        start = counters(engine)
        one = asked(picture(1), max_tokens=1)
        assert run_one(engine, one) == (sequential(one), 0)
        handle = engine.submit(one)
        finish(engine)
        assert handle.error is not None
        assert counters(engine) == start
        assert run_one(engine, asked(picture(1))) == (sequential(asked(picture(1))), PREFIX)


@pytest.mark.parametrize("page_size", [1, 4, 16])
@pytest.mark.parametrize("num_pages", range(2))
@pytest.mark.parametrize("seed", range(2))
def test_pressure_evicts_prefixes_and_no_answer_shows_it(page_size: int, num_pages: int, seed: int) -> None:
    """pipeline_bugs 12, 50, 52: hits in flight while others need pages; preempted rows come back as hits."""
    pages_for_one = -(-64 // page_size)
    config = small(page_size=page_size, num_pages=pages_for_one + num_pages * 3, max_batch_size=6)
    with build(config, seed=seed) as engine:
        start = counters(engine)
        handles = [engine.submit(requests()[index]) for index in (*ALL, *ALL)]
        finish(engine)
        assert [outcome(handle) for handle in handles] == [oracle(index) for index in (*ALL, *ALL)]
        assert engine.stats()["prefix_hits"] > 0
        assert counters(engine) == start


def test_a_prefix_that_a_step_reads_is_not_given_up_for_another_row_of_it() -> None:
    """pipeline_bugs 52: the first row needs what others hold; the second's prefix was used longest ago."""
    x, *others = (asked(picture(seed), "x", max_tokens=1) for seed in (1, 2, 4, 5, 6))
    y = asked(picture(2), "x" * 30, max_tokens=1)
    with build() as engine:
        sequences = [engine.submit(request)._sequence for request in (y, x)]
        own = sum(engine._scheduler.pages_for(s.num_prefill_positions + 1) - 1 for s in sequences)
        finish(engine)
    with build(small(num_pages=own + 4)) as engine:  # and what y and x read
        for request in (x, *others):
            run(engine, [request])
        assert engine.stats()["cached_images"] == 5
        assert run(engine, [y, x]) == [sequential(y), sequential(x)]
        assert engine.stats()["prefix_hits"] == 2
        assert engine.stats()["cached_images"] < 5


def test_a_preempted_row_comes_back_as_a_hit() -> None:
    """pipeline_bugs 51, 55."""
    four = [asked(picture(1), f"go {seed}", max_tokens=40, temperature=4.0, seed=seed) for seed in range(4)]
    with build(small(num_pages=20, max_batch_size=4)) as engine:
        handles = [engine.submit(request) for request in four]
        finish(engine)
        assert [outcome(handle) for handle in handles] == [sequential(request) for request in four]
        again = sum(handle.metrics.preemptions for handle in handles)
        found = sum(handle.metrics.cached_tokens > 0 for handle in handles)
        assert again > 0
        assert engine.stats()["prefix_hits"] == again + found


@pytest.mark.parametrize("page_size", [1, 4, 5, 16])
@pytest.mark.parametrize("spare", [0, 1])
def test_a_pool_that_is_just_large_enough_is_so_with_a_cached_prefix(page_size: int, spare: int) -> None:
    """While the partly filled page is copied it is one more; where that is too many, it is computed again."""
    request = asked(picture(1), "x", max_tokens=40, temperature=4.0, seed=1)
    with build(small(page_size=page_size)) as engine:
        length = run(engine, [request])[0]
        first = engine.submit(request)._sequence.num_prefill_positions + 1
        finish(engine)
    num_pages = -(-first // page_size) + spare
    answers = []
    for most in (0, 64):
        with build(small(page_size=page_size, num_pages=num_pages, max_cached_images=most)) as engine:
            answers.append([run_one(engine, request)[0] for _ in range(3)])
            audit(engine)
    assert answers[0] == answers[1]
    assert len(set(map(repr, answers[0]))) == 1
    assert answers[0][0].tokens == length.tokens[: len(answers[0][0].tokens)]


def test_a_request_gets_every_page_that_only_the_cache_holds() -> None:
    """What is cached is as good as free: three images are kept, then one request needs all of the pool."""
    long_one = query("go", max_tokens=40, temperature=4.0, seed=1)
    with build(small(num_pages=12)) as engine:
        for image in (picture(1), picture(2), picture(3, 56, 40)):
            run(engine, [asked(image, max_tokens=2)])
        assert engine.stats()["cached_pages"] == 6
        assert run(engine, [long_one]) == [sequential(long_one)]
        assert engine.stats()["cached_images"] < 3
