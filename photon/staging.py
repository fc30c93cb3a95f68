"""Staging: write a step's rows into its slot's host blocks. Plain array writes, no device.

I15: everything a step needs is copied here at launch or sample; the device never reads a sequence.
"""

from __future__ import annotations

from operator import is_

from photon.buckets import Buckets
from photon.pages import NULL_PAGE
from photon.pipeline import Step
from photon.sequence import Sequence, uniform
from photon.skills.base import Mask
from photon.slot import DecodeSlot


def stage_rows(slot: DecodeSlot, step: Step) -> None:
    """The step block: where each row reads and writes, and how it samples its next token.

    What stays while a sequence is resident is written when the slot's rows change; a row of the page table,
    when it has grown.
    """
    block, rows, count = slot.step, step.rows, len(step.rows)
    tables = [sequence.pages for sequence in rows]
    shape = (len(slot.tables), slot.padded_rows)
    if shape != (count, step.padded_rows) or not all(map(is_, slot.tables, tables)):
        slot.tables, slot.num_pages, slot.padded_rows = tables, [0] * count, step.padded_rows
        _stage_members(slot, rows)
    block.position[:count] = [sequence.next_position for sequence in rows]
    if not slot.is_greedy:
        block.uniform[:count] = [_draw(sequence) for sequence in rows]
    num_pages = list(map(len, tables))
    if num_pages != slot.num_pages:
        for row in [row for row in range(count) if num_pages[row] != slot.num_pages[row]]:
            block.page_table[row, slot.num_pages[row] : num_pages[row]] = tables[row][slot.num_pages[row] :]
        slot.num_pages = num_pages


def _stage_members(slot: DecodeSlot, rows: tuple[Sequence, ...]) -> None:
    """Who is in the step, and all of it that does not change from step to step."""
    block, count = slot.step, len(rows)
    slot.request_ids = [sequence.request_id for sequence in rows]
    slot.lora_slots = [sequence.lora_slot for sequence in rows]
    block.batch_idx[:count] = [sequence.batch_idx for sequence in rows]
    block.lora_slot[:count] = slot.lora_slots
    block.temperature[:count] = [sequence.params.temperature for sequence in rows]
    block.top_p[:count] = [sequence.params.top_p for sequence in rows]
    block.uniform[:count] = 0
    block.page_table[:count] = NULL_PAGE
    if slot.padded_rows > count:
        _stage_padding(slot, count, slot.padded_rows)
    slot.is_greedy = not block.temperature[:count].any()
    slot.has_lora = any(slot.lora_slots)
    slot.has_spatial = any(sequence.skill.is_spatial for sequence in rows)


def _draw(sequence: Sequence) -> float:
    """The random number of the token this step samples: its index is what has been launched before."""
    if sequence.params.temperature == 0:
        return 0.0
    return uniform(sequence.params.seed, sequence.num_launched)


def _stage_padding(slot: DecodeSlot, first: int, end: int) -> None:
    """Rows that stand for nothing: batch_idx 0, position 0 of the null page, lora_slot 0."""
    block = slot.step
    for field in (block.batch_idx, block.position, block.lora_slot, block.temperature, block.uniform):
        field[first:end] = 0
    block.top_p[first:end] = 1.0
    block.page_table[first:end] = NULL_PAGE


def stage_prefill(slot: DecodeSlot, step: Step, buckets: Buckets) -> int:
    """The prompt block; returns the padded prompt length all rows share."""
    prompt, block = slot.prompt, slot.step
    lists = [sequence.prefill_tokens for sequence in step.rows]
    length = buckets.prompt(max(map(len, lists)), len(lists))
    count = len(lists) * length
    assert count <= slot.shapes.prompt_tokens, "I8: the prefill is larger than its staging block"
    ids, xs, ys = (field[:count].reshape(len(lists), length) for field in (prompt.token, prompt.x, prompt.y))
    ids[:], xs[:], ys[:] = 0, 0, 0
    for row, tokens in enumerate(lists):
        ids[row, : len(tokens)] = [token.id for token in tokens]
        xs[row, : len(tokens)] = [token.x for token in tokens]
        ys[row, : len(tokens)] = [token.y for token in tokens]
        block.last_index[row] = step.rows[row].prefix + len(tokens) - 1
        block.tail_page[row] = step.rows[row].tail_page
    return length


def stage_images(slot: DecodeSlot, step: Step) -> list[Sequence]:
    """The crops block, and which image each row reads; returns one sequence per image.

    Rows that ask about the same `EncodedImage` share its pixels, and the encoder runs once for all of them.
    """
    images: dict[int, Sequence] = {}
    for row, sequence in enumerate(step.rows):
        images.setdefault(id(sequence.pixels), sequence)
        slot.step.image_row[row] = list(images).index(id(sequence.pixels))
    start = 0
    for sequence in images.values():
        slot.crops.pixels[start : start + len(sequence.pixels)] = sequence.pixels
        start += len(sequence.pixels)
    return list(images.values())


def stage_masks(slot: DecodeSlot, masks: list[Mask]) -> None:
    """The masks block: each row's mask index, in row order, padding rows included."""
    slot.masks.mask[: len(masks)] = masks
