"""Names of tensors in checkpoint files -> names of our parameters, which are the reference's latest.

    new layout   model.text.blocks.0.attn.qkv.weight             as it is, without `model.`
    old layout   text_model.transformer.h.0.mixer.Wqkv.weight    renamed; two matrices transposed

Other Moondreams are told apart by their names and refused. Source: engine_facts 1.3, 1.12.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from photon.errors import CheckpointError

_OLD_TO_NEW = (
    ("text_model.transformer.embd.wte.weight", "text.wte"),
    ("text_model.transformer.h.", "text.blocks."),
    (".mixer.Wqkv.", ".attn.qkv."),
    (".mixer.out_proj.", ".attn.proj."),
    ("text_model.lm_head.ln.", "text.post_ln."),
    ("text_model.lm_head.linear.", "text.lm_head."),
    ("vision_encoder.encoder.model.visual.patch_embed.linear.", "vision.patch_emb."),
    ("vision_encoder.encoder.model.visual.pos_embed", "vision.pos_emb"),
    ("vision_encoder.encoder.model.visual.norm.", "vision.post_ln."),
    ("vision_encoder.encoder.model.visual.blocks.", "vision.blocks."),
    (".norm1.", ".ln1."),
    (".norm2.", ".ln2."),
    ("vision_encoder.projection.mlp.", "vision.proj_mlp."),
    ("region_model.coordinate_features.weight", "region.coord_features"),
    ("region_model.size_features.weight", "region.size_features"),
    ("region_model.coordinate_", "region.coord_"),
    ("region_model.size_", "region.size_"),
)
_TRANSPOSED_IN_OLD = ("region.coord_features", "region.size_features")
_MOONDREAM_3 = re.compile(
    r"(^|\.)(tau|tau_\w+|router|coordinate_head)(\.|$)|^region\.(coord_decoder\.weight|ln\.)"
)


def parameters(keys: Iterable[str]) -> dict[str, str]:
    """Key in the file -> parameter name. A key nobody knows keeps its name."""
    names = {key: _unwrapped(key) for key in keys}
    if is_old(names.values()):
        return {key: _renamed(name) for key, name in names.items()}
    return names


def is_old(names: Iterable[str]) -> bool:
    """Whether these names, with or without wrapping, are the old layout's."""
    return any(_unwrapped(name).startswith(("text_model.", "region_model.")) for name in names)


def is_transposed(parameter: str) -> bool:
    """Whether the old layout stores this parameter the other way round."""
    return parameter in _TRANSPOSED_IN_OLD


def adapter_parameter(key: str) -> str:
    """Key of an adapter file, in either layout and as `torch.nn.utils.parametrize` saves it -> our name."""
    return _renamed(_unwrapped(key).replace(".parametrizations.weight.0.", "."))


def refuse_other_models(file: str, keys: Iterable[str]) -> None:
    """CheckpointError for weights of Moondream 3 and for int4 ones, by the first name that shows it."""
    for name in map(_unwrapped, keys):
        if _MOONDREAM_3.search(name):
            raise CheckpointError(f"{file} is a Moondream 3 checkpoint ({name}); use Moondream 2 weights.")
        if name.endswith(("weight.packed", "weight.zero_point")):
            raise CheckpointError(f"{file} is quantised to int4 ({name}); use the bfloat16 weights.")


def _unwrapped(name: str) -> str:
    """Without what torch.compile and a wrapping module added to the reference's names."""
    return ".".join(part for part in name.split(".") if part != "_orig_mod").removeprefix("model.")


def _renamed(name: str) -> str:
    for old, new in _OLD_TO_NEW:
        name = name.replace(old, new)
    return name
