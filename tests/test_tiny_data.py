"""Pins the drawn scenes: determinism, boxes against pixels, well-formed prompts and target sequences."""

from __future__ import annotations

from collections import Counter
from random import Random

import numpy as np
import pytest
from PIL import ImageChops

from photon.model.config import ModelConfig
from photon.model.tokenizer import unknown_words
from photon.tiny import prompts, setup
from photon.tiny.data import COORD, IGNORE, SIZE, Encoder, empty, label, pack, prepare, put
from photon.tiny.pool import MULTI, SINGLE
from photon.tiny.prompts import Ask
from photon.tiny.scenes import MIN_ORDER_GAP, Scene, Style, draw_scene

PREFIX = 65


@pytest.fixture(scope="module")
def config() -> ModelConfig:
    return ModelConfig.from_dict(setup.raw_config(prompts.build_tokenizer()))


@pytest.fixture(scope="module")
def encoder(config: ModelConfig) -> Encoder:
    return Encoder(prompts.build_tokenizer(), config.tokenizer)


def test_a_seed_always_draws_the_same_scene() -> None:
    first, again = draw_scene(5, MULTI), draw_scene(5, MULTI)
    assert first.things == again.things
    assert ImageChops.difference(first.image, again.image).getbbox() is None
    assert draw_scene(6, MULTI).things != first.things


def test_things_lie_inside_the_picture_and_never_tie_in_order() -> None:
    for seed in range(60):
        things = draw_scene(seed, SINGLE).things
        for thing in things:
            assert thing.w / 2 < thing.x < 1 - thing.w / 2
            assert thing.h / 2 < thing.y < 1 - thing.h / 2
        orders = [t.order for t in things]
        assert orders == sorted(orders)
    assert MIN_ORDER_GAP > 0


def test_a_box_spans_the_pixels_that_the_thing_changed() -> None:
    """On white the first and last inked rows and columns are the box, but for outlines of a like colour."""
    far = []
    for seed in range(300):
        scene = draw_scene(seed, Style(short_side=(200, 260), aspect=(1.0, 1.5)), count=1)
        pixels = np.asarray(scene.image).astype(int)
        rim = np.concatenate((pixels[0], pixels[-1], pixels[:, 0], pixels[:, -1]))
        if len(scene.things) != 1 or (rim != 255).any():
            continue
        ink, thing = 255 * 3 - pixels.sum(2) > 150, scene.things[0]
        for axis, centre, extent in ((0, thing.x, thing.w), (1, thing.y, thing.h)):
            at = ink.any(axis).nonzero()[0]
            low, high = (centre - extent / 2) * len(ink.any(axis)), (centre + extent / 2) * len(ink.any(axis))
            far.append(max(abs(at.min() - low), abs(at.max() - high)))
    assert len(far) > 100
    assert np.median(far) < 1.5
    assert np.quantile(far, 0.95) < 4


def test_labels_put_each_thing_at_its_centre_patch() -> None:
    scene = draw_scene(3, SINGLE, count=4)
    labels = label(scene)
    assert labels.total == len(scene.things)
    for i, thing in enumerate(scene.things):
        patch = int(thing.y * 8) * 8 + int(thing.x * 8)
        assert labels.centre[patch] == labels.owner[patch]
        assert labels.counts[i, 0] == sum(t.kind == thing.kind for t in scene.things)
        assert (labels.owner == i).any()


def test_scenes_of_both_groups_take_the_crops_they_are_named_for(config: ModelConfig) -> None:
    assert {prepare(draw_scene(s, SINGLE), config).tiling for s in range(20)} == {(1, 1)}
    tilings = {prepare(draw_scene(s, MULTI), config).tiling for s in range(40)}
    assert (2, 2) in tilings
    assert (1, 1) not in tilings
    assert len(tilings) >= 3


def test_a_caption_names_what_it_was_made_from() -> None:
    for seed in range(100):
        things = draw_scene(seed, SINGLE).things
        for length in ("short", "normal", "long"):
            assert prompts.parse_caption(prompts.caption(things, length)) == Counter(t.kind for t in things)
    assert prompts.parse_caption("two red") == Counter()
    assert prompts.parse_caption("red circles and stars") is None


def test_every_sampled_prompt_uses_known_words_only() -> None:
    known = prompts.vocabulary()
    rng = Random(1)
    for seed in range(60):
        scene = draw_scene(seed, SINGLE)
        for make in (prompts.ask_caption, prompts.ask_count, prompts.ask_color, prompts.ask_shape):
            assert unknown_words(make(rng, scene).prompt, known) == []
        assert unknown_words(prompts.ask_where(rng, scene, "point").prompt, known) == []


def test_each_word_is_one_token_with_and_without_a_space() -> None:
    tokenizer = prompts.build_tokenizer()
    for word in prompts.vocabulary():
        if word.isalpha():
            assert len(tokenizer.encode(" " + word).ids) == len(tokenizer.encode(word).ids) == 1
    text = "How many red crosses, a star and 3 hearts?"
    assert tokenizer.decode(tokenizer.encode(text).ids) == text


def test_a_detect_sequence_lists_x_y_size_of_each_thing_then_ends(encoder: Encoder) -> None:
    scene = draw_scene(11, SINGLE, count=3)
    ask = Ask("detect", "shapes", "detect", things=scene.things)
    row = empty(64)
    assert put(row, ask, 0, encoder, PREFIX, None)
    start = len(encoder.prompt_ids(ask))
    n = len(scene.things)
    assert list(row.kind[start : start + 3 * n]) == [COORD, COORD, SIZE] * n
    assert list(row.next_id[row.next_id != IGNORE]) == [5] * n + [0]
    assert list(row.coord[row.coord >= 0]) == pytest.approx([v for t in scene.things for v in (t.x, t.y)])
    assert row.position[0] == PREFIX
    assert row.used == start + 3 * n


def test_a_query_prompt_ends_with_the_answer_id_twice(encoder: Encoder) -> None:
    assert encoder.prompt_ids(Ask("query", "how many stars?", "count"))[-2:] == [3, 3]
    assert encoder.prompt_ids(Ask("point", "star", "point"))[-1:] == [3]
    assert encoder.prompt_ids(Ask("short", "", "caption"))[0] == 1


def test_packed_prompts_restart_their_positions_and_do_not_overlap(encoder: Encoder) -> None:
    rows = pack(Random(0), draw_scene(2, SINGLE), (2, 56), encoder, PREFIX)
    assert max(row.prompt.max() for row in rows) >= 4
    row = rows[0]
    for number in sorted(set(row.prompt.tolist()) - {-1}):
        positions = row.position[row.prompt == number]
        assert list(positions) == list(range(PREFIX, PREFIX + len(positions)))
        assert (row.next_id[row.prompt == number] != IGNORE).any()


def test_nothing_is_asked_for_where_nothing_matches(encoder: Encoder) -> None:
    ask = prompts.ask_where(Random(4), Scene(draw_scene(1, SINGLE).image, ()), "point")
    row = empty(32)
    assert put(row, ask, 0, encoder, PREFIX, None)
    assert list(row.next_id[row.next_id != IGNORE]) == [0]
