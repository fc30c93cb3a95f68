"""How the rows of a decode step attend to what their pages hold: two ways, and which of them can be used.

    gather   on any device: rotate, write the new key and value, copy the rows' pages together, attend
    kernel   on CUDA, where Triton works: all of it in two launches a layer (`decode_kernel.py`)

Attention in 16 bits is rounded differently by the two, as by any two kernels.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from typing import Protocol

import torch
from torch import Tensor
from torch.nn import functional as F

from photon.kv_cache import PagedKVCache
from photon.model.layers import rotate, split_heads
from photon.model.text import Attend

log = logging.getLogger(__name__)

TOLERANCE = 0.05
"""How far the two may be apart in a trial, with values of deviation 1: more than bfloat16 rounds away."""
TRIAL_POSITIONS = 200
"""Of the later row in a trial: some splits of the kernel, the last one in part."""


class DecodeAttention(Protocol):
    """One way. Built once, called once a step."""

    name: str

    def __call__(self, position: Tensor, table: Tensor) -> Callable[[Tensor], Attend]:
        """The step's positions (B,) and page table (B, P), both int64 -> by a layer's pages, its attention.

        That takes q, k, v (B, H, 1, K), not rotated; writes key and value at each row's position; and attends
        to all up to it.
        """


class GatherAttention:
    """The way that every device has.

    Args:
        turns: rotary table (max_context, rotary).
    """

    name = "gather"

    def __init__(self, cache: PagedKVCache, turns: Tensor) -> None:
        self._cache = cache
        self._turns = turns

    def __call__(self, position: Tensor, table: Tensor) -> Callable[[Tensor], Attend]:
        at = position[:, None]
        slots = self._cache.slots(table, at)
        key_positions = torch.arange(table.shape[1] * self._cache.page_size, device=table.device)
        bias = torch.zeros(1, dtype=self._turns.dtype, device=table.device)
        bias = bias.masked_fill(key_positions > at, -torch.inf)[:, None, None]  # (B, 1, 1, L)
        bias = bias.to(self._cache.layers[0].dtype)
        turns = self._turns[at][:, None]  # (B, 1, 1, rotary)

        def attend(layer: Tensor) -> Attend:
            def attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
                q, k = rotate(torch.stack((q, k)), turns)
                self._cache.write(layer, slots, k, v)
                keys, values = self._cache.read(layer, table)
                return F.scaled_dot_product_attention(q, keys, values, attn_mask=bias)

            return attention

        return attend


def choose_attention(cache: PagedKVCache, turns: Tensor) -> DecodeAttention:
    """The kernel on CUDA, if it works there; else the gather way. Blocks: compiles it and tries it."""
    gather = GatherAttention(cache, turns)
    if turns.device.type != "cuda":
        return gather

    def kernel() -> DecodeAttention:
        from photon.decode_kernel import KernelAttention  # here: only CUDA builds bring Triton

        return KernelAttention(cache, turns)

    return proven(kernel, gather, cache, turns)


def proven(
    build: Callable[[], DecodeAttention], gather: DecodeAttention, cache: PagedKVCache, turns: Tensor
) -> DecodeAttention:
    """What `build` gives, if in a trial it does what `gather` does; else `gather`, and one warning why.

    No Triton, no C compiler for its launcher, a card that its compiler doesn't know: whatever it is.
    """
    try:
        built = build()
        apart = _apart((built, gather), cache, turns)
        if apart <= TOLERANCE:
            return built
        cause = f"its results are {apart:.2g} off"
    except Exception as error:
        cause = f"{type(error).__name__}: {error}"
    log.warning("Decoding copies KV pages, which takes longer, as its kernel can't be used: %s", cause)
    return gather


def _apart(ways: tuple[DecodeAttention, ...], cache: PagedKVCache, turns: Tensor) -> float:
    """Largest difference between what two ways compute and write, for a first and a later position."""
    shape = cache.layers[0].shape  # (pages, page_size, 2, H, K)
    generator = torch.Generator(turns.device).manual_seed(0)
    random = partial(torch.randn, generator=generator, dtype=cache.layers[0].dtype, device=turns.device)
    length = min(TRIAL_POSITIONS, len(turns))
    table = 1 + torch.arange(2 * -(-length // cache.page_size)).view(2, -1)
    pages = random(1 + table.numel(), *shape[1:])
    heads = split_heads(random(2, 1, 3 * shape[-2] * shape[-1]), shape[-2])
    position = torch.tensor([0, length - 1])
    found = []
    for way in ways:
        layer = pages.clone()
        attend = way(position.to(turns.device), table.to(turns.device))
        found.append(torch.cat((attend(layer)(*heads).flatten(), layer.flatten())).float())
    return float((found[0] - found[1]).abs().max())
