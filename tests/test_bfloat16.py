"""Pins what bfloat16 keeps: the answers of trained weights, the tokens at both depths, logits near float32's.

What it does not keep is float32's promise that a request's tokens do not depend on its company
(`test_engine_golden.py`, `test_engine_equivalence.py`): a product of one row and one of eight round
differently, and 8 bits of mantissa show it where the best two tokens are that close.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image
from test_model_golden import _case, _query_ids, dense, prompt

from photon import Engine, EngineConfig, Request, load_model, open_device
from photon.device.base import Device
from photon.device.deferred import DeferredDevice
from photon.model.crops import prepare_crops
from photon.model.moondream import Moondream
from photon.model.weights import Model

ASSETS = Path(__file__).resolve().parents[1] / "assets"
EPSILON = 0.15
"""The most that a logit of the golden model (standard deviation 1.8) moves by rounding."""


def sample_requests() -> list[Request]:
    """The page's examples, one label each."""
    requests = []
    for example in json.loads((ASSETS / "examples.json").read_text()):
        label = example.get("prompt", "").partition(",")[0]
        length = example.get("length", "normal")
        requests.append(Request(example["task"], ASSETS / example["image"], label, length=length))
    return requests


def answers(device: Device, dtype: str, depth: int = 2, **options: Any) -> list[tuple[Any, dict[str, Any]]]:
    """Tokens and results of all examples in one batch."""
    config = EngineConfig(depth=depth)
    with Engine(load_model(ASSETS / "tiny"), device, config, dtype=dtype, **options) as engine:
        handles = [engine.submit(request) for request in sample_requests()]
        if options:
            engine.run_until_idle()
        return [(handle.tokens, handle.result(timeout=300)) for handle in handles]


@pytest.fixture(scope="module")
def single() -> list[dict[str, Any]]:
    return [result for _, result in answers(open_device("cpu"), "float32")]


def test_trained_weights_answer_alike_in_half_the_memory(single: list[dict[str, Any]]) -> None:
    for (_, half), full in zip(answers(open_device("cpu"), "bfloat16"), single, strict=True):
        assert half.keys() == full.keys()
        for key, value in full.items():
            if key in ("points", "objects"):
                assert [pytest.approx(item, abs=0.02) for item in value] == half[key]
            else:
                assert half[key] == value


def test_tokens_are_the_same_at_both_depths() -> None:
    blocking, pipelined = (
        answers(DeferredDevice(depth), "bfloat16", depth, threaded=False) for depth in (1, 2)
    )
    assert blocking == pipelined


@pytest.mark.parametrize("index", [0, None])
def test_logits_are_near_and_the_best_token_is_the_references_unless_two_are_that_close(
    index: int | None, golden_model: Model, golden: dict[str, Any], golden_dir: Path
) -> None:
    """Along the reference's own tokens, so that one rounding has no consequences for the next position."""
    case = _case(golden, image=index, task="query", lora=False)
    ids = _query_ids(golden_model, case)
    full, half = (golden_model.checkpoint.build("cpu", d) for d in (torch.float32, torch.bfloat16))
    for count in range(8):
        fed = [*ids, *case["fed_token_ids"][:count]]
        exact, rounded = (logits(module, golden, golden_dir, index, fed) for module in (full, half))
        assert (exact - rounded).abs().max() < EPSILON
        best, second = exact.topk(2).values
        assert exact.argmax() == rounded.argmax() or best - second < 2 * EPSILON


def logits(
    module: Moondream, golden: dict[str, Any], folder: Path, index: int | None, ids: list[int]
) -> torch.Tensor:
    """(V,) float32 after a prompt about a golden image."""
    if index is None:
        image = None
    else:
        with Image.open(folder / golden["images"][index]["file"]) as picture:
            crops = prepare_crops(picture.convert("RGB"), module.config.vision)
        image = module.vision.embed(torch.from_numpy(crops.pixels), (crops.tiling,))
    with torch.inference_mode():
        hidden = dense(module, prompt(module, image, ids), 0 if image is None else 730)
        return module.text.logits(hidden).float()
