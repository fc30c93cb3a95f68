"""Checkpoint files: strict verification from the header alone, loading on the device's side.

`load_model` reads the few kilobytes of a safetensors header and proves that every name and shape is what
the config says; no weight is read, and the network is touched only for a name (`hub.py`). A `Checkpoint`
is a path and a config, so it travels to a worker process, and `build` loads there. Nothing is executed:
pickled checkpoints are refused. Source of the layouts: engine_facts 1.3.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from safetensors import safe_open
from torch import Tensor

from photon.errors import CheckpointError
from photon.model import hub
from photon.model.config import ModelConfig
from photon.model.header import read_header
from photon.model.moondream import Moondream
from photon.model.names import adapter_parameter, is_old, is_transposed, parameters, refuse_other_models
from photon.model.tokenizer import Tokenizer

_MAX_LISTED = 5
_STARMIE_TOKEN = "<|md_reserved_0|>"
_MD2_VOCAB_SIZE = 51200
_GPT2_END = 50256


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

        Blocks until read. On the host this takes the weights in `dtype`, where they stay there, and one
        tensor more. Raises CheckpointError if the file has changed since `open`.
        """
        Checkpoint.open(self.path, self.config)
        module = _empty_module(self.config)
        weights = {name: t.to(torch_device, dtype, copy=True) for name, t in self.tensors()}
        module.load_state_dict(weights, strict=True, assign=True)
        return module.requires_grad_(False).eval()

    def tensors(self) -> Iterator[tuple[str, Tensor]]:
        """Parameter names (new layout) and tensors as stored, mapped from the file.

        Each has a mapping of its own, which ends with the tensor: pages once read from a mapping count as
        this process's memory, so that one mapping of all would double what loading takes.
        """
        for name, entry in _catalogue(self.path).items():
            with safe_open(self.path, framework="pt") as file:
                tensor = file.get_tensor(entry.key)
            yield name, tensor.T if entry.is_transposed else tensor

    @property
    def num_parameters(self) -> int:
        """Numbers in all tensors together."""
        return sum(parameter.numel() for parameter in _empty_module(self.config).parameters())


@dataclass(frozen=True, eq=False)
class Model:
    """Everything `Engine` needs to know about a model; the weights are still on disk."""

    config: ModelConfig
    tokenizer: Tokenizer
    checkpoint: Checkpoint
    path: Path
    release: str = ""
    """The pinned release of weights that were asked for by name."""


@dataclass(frozen=True)
class Adapter:
    """A verified low-rank adapter file. `rank` is the largest of its modules; some may be absent."""

    path: Path
    rank: int
    names: tuple[str, ...]

    def tensors(self) -> dict[str, Tensor]:
        """`text.blocks.N.<linear>.A` (r, in) and `.B` (out, r), on the CPU, as stored."""
        keys = {adapter_parameter(key): key for key in read_header(self.path)}
        with safe_open(self.path, framework="pt") as file:
            return {name: file.get_tensor(keys[name]) for name in self.names}


def load_model(path: str | Path, *, tokenizer: str | Path | None = None) -> Model:
    """Open Moondream 2 by a path or by name.

    A path is a directory (model.safetensors, tokenizer.json, optional config.json) or a .safetensors file
    with the others beside it; the network is never touched. Without config.json it is taken as
    Moondream 2. The name moondream2 means the published weights: from the cache, else downloaded.

    `tokenizer` names another tokenizer.json or a directory holding one. Reads no weights.

    Raises:
        CheckpointError: a file is missing, does not fit the others, or cannot be fetched.
    """
    if hub.is_name(path):
        weights = hub.fetch_weights()
        model = _open_model(weights, Path(tokenizer or hub.fetch_tokenizer()), weights)
        return replace(model, release=hub.REVISION)
    path = Path(path).absolute()
    weights = path / "model.safetensors" if path.is_dir() else path
    if not weights.is_file():
        raise CheckpointError(
            f"There is no {weights.name} in {weights.parent.name or '/'}; give a folder that holds "
            "model.safetensors and tokenizer.json, the .safetensors file itself, or the name moondream2."
        )
    return _open_model(weights, Path(tokenizer or weights.parent), path)


def _open_model(weights: Path, tokenizer: Path, path: Path) -> Model:
    config = _read_config(weights.parent / "config.json")
    _refuse_legacy(weights.parent / "moondream.py", config)
    checkpoint = Checkpoint.open(weights, config)
    return Model(config, _open_tokenizer(tokenizer, config), checkpoint, path)


def load_adapter(path: str | Path, config: ModelConfig, max_rank: int) -> Adapter:
    """Verify an adapter of this model from its header. Linear layers may be left out, but in all blocks.

    Raises:
        CheckpointError: unknown or unpaired names, missing blocks, wrong shapes, a rank above `max_rank`.
    """
    path = Path(path).absolute()
    shapes = {adapter_parameter(key): tuple(entry["shape"]) for key, entry in read_header(path).items()}
    ranks = {name: shape[0] for name, shape in shapes.items() if name.endswith(".A") and shape}
    rank = max(ranks.values(), default=0)
    if not rank:
        raise CheckpointError(f"{path.name} holds no adapter (no text.blocks.N.<layer>.A); check the file.")
    adaptable = config.text.adaptable
    layers = {name.rpartition(".")[0].split(".", 3)[-1] for name in shapes}  # such as "attn.qkv"
    expected: dict[str, tuple[int, ...]] = {}
    for i, (layer, (deep, wide)) in itertools.product(range(config.text.n_layers), adaptable.items()):
        if layer in layers:
            module = f"text.blocks.{i}.{layer}"
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
    refuse_other_models(path.name, header)
    is_flipped = is_old(header)
    found: dict[str, _Entry] = {}
    for key, name in parameters(header).items():
        flip = is_flipped and is_transposed(name)
        shape = tuple(header[key]["shape"])
        if name in found:
            raise CheckpointError(f"{path.name} holds {name} twice; save the checkpoint again.")
        found[name] = _Entry(key, shape[::-1] if flip else shape, flip)
    return found


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


def _read_config(path: Path) -> ModelConfig:
    if not path.is_file():
        return ModelConfig()
    try:
        return ModelConfig.from_dict(json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError, AttributeError) as error:
        raise CheckpointError(f"{path.name} is not a model config ({error}); download it again.") from error


def _refuse_legacy(code: Path, config: ModelConfig) -> None:
    """Releases before 2025-06-21 have the same tensors, but prompts and a tokenizer of their own."""
    is_legacy = config.tokenizer.eos_id == _GPT2_END
    if not is_legacy and code.is_file():  # the published repository carries its code; it is read, never run
        is_legacy = "starmie" not in code.read_text(encoding="utf-8", errors="replace")
    if is_legacy:
        raise CheckpointError(
            "This is a legacy Moondream 2 (2025-01-09 to 2025-04-14), whose prompts and tokenizer were "
            "others; use the release of 2025-06-21 or later, without a config.json of an older one."
        )


def _open_tokenizer(path: Path, config: ModelConfig) -> Tokenizer:
    tokenizer = Tokenizer(path / "tokenizer.json" if path.is_dir() else path)
    rows = config.text.vocab_size
    if rows == _MD2_VOCAB_SIZE and not tokenizer.has_token(_STARMIE_TOKEN):
        raise CheckpointError(
            "tokenizer.json is not the one of these weights, which answer noise with it: the moondream2 "
            "repository still ships an outdated GPT-2 tokenizer; put the tokenizer.json of "
            f"{hub.TOKENIZER_REPO} beside the weights, or name it with --tokenizer."
        )
    if tokenizer.vocab_size > rows:
        raise CheckpointError(
            f"tokenizer.json has {tokenizer.vocab_size} tokens, the model only {rows}; "
            "use the tokenizer that belongs to it."
        )
    return tokenizer
