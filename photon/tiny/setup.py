"""The embedded model's sizes, and how its weights start.

The encoder starts with a head start that is still plain weights in the ordinary layout: patches begin as
low-frequency cosine coefficients, and in the first two blocks each head looks at one neighbouring patch.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from tokenizers import Tokenizer
from torch import Tensor, nn

from photon.model.moondream import Moondream
from photon.tiny import prompts
from photon.tiny.shapes import COLORS, SHAPES

POSITION_CHANNELS = 32
FREQUENCIES = 4
NEIGHBOURS = tuple((dx, dy) for dy in (-1, 0, 1) for dx in (-1, 0, 1) if (dx, dy) != (0, 0))

Sizes = dict[str, dict[str, int]]

SIZES: Sizes = {
    "text": {
        "dim": 192,
        "ff_dim": 512,
        "n_layers": 5,
        "vocab_size": 576,
        "max_context": 512,
        "n_heads": 6,
        "n_kv_heads": 6,
        "prefix_attn": 65,
    },
    "vision": {
        "enc_dim": 128,
        "enc_patch_size": 14,
        "enc_n_layers": 6,
        "enc_ff_dim": 384,
        "enc_n_heads": 8,
        "proj_out_dim": 192,
        "crop_size": 112,
        "in_channels": 3,
        "max_crops": 8,
        "overlap_margin": 1,
        "proj_inner_dim": 384,
    },
    "region": {
        "dim": 192,
        "coord_feat_dim": 64,
        "coord_out_dim": 1024,
        "size_feat_dim": 128,
        "size_out_dim": 2048,
        "inner_dim": 128,
    },
}

LIMITS = (
    "It knows eight drawn shapes (" + ", ".join(SHAPES) + ") in eight colours (" + ", ".join(COLORS) + ") "
    "and the words that ask about them; photographs and everything else need Moondream 2."
)


def raw_config(tokenizer: Tokenizer, sizes: Sizes = SIZES) -> dict[str, Any]:
    """config.json of the model: the reference's fields, then what the page tells about it."""
    control = {
        "bos_id": 0,
        "eos_id": 0,
        "answer_id": 3,
        "thinking_id": 4,
        "coord_id": 5,
        "size_id": 6,
        "start_ground_points_id": 7,
        "end_ground_id": 9,
    }
    return {
        **sizes,
        "tokenizer": {**control, "templates": prompts.template_ids(tokenizer)},
        "name": "photon-tiny",
        "limits": LIMITS,
        "labels": list(SHAPES),
        "colors": list(COLORS),
        "vocabulary": prompts.vocabulary(),
    }


@torch.no_grad()
def initialise(model: Moondream, seed: int = 0) -> None:
    """Fill every weight of a fresh model, in place."""
    generator = torch.Generator().manual_seed(seed)
    for module in model.modules():
        if isinstance(module, nn.Linear):
            module.weight.normal_(0, 0.6 / math.sqrt(module.in_features), generator=generator)
            module.bias.zero_()
        elif isinstance(module, nn.LayerNorm):
            module.weight.fill_(1)
            module.bias.zero_()
    for block in (*model.vision.blocks, *model.text.blocks):
        block.attn.proj.weight.mul_(0.5)
        block.mlp.fc2.weight.mul_(0.5)
    model.text.wte.normal_(0, 0.5, generator=generator)
    model.text.lm_head.weight.mul_(0.2)
    model.region.coord_features.normal_(0, 2, generator=generator)
    model.region.size_features.normal_(0, 2, generator=generator)
    if model.config.vision.enc_dim >= POSITION_CHANNELS + 64:
        _start_encoder(model)


def _start_encoder(model: Moondream) -> None:
    vision = model.vision
    positions = _positions(vision.config.grid)
    vision.pos_emb.zero_()
    vision.pos_emb[0, :, :POSITION_CHANNELS] = positions
    vision.patch_emb.weight.zero_()
    vision.patch_emb.weight[POSITION_CHANNELS:] = _cosines(
        vision.config.enc_patch_size, vision.config.enc_dim - POSITION_CHANNELS
    )
    for block in list(vision.blocks)[:2]:
        _look_around(block.attn.qkv.weight, vision.config.enc_n_heads)  # type: ignore[union-attr, arg-type]


def _frequencies() -> Tensor:
    return math.pi / 16 * 2.0 ** torch.arange(FREQUENCIES)


def _positions(grid: int) -> Tensor:
    """(G*G, 32): cos and sin of x, then of y, at four frequencies; the other half at eight, coarser."""
    y, x = torch.meshgrid(torch.arange(grid), torch.arange(grid), indexing="ij")
    parts = []
    for scale in (1.0, 0.7):
        for axis in (x, y):
            angle = axis.flatten()[:, None] * _frequencies() * scale
            parts += [angle.cos(), angle.sin()]
    return torch.cat(parts, dim=1)


def _look_around(qkv: Tensor, heads: int) -> None:
    """Head h attends one patch to the side of its own, by rotating the positional channels."""
    width = qkv.shape[1] // heads
    gain, f = 3.6, _frequencies()
    queries, keys = qkv[: qkv.shape[1]], qkv[qkv.shape[1] : 2 * qkv.shape[1]]
    for head in range(heads):
        rows = slice(head * width, head * width + 4 * FREQUENCIES)
        if width < 4 * FREQUENCIES:
            return
        q, k = torch.zeros(4 * FREQUENCIES, qkv.shape[1]), torch.zeros(4 * FREQUENCIES, qkv.shape[1])
        for axis, step in enumerate(NEIGHBOURS[head % len(NEIGHBOURS)]):
            for i in range(FREQUENCIES):
                c, s = 2 * axis * FREQUENCIES + i, (2 * axis + 1) * FREQUENCIES + i
                cos, sin = math.cos(f[i] * step), math.sin(f[i] * step)
                k[c, c] = k[s, s] = gain
                q[c, c], q[c, s] = gain * cos, -gain * sin
                q[s, c], q[s, s] = gain * sin, gain * cos
        queries[rows], keys[rows] = q, k


def _cosines(side: int, count: int) -> Tensor:
    """(count, 3 * side^2) low-frequency cosines: half of brightness, a quarter each of two colours."""
    step = (torch.arange(side) + 0.5) * math.pi / side
    order = sorted((u + v, u, v) for u in range(side) for v in range(side))
    mixes = ((1, 1, 1), (1, 0, -1), (-0.5, 1, -0.5))
    rows = []
    for mix, share in zip(mixes, (count - count // 4 * 2, count // 4, count // 4), strict=True):
        weights = torch.tensor(mix, dtype=torch.float32) / sum(abs(m) for m in mix)
        for total, u, v in order[:share]:
            pattern = torch.outer((v * step).cos(), (u * step).cos())
            pattern = pattern / pattern.norm() / side * (1 + total) * 1.2
            rows.append((weights[:, None, None] * pattern).flatten())
    return torch.stack(rows)
