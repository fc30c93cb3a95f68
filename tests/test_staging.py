"""Pins what a launch writes into its slot's step block: all of it for other rows, else only what changed."""

from __future__ import annotations

from typing import Any

import pytest
from engines import tiny_model

from photon.device.deferred import DeferredDevice
from photon.pages import NULL_PAGE
from photon.pipeline import Step
from photon.sequence import Request, SamplingParams, Sequence
from photon.skills.build import build
from photon.slot import DecodeSlot, SlotShapes
from photon.staging import stage_rows

UNTOUCHED = -7


@pytest.fixture
def slot() -> DecodeSlot:
    shapes = SlotShapes(rows=4, pages_per_row=6, prompt_tokens=8, crops=1, crop_size=28)
    return DecodeSlot(0, shapes, DeferredDevice())


def resident(batch_idx: int, pages: list[int], **settings: Any) -> Sequence:
    model, params = tiny_model(), SamplingParams(seed=1, **settings)
    skill = build(Request("query", prompt="a"), params, model.tokenizer, model.config.tokenizer)
    sequence = Sequence(batch_idx, skill, params, prefix=1)
    sequence.batch_idx, sequence.pages, sequence.num_launched = batch_idx, pages, 1
    return sequence


def stage(slot: DecodeSlot, *rows: Sequence, padded_rows: int = 0) -> Any:
    stage_rows(slot, Step(1, 0, "decode", rows, max(padded_rows, len(rows))))
    return slot.step


def test_of_the_same_rows_only_new_pages_and_positions_are_written(slot: DecodeSlot) -> None:
    a, b = resident(1, [5, 6]), resident(2, [7])
    first = stage(slot, a, b).position[:2].tolist()
    slot.step.page_table[:2], slot.step.batch_idx[:2] = UNTOUCHED, UNTOUCHED
    b.pages += [9, 3]
    a.num_launched += 1
    block = stage(slot, a, b)
    assert block.page_table[:2].tolist() == [[UNTOUCHED] * 6, [UNTOUCHED, 9, 3] + [UNTOUCHED] * 3]
    assert block.batch_idx[:2].tolist() == [UNTOUCHED] * 2
    assert block.position[:2].tolist() == [first[0] + 1, first[1]]


def test_a_row_that_went_and_came_back_is_written_anew(slot: DecodeSlot) -> None:
    """Preempted and admitted again with as many pages, but others."""
    sequence = resident(1, [5, 6])
    stage(slot, sequence)
    sequence.batch_idx, sequence.pages = 3, [6, 8]
    block = stage(slot, sequence)
    assert block.batch_idx[0] == 3
    assert block.page_table[0].tolist() == [6, 8] + [NULL_PAGE] * 4


def test_rows_in_another_order_or_number_are_written_anew(slot: DecodeSlot) -> None:
    a, b = resident(1, [5, 6]), resident(2, [7])
    stage(slot, a, b)
    assert stage(slot, b, a).page_table[:2, :2].tolist() == [[7, NULL_PAGE], [5, 6]]
    assert stage(slot, a).batch_idx[0] == 1
    assert slot.num_pages == [2]


def test_rows_that_stand_for_nothing_are_the_null_pages(slot: DecodeSlot) -> None:
    """Also when the same sequence had the slot for itself before, as after its prefill."""
    sequence = resident(1, [5])
    stage(slot, resident(2, [1]), resident(3, [2]), resident(4, [3]))
    stage(slot, sequence)
    block = stage(slot, sequence, padded_rows=3)
    assert block.page_table[:3, 0].tolist() == [5, NULL_PAGE, NULL_PAGE]
    assert block.batch_idx[:3].tolist() == [1, 0, 0]
    assert block.position[1:3].tolist() == [0, 0]


def test_the_slot_knows_how_its_rows_are_sampled(slot: DecodeSlot) -> None:
    greedy, random = resident(1, [1]), resident(2, [2], temperature=0.5)
    random.lora_slot = 3
    stage(slot, greedy)
    assert (slot.is_greedy, slot.has_lora, slot.has_spatial) == (True, False, False)
    drawn = stage(slot, greedy, random).uniform[:2].tolist()
    assert (slot.is_greedy, slot.has_lora) == (False, True)
    assert drawn[0] == 0 < drawn[1] < 1
    random.num_launched += 1
    assert stage(slot, greedy, random).uniform[1] != drawn[1], "each token has a draw of its own"
