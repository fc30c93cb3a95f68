"""The modules, run densely and without an engine, compute what the reference computes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image
from torch import Tensor
from torch.nn import functional as F

from photon.model.crops import prepare_crops
from photon.model.layers import rotary_table, rotate
from photon.model.moondream import Moondream
from photon.model.text import Attend
from photon.model.weights import Model, load_adapter


@pytest.fixture(scope="module")
def module(golden_model: Model) -> Moondream:
    return golden_model.checkpoint.build()


@pytest.fixture(scope="module")
def spatial(spatial_model: Model) -> Moondream:
    return spatial_model.checkpoint.build()


@pytest.fixture(scope="module")
def images(module: Moondream, golden: dict[str, Any], golden_dir: Path) -> list[Tensor]:
    """Embeddings (1, 729, 128) of the six golden images."""
    return [_embed(module, golden_dir / entry["file"]) for entry in golden["images"]]


def _embed(module: Moondream, path: Path) -> Tensor:
    with Image.open(path) as image:
        crops = prepare_crops(image.convert("RGB"), module.config.vision)
    with torch.inference_mode():
        return module.vision.embed(torch.from_numpy(crops.pixels), (crops.tiling,))


def dense(module: Moondream, x: Tensor, prefix: int, adapter: dict[str, Tensor] | None = None) -> Tensor:
    """Raw last hidden state (D) of a whole sequence x (1, T, D); positions below `prefix` see each other."""
    length = x.shape[1]
    position = torch.arange(length)
    visible = (position[None] <= position[:, None]) | (
        (position[None] < prefix) & (position[:, None] < prefix)
    )
    angles = rotary_table(module.config.text.rotary_dim, length)

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(rotate(q, angles), rotate(k, angles), v, attn_mask=visible)

    with torch.inference_mode():
        for index, block in enumerate(module.text.blocks):
            x = _run_block(block, x, attend, f"text.blocks.{index}", adapter)
    return x[0, -1]


def _run_block(block: Any, x: Tensor, attend: Attend, name: str, adapter: dict[str, Tensor] | None) -> Tensor:
    if adapter is None:
        return block(x, attend)
    return block(
        x, attend, lambda layer, h: h @ adapter[f"{name}.{layer}.A"].T @ adapter[f"{name}.{layer}.B"].T
    )


def prompt(module: Moondream, image: Tensor | None, ids: list[int]) -> Tensor:
    """(1, T, D) of BOS, the image and the template's ids."""
    bos = module.text.embed(torch.tensor([[module.config.tokenizer.bos_id]]))
    parts = [bos, module.text.embed(torch.tensor([ids]))]
    return torch.cat(parts if image is None else [bos, image, parts[1]], dim=1)


def greedy(
    module: Moondream, x: Tensor, prefix: int, count: int, adapter: dict[str, Tensor] | None = None
) -> list[int]:
    """Ids of a greedy query; the answer id is barred from the second token on, as in the reference."""
    ids: list[int] = []
    with torch.inference_mode():
        while len(ids) < count:
            logits = module.text.logits(dense(module, x, prefix, adapter))
            if ids:
                logits[module.config.tokenizer.answer_id] = -torch.inf
            ids.append(int(logits.argmax()))
            x = torch.cat((x, module.text.embed(torch.tensor([[ids[-1]]]))), dim=1)
    return ids


def points(module: Moondream, x: Tensor, limit: int) -> list[dict[str, float]]:
    """The reference's point loop: x from the hidden state that chose a point, y after feeding x."""
    found: list[dict[str, float]] = []
    with torch.inference_mode():
        while len(found) < limit:
            hidden = dense(module, x, 730)
            if int(module.text.logits(hidden).argmax()) == module.config.tokenizer.eos_id:
                break
            pair = []
            for _ in "xy":
                value = module.region.decode_coord(hidden)
                pair.append(float(value))
                x = torch.cat((x, module.region.encode_coord(value)[None, None]), dim=1)
                hidden = dense(module, x, 730)
            found.append({"x": pair[0], "y": pair[1]})
    return found


def _case(golden: dict[str, Any], **wanted: object) -> dict[str, Any]:
    return next(case for case in golden["cases"] if all(case.get(k) == v for k, v in wanted.items()))


def _query_ids(model: Model, case: dict[str, Any]) -> list[int]:
    template = model.config.tokenizer.templates["query"]
    return [*template["prefix"], *model.tokenizer.encode(case["question"]), *template["suffix"] * 2]


@pytest.mark.parametrize("index", range(6))
def test_image_embeddings_are_the_references(
    index: int, images: list[Tensor], golden: dict[str, Any]
) -> None:
    expected, ours = golden["images"][index], images[index][0]
    assert list(ours.shape) == expected["vision_shape"]
    assert ours[0, :8].tolist() == pytest.approx(expected["vision_head"], abs=1e-3)
    assert float(ours.norm()) == pytest.approx(expected["vision_norm"], abs=2e-3)
    assert ours[400, :8].tolist() == pytest.approx(expected["vision_mid"], abs=1e-3)


@pytest.mark.parametrize("index", [0, 2, None])
def test_greedy_answers_are_the_references(
    index: int | None, module: Moondream, golden_model: Model, images: list[Tensor], golden: dict[str, Any]
) -> None:
    case = _case(golden, image=index, task="query", lora=False)
    image = None if index is None else images[index]
    x = prompt(module, image, _query_ids(golden_model, case))
    assert greedy(module, x, 0 if image is None else 730, 12) == case["fed_token_ids"][:12]


def test_an_adapter_gives_the_references_answer(
    module: Moondream, golden_model: Model, images: list[Tensor], golden: dict[str, Any], golden_dir: Path
) -> None:
    case = _case(golden, image=0, task="query", lora=True)
    adapter = load_adapter(golden_dir / "lora.safetensors", golden_model.config, max_rank=4).tensors()
    x = prompt(module, images[0], _query_ids(golden_model, case))
    assert greedy(module, x, 730, 12, adapter) == case["fed_token_ids"][:12]


@pytest.mark.parametrize("index", [0, 5])
def test_points_are_the_references(
    index: int, spatial: Moondream, spatial_model: Model, images: list[Tensor], golden: dict[str, Any]
) -> None:
    """user_reports 28."""
    case = _case(golden, image=index, task="point", object="dog", lora=False)
    template = spatial_model.config.tokenizer.templates["point"]
    ids = [*template["prefix"], *spatial_model.tokenizer.encode(" dog"), *template["suffix"]]
    found = points(spatial, prompt(spatial, images[index], ids), case["max_objects"])
    assert len(found) == len(case["points"])
    for ours, theirs in zip(found, case["points"], strict=True):
        assert ours == pytest.approx(theirs, abs=1e-5)


@pytest.mark.parametrize("task", ["query", "caption"])
def test_answers_decode_to_the_references_text(
    task: str, golden_model: Model, golden: dict[str, Any]
) -> None:
    cases = [case for case in golden["cases"] if case["task"] == task and "fed_token_ids" in case]
    texts = [golden_model.tokenizer.decode(case["fed_token_ids"]) for case in cases]
    assert texts == [case.get("answer", case.get("caption")) for case in cases]
