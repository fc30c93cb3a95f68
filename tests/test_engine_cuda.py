"""The engine on a real card: the reference's tokens, and no hidden wait in launch and sample (I13)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from test_engine_golden import Setting, run

from photon import Engine, EngineConfig, Handle, Request, open_device
from photon.device.base import RunnerSpec, Work
from photon.device.cuda import CudaDevice
from photon.model.weights import Model
from photon.runner import ModelRunnerSpec

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]


@pytest.fixture
def exact_float32() -> Iterator[None]:
    """The reference ran in full float32 on a CPU; TF32 would move its near-ties."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")
    yield
    torch.set_float32_matmul_precision(before)


@pytest.mark.usefixtures("exact_float32")
@pytest.mark.parametrize("depth", [1, 2])
def test_query_and_caption_cases_equal_the_reference(
    depth: int, golden: dict[str, Any], golden_dir: Path, golden_model: Model
) -> None:
    cases = [case for case in golden["cases"] if case["task"] not in ("point", "detect")]
    run(cases, Setting("cuda", depth, 8), golden_model, golden_dir)


class Gathering(CudaDevice):
    """Its runner copies KV pages, as one does where the attention kernel can't be used."""

    def load(self, spec: RunnerSpec) -> None:
        assert isinstance(spec, ModelRunnerSpec)
        super().load(replace(spec, can_use_kernel=False))


@pytest.mark.usefixtures("exact_float32")
def test_tokens_are_the_same_with_the_attention_kernel_and_without(
    golden_dir: Path, golden_model: Model
) -> None:
    """Eight rows of different lengths, about a picture and about none."""
    pytest.importorskip("triton")
    answers = {}
    for device in (open_device("cuda"), Gathering()):
        with Engine(golden_model, device, EngineConfig(max_batch_size=8), dtype="float32") as engine:
            way = device.call(Work("decode_attention"))
            image = engine.encode_image(golden_dir / "image0.png")
            handles = [
                engine.submit(Request("query", image if row % 2 else None, "why " * row + "?"))
                for row in range(8)
            ]
            for handle in handles:
                handle.result(timeout=60)
            answers[way] = [handle.tokens for handle in handles]
    assert answers.keys() == {"kernel", "gather"}
    assert answers["kernel"] == answers["gather"]


def test_nothing_but_commit_waits_for_the_card(golden_dir: Path, golden_model: Model) -> None:
    """Under sync debug mode any synchronising call of torch raises; the commit's event wait is not one.

    pipeline_bugs 76.
    """
    with Engine(golden_model, open_device("cuda"), EngineConfig(), threaded=False) as engine:
        requests = [
            Request("point", golden_dir / "image0.png", "dog"),
            Request("caption", golden_dir / "image1.png", settings={"max_tokens": 8}),
            Request("query", prompt="why?", settings={"max_tokens": 8, "temperature": 0.7, "seed": 1}),
        ]
        handles = [engine.submit(request) for request in requests]
        engine.device.forbid_syncs(True)
        try:
            engine.run_until_idle()
        finally:
            engine.device.forbid_syncs(False)
        for handle in handles:
            handle.result(timeout=60)


@pytest.mark.usefixtures("exact_float32")
def test_an_engine_opens_on_a_card_that_another_one_serves_from(
    golden_dir: Path, golden_model: Model
) -> None:
    """As the first comparison on the page does: its graphs are captured while steps of the other run."""
    request = Request("caption", golden_dir / "image1.png", settings={"max_tokens": 40})

    def tokens(handle: Handle) -> Any:
        handle.result(timeout=60)
        return handle.tokens

    with Engine(golden_model, open_device("cuda"), dtype="float32") as serving:
        wanted = tokens(serving.submit(request))
        handles = serving.submit_all([request] * 200)
        with Engine(golden_model, open_device("cuda"), dtype="float32") as other:
            assert tokens(other.submit(request)) == wanted
        assert [tokens(handle) for handle in handles] == [wanted] * 200
