"""A model that follows a script: answers of given lengths, no weights, no arithmetic but comparisons.

The prompt says how long the answer is to be ("97"), and the end token comes as its last token, sampled on
the device's side like any other. So a scheduler meets what it would meet with a real model: it learns of
the end at the commit, and a step launched before that carries a zombie. What is said between is the first
token that the row's mask allows, with some value where it is a coordinate or a size.

Shapes and ids are Moondream 2's. Only a crop is smaller, a pixel to a patch, so that pictures cost nothing.
Runs where it is put instead of the model's own runner: SimulatedDevice(cost, build_scripted).
"""

from __future__ import annotations

import random
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from photon.model.config import ModelConfig, TokenizerConfig, VisionConfig
from photon.model.weights import Checkpoint, Model

FIRST_LENGTH = 40_000
"""The id of length n is FIRST_LENGTH + n, above all ids of the templates."""
WORD = 99
MAX_LENGTH = 1_280


class ScriptedTokenizer:
    """A number in the prompt becomes the token of that length; every answer token is one word."""

    vocab_size = FIRST_LENGTH + MAX_LENGTH + 1

    def encode(self, text: str) -> list[int]:
        """Raises ValueError unless the text is a number."""
        return [FIRST_LENGTH + int(text)]

    def decode(self, ids: Iterable[int]) -> str:
        return b"".join(map(self.token_bytes, ids)).decode()

    def token_bytes(self, token_id: int) -> bytes:
        return b" word" if token_id == WORD else b""


def scripted_model() -> Model:
    """Moondream 2 as the engine sees it. The checkpoint is not there, and nobody opens it."""
    config = ModelConfig(
        vision=VisionConfig(enc_patch_size=1, crop_size=27), name="scripted answers in Moondream 2's shapes"
    )
    tokenizer: Any = ScriptedTokenizer()
    return Model(config, tokenizer, Checkpoint(Path("scripted"), config), Path("scripted"))


def lengths(count: int, mean: int, seed: int) -> list[int]:
    """Answer lengths, end token included: evenly from 3/4 to 5/4 of the mean, in an order of the seed's."""
    spread = [max(1, round(mean * (0.75 + 0.5 * (i + 0.5) / count))) for i in range(count)]
    random.Random(seed).shuffle(spread)
    return spread


def build_scripted(spec: Any) -> ScriptedRunner:
    """A runner in place of `spec.build(...)`; spec: ModelRunnerSpec."""
    return ScriptedRunner(spec)


class ScriptedRunner:
    """The programs of `photon/runner.py` that a step without adapters needs, over the same host blocks."""

    def __init__(self, spec: Any) -> None:
        self._ids: TokenizerConfig = spec.checkpoint.config.tokenizer
        self._prefix_attn = spec.checkpoint.config.text.prefix_attn
        self._slots = [
            {group: _arrays(spec.shapes.views(group, block)) for group, block in blocks.items()}
            for blocks in spec.host_blocks
        ]
        choices = [_choices(mask.allowed, mask.suppressed, self._ids) for mask in spec.masks]
        self._going, self._ending = np.array(choices).T
        self._ends = np.zeros(spec.num_rows, np.int64)
        """Per batch_idx, the position whose forward yields the end token."""
        self._pending: dict[int, np.ndarray] = {}

    def upload(self, slot: int, is_prefill: bool) -> None:
        """Nothing to move: host and device are one."""

    def upload_masks(self, slot: int) -> None:
        """Nothing to move."""

    def vision(self, slot: int, num_crops: int) -> None:
        """Nothing to see."""

    def project(self, slot: int, tilings: tuple[tuple[int, int], ...]) -> None:
        """Nothing was seen."""

    def prefill(self, slot: int, rows: int, length: int, has_image: bool, has_lora: bool) -> None:
        """Read from each row's prompt how long its answer is to be."""
        prompts = self._slots[slot]["prompt"]["token"][: rows * length].reshape(rows, length)
        prefix = self._prefix_attn if has_image else 1
        for batch_idx, ids in zip(self._slots[slot]["step"]["batch_idx"][:rows], prompts, strict=True):
            at = int(np.argmax(ids >= FIRST_LENGTH))
            last = at + int(np.argmin(np.append(np.isin(ids[at + 1 :], self._template_end), False)))
            self._ends[batch_idx] = prefix + last + int(ids[at]) - FIRST_LENGTH - 1

    def prefill_cached(self, slot: int, rows: int, length: int, pages: int, has_lora: bool) -> None:
        """As `prefill`: there is nothing to copy."""
        self.prefill(slot, rows, length, True, has_lora)

    @property
    def _template_end(self) -> list[int]:
        """What a template puts behind the prompt."""
        return [self._ids.answer_id, self._ids.thinking_id]

    def decode(self, slot: int, rows: int, pages: int, has_spatial: bool, has_lora: bool) -> None:
        """All that counts are the positions, which `sample` reads."""

    def sample(self, slot: int, rows: int, is_greedy: bool, has_spatial: bool) -> None:
        """The end token where a row has come to its end and its mask allows it, else any other."""
        step, masks = self._slots[slot]["step"], self._slots[slot]["masks"]["mask"][:rows]
        is_end = step["position"][:rows] >= self._ends[step["batch_idx"][:rows]]
        self._pending[slot] = np.where(is_end, self._ending[masks], self._going[masks])

    def fetch(self, slot: int) -> None:
        """Hand over the ids; values lie on a fixed grid over the picture."""
        results, ids = self._slots[slot]["results"], self._pending[slot]
        position = self._slots[slot]["step"]["position"][: len(ids)]
        results["token"][: len(ids)] = ids
        results["coord"][: len(ids), 0] = position % 9 / 10 + 0.1
        results["size"][: len(ids)] = 0.1


def _arrays(views: Any) -> dict[str, np.ndarray]:
    """A group's tensors as numpy arrays over the same bytes."""
    return {name: tensor.numpy() for name, tensor in vars(views).items()}


def _choices(
    allowed: tuple[int, ...] | None, suppressed: tuple[int, ...], ids: TokenizerConfig
) -> tuple[int, int]:
    """(the token to say under this mask, the one to end with where that is allowed)."""
    going = next((i for i in allowed or (WORD,) if i != ids.eos_id), ids.eos_id)
    may_end = ids.eos_id not in suppressed if allowed is None else ids.eos_id in allowed
    return going, ids.eos_id if may_end else going
