"""The vision encoder: crops -> patch features -> one image embedding per grid cell.

Source: engine_facts 1.7 (reference vikhyat/moondream, vision.py and image_crops.py).
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from photon.model.config import VisionConfig
from photon.model.layers import MLP, Attention, merge_heads, split_heads


class VisionBlock(nn.Module):
    """Pre-norm transformer block without a mask."""

    def __init__(self, config: VisionConfig) -> None:
        super().__init__()
        self.n_heads = config.enc_n_heads
        self.ln1 = nn.LayerNorm(config.enc_dim)
        self.attn = Attention(config.enc_dim)
        self.ln2 = nn.LayerNorm(config.enc_dim)
        self.mlp = MLP(config.enc_dim, config.enc_ff_dim)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = split_heads(self.attn.qkv(self.ln1(x)), self.n_heads)
        x = x + self.attn.proj(merge_heads(F.scaled_dot_product_attention(q, k, v)))
        return x + self.mlp(self.ln2(x))


class Vision(nn.Module):
    """Encoder and projection. `embed` is the whole path from uint8 crops to image embeddings."""

    def __init__(self, config: VisionConfig) -> None:
        super().__init__()
        self.config = config
        patch_dim = config.in_channels * config.enc_patch_size**2
        self.patch_emb = nn.Linear(patch_dim, config.enc_dim)
        self.pos_emb = nn.Parameter(torch.zeros(1, config.num_patches, config.enc_dim))
        self.blocks = nn.ModuleList(VisionBlock(config) for _ in range(config.enc_n_layers))
        self.post_ln = nn.LayerNorm(config.enc_dim)
        self.proj_mlp = MLP(2 * config.enc_dim, config.proj_inner_dim, config.proj_out_dim)

    def encode(self, crops: Tensor) -> Tensor:
        """(N, S, S, 3) uint8 -> patch features (N, G*G, E)."""
        x = self.patch_emb(patches(crops, self.config, self.pos_emb.dtype)) + self.pos_emb
        for block in self.blocks:
            x = block(x)
        return self.post_ln(x)

    def project(self, whole: Tensor, pooled: Tensor) -> Tensor:
        """Features of the whole image and of its stitched crops, (..., G*G, E) each -> (..., G*G, D)."""
        return self.proj_mlp(torch.cat((whole, pooled), dim=-1))

    def embed(self, crops: Tensor, tilings: tuple[tuple[int, int], ...]) -> Tensor:
        """Image embeddings (B, G*G, D) of B images whose crops lie one after another.

        An image with tiling (th, tw) owns 1 + th * tw crops, the whole image first; with tiling (1, 1)
        it owns one crop only, because its local crop would be the same pixels again.
        """
        return self.join(self.encode(crops), tilings)

    def join(self, features: Tensor, tilings: tuple[tuple[int, int], ...]) -> Tensor:
        """The second half of `embed`: from the features (N or more, G*G, E) that `encode` gave."""
        whole, pooled, start = [], [], 0
        for tiling in tilings:
            count = num_crops(tiling)
            mine = features[start : start + count]
            whole.append(mine[0])
            pooled.append(mine[0] if count == 1 else stitch(mine[1:], tiling, self.config))
            start += count
        return self.project(torch.stack(whole), torch.stack(pooled))


def num_crops(tiling: tuple[int, int]) -> int:
    """Crops the encoder runs for this tiling: 1 + th * tw, or 1 for (1, 1)."""
    return 1 if tiling == (1, 1) else 1 + tiling[0] * tiling[1]


def patches(crops: Tensor, config: VisionConfig, dtype: torch.dtype) -> Tensor:
    """(N, S, S, 3) uint8 -> (N, G*G, 3*p*p), scaled to [-1, 1], each patch as (channel, row, column)."""
    count, grid, side = crops.shape[0], config.grid, config.enc_patch_size
    x = (crops.to(dtype) / 255 - 0.5) / 0.5
    x = x.view(count, grid, side, grid, side, config.in_channels)
    return x.permute(0, 1, 3, 5, 2, 4).reshape(count, grid * grid, -1)


def stitch(features: Tensor, tiling: tuple[int, int], config: VisionConfig) -> Tensor:
    """Features of th*tw overlapping crops (th*tw, G*G, E) -> pooled features of the image (G*G, E).

    Interior edges drop `overlap_margin` patches on both sides, so the kept regions tile the image
    exactly; adaptive average pooling brings the stitched map back to G x G.
    """
    rows, columns = tiling
    grid, margin = config.grid, config.overlap_margin
    tiles = features.view(rows, columns, grid, grid, -1)
    lines = []
    for i in range(rows):
        top, bottom = (0 if i == 0 else margin), (grid if i == rows - 1 else grid - margin)
        kept = [
            tiles[i, j, top:bottom, (0 if j == 0 else margin) : (grid if j == columns - 1 else grid - margin)]
            for j in range(columns)
        ]
        lines.append(torch.cat(kept, dim=1))
    stitched = torch.cat(lines, dim=0).permute(2, 0, 1)  # (E, height, width)
    return F.adaptive_avg_pool2d(stitched, (grid, grid)).flatten(1).T
