"""What runs where, and what is refused, in pairs of words."""

from __future__ import annotations

import torch

from photon import Engine
from photon.device.cuda import is_available
from photon.images import MAX_PIXELS
from photon.ui.ask import MAX_LABELS


def describe(engine: Engine) -> list[tuple[str, str]]:
    """What runs where, for the header, the About tab and the banner."""
    facts = [
        ("model", f"{engine.model.config.name} {engine.model.release}".strip()),
        ("device", engine.device.name),
        ("dtype", engine.dtype),
        ("batch", f"up to {engine.config.max_batch_size} rows"),
    ]
    return [(name, str(value)) for name, value in facts]


def limits(engine: Engine, max_upload: str, max_queue: int) -> list[tuple[str, str]]:
    """What is refused, for the About tab."""
    return [
        ("picture", f"up to {MAX_PIXELS // 1_000_000} million pixels and {max_upload.upper()}"),
        ("context", f"{engine.model.config.text.max_context} positions for picture, prompt and answer"),
        ("labels", f"up to {MAX_LABELS} in one run, by comma or line"),
        ("people", f"{max_queue} requests may wait; one more is refused"),
    ]


def cuda_note(engine: Engine) -> str:
    """Whether CUDA is used and, if not, why not."""
    if engine.device.name.startswith("cuda"):
        return "used"
    if is_available():
        return "there, but another device was asked for"
    if torch.version.cuda is None:
        return "not used: this torch build has no CUDA"
    return "not used: no CUDA device was found"
