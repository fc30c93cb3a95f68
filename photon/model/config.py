"""Model configuration, in the field names of the reference's config.json.

Defaults are Moondream 2 (2B, 2025-06-21 and later). A checkpoint without config.json is taken as that.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Any

from photon.errors import CheckpointError


@dataclass(frozen=True)
class TextConfig:
    """The decoder: parallel attention and MLP, partial rotary embedding, bidirectional image prefix."""

    dim: int = 2048
    ff_dim: int = 8192
    n_layers: int = 24
    vocab_size: int = 51200
    max_context: int = 2048
    n_heads: int = 32
    n_kv_heads: int = 32
    prefix_attn: int = 730

    @property
    def head_dim(self) -> int:
        return self.dim // self.n_heads

    @property
    def rotary_dim(self) -> int:
        """Only the first half of each head is rotated (reference: 32 of 64)."""
        return self.head_dim // 2

    @property
    def adaptable(self) -> dict[str, tuple[int, int]]:
        """Linear layers of a block that an adapter may change, by name: width (in, out)."""
        return {
            "attn.qkv": (self.dim, 3 * self.dim),
            "attn.proj": (self.dim, self.dim),
            "mlp.fc1": (self.dim, self.ff_dim),
            "mlp.fc2": (self.ff_dim, self.dim),
        }


@dataclass(frozen=True)
class VisionConfig:
    """The SigLIP-like encoder and the overlap-crop geometry (`overlap_margin` is in patches)."""

    enc_dim: int = 1152
    enc_patch_size: int = 14
    enc_n_layers: int = 27
    enc_ff_dim: int = 4304
    enc_n_heads: int = 16
    proj_out_dim: int = 2048
    crop_size: int = 378
    in_channels: int = 3
    max_crops: int = 12
    overlap_margin: int = 4
    proj_inner_dim: int = 8192

    @property
    def grid(self) -> int:
        """Patches per side. The reference (ab)uses enc_n_layers here; 27 is a coincidence of md2."""
        return self.crop_size // self.enc_patch_size

    @property
    def num_patches(self) -> int:
        return self.grid * self.grid


@dataclass(frozen=True)
class RegionConfig:
    """Fourier encoders and MLP decoders of coordinates and sizes."""

    dim: int = 2048
    coord_feat_dim: int = 256
    coord_out_dim: int = 1024
    size_feat_dim: int = 512
    size_out_dim: int = 2048
    inner_dim: int = 8192


def _default_templates() -> dict[str, Any]:
    return {
        "caption": {
            "short": [1, 32708, 2, 12492, 3],
            "normal": [1, 32708, 2, 6382, 3],
            "long": [1, 32708, 2, 4059, 3],
        },
        "query": {"prefix": [1, 15381, 2], "suffix": [3]},
        "detect": {"prefix": [1, 7235, 476, 2], "suffix": [3]},
        "point": {"prefix": [1, 2581, 2], "suffix": [3]},
    }


@dataclass(frozen=True)
class TokenizerConfig:
    """Control token ids and the prompt templates of each skill (ids, not text)."""

    bos_id: int = 0
    eos_id: int = 0
    answer_id: int = 3
    thinking_id: int = 4
    coord_id: int = 5
    size_id: int = 6
    start_ground_points_id: int = 7
    end_ground_id: int = 9
    templates: dict[str, Any] = field(default_factory=_default_templates)


@dataclass(frozen=True)
class ModelConfig:
    """Everything needed to build the modules and the prompts."""

    text: TextConfig = field(default_factory=TextConfig)
    vision: VisionConfig = field(default_factory=VisionConfig)
    region: RegionConfig = field(default_factory=RegionConfig)
    tokenizer: TokenizerConfig = field(default_factory=TokenizerConfig)
    name: str = "moondream2"
    vocabulary: tuple[str, ...] = ()
    """Words a prompt may use; empty when the model speaks ordinary language."""
    limits: str = ""
    """One sentence for the page: what this model cannot do."""

    @classmethod
    def from_dict(cls, raw: dict[str, Any]) -> ModelConfig:
        """Read the reference's config.json; unknown keys are ignored, missing ones are Moondream 2's.

        Raises:
            CheckpointError: the sizes contradict each other, naming both.
        """
        parts = {
            "text": _section(TextConfig, raw),
            "vision": _section(VisionConfig, raw),
            "region": _section(RegionConfig, raw),
            "tokenizer": _section(TokenizerConfig, raw),
        }
        extra = {key: raw[key] for key in ("name", "limits") if key in raw}
        config = cls(**parts, **extra, vocabulary=tuple(raw.get("vocabulary", ())))
        config.check()
        return config

    def check(self) -> None:
        """Raise CheckpointError where two sizes contradict each other."""
        text, vision, region = self.text, self.vision, self.region
        wanted = (
            ("text.dim / text.n_heads", text.dim % text.n_heads, 0),
            ("text.n_kv_heads", text.n_kv_heads, text.n_heads),
            ("vision.proj_out_dim", vision.proj_out_dim, text.dim),
            ("region.dim", region.dim, text.dim),
            ("text.prefix_attn", text.prefix_attn, 1 + vision.num_patches),
            ("vision.crop_size % enc_patch_size", vision.crop_size % vision.enc_patch_size, 0),
            ("region.size_out_dim", region.size_out_dim, 2 * region.coord_out_dim),
        )
        wrong = [f"{name} is {got}, expected {expected}" for name, got, expected in wanted if got != expected]
        if wrong:
            raise CheckpointError("config.json contradicts itself: " + "; ".join(wrong) + ".")


def _section(cls: type, raw: dict[str, Any]) -> Any:
    name = cls.__name__.removesuffix("Config").lower()
    section = raw.get(name, {})
    known = {f.name for f in fields(cls)}
    return cls(**{key: value for key, value in section.items() if key in known})
