"""Arithmetic shared by the encoder and the decoder. Shapes: see the key in `photon/model/__init__.py`."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class Attention(nn.Module):
    """Weights of one attention: fused qkv (rows q, k, v) and the output projection."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.qkv = nn.Linear(dim, 3 * dim)
        self.proj = nn.Linear(dim, dim)


class MLP(nn.Module):
    """fc2(gelu_tanh(fc1(x))), the only non-linearity of Moondream 2."""

    def __init__(self, dim: int, inner: int, out: int | None = None) -> None:
        super().__init__()
        self.fc1 = nn.Linear(dim, inner)
        self.fc2 = nn.Linear(inner, dim if out is None else out)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc2(gelu(self.fc1(x)))


def gelu(x: Tensor) -> Tensor:
    """GELU in its tanh approximation, as the reference uses everywhere."""
    return F.gelu(x, approximate="tanh")


def split_heads(qkv: Tensor, n_heads: int) -> tuple[Tensor, Tensor, Tensor]:
    """(B, T, 3D) -> q, k, v each (B, H, T, K)."""
    rows, length, width = qkv.shape
    heads = qkv.view(rows, length, 3, n_heads, width // (3 * n_heads)).permute(2, 0, 3, 1, 4)
    return heads[0], heads[1], heads[2]


def merge_heads(x: Tensor) -> Tensor:
    """(B, H, T, K) -> (B, T, D)."""
    return x.transpose(1, 2).flatten(2)


def rotary_table(rotary_dim: int, max_context: int, theta: float = 10000.0) -> Tensor:
    """Turns (max_context, rotary_dim), float32: cosines, then sines, of position * theta^(-2j/rotary_dim)."""
    steps = torch.arange(0, rotary_dim, 2, dtype=torch.float32) / rotary_dim
    angles = torch.outer(torch.arange(max_context, dtype=torch.float32), theta**-steps)
    return torch.cat((angles.cos(), angles.sin()), dim=-1)


def rotate(x: Tensor, turns: Tensor) -> Tensor:
    """Rotary embedding of the first turns.shape[-1] dims of each head; the others pass through.

    x is (..., T, K); turns are rows of `rotary_table` that broadcast against it. Pairs are
    (j, j + rotary_dim / 2). The reference writes the rotated pairs interleaved; the same permutation of q
    and k leaves every score unchanged, so the plain (NeoX) order is kept. Computed in float32, returned in
    x's dtype.
    """
    half = turns.shape[-1] // 2
    real, imag, rest = x[..., :half].float(), x[..., half : 2 * half].float(), x[..., 2 * half :]
    cos, sin = turns[..., :half], turns[..., half:]
    turned = torch.cat((real * cos - imag * sin, real * sin + imag * cos), dim=-1)
    return torch.cat((turned.to(x.dtype), rest), dim=-1)
