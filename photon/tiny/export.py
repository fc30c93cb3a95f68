"""Write a model in the layout the loader reads: model.safetensors, config.json, tokenizer.json."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer

from photon.model.moondream import Moondream


def export(model: Moondream, raw: dict[str, Any], tokenizer: Tokenizer, folder: Path) -> None:
    """Save weights as bfloat16 under 'model.' names, and what goes with them."""
    folder.mkdir(parents=True, exist_ok=True)
    weights = {"model." + n: t.detach().to(torch.bfloat16) for n, t in model.state_dict().items()}
    save_file(weights, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(raw, indent=1) + "\n")
    tokenizer.save(str(folder / "tokenizer.json"))
