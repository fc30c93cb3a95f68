"""Training losses: what the decoder must say, and what every patch must know."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from photon.model.moondream import Moondream
from photon.tiny.data import GRID, IGNORE, MAX_THINGS
from photon.tiny.forward import Auxiliary
from photon.tiny.shapes import COLORS, SHAPES

Batch = dict[str, Tensor]
Report = dict[str, float]


def soft_bins(logits: Tensor, bins: Tensor, sigma: float) -> Tensor:
    """Cross-entropy of (n, bins) logits against Gaussians around fractional bin numbers (n,)."""
    index = torch.arange(logits.shape[-1], dtype=torch.float32)
    target = torch.exp(-0.5 * ((index - bins[..., None]) / sigma) ** 2)
    target = target / target.sum(-1, keepdim=True)
    return -(target * logits.float().log_softmax(-1)).sum(-1).mean()


def size_bins(size: Tensor) -> Tensor:
    """Sizes in 0..1 -> fractional bins 0..1023 (engine_facts 1.8)."""
    return (size.clamp(min=1 / 1024).log2() + 10) / 10 * 1023


def decoder_loss(model: Moondream, hidden: Tensor, batch: Batch, sigma: float) -> tuple[Tensor, Report]:
    """Next-token and spatial losses on the raw last hidden states (B, T, D) of a packed batch."""
    told = batch["next_id"] != IGNORE
    logits = model.text.logits(hidden[told]).float()
    weight = batch["weight"][told]
    each = F.cross_entropy(logits, batch["next_id"][told], reduction="none")
    token = (each * weight).sum() / weight.sum()
    at = batch["coord"] >= 0
    coord = soft_bins(model.region.coord_logits(hidden[at]), batch["coord"][at] * 1024, sigma)
    sized = batch["size"][..., 0] >= 0
    size = soft_bins(model.region.size_logits(hidden[sized]), size_bins(batch["size"][sized]), 2 * sigma)
    right = (logits.argmax(-1) == batch["next_id"][told]).float().mean()
    report = {"token": token.item(), "coord": coord.item(), "size": size.item(), "right": right.item()}
    return token + 0.4 * coord + 0.15 * size, report


def count_loss(aux: Auxiliary, states: Tensor, labels: Batch) -> tuple[Tensor, Report]:
    """From prefix states (B, P, D): how many share this patch's kind, shape, colour; and the total.

    Also which kind a caption names next: what turns captions and counts into looking things up.
    """
    owner = labels["owner"]
    at = owner >= 0
    picked = states[:, 1:][at].float()
    counts = labels["counts"].gather(1, owner.clamp(min=0)[..., None].expand(-1, -1, 3))[at]
    logits = aux.count(aux.count_norm(picked)).float().unflatten(-1, (3, MAX_THINGS + 1))
    alike = F.cross_entropy(logits.flatten(0, 1), counts.flatten())
    total = F.cross_entropy(aux.total(aux.count_norm(states[:, 0].float())).float(), labels["total"])
    right = (logits.argmax(-1) == counts).float().mean()
    follow, hits = _following_loss(aux, states, labels)
    return alike + 0.3 * total + 0.5 * follow, {"alike": right.item(), "total": total.item(), "next": hits}


def _following_loss(aux: Auxiliary, states: Tensor, labels: Batch) -> tuple[Tensor, float]:
    """The kind after each covered patch's own, and at BOS the first."""
    inside = labels["owner"] >= 0
    at = torch.cat((torch.ones_like(inside[:, :1]), inside), dim=1)
    index = torch.cat((torch.full_like(labels["owner"][:, :1], MAX_THINGS), labels["owner"]), dim=1)
    target = labels["following"].gather(1, index.clamp(min=0)[..., None].expand(-1, -1, 2))[at]
    logits = aux.following(aux.count_norm(states[at].float())).float()
    shape, color = logits.split((len(SHAPES) + 1, len(COLORS) + 1), -1)
    both = (shape.argmax(-1) == target[:, 0]) & (color.argmax(-1) == target[:, 1])
    loss = F.cross_entropy(shape, target[:, 0]) + F.cross_entropy(color, target[:, 1])
    return loss, both.float().mean().item()


def patch_loss(
    model: Moondream, aux: Auxiliary, image: Tensor, early: Tensor, labels: Batch, sigma: float
) -> tuple[Tensor, Report]:
    """From image embeddings (B, 64, D) and early features (B, 64, E): what each patch shows."""
    states = aux.norm(image.float())
    out = aux.patch(states).float()
    shapes, colors, where, profile = out.split((len(SHAPES) + 1, len(COLORS) + 1, 5, out.shape[-1] - 23), -1)
    owner, centre = labels["owner"], labels["centre"]
    inside = owner >= 0
    index = owner.clamp(min=0)
    kinds = labels["kinds"].gather(1, index[..., None].expand(-1, -1, 2))
    shape = torch.where(inside, kinds[..., 0], len(SHAPES))
    color = torch.where(inside, kinds[..., 1], len(COLORS))
    loss = F.cross_entropy(shapes.flatten(0, 1), shape.flatten())
    loss = loss + F.cross_entropy(colors.flatten(0, 1), color.flatten())
    loss = loss + _where_loss(where, labels, index, inside, centre)
    rays = labels["profiles"].gather(1, index[..., None].expand(-1, -1, profile.shape[-1]))
    loss = loss + 5 * F.smooth_l1_loss(profile[inside], rays[inside], beta=0.2)
    mask = aux.mask(aux.mask_norm(early.float())).float()
    loss = loss + 3 * F.binary_cross_entropy_with_logits(mask, labels["mask"].float())
    middle = centre >= 0
    boxes = labels["boxes"].gather(1, index[..., None].expand(-1, -1, 4))[middle]
    loss = loss + _spatial_loss(model, aux, states[middle], boxes, sigma)
    both = (shapes.argmax(-1) == shape) & (colors.argmax(-1) == color)
    return loss, {"patch": loss.item(), "seen": both[middle].float().mean().item()}


def _where_loss(where: Tensor, labels: Batch, index: Tensor, inside: Tensor, centre: Tensor) -> Tensor:
    """Offset to the thing's centre and its log size, in patches; and is this patch the centre."""
    boxes = labels["boxes"].gather(1, index[..., None].expand(-1, -1, 4))
    cell = torch.arange(GRID) + 0.5
    at = torch.stack((cell.repeat(GRID), cell.repeat_interleave(GRID)), dim=-1)
    target = torch.cat((boxes[..., :2] * GRID - at, (boxes[..., 2:].clamp(min=0.01) * GRID).log2()), dim=-1)
    near = F.smooth_l1_loss(where[..., :4][inside], target[inside], beta=0.3)
    middle = (centre >= 0).float()
    weight = torch.tensor(3.0)
    return near + F.binary_cross_entropy_with_logits(where[..., 4], middle, pos_weight=weight)


def _spatial_loss(model: Moondream, aux: Auxiliary, states: Tensor, boxes: Tensor, sigma: float) -> Tensor:
    """Centre patches (n, D) of boxes (n, 4), and re-encoded values, through the decoder's region heads."""
    region = model.region
    x, y, size = aux.spatial(states).chunk(3, -1)
    seen = soft_bins(region.coord_logits(x), boxes[:, 0] * 1024, sigma)
    seen = seen + soft_bins(region.coord_logits(y), boxes[:, 1] * 1024, sigma)
    sized = soft_bins(region.size_logits(size), size_bins(boxes[:, 2:]), 2 * sigma)
    to_coord, to_width = aux.code.weight.chunk(2, 0)
    coded = region.encode_coord(boxes[:, :1]) @ to_coord.T
    again = soft_bins(region.coord_logits(coded), boxes[:, 0] * 1024, sigma)
    coded = region.encode_size(boxes[:, 2:]) @ to_width.T
    again = again + soft_bins(region.size_logits(coded), size_bins(boxes[:, 2:]), 2 * sigma)
    return 0.3 * seen + 0.15 * sized + 0.05 * again
