"""Muon: momentum whose matrix updates are orthogonalised, after Keller Jordan (2024)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

import torch
from torch import Tensor


def orthogonalise(batch: Tensor, steps: int = 5) -> Tensor:
    """Newton-Schulz towards the nearest semi-orthogonal matrices of (K, rows, columns), in bfloat16."""
    a, b, c = 3.4445, -4.7750, 2.0315
    x = batch.bfloat16()
    tall = x.shape[1] > x.shape[2]
    if tall:
        x = x.transpose(1, 2)
    x = x / (x.flatten(1).norm(dim=1)[:, None, None] + 1e-7)
    for _ in range(steps):
        gram = torch.bmm(x, x.transpose(1, 2))
        poly = torch.baddbmm(gram, gram, gram, beta=b, alpha=c)
        x = torch.baddbmm(x, poly, x, beta=a)
    return (x.transpose(1, 2) if tall else x).float()


class Muon(torch.optim.Optimizer):
    """Nesterov momentum, orthogonalised per matrix; a fused qkv (3D, D) counts as three matrices."""

    def __init__(
        self,
        params: Iterable[Tensor],
        lr: float = 0.02,
        momentum: float = 0.95,
        weight_decay: float = 0.02,
    ) -> None:
        super().__init__(params, {"lr": lr, "momentum": momentum, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            stacks: dict[tuple[int, int], list[tuple[Tensor, Tensor]]] = defaultdict(list)
            for p in group["params"]:
                if p.grad is not None:
                    for weight, update in self._updates(p, group["momentum"]):
                        stacks[weight.shape[0], weight.shape[1]].append((weight, update))
            for shape, pairs in stacks.items():
                scale = group["lr"] * max(1.0, shape[0] / shape[1]) ** 0.5
                turned = orthogonalise(torch.stack([u for _, u in pairs]))
                for (weight, _), update in zip(pairs, turned, strict=True):
                    weight.mul_(1 - group["lr"] * group["weight_decay"]).add_(update, alpha=-scale)

    def _updates(self, p: Tensor, momentum: float) -> list[tuple[Tensor, Tensor]]:
        """Views of the weight with the momentum-averaged gradients of the same rows."""
        state = self.state[p]
        if "momentum" not in state:
            state["momentum"] = torch.zeros_like(p)
        buffer = state["momentum"].mul_(momentum).add_(p.grad)
        update = p.grad + momentum * buffer
        if p.shape[0] == 3 * p.shape[1]:
            return list(zip(p.chunk(3), update.chunk(3), strict=True))
        return [(p, update)]
