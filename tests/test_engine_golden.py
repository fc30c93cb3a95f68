"""Every golden case through the pipelined engine: the public reference's tokens exactly, its values to 1e-5.

At depth 1 and 2, alone and batched with all the others, on the real worker process and on the deferred
device: what the reference computes must not depend on any of it.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from photon import Engine, EngineConfig, Handle, Request, open_device
from photon.admission import EncodedImage
from photon.model.weights import Model

SPATIAL = ("point", "detect")


DEVICES = ("cpu", "deferred")
LARGE = (2, 5)  # nine and thirteen crops, encoded anew for each request that runs alone


@dataclass(frozen=True)
class Setting:
    device: str
    depth: int
    batch_size: int
    images: tuple[int | None, ...] = (None, 0, 1, 2, 3, 4, 5)


def settings() -> Iterator[Any]:
    """All of device x depth x company; the large images alone take minutes."""
    small = tuple(image for image in Setting.images if image not in LARGE)
    for device, depth in itertools.product(DEVICES, (1, 2)):
        yield pytest.param(Setting(device, depth, 8), id=f"{device}-{depth}-batched")
        yield pytest.param(Setting(device, depth, 1, small), id=f"{device}-{depth}-alone")
        large = Setting(device, depth, 1, LARGE)
        yield pytest.param(large, id=f"{device}-{depth}-alone-large", marks=pytest.mark.slow)


@pytest.mark.parametrize("setting", list(settings()))
def test_every_golden_case_equals_the_reference(
    setting: Setting, golden: dict[str, Any], golden_dir: Path, golden_model: Model, spatial_model: Model
) -> None:
    cases = [case for case in golden["cases"] if case["image"] in setting.images]
    for model, is_spatial in ((golden_model, False), (spatial_model, True)):
        run([case for case in cases if (case["task"] in SPATIAL) == is_spatial], setting, model, golden_dir)


def run(cases: list[dict[str, Any]], setting: Setting, model: Model, golden_dir: Path) -> None:
    config = EngineConfig(depth=setting.depth, max_batch_size=setting.batch_size, prefill_token_budget=8192)
    is_threaded = setting.device != "deferred"
    device = open_device(setting.device)
    with Engine(model, device, config, dtype="float32", threaded=is_threaded) as engine:
        engine.load_adapter("golden", golden_dir / "lora.safetensors")
        files = {image: golden_dir / f"image{image}.png" for image in setting.images if image is not None}
        images = {image: engine.encode_image(file) for image, file in files.items()}
        handles = [engine.submit(request_of(case, images.get(case["image"]))) for case in cases]
        if not is_threaded:
            engine.run_until_idle()
        for case, handle in zip(cases, handles, strict=True):
            assert_equal(case, handle)


def request_of(case: dict[str, Any], image: EncodedImage | None) -> Request:
    settings = {name: case[name] for name in ("max_tokens", "max_objects") if name in case}
    if case.get("lora"):
        settings["adapter"] = "golden"
    return Request(
        case["task"],
        image,
        case.get("question") or case.get("object") or "",
        length=case.get("length", "normal"),
        reasoning=case.get("reasoning", False),
        spatial_refs=tuple(map(tuple, case.get("spatial_refs", ()))),
        settings=settings,
    )


def assert_equal(case: dict[str, Any], handle: Handle) -> None:
    result = handle.result(timeout=600)
    for key in ("answer", "caption"):
        assert result.get(key) == case.get(key), case
    if "fed_token_ids" in case:
        assert [token.id for token in handle.tokens] == case["fed_token_ids"], case
    if "reasoning_text" in case:
        assert result["reasoning"] == {"text": case["reasoning_text"], "grounding": case["grounding"]}, case
    for key in ("points", "objects"):
        if key in case:
            assert result[key] == [pytest.approx(item, abs=1e-5) for item in case[key]], case
