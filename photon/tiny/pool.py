"""A changing pool of prepared scenes per training process, a function of (seed, rank, stage, step) alone.

Drawing a scene costs about as much as learning from it, so each one is used a few times: every step adds
some fresh scenes, drops the oldest and draws its batch from what is there.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, replace
from random import Random

import torch
from torch import Tensor

from photon.model.config import ModelConfig
from photon.model.moondream import Moondream
from photon.tiny.data import Encoder, Sample, pack, prepare, stack, stack_labels
from photon.tiny.forward import embed
from photon.tiny.scenes import Style, draw_scene

SINGLE = Style()
"""Scenes of one crop."""
MULTI = Style(short_side=(130, 330), min_radius=0.055)
"""Scenes of four to eight crops besides the whole view."""


@dataclass(frozen=True)
class Supply:
    """Per step of all processes: scenes in a batch, scenes drawn anew, and how many the pools keep."""

    singles: int
    multis: int
    fresh_singles: float
    fresh_multis: float
    keep_singles: int = 2000
    keep_multis: int = 500
    crowded: float = 0.0
    """Share of scenes with four to nine things of free kinds."""
    alike: float = 0.0
    """Share of the crowded scenes that hold circles and hexagons only, the hardest to tell apart."""

    def share(self, processes: int) -> Supply:
        """What one of `processes` draws."""
        return Supply(
            max(1, self.singles // processes),
            max(1, self.multis // processes),
            self.fresh_singles / processes,
            self.fresh_multis / processes,
            max(1, self.keep_singles // processes),
            max(1, self.keep_multis // processes),
            self.crowded,
            self.alike,
        )


class Pool:
    """Scenes of one group, oldest first."""

    def __init__(
        self, config: ModelConfig, key: str, style: Style, supply: Supply, *, size: int, fresh: float
    ) -> None:
        self.config, self.key, self.style = config, key, style
        self.size, self.fresh = size, fresh
        self.crowded, self.alike = supply.crowded, supply.alike
        self.samples: deque[Sample] = deque(maxlen=size)
        self.made = -1

    def advance(self, step: int) -> None:
        """Hold exactly the scenes that belong to this step."""
        until = self.size + int(step * self.fresh)
        self.made = max(self.made, until - self.size)
        for index in range(self.made, until):
            self.samples.append(self._make(index))
        self.made = until

    def _make(self, index: int) -> Sample:
        rng = Random(f"{self.key}/{index}")
        style = self.style
        if rng.random() < self.crowded:
            style = replace(style, min_things=4, max_things=9, palettes=False)
            if rng.random() < self.alike:
                style = replace(style, shapes=("circle", "hexagon"))
        elif rng.random() < 0.25:
            style = replace(style, min_things=4, max_things=7)
        elif rng.random() < 0.09:
            style = replace(style, max_things=2, min_radius=0.22, max_radius=0.46)
        elif self.style is MULTI and rng.random() < 0.09:
            style = replace(style, min_radius=0.035, max_radius=0.09)
        return prepare(draw_scene(rng.getrandbits(60), style), self.config)


class Source:
    """Batches of one training process in one stage."""

    def __init__(self, config: ModelConfig, encoder: Encoder, supply: Supply, key: str) -> None:
        self.config, self.encoder, self.supply, self.key = config, encoder, supply, key
        few, many = (supply.keep_singles, supply.fresh_singles), (supply.keep_multis, supply.fresh_multis)
        self.singles = Pool(config, f"{key}/single", SINGLE, supply, size=few[0], fresh=few[1])
        self.multis = Pool(config, f"{key}/multi", MULTI, supply, size=many[0], fresh=many[1])

    def draw(self, step: int) -> list[Sample]:
        """The scenes of one step."""
        self.singles.advance(step)
        self.multis.advance(step)
        rng = Random(f"{self.key}/{step}")
        return rng.sample(list(self.singles.samples), self.supply.singles) + rng.sample(
            list(self.multis.samples), self.supply.multis
        )

    def prompts(self, step: int, samples: list[Sample], shape: tuple[int, int]) -> dict[str, Tensor]:
        """Random prompts about the scenes, packed to (B * rows, tokens) for a shape (rows, tokens)."""
        rng = Random(f"{self.key}/{step}/prompts")
        prefix = self.config.text.prefix_attn
        packed = [row for s in samples for row in pack(rng, s.scene, shape, self.encoder, prefix)]
        return tensors(stack(packed))


def tensors(arrays: dict) -> dict[str, Tensor]:
    return {name: torch.from_numpy(array) for name, array in arrays.items()}


def labels(samples: list[Sample]) -> dict[str, Tensor]:
    """Dense labels of a batch."""
    return tensors(stack_labels([s.labels for s in samples]))


def crops(samples: list[Sample]) -> tuple[Tensor, list[tuple[int, int]]]:
    """All crops of a batch (N, S, S, 3), one image after the other, and the tilings."""
    return torch.cat([torch.from_numpy(s.crops) for s in samples]), [s.tiling for s in samples]


def frozen_embeddings(model: Moondream, samples: list[Sample]) -> Tensor:
    """Image embeddings (B, 64, D) from an encoder that does not change, computed once per scene.

    Each scene goes through alone, so that its embedding does not depend on its company.
    """
    for sample in samples:
        if sample.embedding is None:
            with torch.no_grad():
                sample.embedding = embed(model.vision, *crops([sample]))[0][0].bfloat16()
    return torch.stack([s.embedding for s in samples if s.embedding is not None])
