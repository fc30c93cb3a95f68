"""PagedKVCache: keys and values of all sequences in fixed pages.

One tensor per layer, (pages, page_size, 2, H, K), so that one gather brings keys and values of a page.
Page 0 is the null page (see `pages.py`). Keys are stored rotated.
"""

from __future__ import annotations

import torch
from torch import Tensor

POISON = 1.0e6
"""What a freed page is filled with on a device that poisons. Finite, because attention multiplies the
values of masked positions by zero; large, so that reading one unmasked changes the next token."""


class PagedKVCache:
    """Device memory of the pages; which page belongs to whom is `PagePool`'s business."""

    def __init__(
        self,
        *,
        num_layers: int,
        num_pages: int,
        page_size: int,
        n_heads: int,
        head_dim: int,
        dtype: torch.dtype,
        torch_device: str,
    ) -> None:
        shape = (num_pages + 1, page_size, 2, n_heads, head_dim)
        self.page_size = page_size
        self.layers = [torch.zeros(shape, dtype=dtype, device=torch_device) for _ in range(num_layers)]

    def slots(self, page_table: Tensor, positions: Tensor) -> Tensor:
        """Page table (B, P) and positions (B, T) -> flat KV slots (B, T)."""
        pages = page_table.gather(1, positions // self.page_size)
        return pages * self.page_size + positions % self.page_size

    def write(self, layer: Tensor, slots: Tensor, keys: Tensor, values: Tensor) -> None:
        """Store keys and values (B, H, T, K) at flat slots (B, T) of one layer's tensor."""
        entries = torch.stack((keys, values), dim=1).permute(0, 3, 1, 2, 4).flatten(0, 1)  # (B*T, 2, H, K)
        layer.flatten(0, 1).index_copy_(0, slots.flatten(), entries)

    def read(self, layer: Tensor, page_table: Tensor) -> tuple[Tensor, Tensor]:
        """Pages (B, P) of one layer's tensor -> keys and values, each (B, H, P * page_size, K)."""
        pages = layer.index_select(0, page_table.flatten())  # copies whole pages, unlike indexing
        entries = pages.view(page_table.shape[0], -1, *pages.shape[2:])  # (B, L, 2, H, K)
        keys, values = entries.permute(2, 0, 3, 1, 4)
        return keys, values

    def copy(self, source: Tensor, target: Tensor) -> None:
        """Copy whole pages, source (B,) to target (B,), in all layers."""
        for layer in self.layers:
            layer.index_copy_(0, target, layer.index_select(0, source))

    def poison(self, pages: Tensor) -> None:
        """Overwrite pages, so that a read after free changes a token."""
        for layer in self.layers:
            layer[pages] = POISON
