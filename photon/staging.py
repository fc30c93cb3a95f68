"""Staging: write a step's rows into its slot's host blocks. Plain array writes, no device.

I15: everything a step needs is copied here at launch or sample; the device never reads a sequence.
"""

from __future__ import annotations

from photon.pages import NULL_PAGE
from photon.pipeline import Step
from photon.sequence import Sequence, uniform
from photon.skills.base import Mask
from photon.slot import DecodeSlot


def stage_rows(slot: DecodeSlot, step: Step) -> None:
    """The step block: where each row reads and writes, and how it samples its next token."""
    block, rows, padded = slot.step, step.rows, step.padded_rows
    count = len(rows)
    block.batch_idx[:count] = [sequence.batch_idx for sequence in rows]
    block.position[:count] = [sequence.next_position for sequence in rows]
    block.lora_slot[:count] = [sequence.lora_slot for sequence in rows]
    block.temperature[:count] = [sequence.params.temperature for sequence in rows]
    block.top_p[:count] = [sequence.params.top_p for sequence in rows]
    block.uniform[:count] = [_draw(sequence) for sequence in rows]
    for row, sequence in enumerate(rows):
        pages = sequence.pages
        block.page_table[row, : len(pages)] = pages
        block.page_table[row, len(pages) :] = NULL_PAGE
    if padded > count:
        _stage_padding(slot, count, padded)


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


def stage_prefill(slot: DecodeSlot, step: Step) -> int:
    """The prompt block; returns the padded prompt length all rows share."""
    prompt, block = slot.prompt, slot.step
    lists = [sequence.prefill_tokens for sequence in step.rows]
    length = max(map(len, lists))
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
