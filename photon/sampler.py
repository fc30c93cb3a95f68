"""Sampler: logits -> token ids on the device, in place, for every row of a step at once."""

from __future__ import annotations

import torch
from torch import Tensor

from photon.skills.base import TokenMask


def mask_table(masks: tuple[TokenMask, ...], vocab_size: int, torch_device: str) -> Tensor:
    """(masks, V) bool, True where a token is forbidden. Row i is masks[i]."""
    table = torch.zeros(len(masks), vocab_size, dtype=torch.bool)
    for row, mask in zip(table, masks, strict=True):
        if mask.allowed is not None:
            row.fill_(True)
            row[list(mask.allowed)] = False
        row[list(mask.suppressed)] = True
    return table.to(torch_device)


def sample_greedy(logits: Tensor) -> Tensor:
    """(B, V) -> (B,): the most likely token."""
    return logits.argmax(-1)


def sample_top_p(logits: Tensor, temperature: Tensor, top_p: Tensor, uniform: Tensor) -> Tensor:
    """(B, V) and one value per row -> (B,): inverse CDF at `uniform`, in float32.

    Rows with temperature 0 take the most likely token. Tokens are kept in falling order of probability
    while the mass before them is at most top_p, so the first always stays (reference rule,
    engine_facts 1.10). The draw depends on nothing but the row itself (I17).
    """
    greedy = temperature <= 0
    # Below the maximum, so that the smallest temperature gives -inf and never +inf.
    below = logits.float() - logits.amax(-1, keepdim=True).float()
    scaled = below / torch.where(greedy, 1.0, temperature)[:, None]
    probabilities, order = scaled.softmax(-1).sort(dim=-1, descending=True, stable=True)
    before = probabilities.cumsum(-1) - probabilities
    kept = torch.where(before <= top_p[:, None], probabilities, 0.0)
    reached = kept.cumsum(-1)
    rank = (reached <= (uniform * reached[:, -1])[:, None]).sum(-1)
    # Rounding may leave `rank` on a dropped token; the last kept one is meant then. (No logit is a
    # number: token 0 of the order, because an index out of range would end the engine.)
    rank = torch.minimum(rank, (kept > 0).sum(-1) - 1).clamp(min=0)
    drawn = order.gather(1, rank[:, None])[:, 0]
    # Not order[0]: two logits may round to one probability, and a greedy row must not feel its neighbours.
    return torch.where(greedy, sample_greedy(logits), drawn)
