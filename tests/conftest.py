"""Fixtures over the golden data: a random-weight Moondream 2 and what the reference computes with it."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import settings
from safetensors.torch import load_file, save_file

from photon.model.weights import Model, load_model

torch.set_num_threads(1)  # as in the cpu device's worker: small products lose more to threads than they gain
settings.register_profile("shared-cpu", deadline=None)  # other work on the machine is no failure
settings.load_profile("shared-cpu")

GOLDEN = Path(__file__).parent / "data" / "golden"


@pytest.fixture(scope="session")
def golden_dir() -> Path:
    """Folder of weights, images and expected.json."""
    return GOLDEN


@pytest.fixture(scope="session")
def golden() -> dict[str, Any]:
    """expected.json: config, images, tiling, cases."""
    return json.loads((GOLDEN / "expected.json").read_text())


@pytest.fixture(scope="session")
def golden_model(golden: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> Model:
    """The checkpoint as it is: for query and caption cases."""
    folder = _model_folder(tmp_path_factory.mktemp("golden"), golden)
    shutil.copy(GOLDEN / "model.safetensors", folder)
    return load_model(folder)


@pytest.fixture(scope="session")
def spatial_model(golden: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> Model:
    """With the head bias under which only EOS and COORD contend: for point and detect cases."""
    folder = _model_folder(tmp_path_factory.mktemp("spatial"), golden)
    weights = load_file(GOLDEN / "model.safetensors")
    weights["model.text.lm_head.bias"] = load_file(GOLDEN / "lm_head_bias.safetensors")["spatial"]
    save_file(weights, folder / "model.safetensors")
    return load_model(folder)


def _model_folder(folder: Path, golden: dict[str, Any]) -> Path:
    (folder / "config.json").write_text(json.dumps(golden["config"]))
    shutil.copy(GOLDEN / "tokenizer.json", folder)
    return folder
