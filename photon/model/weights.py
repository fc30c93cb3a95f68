"""Checkpoint files: strict verification from the header alone, loading on the device's side.

`load_model` reads the few kilobytes of a safetensors header and proves that every name and shape is what
the config says; no weight is read. A `Checkpoint` is a path and a config, so it travels to a worker
process, and `build` loads there. Nothing is executed: pickled checkpoints are refused.
Source of names and layouts: engine_facts 1.3.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import safe_open
from torch import Tensor

from photon.errors import CheckpointError
from photon.model.config import ModelConfig, TextConfig
from photon.model.header import read_header
from photon.model.moondream import Moondream
from photon.model.tokenizer import Tokenizer

_MAX_LISTED = 5
_STARMIE_TOKEN = "<|md_reserved_0|>"
_MD2_VOCAB_SIZE = 51200

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


@dataclass(frozen=True)
class Checkpoint:
    """A verified weights file and the config it fits. Holds no tensor; picklable."""

    path: Path
    config: ModelConfig

    @classmethod
    def open(cls, path: str | Path, config: ModelConfig) -> Checkpoint:
        """Verify names, shapes and dtypes from the header.

        Raises:
            CheckpointError: not safetensors, truncated, another model, or missing, unexpected and
                misshapen names, listed together.
        """
        path = Path(path).absolute()
        catalogue = _catalogue(path)
        expected = {name: tuple(p.shape) for name, p in _empty_module(config).state_dict().items()}
        _compare(path.name, {name: entry.shape for name, entry in catalogue.items()}, expected)
        return cls(path, config)

    def build(
        self, torch_device: torch.device | str = "cpu", dtype: torch.dtype = torch.float32
    ) -> Moondream:
        """Load the weights: eval mode, no gradients, every tensor cast and moved on its own.

        Blocks until read. Host memory grows by the file's size (mapped, given back by the kernel) plus,
        on a CPU, the weights themselves. Raises CheckpointError if the file has changed since `open`.
        """
        Checkpoint.open(self.path, self.config)
        module = _empty_module(self.config)
        weights = {name: t.to(torch_device, dtype, copy=True) for name, t in self.tensors()}
        module.load_state_dict(weights, strict=True, assign=True)
        return module.requires_grad_(False).eval()

    def tensors(self) -> Iterator[tuple[str, Tensor]]:
        """Parameter names (new layout) and tensors as stored, mapped from the file one by one."""
        catalogue = _catalogue(self.path)
        with safe_open(self.path, framework="pt") as file:
            for name, entry in catalogue.items():
                tensor = file.get_tensor(entry.key)
                yield name, tensor.T if entry.is_transposed else tensor


@dataclass(frozen=True, eq=False)
class Model:
    """Everything `Engine` needs to know about a model; the weights are still on disk."""

    config: ModelConfig
    tokenizer: Tokenizer
    checkpoint: Checkpoint
    path: Path


@dataclass(frozen=True)
class Adapter:
    """A verified low-rank adapter file. `rank` is the largest of its modules; some may be absent."""

    path: Path
    rank: int
    names: tuple[str, ...]

    def tensors(self) -> dict[str, Tensor]:
        """`text.blocks.N.<linear>.A` (r, in) and `.B` (out, r), on the CPU, as stored."""
        keys = {_normalised(key): key for key in read_header(self.path)}
        with safe_open(self.path, framework="pt") as file:
            return {name: file.get_tensor(keys[name]) for name in self.names}


def load_model(path: str | Path, *, tokenizer: str | Path | None = None) -> Model:
    """Open a model directory (model.safetensors, tokenizer.json, optional config.json) or a .safetensors
    file with the others beside it. Without config.json it is taken as Moondream 2.

    `tokenizer` names another tokenizer.json or a directory holding one. Reads no weights.

    Raises:
        CheckpointError: a file is missing or does not fit the others.
    """
    path = Path(path).absolute()
    weights = path / "model.safetensors" if path.is_dir() else path
    if not weights.is_file():
        raise CheckpointError(
            f"There is no {weights.name} in {weights.parent.name or '/'}; give a folder that holds "
            "model.safetensors and tokenizer.json, or the .safetensors file itself."
        )
    config = _read_config(weights.parent / "config.json")
    checkpoint = Checkpoint.open(weights, config)
    tokenizer_path = Path(tokenizer) if tokenizer is not None else weights.parent
    return Model(config, _open_tokenizer(tokenizer_path, config), checkpoint, path)


def load_adapter(path: str | Path, config: ModelConfig, max_rank: int) -> Adapter:
    """Verify an adapter of this model from its header.

    Raises:
        CheckpointError: unknown or unpaired names, wrong shapes, or a rank above `max_rank`.
    """
    path = Path(path).absolute()
    shapes = {_normalised(key): tuple(entry["shape"]) for key, entry in read_header(path).items()}
    ranks = {name: shape[0] for name, shape in shapes.items() if name.endswith(".A") and shape}
    rank = max(ranks.values(), default=0)
    if not rank:
        raise CheckpointError(f"{path.name} holds no adapter (no text.blocks.N.<layer>.A); check the file.")
    modules = {name.rpartition(".")[0] for name in shapes}
    expected: dict[str, tuple[int, ...]] = {}
    for module, (wide, deep) in _adaptable(config.text).items():
        if module in modules:
            own = ranks.get(f"{module}.A", rank)
            expected |= {f"{module}.A": (own, deep), f"{module}.B": (wide, own)}
    _compare(path.name, shapes, expected)
    if rank > max_rank:
        raise CheckpointError(
            f"{path.name} has rank {rank}, but the engine was opened for at most {max_rank}; "
            "raise the engine's adapter rank."
        )
    return Adapter(path, rank, tuple(shapes))


@dataclass(frozen=True)
class _Entry:
    """Where one parameter lies in the file; `shape` is the parameter's, after any transpose."""

    key: str
    shape: tuple[int, ...]
    is_transposed: bool


def _catalogue(path: Path) -> dict[str, _Entry]:
    """Parameter name in the new layout -> entry, for every tensor of the file."""
    header = read_header(path)
    names = {key: _normalised(key) for key in header}
    _refuse_other_models(path.name, names.values())
    is_old = any(name.startswith(("text_model.", "region_model.")) for name in names.values())
    found: dict[str, _Entry] = {}
    for key, name in names.items():
        new = _renamed(name) if is_old else name
        flip = is_old and new in _TRANSPOSED_IN_OLD
        shape = tuple(header[key]["shape"])
        if new in found:
            raise CheckpointError(f"{path.name} holds {new} twice; save the checkpoint again.")
        found[new] = _Entry(key, shape[::-1] if flip else shape, flip)
    return found


def _refuse_other_models(file: str, names: Iterable[str]) -> None:
    for name in names:
        if _MOONDREAM_3.search(name):
            raise CheckpointError(f"{file} is a Moondream 3 checkpoint ({name}); use Moondream 2 weights.")
        if name.endswith(("weight.packed", "weight.zero_point")):
            raise CheckpointError(f"{file} is quantised to int4 ({name}); use the bfloat16 weights.")


def _normalised(name: str) -> str:
    """Without what torch.compile and a wrapping module added to the reference's names."""
    return ".".join(part for part in name.split(".") if part != "_orig_mod").removeprefix("model.")


def _renamed(name: str) -> str:
    for old, new in _OLD_TO_NEW:
        name = name.replace(old, new)
    return name


def _compare(file: str, found: dict[str, tuple[int, ...]], expected: dict[str, tuple[int, ...]]) -> None:
    """One CheckpointError for everything that differs."""
    groups = {
        "missing": [f"{name} {list(expected[name])}" for name in expected if name not in found],
        "unexpected": [f"{name} {list(found[name])}" for name in found if name not in expected],
        "misshapen": [
            f"{name} {list(found[name])} instead of {list(shape)}"
            for name, shape in expected.items()
            if found.get(name, shape) != shape
        ],
    }
    parts = [f"{len(items)} {what} ({_listed(items)})" for what, items in groups.items() if items]
    if parts:
        raise CheckpointError(
            f"{file} does not fit the model's config: {', '.join(parts)}; "
            "use the files of one and the same model."
        )


def _listed(items: list[str]) -> str:
    return ", ".join(items[:_MAX_LISTED]) + (", ..." if len(items) > _MAX_LISTED else "")


def _empty_module(config: ModelConfig) -> Moondream:
    """The module tree without storage."""
    with torch.device("meta"):
        return Moondream(config)


def _adaptable(text: TextConfig) -> dict[str, tuple[int, int]]:
    """Linear layer -> (out, in), for every layer an adapter may change."""
    sizes = {
        "attn.qkv": (3 * text.dim, text.dim),
        "attn.proj": (text.dim, text.dim),
        "mlp.fc1": (text.ff_dim, text.dim),
        "mlp.fc2": (text.dim, text.ff_dim),
    }
    return {f"text.blocks.{i}.{name}": size for i in range(text.n_layers) for name, size in sizes.items()}


def _read_config(path: Path) -> ModelConfig:
    if not path.is_file():
        return ModelConfig()
    try:
        return ModelConfig.from_dict(json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError, AttributeError) as error:
        raise CheckpointError(f"{path.name} is not a model config ({error}); download it again.") from error


def _open_tokenizer(path: Path, config: ModelConfig) -> Tokenizer:
    tokenizer = Tokenizer(path / "tokenizer.json" if path.is_dir() else path)
    rows = config.text.vocab_size
    if rows == _MD2_VOCAB_SIZE and not tokenizer.has_token(_STARMIE_TOKEN):
        raise CheckpointError(
            "tokenizer.json is the outdated GPT-2 one that the moondream2 repository still ships; "
            "put the tokenizer.json of moondream/starmie-v1 beside the weights."
        )
    if tokenizer.vocab_size > rows:
        raise CheckpointError(
            f"tokenizer.json has {tokenizer.vocab_size} tokens, the model only {rows}; "
            "use the tokenizer that belongs to it."
        )
    return tokenizer
