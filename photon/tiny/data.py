"""Training data: scenes -> crops, dense labels and packed prompt sequences, as arrays.

Several prompts of one image are packed into one sequence. Each prompt attends to the image prefix and
to itself only, and its positions restart after the prefix, so that it computes what it would alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from random import Random

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image, ImageDraw
from tokenizers import Tokenizer

from photon.model.config import ModelConfig, TokenizerConfig
from photon.model.crops import prepare_crops
from photon.tiny import prompts
from photon.tiny.prompts import Ask
from photon.tiny.scenes import Scene
from photon.tiny.shapes import COLORS, SHAPES, profile

GRID = 8
CELL = 7
RAYS = 24
MAX_THINGS = 10
TEXT, COORD, SIZE = 0, 1, 2
IGNORE = -100

Array = NDArray[np.float32]
Ints = NDArray[np.int64]


@dataclass
class Labels:
    """What a scene's patches show, for the auxiliary losses. Lists are padded to MAX_THINGS.

    kinds (M, 2) shape and colour index, -1 where unused; boxes (M, 4) x, y, w, h; counts (M, 3) how many
    things share shape and colour, shape, colour; following (M + 1, 2) shape and colour of the next kind in
    a caption's order, or (8, 8) for none, in the last row of its first kind; profiles (M, RAYS); owner
    (64,) index of the thing that covers a patch or -1; centre (64,) index of the thing centred in it or -1;
    mask (64, 49) coverage of the patch's 7x7 cells; total is the number of things.
    """

    kinds: Ints
    boxes: Array
    counts: Ints
    following: Ints
    profiles: Array
    owner: Ints
    centre: Ints
    mask: NDArray[np.uint8]
    total: int


@dataclass
class Sample:
    """A prepared scene: crops (N, S, S, 3) uint8 as inference cuts them, and its truth."""

    scene: Scene
    crops: NDArray[np.uint8]
    tiling: tuple[int, int]
    labels: Labels
    embedding: torch.Tensor | None = None


def prepare(scene: Scene, config: ModelConfig, drop_image: bool = True) -> Sample:
    """Crop a scene as inference would, and label it."""
    crops = prepare_crops(scene.image, config.vision)
    kept = Scene(Image.new("RGB", (1, 1)), scene.things) if drop_image else scene
    return Sample(kept, crops.pixels, crops.tiling, label(scene))


def label(scene: Scene) -> Labels:
    """Dense labels of a scene on the 8x8 patch grid of the whole picture."""
    things = scene.things[:MAX_THINGS]
    kinds = np.full((MAX_THINGS, 2), -1, np.int64)
    boxes, counts = np.zeros((MAX_THINGS, 4), np.float32), np.zeros((MAX_THINGS, 3), np.int64)
    profiles = np.zeros((MAX_THINGS, RAYS), np.float32)
    owner, centre = np.full(GRID * GRID, -1, np.int64), np.full(GRID * GRID, -1, np.int64)
    side = GRID * CELL
    board = Image.new("L", (side, side), 0)
    draw = ImageDraw.Draw(board)
    for i, thing in enumerate(things):
        kinds[i] = SHAPES.index(thing.shape), COLORS.index(thing.color)
        boxes[i] = thing.x, thing.y, thing.w, thing.h
        profiles[i] = profile(thing.points - (thing.x, thing.y), RAYS)
        draw.polygon([(float(x) * side - 0.5, float(y) * side - 0.5) for x, y in thing.points], fill=i + 1)
    cells = np.asarray(board).reshape(GRID, CELL, GRID, CELL).transpose(0, 2, 1, 3).reshape(GRID * GRID, -1)
    for i in range(len(things)):
        same = (kinds == kinds[i])[: len(things)]
        counts[i] = same.all(1).sum(), same[:, 0].sum(), same[:, 1].sum()
        cover = (cells == i + 1).sum(1)
        best = np.where(owner >= 0, (cells == owner[:, None] + 1).sum(1), CELL)
        owner[cover > best] = i
    for i, thing in enumerate(things):
        patch = min(GRID - 1, int(thing.y * GRID)) * GRID + min(GRID - 1, int(thing.x * GRID))
        owner[patch] = centre[patch] = i
    return Labels(
        kinds,
        boxes,
        counts,
        _following(kinds[: len(things)]),
        profiles,
        owner,
        centre,
        (cells > 0).astype(np.uint8),
        len(things),
    )


def _following(kinds: Ints) -> Ints:
    """The kind that a caption names after each thing's own, and in the last row the one it begins with."""
    out = np.full((MAX_THINGS + 1, 2), len(SHAPES), np.int64)
    order = sorted({tuple(kind) for kind in kinds.tolist()})
    for i, kind in enumerate([*map(tuple, kinds.tolist()), (-1, -1)]):
        later = [other for other in order if other > kind]
        if later:
            out[i if i < len(kinds) else MAX_THINGS] = later[0]
    return out


@dataclass
class Packed:
    """Prompts of one image in one sequence of T tokens. Targets are IGNORE or negative where unused.

    ids, kind (T,): token id and TEXT, COORD or SIZE; value (T, 2): coordinate in [0], or width, height;
    prompt (T,): number of the prompt, -1 for padding; position (T,): rotary position;
    next_id (T,), weight (T,): target token and loss weight; coord (T,), size (T, 2): targets in 0..1, or -1.
    """

    ids: Ints
    kind: Ints
    value: Array
    prompt: Ints
    position: Ints
    next_id: Ints
    weight: Array
    coord: Array
    size: Array
    used: int = field(default=0)


def empty(length: int) -> Packed:
    """A sequence of `length` padding tokens."""
    return Packed(
        np.zeros(length, np.int64),
        np.zeros(length, np.int64),
        np.zeros((length, 2), np.float32),
        np.full(length, -1, np.int64),
        np.zeros(length, np.int64),
        np.full(length, IGNORE, np.int64),
        np.zeros(length, np.float32),
        np.full(length, -1, np.float32),
        np.full((length, 2), -1, np.float32),
    )


class Encoder:
    """Prompt and answer text to token ids, remembered."""

    def __init__(self, tokenizer: Tokenizer, config: TokenizerConfig) -> None:
        self.config = config
        self.templates = config.templates
        numbers = (*prompts.NUMBERS, "a", "an")
        self.numbers = {tokenizer.encode(mark + word).ids[0] for mark in ("", " ") for word in numbers}
        self.encode = lru_cache(maxsize=20000)(lambda text: tuple(tokenizer.encode(text).ids))

    def prompt_ids(self, ask: Ask) -> list[int]:
        """The whole prompt of an ask, without BOS and image (engine_facts 1.2)."""
        if ask.skill in self.templates["caption"]:
            return list(self.templates["caption"][ask.skill])
        template = self.templates[ask.skill]
        if ask.skill == "query":
            return [*template["prefix"], *self.encode(ask.prompt), *template["suffix"] * 2]
        return [*template["prefix"], *self.encode(" " + ask.prompt), *template["suffix"]]


def length_of(ask: Ask, encoder: Encoder) -> int:
    """Tokens that `put` needs for an ask."""
    prompt = len(encoder.prompt_ids(ask))
    if ask.skill in ("point", "detect"):
        return prompt + len(ask.things) * (2 if ask.skill == "point" else 3)
    return prompt + len(encoder.encode(ask.text))


def put(row: Packed, ask: Ask, number: int, encoder: Encoder, prefix: int, rng: Random | None) -> bool:
    """Append an ask and its answer; False where it does not fit. `rng` adds noise to fed-back values.

    At the last prompt token and after each object the model decides between another object (coord id)
    and the end; there and at the coordinates it also reads values off the same hidden state.
    """
    total = length_of(ask, encoder)
    start, tokens = row.used, encoder.prompt_ids(ask)
    if start + total > len(row.ids):
        return False
    here = slice(start, start + total)
    row.prompt[here] = number
    row.position[here] = prefix + np.arange(total)
    row.ids[start : start + len(tokens)] = tokens
    at = start + len(tokens) - 1
    if ask.skill in ("point", "detect"):
        _put_things(row, ask, at, encoder.config, rng)
    else:
        _put_text(row, ask, at, encoder)
    row.used += total
    return True


def _put_text(row: Packed, ask: Ask, at: int, encoder: Encoder) -> None:
    answer = encoder.encode(ask.text)
    row.ids[at + 1 : at + 1 + len(answer)] = answer
    row.next_id[at : at + 1 + len(answer)] = (*answer, encoder.config.eos_id)
    heavy = [ask.topic == "count" or token in encoder.numbers for token in answer]
    row.weight[at : at + 1 + len(answer)] = [*(2.0 if h else 1.0 for h in heavy), 1.0]


def _put_things(row: Packed, ask: Ask, at: int, config: TokenizerConfig, rng: Random | None) -> None:
    def fed(value: float, sigma: float) -> float:
        return value if rng is None else min(0.999, max(0.0, value + rng.gauss(0, sigma)))

    for thing in ask.things:
        row.next_id[at], row.weight[at], row.coord[at] = config.coord_id, 1.0, thing.x
        row.ids[at + 1], row.kind[at + 1], row.value[at + 1, 0] = config.coord_id, COORD, fed(thing.x, 0.006)
        row.coord[at + 1] = thing.y
        row.ids[at + 2], row.kind[at + 2], row.value[at + 2, 0] = config.coord_id, COORD, fed(thing.y, 0.006)
        at += 2
        if ask.skill == "detect":
            row.size[at] = thing.w, thing.h
            at += 1
            row.ids[at], row.kind[at] = config.size_id, SIZE
            row.value[at] = fed(thing.w, 0.03 * thing.w), fed(thing.h, 0.03 * thing.h)
    row.next_id[at], row.weight[at] = config.eos_id, 1.0 if ask.things else 2.0


MIX = (
    (prompts.ask_count, 0.19),
    (prompts.ask_color, 0.07),
    (prompts.ask_shape, 0.07),
    (prompts.ask_exists, 0.06),
    (prompts.ask_caption, 0.2),
)


def pack(rng: Random, scene: Scene, shape: tuple[int, int], encoder: Encoder, prefix: int) -> list[Packed]:
    """Fill rows of (rows, tokens) with random prompts about a scene."""
    rows = [empty(shape[1]) for _ in range(shape[0])]
    number, misses = 0, 0
    asks, weights = [m[0] for m in MIX], [m[1] for m in MIX]
    while misses < 3:
        if rng.random() < sum(weights):
            ask = rng.choices(asks, weights)[0](rng, scene)
        else:
            ask = prompts.ask_where(rng, scene, "point" if rng.random() < 0.55 else "detect")
        if any(put(row, ask, number, encoder, prefix, rng) for row in rows):
            number += 1
        else:
            misses += 1
    return rows


def stack(rows: Sequence[Packed]) -> dict[str, np.ndarray]:
    """Rows of a batch as arrays with a leading batch axis."""
    names = ("ids", "kind", "value", "prompt", "position", "next_id", "weight", "coord", "size")
    return {name: np.stack([getattr(row, name) for row in rows]) for name in names}


def stack_labels(rows: Sequence[Labels]) -> dict[str, np.ndarray]:
    """Labels of a batch as arrays with a leading batch axis."""
    names = ("kinds", "boxes", "counts", "following", "profiles", "owner", "centre", "mask", "total")
    return {name: np.stack([getattr(row, name) for row in rows]) for name in names}
