"""Every golden case through the pipelined engine: the public reference's tokens exactly, its values to 1e-5.

At depth 1 and 2, alone and batched with all the others, on the real worker process and on the deferred
device: what the reference computes must not depend on any of it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from photon import Engine, EngineConfig, Handle, Request, open_device
from photon.model.weights import Model

SPATIAL = ("point", "detect")


@pytest.mark.parametrize("batch_size", [1, 8], ids=["alone", "batched"])
@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("device_name", ["cpu", "deferred"])
def test_every_golden_case_equals_the_reference(
    device_name: str,
    depth: int,
    batch_size: int,
    golden: dict[str, Any],
    golden_dir: Path,
    golden_model: Model,
    spatial_model: Model,
) -> None:
    config = EngineConfig(depth=depth, max_batch_size=batch_size)
    for model, is_spatial in ((golden_model, False), (spatial_model, True)):
        cases = [case for case in golden["cases"] if (case["task"] in SPATIAL) == is_spatial]
        with Engine(model, open_device(device_name), config, threaded=device_name != "deferred") as engine:
            engine.load_adapter("golden", golden_dir / "lora.safetensors")
            handles = [engine.submit(request_of(case, golden_dir)) for case in cases]
            if device_name == "deferred":
                engine.run_until_idle()
            for case, handle in zip(cases, handles, strict=True):
                assert_equal(case, handle)


def request_of(case: dict[str, Any], golden_dir: Path) -> Request:
    settings = {name: case[name] for name in ("max_tokens", "max_objects") if name in case}
    if case.get("lora"):
        settings["adapter"] = "golden"
    return Request(
        case["task"],
        None if case["image"] is None else golden_dir / f"image{case['image']}.png",
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
