"""A checkpoint of random weights at any size, in the reference's layouts: checks without the real ones."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from photon.model.config import ModelConfig
from photon.model.moondream import Moondream
from photon.model.names import is_transposed

LAYOUTS = ("new", "old")
_VISUAL = "vision_encoder.encoder.model.visual."
_NEW_TO_OLD = {
    "text": (
        ("text.wte", "text_model.transformer.embd.wte.weight"),
        ("text.blocks.", "text_model.transformer.h."),
        (".attn.qkv.", ".mixer.Wqkv."),
        (".attn.proj.", ".mixer.out_proj."),
        ("text.post_ln.", "text_model.lm_head.ln."),
        ("text.lm_head.", "text_model.lm_head.linear."),
    ),
    "vision": (
        ("vision.patch_emb.", _VISUAL + "patch_embed.linear."),
        ("vision.pos_emb", _VISUAL + "pos_embed"),
        ("vision.post_ln.", _VISUAL + "norm."),
        ("vision.blocks.", _VISUAL + "blocks."),
        (".ln1.", ".norm1."),
        (".ln2.", ".norm2."),
        ("vision.proj_mlp.", "vision_encoder.projection.mlp."),
    ),
    "region": (
        ("region.coord_features", "region_model.coordinate_features.weight"),
        ("region.size_features", "region_model.size_features.weight"),
        ("region.coord_", "region_model.coordinate_"),
        ("region.size_", "region_model.size_"),
    ),
}


def old_name(parameter: str) -> str:
    """The old layout's name of a parameter."""
    for new, old in _NEW_TO_OLD[parameter.partition(".")[0]]:
        parameter = parameter.replace(new, old)
    return parameter


def shapes_of(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    """Parameter name -> shape, without any storage."""
    with torch.device("meta"):
        return {name: tuple(p.shape) for name, p in Moondream(config).state_dict().items()}


def write_checkpoint(
    path: Path, config: ModelConfig, layout: str = "new", head_bias: Mapping[int, float] | None = None
) -> None:
    """Random bfloat16 weights, the same each time, one tensor at a time, so that writing takes no memory.

    head_bias: per token id, what its logit has more than the others; the one handle on what is said.
    """
    shapes = shapes_of(config)
    header: dict[str, Any] = {}
    end = 0
    for name, shape in shapes.items():
        is_flipped = layout == "old" and is_transposed(name)
        key = old_name(name) if layout == "old" else f"model.{name}"
        start, end = end, end + 2 * torch.Size(shape).numel()
        shape = shape[::-1] if is_flipped else shape
        header[key] = {"dtype": "BF16", "shape": list(shape), "data_offsets": [start, end]}
    head = json.dumps(header).encode()
    with path.open("wb") as file:
        file.write(len(head).to_bytes(8, "little") + head)
        for tensor in _weights(shapes, head_bias or {}):
            file.write(tensor.view(torch.uint8).numpy().data)


def _weights(shapes: dict[str, tuple[int, ...]], head_bias: Mapping[int, float]) -> Iterator[Tensor]:
    """Scaled so that activations neither vanish nor explode; flat."""
    generator = torch.Generator().manual_seed(0)
    for name, shape in shapes.items():
        tensor = torch.empty(torch.Size(shape).numel(), dtype=torch.bfloat16)
        if name.endswith("bias"):
            tensor.zero_()
        elif ".ln" in name or "post_ln" in name:
            tensor.fill_(1)
        else:
            tensor.normal_(0, shape[-1] ** -0.5, generator=generator)
        if name == "text.lm_head.bias":
            for token_id, bias in head_bias.items():
                tensor[token_id] = bias
        yield tensor
