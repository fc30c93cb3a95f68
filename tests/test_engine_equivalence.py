"""Pins I12: the tokens of a request depend on nothing but the request.

SEQ, the oracle, is the same engine at depth 1 with the request alone in it. Depth, batch, pages, adapters
in other rows, kinds of other rows, preemption and the order of the device's work must not show.
pipeline_bugs 9, 10, 12, 14, 25, 33-38, 40, 41, 45, 47, 53, 55.
"""

from __future__ import annotations

import random

import pytest
from engines import (
    adapter_path,
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
)

from photon import EngineConfig, Request, open_device

ALL = range(len(requests()))
SEEDS = range(4)


def assert_all_sequential(config: EngineConfig, *, seed: int = 0, order: list[int] | None = None) -> dict:
    """Run all requests at once and compare; returns the engine's last stats."""
    order = list(ALL) if order is None else order
    with build(config, seed=seed) as engine:
        start = counters(engine)
        outcomes = run(engine, [requests()[index] for index in order])
        assert counters(engine) == start
        stats = engine.stats()
    assert outcomes == [oracle(index) for index in order]
    return stats


@pytest.mark.parametrize("index", ALL)
def test_alone_at_depth_2_equals_depth_1(index: int) -> None:
    with build(small(depth=2), seed=index) as engine:
        assert run(engine, [requests()[index]]) == [oracle(index)]


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("depth", [1, 2])
def test_batched_equals_alone_whatever_order_the_device_takes(depth: int, seed: int) -> None:
    """pipeline_bugs 33, 35."""
    stats = assert_all_sequential(small(depth=depth), seed=seed)
    assert stats["max_in_flight"] == depth


@pytest.mark.parametrize("max_batch_size", [1, 2, 3, 7, 32])
def test_batch_size_does_not_show(max_batch_size: int) -> None:
    """pipeline_bugs 33."""
    assert_all_sequential(small(max_batch_size=max_batch_size))


@pytest.mark.parametrize("page_size", [1, 4, 16, 1024])
def test_page_size_does_not_show(page_size: int) -> None:
    assert_all_sequential(small(page_size=page_size))


@pytest.mark.parametrize("seed", SEEDS)
def test_order_of_arrival_does_not_show(seed: int) -> None:
    order = list(ALL)
    random.Random(seed).shuffle(order)
    assert_all_sequential(small(max_batch_size=6), seed=seed, order=order)


@pytest.mark.parametrize("page_size", [1, 4, 16])
@pytest.mark.parametrize("seed", SEEDS)
def test_a_tiny_pool_makes_rows_wait_and_be_preempted_and_does_not_show(page_size: int, seed: int) -> None:
    """pipeline_bugs 12, 14, 55: preempted with one step just committed, resumed by a longer prefill."""
    config = small(page_size=page_size, num_pages=-(-64 // page_size), max_batch_size=4)
    with build(config, seed=seed) as engine:
        handles = [engine.submit(request) for request in requests()]
        finish(engine)
        preemptions = [handle.metrics.preemptions for handle in handles]
        assert [outcome(handle) for handle in handles] == [oracle(index) for index in ALL]
    assert sum(preemptions) > 0
    assert max(preemptions) <= 3


@pytest.mark.parametrize("budget", [1, 30, 100])
def test_prefill_budgets_do_not_show(budget: int) -> None:
    assert_all_sequential(small(prefill_token_budget=budget, prefill_crop_budget=min(budget, 5)))


def test_one_lora_slot_serves_two_adapters_in_turn() -> None:
    """pipeline_bugs 45: no slot free means waiting, never the base model."""
    stats = assert_all_sequential(small(max_lora_slots=1))
    assert stats["free_lora_slots"] == 1


def test_adapters_change_the_answer_and_are_mixed_per_row() -> None:
    """pipeline_bugs 45, 47: the same prompt with a, b, neither, all in one batch."""
    prompts = [query("name it", picture(2), max_tokens=16, adapter=name) for name in ("a", "b", None)]
    alone = [sequential(prompt) for prompt in prompts]
    assert len({answer.tokens for answer in alone}) == 3
    with build(small(max_batch_size=6)) as engine:
        assert run(engine, prompts * 3) == alone * 3


def test_an_adapter_loaded_again_under_its_name_means_the_new_file() -> None:
    """pipeline_bugs 47: earlier requests keep theirs, later ones get the new one."""
    request = query("name it", picture(2), max_tokens=16, adapter="a")
    with build() as engine:
        before = engine.submit(request)
        engine.run_until_idle(max_ticks=2)
        engine.load_adapter("a", adapter_path("b"))
        after = engine.submit(request)
        finish(engine)
        answers = outcome(before), outcome(after)
    assert answers == (
        sequential(request),
        sequential(query("name it", picture(2), max_tokens=16, adapter="b")),
    )


def test_a_small_adapter_never_sees_what_a_larger_one_left_in_the_slot() -> None:
    """pipeline_bugs 46."""
    small_one = adapter_path("small", rank=1, targets=("mlp.fc1",))
    requests_of = {
        name: query("name it", picture(2), max_tokens=16, adapter=name) for name in ("large", "small")
    }
    with build(small(max_lora_slots=1)) as fresh:
        fresh.load_adapter("small", small_one)
        expected = run(fresh, [requests_of["small"]])
    with build(small(max_lora_slots=1)) as engine:
        engine.load_adapter(
            "large", adapter_path("large", rank=16, targets=("attn.qkv", "attn.proj", "mlp.fc1", "mlp.fc2"))
        )
        engine.load_adapter("small", small_one)
        run(engine, [requests_of["large"]])
        assert run(engine, [requests_of["small"]]) == expected


def test_images_of_one_size_do_not_answer_for_each_other() -> None:
    """pipeline_bugs 53: same text, images X, Y, X at once and one after another."""
    x, y = (query("is there a dog in the picture?", picture(seed), max_tokens=12) for seed in (1, 2))
    expected = [sequential(request) for request in (x, y, x)]
    assert expected[0] != expected[1]
    with build() as engine:
        assert run(engine, [x, y, x]) == expected
        assert [run(engine, [request])[0] for request in (x, y, x)] == expected


def test_an_encoded_image_answers_as_the_picture_does() -> None:
    with build() as engine:
        encoded = engine.encode_image(picture(3, 56, 40))
        pairs = [query("colour", image, max_tokens=9) for image in (picture(3, 56, 40), encoded, encoded)]
        answers = run(engine, pairs)
    assert answers[0] == answers[1] == answers[2]


def test_a_second_turn_equals_a_cold_engine_with_the_whole_transcript() -> None:
    """pipeline_bugs 7: nothing of turn 1 is left behind."""
    with build() as engine:
        first = run(engine, [query("go on", max_tokens=5)])[0]
        second = query("go on" + first.result["answer"].replace("\ufffd", "?") + "and then?", max_tokens=8)
        assert run(engine, [second])[0] == sequential(second)


def test_a_text_row_is_blind_to_the_spatial_rows_beside_it() -> None:
    """A text answer holds no coordinate, so it needs no region head, whatever runs in other rows."""
    texts = [
        query(f"tell me {word}", max_tokens=30, temperature=2.0, seed=seed)
        for seed, word in enumerate("abcd")
    ]
    spatial = [Request("point", picture(seed), "dog") for seed in range(4)]
    with build(small(max_batch_size=8)) as engine:
        mixed = run(engine, [request for pair in zip(texts, spatial, strict=True) for request in pair])
    assert mixed[::2] == [sequential(text) for text in texts]


def test_depth_may_change_between_any_two_ticks() -> None:
    """pipeline_bugs 13: I6 holds in the tick in which the depth falls and two steps are still in flight."""
    for period in range(1, 6):
        with build(seed=period) as engine:
            handles = [engine.submit(request) for request in requests()]
            while engine.run_until_idle(max_ticks=period) == period:
                engine.set_depth(3 - engine.depth)
            assert [outcome(handle) for handle in handles] == [oracle(index) for index in ALL]


def test_an_idle_engine_answers_again() -> None:
    """pipeline_bugs 13, 20: drained, and started from an empty queue, three times."""
    with build() as engine:
        for index in (0, 18, 12):
            assert run(engine, [requests()[index]]) == [oracle(index)]
            assert engine.run_until_idle() == 0


@pytest.mark.parametrize("depth", [1, 2])
def test_the_cpu_device_gives_the_same_answers(depth: int) -> None:
    """A worker process and the engine's own thread, all requests at once."""
    with build(small(depth=depth), device=open_device("cpu"), threaded=True) as engine:
        handles = [engine.submit(request) for request in requests()]
        for handle in handles:
            handle.result(timeout=120)
        assert [outcome(handle) for handle in handles] == [oracle(index) for index in ALL]
        assert engine.stats()["max_in_flight"] == depth
