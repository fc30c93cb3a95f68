"""Crops equal the reference's, byte for byte; tilings equal its table."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from photon.model.config import VisionConfig
from photon.model.crops import prepare_crops, select_tiling
from photon.model.vision import stitch
from photon.model.weights import Model


def test_tilings_are_the_references(golden: dict[str, Any]) -> None:
    ours = [[h, w, *select_tiling(h, w, VisionConfig())] for h, w, _, _ in golden["tiling"]]
    assert ours == golden["tiling"]


@pytest.mark.parametrize("index", range(6))
def test_crops_are_the_references_byte_for_byte(index: int, golden: dict[str, Any], golden_dir: Path) -> None:
    expected = golden["images"][index]
    with Image.open(golden_dir / expected["file"]) as image:
        crops = prepare_crops(image.convert("RGB"), VisionConfig())
    pixels = crops.pixels
    if crops.tiling == (1, 1):
        pixels = np.concatenate((pixels, pixels))
    assert [*crops.tiling] == expected["tiling"]
    assert len(pixels) == expected["n_crops"]
    assert hashlib.sha256(pixels.tobytes()).hexdigest() == expected["crop_sha256_uint8"]


def test_one_crop_when_the_local_crop_would_be_the_same() -> None:
    crops = prepare_crops(Image.new("RGB", (1, 5000), "red"), VisionConfig())
    assert crops.tiling == (1, 1)
    assert crops.pixels.shape == (1, 378, 378, 3)
    assert (crops.pixels == (255, 0, 0)).all()


def test_geometry_follows_the_config() -> None:
    config = VisionConfig(crop_size=96, enc_patch_size=8, overlap_margin=2, max_crops=4)
    crops = prepare_crops(Image.new("RGB", (200, 200)), config)
    assert crops.tiling == (2, 2)
    assert crops.pixels.shape == (5, 96, 96, 3)


@given(st.integers(1, 8000), st.integers(1, 8000))
def test_up_to_nine_to_one_no_image_exceeds_max_crops(height: int, width: int) -> None:
    rows, columns = select_tiling(height, width, VisionConfig())
    assert rows >= 1
    assert columns >= 1
    if max(height, width) <= 9 * min(height, width):
        assert rows * columns <= 12


def test_one_pass_of_a_small_image_gives_what_two_gave(golden_model: Model) -> None:
    """The reference encodes whole image and local crop, the same pixels, and stitches the latter."""
    vision = golden_model.checkpoint.build().vision
    pixels = np.random.default_rng(0).integers(0, 256, (1, 378, 378, 3), dtype=np.uint8)
    crop = torch.from_numpy(pixels)
    with torch.inference_mode():
        once = vision.embed(crop, ((1, 1),))
        whole, local = vision.encode(torch.cat((crop, crop)))
        twice = vision.project(whole, stitch(local[None], (1, 1), vision.config))
    assert once[0].numpy() == pytest.approx(twice.numpy(), abs=1e-5)
