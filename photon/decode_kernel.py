"""KernelAttention: a decode step's attention in two launches a layer, on CUDA, straight from the pages.

    partial   a program per head, split of positions and row: rotate the query, attend to the split; the one
              whose split holds the row's own position rotates and writes the new key and value as well
    combine   a program per head and row: weigh the splits by their sums of exponentials

Does what `GatherAttention` does in some twenty launches, and copies no page. A split is a fixed range of
positions and the splits are combined in one order, so a row's result depends on that row alone: not on its
company, nor on how many pages the table has room for. Programs behind the row's position leave at once. In
one launch nothing reads what it writes: a row's own key and value are taken from the program's registers,
rounded as the cache holds them.

Triton comes with torch's CUDA builds; this is the only module that imports it, and `decode_attention.py`
the only one that imports this. Flash-decoding, as in https://crfm.stanford.edu/2023/10/12/flashdecoding.html
"""

from __future__ import annotations

from collections.abc import Callable

import triton
import triton.language as tl
from torch import Tensor

from photon.kv_cache import PagedKVCache
from photon.model.text import Attend

SPLIT, NUM_WARPS = 64, 2
"""Positions that a program attends to, held in registers at once; a power of two. And its warps.

Measured on an H200 with Moondream 2's shapes in bfloat16, positions 750 to 1000, of 64 to 256 and 2 to 8; in
microseconds a layer at 1 / 8 / 32 rows: 7.0 / 22 / 69. The gather way 43 / 95 / 254; reading at 4.2 TB/s
1.7 / 14 / 56."""


class KernelAttention:
    """See `decode_attention.DecodeAttention`. Any head width, rotary width and page size.

    Args:
        turns: rotary table (max_context, rotary), float32.
        split, num_warps: SPLIT and NUM_WARPS, for measuring others.
    """

    name = "kernel"

    def __init__(
        self, cache: PagedKVCache, turns: Tensor, *, split: int = SPLIT, num_warps: int = NUM_WARPS
    ) -> None:
        self._cache = cache
        self._turns = turns
        self._split, self._num_warps = split, num_warps
        width = cache.layers[0].shape[-1]
        self._sizes = {"WIDTH": width, "BLOCK": triton.next_power_of_2(width), "SPLIT": split}
        self._max_splits = triton.next_power_of_2(triton.cdiv(turns.shape[0], split))

    def __call__(self, position: Tensor, table: Tensor) -> Callable[[Tensor], Attend]:
        """See `DecodeAttention`. Scratch memory is the step's: layers follow each other on one stream."""
        heads, width = self._cache.layers[0].shape[-2:]
        num_splits = triton.cdiv(table.shape[1] * self._cache.page_size, self._split)
        parts = self._turns.new_empty(len(position), heads, num_splits, width)
        sums = self._turns.new_empty(len(position), heads, num_splits)

        def attend(layer: Tensor) -> Attend:
            def attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
                assert q.stride() == k.stride() == v.stride(), "q, k and v are views of one tensor"
                out = q.new_empty(len(position), 1, heads, width)
                _partial[(heads, num_splits, len(position))](
                    *(q, k, v, self._turns, layer, table, position, parts, sums),
                    *(q.stride(0), q.stride(1), table.stride(0)),
                    ROTARY=self._turns.shape[1],
                    PAGE=self._cache.page_size,
                    num_warps=self._num_warps,
                    **self._sizes,
                )
                _combine[(heads, len(position))](
                    *(parts, sums, position, out, num_splits),
                    MAX_SPLITS=self._max_splits,
                    num_warps=1,
                    **self._sizes,
                )
                return out.transpose(1, 2)

            return attention

        return attend


@triton.jit
def _rotated(
    vector: tl.tensor, turn: tl.tensor, dim: tl.tensor, WIDTH: tl.constexpr, ROTARY: tl.constexpr
) -> tl.tensor:
    """A head's query or key, float32, as `layers.rotate` turns it by the row of turns at `turn`."""
    HALF: tl.constexpr = ROTARY // 2
    is_turned, is_first = dim < ROTARY, dim < HALF
    cos = tl.load(turn + dim % HALF, mask=is_turned, other=1.0)
    sin = tl.load(turn + HALF + dim % HALF, mask=is_turned, other=0.0)
    partner = tl.where(is_first, dim + HALF, dim - HALF)
    straight = tl.load(vector + dim, mask=dim < WIDTH, other=0.0).to(tl.float32)
    crossed = tl.load(vector + partner, mask=is_turned, other=0.0).to(tl.float32)
    return straight * cos + crossed * tl.where(is_first, -sin, sin)


@triton.jit(do_not_specialize=["stride_table"])  # one program for tables of any width
def _partial(
    q: tl.tensor,
    k: tl.tensor,
    v: tl.tensor,
    turns: tl.tensor,
    layer: tl.tensor,
    table: tl.tensor,
    position: tl.tensor,
    parts: tl.tensor,
    sums: tl.tensor,
    stride_row: tl.tensor,
    stride_head: tl.tensor,
    stride_table: tl.tensor,
    WIDTH: tl.constexpr,
    ROTARY: tl.constexpr,
    PAGE: tl.constexpr,
    SPLIT: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    """One head, split and row: attention over the split, and the logarithm of its sum of exponentials."""
    head, split, row = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    num_heads, num_splits = tl.num_programs(0), tl.num_programs(1)
    own, first = tl.load(position + row), split * SPLIT
    if first > own:
        return
    dim, at = tl.arange(0, BLOCK), first + tl.arange(0, SPLIT)
    is_dim, is_past, is_own = dim < WIDTH, at < own, at == own

    # Keys and values of the past. Offsets into the pages exceed 32 bits; the table's int64 carries over.
    page = tl.load(table + row * stride_table + at // PAGE, mask=is_past, other=0)
    entry = (page * PAGE + at % PAGE) * (2 * num_heads * WIDTH) + head * WIDTH  # (SPLIT,)
    past = layer + entry[:, None] + dim[None, :]
    is_read = is_past[:, None] & is_dim[None, :]
    keys = tl.load(past, mask=is_read, other=0.0)
    values = tl.load(past + num_heads * WIDTH, mask=is_read, other=0.0)

    # The row's own query, key and value, rounded as the cache holds them.
    dtype = layer.dtype.element_ty
    base, turn = row * stride_row + head * stride_head, turns + own * ROTARY
    query = _rotated(q + base, turn, dim, WIDTH, ROTARY).to(dtype).to(tl.float32)
    key = _rotated(k + base, turn, dim, WIDTH, ROTARY).to(dtype)
    value = tl.load(v + base + dim, mask=is_dim, other=0.0).to(dtype)

    if own < first + SPLIT:
        own_page = tl.load(table + row * stride_table + own // PAGE)
        target = layer + (own_page * PAGE + own % PAGE) * (2 * num_heads * WIDTH) + head * WIDTH + dim
        tl.store(target, key, mask=is_dim)
        tl.store(target + num_heads * WIDTH, value, mask=is_dim)

    keys = tl.where(is_own[:, None], key[None, :], keys).to(tl.float32)
    values = tl.where(is_own[:, None], value[None, :], values).to(tl.float32)
    scores = tl.sum(query[None, :] * keys, axis=1) * (WIDTH**-0.5)
    scores = tl.where(at <= own, scores, float("-inf"))
    largest = tl.max(scores, axis=0)
    weights = tl.exp(scores - largest)
    total = tl.sum(weights, axis=0)
    part = tl.sum(weights[:, None] * values, axis=0) / total
    index = (row * num_heads + head) * num_splits + split
    tl.store(parts + index * WIDTH + dim, part, mask=is_dim)
    tl.store(sums + index, largest + tl.log(total))


@triton.jit(do_not_specialize=["num_splits"])
def _combine(
    parts: tl.tensor,
    sums: tl.tensor,
    position: tl.tensor,
    out: tl.tensor,
    num_splits: tl.tensor,
    WIDTH: tl.constexpr,
    SPLIT: tl.constexpr,
    MAX_SPLITS: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    """One head and row. MAX_SPLITS is the context's, so that the order of the sum is always the same."""
    head, row = tl.program_id(0), tl.program_id(1)
    index = row * tl.num_programs(0) + head
    split, dim = tl.arange(0, MAX_SPLITS), tl.arange(0, BLOCK)
    is_used, is_dim = split <= tl.load(position + row) // SPLIT, dim < WIDTH
    logs = tl.load(sums + index * num_splits + split, mask=is_used, other=float("-inf"))
    weights = tl.exp(logs - tl.max(logs, axis=0))  # 0 where unused
    where = parts + (index * num_splits + split)[:, None] * WIDTH + dim[None, :]
    part = tl.load(where, mask=is_used[:, None] & is_dim[None, :], other=0.0)
    mixed = tl.sum(weights[:, None] * part, axis=0) / tl.sum(weights, axis=0)
    tl.store(out + index * WIDTH + dim, mixed.to(out.dtype.element_ty), mask=is_dim)
