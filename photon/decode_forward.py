"""DecodeForward: one token of every row through the decoder, as a function of tensors alone.

Everything that changes between steps is an argument (rows, positions, page table, pending tokens, KV
pages); everything else is a constant. So the function can be recorded once and replayed for any number
of rows and pages: on a CPU by `torch.jit.trace`, which takes Python out of the step (measured on one core
with the embedded model's sizes: 1.7 -> 1.0 ms at 1 row, 3.2 -> 2.3 ms at 8, bit for bit the same), on
CUDA by a graph around the program that calls it.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable

import torch
from torch import Tensor

from photon.decode_attention import DecodeAttention
from photon.lora import LoraBuffers
from photon.model.moondream import Moondream


class DecodeForward:
    """Called with the arguments of `run`; `recorded` returns the replayable twin.

    Args:
        attention: how a row attends to its pages.
        has_spatial: the pending token may be a coordinate or a size.
    """

    def __init__(self, model: Moondream, attention: DecodeAttention, *, has_spatial: bool) -> None:
        self._model = model
        self._attention = attention
        self._has_spatial = has_spatial

    def run(
        self,
        batch_idx: Tensor,
        position: Tensor,
        table: Tensor,
        token: Tensor,
        coord: Tensor,
        size: Tensor,
        *layers: Tensor,
        lora: LoraBuffers | None = None,
        lora_slot: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Gather the pending tokens, write one KV position per row, attend to all before it.

        batch_idx, position (B,); table (B, P) page numbers; token (R,), coord (R, 1), size (R, 2) pending
        per batch_idx; layers: the cache's tensors. Returns raw hidden (B, D) and logits (B, V).
        """
        attend = self._attention(position, table)
        x = self._pending(token[batch_idx], coord[batch_idx], size[batch_idx])
        for index, (block, layer) in enumerate(zip(self._model.text.blocks, layers, strict=True)):
            delta = None if lora is None or lora_slot is None else lora.delta(index, lora_slot)
            x = block(x, attend(layer), delta)
        hidden = x[:, 0]
        return hidden, self._model.text.logits(hidden)

    def recorded(self, *example: Tensor) -> Callable[..., tuple[Tensor, Tensor]]:
        """`run` without adapters as a replayable program, valid for any number of rows and pages.

        `example` has at least two rows and pages (a size of 1 would be taken for a broadcast), and its KV
        positions are written. The executor's own re-specialisation is off: it would stall the first steps.
        TorchScript keeps what it has recorded, some 4 MB, until the process ends; on the cpu device that is
        the worker's end.
        """
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch.jit is deprecated in favour of compilers we can't ship
            traced = torch.jit.trace(self.run, example, check_trace=False)

        def replay(*args: Tensor) -> tuple[Tensor, Tensor]:
            with torch.jit.optimized_execution(False):
                return traced(*args)

        return replay

    def _pending(self, ids: Tensor, coord: Tensor, size: Tensor) -> Tensor:
        """(B,) ids with their values -> (B, 1, D)."""
        if not self._has_spatial:
            return self._model.text.embed(ids[:, None])
        return typed_embeddings(self._model, ids[:, None], coord[:, None], size[:, None])


def typed_embeddings(model: Moondream, ids: Tensor, coord: Tensor, size: Tensor) -> Tensor:
    """Text embeddings (B, T, D), replaced where the token is a coordinate (B, T, 1) or a size (B, T, 2)."""
    region, special = model.region, model.config.tokenizer
    x = model.text.embed(ids)
    x = torch.where((ids == special.coord_id)[..., None], region.encode_coord(coord).to(x.dtype), x)
    return torch.where((ids == special.size_id)[..., None], region.encode_size(size).to(x.dtype), x)
