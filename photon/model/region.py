"""Coordinates and sizes: Fourier encoders in, binned decoders out.

A coordinate or size is a typed token: its *value* comes from a head on the same hidden state that
produced the token, and its *embedding* replaces the token's on the next forward.
Source: engine_facts 1.8. Values follow the reference: bin k is k / 1024 in float32.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from photon.model.config import RegionConfig
from photon.model.layers import MLP


class Region(nn.Module):
    """Encoders and decoders of the spatial tokens."""

    def __init__(self, config: RegionConfig) -> None:
        super().__init__()
        self.config = config
        self.coord_features = nn.Parameter(torch.zeros(1, config.coord_feat_dim // 2))
        self.coord_encoder = nn.Linear(config.coord_feat_dim, config.dim)
        self.coord_decoder = MLP(config.dim, config.inner_dim, config.coord_out_dim)
        self.size_features = nn.Parameter(torch.zeros(2, config.size_feat_dim // 2))
        self.size_encoder = nn.Linear(config.size_feat_dim, config.dim)
        self.size_decoder = MLP(config.dim, config.inner_dim, config.size_out_dim)

    def encode_coord(self, value: Tensor) -> Tensor:
        """(..., 1) in 0..1 -> (..., D)."""
        return self.coord_encoder(fourier(value, self.coord_features))

    def encode_size(self, size: Tensor) -> Tensor:
        """(..., 2) as (width, height) in 0..1 -> (..., D)."""
        return self.size_encoder(fourier(size, self.size_features))

    def coord_logits(self, hidden: Tensor) -> Tensor:
        """Raw last hidden state (..., D) -> (..., bins)."""
        return self.coord_decoder(hidden)

    def size_logits(self, hidden: Tensor) -> Tensor:
        """Raw last hidden state (..., D) -> (..., 2, bins): width, height."""
        return self.size_decoder(hidden).unflatten(-1, (2, -1))

    def decode_coord(self, hidden: Tensor) -> Tensor:
        """(..., D) -> (..., 1) float32: the most likely bin / number of bins."""
        bins = self.coord_logits(hidden).argmax(-1, keepdim=True)
        return bins.float() / self.config.coord_out_dim

    def decode_size(self, hidden: Tensor) -> Tensor:
        """(..., D) -> (..., 2) float32: 2^(bin / (bins - 1) * 10 - 10) as (width, height)."""
        bins = self.size_logits(hidden).argmax(-1)
        return torch.exp2(bins.float() / (self.config.size_out_dim // 2 - 1) * 10 - 10)


def fourier(value: Tensor, frequencies: Tensor) -> Tensor:
    """(..., n) and (n, f) -> (..., 2f): cosines, then sines, of 2 pi value @ frequencies.

    2 pi value is rounded to the weights' dtype before the product, as the reference does.
    """
    angles = (2 * math.pi * value).to(frequencies.dtype) @ frequencies
    return torch.cat((angles.cos(), angles.sin()), dim=-1)
