"""The full check at a small size: what it compares, counts and divides, and that it can fail."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from engines import build, picture, tiny_model

from photon import Engine, EngineConfig, Request, load_model, open_device, selfcheck
from photon.admission import EncodedImage
from photon.device.base import Work
from photon.device.cuda import is_available
from photon.device.deferred import DeferredDevice
from photon.measure import bandwidth, full_check
from photon.measure.dense_forward import answer_logits
from photon.measure.rounds import EMBEDDED_MODEL, endless
from photon.model.config import ModelConfig
from photon.skills.base import Mask, Token, token_masks


@pytest.fixture(scope="module")
def small() -> full_check.Size:
    config = load_model(EMBEDDED_MODEL).config
    return full_check.Size(config, num_tokens=10, num_rounds=1, copy_bytes=1 << 20, rows=(1, 2))


def test_on_the_cpu_all_of_it_runs_at_the_embedded_models_size(small: full_check.Size) -> None:
    result = full_check.check("cpu", small)
    assert result["ok"]
    assert result["tokens"]["compared"] == full_check.NUM_ANSWERS * full_check.ANSWER_TOKENS
    assert result["tokens"]["different"] == 0
    assert result["sync_leak"] is None
    assert result["floors"]["1"]["floor_ms"] < result["floors"]["2"]["floor_ms"]
    assert json.loads(json.dumps(result)) == result
    shown = full_check.show(result)
    assert "full check: ok" in shown
    assert "attention of a decode step: gather" in shown
    assert "programs that make the host wait: none" in shown


def test_a_token_that_the_cpu_would_not_have_said_fails_the_comparison(
    small: full_check.Size, tmp_path: Path
) -> None:
    model = full_check.random_model(tmp_path, small.config)
    images = full_check.pictures(small.config)[:1]
    with Engine(model, open_device("cpu"), EngineConfig(max_batch_size=1)) as engine:
        answer = list(full_check.ask(engine, images)[0].tokens)
    assert full_check.compare(model, images, [answer], margin=0.0)["ok"]
    answer[3] = Token((answer[3].id + 1) % small.config.text.vocab_size)
    found = full_check.compare(model, images, [answer], margin=0.01)
    assert found["different"] >= 1
    assert not found["ok"]
    assert not full_check.compare(model, [], [], margin=0.01)["ok"], "nothing compared is nothing shown"


def test_one_dense_pass_would_have_chosen_what_the_engine_said() -> None:
    """Text about a picture of five crops, and about none."""
    model = tiny_model()
    module = model.checkpoint.build()
    ids = model.config.tokenizer
    prompt = [Token(i) for i in ids.templates["caption"]["short"]]
    barred = torch.tensor(token_masks(ids)[Mask.UNENDING].suppressed)
    with build() as engine:
        image = engine.encode_image(picture(3, 56, 40))
        for asked in (image, None):
            handle = engine.submit(Request(endless, asked, settings={"max_tokens": 12}))
            engine.run_until_idle()
            logits = answer_logits(module, asked, prompt, handle.tokens)
            logits = logits.index_fill(1, barred, float("-inf"))
            assert logits.argmax(-1).tolist() == [token.id for token in handle.tokens]


class Waiting(DeferredDevice):
    """Its `sample` makes the host wait, and fails where that is forbidden."""

    is_forbidden = False

    def forbid_syncs(self, is_forbidden: bool) -> None:
        self.is_forbidden = is_forbidden

    def _run(self, work: Work) -> object:
        if self.is_forbidden and work.program == "sample":
            raise RuntimeError("called a synchronizing operation")
        return super()._run(work)


def test_a_program_that_makes_the_host_wait_is_named_and_waits_are_allowed_again(
    small: full_check.Size, tmp_path: Path
) -> None:
    model, device = full_check.random_model(tmp_path, small.config), Waiting()
    with Engine(model, device, EngineConfig(max_batch_size=1)) as engine:
        leak = full_check.sync_leak(engine)
    assert leak is not None
    assert "'sample'" in leak
    assert "called a synchronizing operation" in leak
    assert not device.is_forbidden


def test_a_decode_step_of_moondream_2_reads_what_the_facts_say() -> None:
    """engine_facts 1.1: 2.626 GB of weights in bfloat16, and 196,608 bytes of keys and values a position."""
    config = ModelConfig()
    weights = bandwidth.step_bytes(config, "bfloat16", rows=0, positions=0)
    assert weights == pytest.approx(2.626e9, rel=1e-3)
    assert bandwidth.step_bytes(config, "bfloat16", rows=2, positions=3) - weights == 6 * 196_608


def test_bandwidth_is_measured_on_the_device_itself() -> None:
    device = open_device("cpu")
    try:
        assert bandwidth.measure(device, 1 << 20) > 1e6
    finally:
        device.close()


@pytest.mark.skipif(is_available(), reason="there is a card")
def test_without_a_card_one_sentence_says_so_before_anything_is_written(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert selfcheck.main(["--device", "cuda", "--full"]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("selfcheck: This torch build")
    assert len(err.splitlines()) == 1


def test_an_image_of_the_check_is_one_crop() -> None:
    image = full_check.pictures(ModelConfig())[0]
    assert isinstance(image, EncodedImage)
    assert image.pixels.shape == (1, 378, 378, 3)
