"""The text decoder: parallel attention and MLP behind one LayerNorm (Phi-1.5 style).

A block takes its attention as a function, because what the keys are differs: a paged KV cache in the
engine, one packed sequence in training. `delta` adds a low-rank adapter per linear layer, or nothing.
Source: engine_facts 1.4.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from photon.model.config import TextConfig
from photon.model.layers import MLP, Attention, gelu, merge_heads, split_heads

Attend = Callable[[Tensor, Tensor, Tensor], Tensor]
"""q, k, v, each (B, H, T, K) and not yet rotated -> (B, H, T, K)."""

Delta = Callable[[str, Tensor], Tensor]
"""Name of a linear layer ('attn.qkv', ...) and its input (B, T, in) -> what an adapter adds (B, T, out)."""


class TextBlock(nn.Module):
    """x + attention(ln(x)) + mlp(ln(x))."""

    def __init__(self, config: TextConfig) -> None:
        super().__init__()
        self.n_heads = config.n_heads
        self.ln = nn.LayerNorm(config.dim)
        self.attn = Attention(config.dim)
        self.mlp = MLP(config.dim, config.ff_dim)

    def forward(self, x: Tensor, attend: Attend, delta: Delta | None = None) -> Tensor:
        h = self.ln(x)
        if delta is None:
            q, k, v = split_heads(self.attn.qkv(h), self.n_heads)
            return x + self.attn.proj(merge_heads(attend(q, k, v))) + self.mlp(h)
        return x + self._adapted(h, attend, delta)

    def _adapted(self, h: Tensor, attend: Attend, delta: Delta) -> Tensor:
        """Both branches with low-rank deltas.

        The adapter of attn.proj reads the block's normed input, not the attention output: the
        reference trained its adapters that way, so its adapters need it.
        """
        q, k, v = split_heads(self.attn.qkv(h) + delta("attn.qkv", h), self.n_heads)
        attended = self.attn.proj(merge_heads(attend(q, k, v))) + delta("attn.proj", h)
        inner = gelu(self.mlp.fc1(h) + delta("mlp.fc1", h))
        return attended + self.mlp.fc2(inner) + delta("mlp.fc2", inner)


class Text(nn.Module):
    """Embedding table, blocks, final norm and vocabulary head."""

    def __init__(self, config: TextConfig) -> None:
        super().__init__()
        self.config = config
        self.wte = nn.Parameter(torch.zeros(config.vocab_size, config.dim))
        self.blocks = nn.ModuleList(TextBlock(config) for _ in range(config.n_layers))
        self.post_ln = nn.LayerNorm(config.dim)
        self.lm_head = nn.Linear(config.dim, config.vocab_size)

    def embed(self, token_ids: Tensor) -> Tensor:
        """(...) int64 -> (..., D)."""
        return nn.functional.embedding(token_ids, self.wte)

    def logits(self, hidden: Tensor) -> Tensor:
        """Raw last hidden state (..., D) -> (..., V). The region heads read `hidden` itself."""
        return self.lm_head(self.post_ln(hidden))
