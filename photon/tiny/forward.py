"""Training forward passes over the modules of `photon.model`, and the auxiliary heads.

Shapes: N crops, B images, G*G = 64 patches, E vision width, D text width, T packed suffix tokens,
P = 1 + G*G prefix positions (BOS and the image). Matrix products run in bfloat16 where autocast is on.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import cast

import torch
from torch import Tensor, nn

from photon.model.config import ModelConfig, VisionConfig
from photon.model.layers import merge_heads, rotary_table, split_heads
from photon.model.moondream import Moondream
from photon.model.text import TextBlock
from photon.model.vision import Vision, VisionBlock, patches, stitch
from photon.tiny.data import CELL, COORD, MAX_THINGS, RAYS, SIZE
from photon.tiny.shapes import COLORS, SHAPES

MASK_LAYER = 2
"""Encoder blocks below the features that must tell covered from bare cells."""
COUNT_LAYER = 3
"""Decoder blocks below the prefix states that must know how many alike there are."""


class Auxiliary(nn.Module):
    """Heads that exist in training only: what each patch shows, and how many alike there are."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        width, vision_width = config.text.dim, config.vision.enc_dim
        self.norm = nn.LayerNorm(width)
        self.patch = nn.Linear(width, len(SHAPES) + 1 + len(COLORS) + 1 + 5 + RAYS)
        self.mask_norm = nn.LayerNorm(vision_width)
        self.mask = nn.Linear(vision_width, CELL * CELL)
        self.spatial = nn.Linear(width, 3 * width)
        self.code = nn.Linear(width, 2 * width, bias=False)
        self.count_norm = nn.LayerNorm(width)
        self.count = nn.Linear(width, 3 * (MAX_THINGS + 1))
        self.total = nn.Linear(width, MAX_THINGS + 1)
        self.following = nn.Linear(width, len(SHAPES) + 1 + len(COLORS) + 1)


def attend(q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None = None) -> Tensor:
    """Plain attention on (B, H, T, K); `bias` broadcasts onto the scores. Faster here than the fused one."""
    rows, heads, length, width = q.shape
    scale = 1 / math.sqrt(width)
    flat = [x.reshape(rows * heads, x.shape[2], width) for x in (q * scale, k, v)]
    scores = torch.bmm(flat[0], flat[1].transpose(1, 2))
    if bias is not None:
        scores = (scores.view(rows, heads, length, -1) + bias).view(rows * heads, length, -1)
    return torch.bmm(scores.softmax(-1), flat[2]).view(rows, heads, length, width)


def encode(vision: Vision, crops: Tensor) -> tuple[Tensor, Tensor]:
    """(N, S, S, 3) uint8 -> features (N, 64, E) and those after block MASK_LAYER."""
    working = torch.bfloat16 if torch.is_autocast_enabled("cpu") else torch.float32
    x = vision.patch_emb(patches(crops, vision.config, working)) + vision.pos_emb.to(working)
    early = x
    for i, block in enumerate(cast(list[VisionBlock], vision.blocks)):
        if i == MASK_LAYER:
            early = x
        q, k, v = split_heads(block.attn.qkv(block.ln1(x)), block.n_heads)
        x = x + block.attn.proj(merge_heads(attend(q, k, v)))
        x = x + block.mlp(block.ln2(x))
    return vision.post_ln(x), early


@lru_cache(maxsize=32)
def pooling(tiling: tuple[int, int], config: VisionConfig) -> Tensor:
    """`stitch` as a matrix: (64, th * tw * 64)."""
    count = tiling[0] * tiling[1] * config.num_patches
    return stitch(torch.eye(count).view(tiling[0] * tiling[1], config.num_patches, count), tiling, config)


def embed(vision: Vision, crops: Tensor, tilings: Sequence[tuple[int, int]]) -> tuple[Tensor, Tensor]:
    """Image embeddings (B, 64, D) of B images, and early features (B, 64, E) of their whole views.

    Image i owns the next 1 + th * tw crops, or one crop for (1, 1), as in `Vision.embed`.
    """
    features, early = encode(vision, crops)
    whole, pooled, start = [], [], 0
    for tiling in tilings:
        count = 1 if tiling == (1, 1) else 1 + tiling[0] * tiling[1]
        mine = features[start]
        whole.append(start)
        if count > 1:
            mine = pooling(tiling, vision.config) @ features[start + 1 : start + count].flatten(0, 1)
        pooled.append(mine)
        start += count
    return vision.project(features[whole], torch.stack([p.float() for p in pooled])), early[whole]


def token_embeddings(model: Moondream, batch: dict[str, Tensor]) -> Tensor:
    """Packed tokens -> (B, T, D): table rows, with coordinates and sizes encoded in their place."""
    x = model.text.embed(batch["ids"])
    for kind, encoder, width in ((COORD, model.region.encode_coord, 1), (SIZE, model.region.encode_size, 2)):
        where = batch["kind"] == kind
        x = x.masked_scatter(where[..., None], encoder(batch["value"][where][:, :width]).to(x.dtype))
    return x


def packed_bias(prompt: Tensor) -> Tensor:
    """(rows, t) prompt numbers -> additive mask (rows, t, t): own prompt only, up to the token itself."""
    allowed = (prompt[:, :, None] == prompt[:, None, :]).tril()
    return torch.zeros(allowed.shape).masked_fill_(~allowed, -1e9)


def attend_packed(
    q: Tensor, own: tuple[Tensor, Tensor], prefix: tuple[Tensor, Tensor], bias: Tensor
) -> Tensor:
    """Attention of packed rows (B, H, T, K) over their image's prefix and, under `bias`, themselves.

    T is C rows of t tokens; bias is (B * C, t, t); own and prefix are keys and values.
    """
    images, heads, length, width = q.shape
    rows, step = bias.shape[0] // images, bias.shape[1]
    q = (q / math.sqrt(width)).contiguous()
    far = torch.bmm(q.view(-1, length, width), prefix[0].flatten(0, 1).transpose(1, 2))
    own_k, own_v = (x.reshape(-1, step, width) for x in own)
    near = torch.bmm(q.view(-1, step, width), own_k.transpose(1, 2))
    near = near.view(images, heads, rows, step, step) + bias.view(images, 1, rows, step, step)
    both = torch.cat((far.view(images, heads, rows, step, -1), near), dim=-1).softmax(-1)
    seen = both[..., :-step].reshape(-1, length, far.shape[-1])
    out = torch.bmm(seen, prefix[1].flatten(0, 1)).view(images, heads, length, width)
    return out + torch.bmm(both[..., -step:].reshape(-1, step, step), own_v).view(out.shape)


class Turn:
    """Rotary embedding as two products: x * cos + (x @ swap) * sin. Equals `layers.rotate`."""

    def __init__(self, turns: Tensor, width: int, dtype: torch.dtype) -> None:
        half = turns.shape[-1] // 2
        cos, sin = turns[..., :half], turns[..., half:]
        still = turns.new_zeros(*turns.shape[:-1], width - 2 * half)
        self.cos = torch.cat((cos, cos, still + 1), dim=-1).to(dtype)
        self.sin = torch.cat((sin, sin, still), dim=-1).to(dtype)
        swap = torch.zeros(width, width)
        for j in range(half):
            swap[half + j, j], swap[j, half + j] = -1, 1
        self.swap = swap.to(dtype)

    def __call__(self, x: Tensor) -> Tensor:
        """(B, H, T, K) -> the same, turned to its positions."""
        return torch.addcmul(x * self.cos, x @ self.swap, self.sin)


def decode(model: Moondream, image: Tensor, batch: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
    """Embeddings (B, 64, D), packed rows (B * C, t) -> last hidden (B * C, t, D), prefix states (B, P, D).

    Each image has C rows of packed prompts. Prefix positions see each other; a row sees its image's prefix
    and what `packed_bias` allows. Nobody reads the prefix after the last block's keys, so it stops there.
    """
    text, images = model.text, image.shape[0]
    working = torch.bfloat16 if torch.is_autocast_enabled("cpu") else torch.float32
    bos = text.wte[model.config.tokenizer.bos_id].expand(images, 1, -1)
    prefix = torch.cat((bos, image.to(bos.dtype)), dim=1).to(working)
    suffix = token_embeddings(model, batch).to(working).view(images, -1, text.config.dim)
    table = rotary_table(text.config.rotary_dim, text.config.max_context)
    near = Turn(table[None, None, : prefix.shape[1]], text.config.head_dim, working)
    far = Turn(table[batch["position"].view(images, -1)][:, None], text.config.head_dim, working)
    bias = packed_bias(batch["prompt"]).to(working)
    states = prefix
    for i, block in enumerate(cast(list[TextBlock], text.blocks)):
        last = i + 1 == len(text.blocks)
        h, g = block.ln(prefix), block.ln(suffix)
        q, k, v = split_heads(block.attn.qkv(h), block.n_heads)
        k, v = near(k), v.contiguous()
        own_q, own_k, own_v = split_heads(block.attn.qkv(g), block.n_heads)
        mixed = attend_packed(far(own_q), (far(own_k), own_v), (k, v), bias)
        suffix = suffix + block.attn.proj(merge_heads(mixed)) + block.mlp(g)
        if not last:
            prefix = prefix + block.attn.proj(merge_heads(attend(near(q), k, v))) + block.mlp(h)
        if i + 1 <= COUNT_LAYER and not last:
            states = prefix
    return suffix.view(*batch["ids"].shape, -1), states
