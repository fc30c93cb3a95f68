"""Pins training: packed and cached decoding agree, runs resume bit-exactly, the export loads back."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from random import Random

import pytest
import torch
from tokenizers import Tokenizer

from photon.model.config import ModelConfig
from photon.model.moondream import Moondream
from photon.model.weights import load_model
from photon.tiny import evaluate, prompts, setup
from photon.tiny.data import Encoder, empty, prepare, put, stack
from photon.tiny.forward import decode, embed
from photon.tiny.muon import orthogonalise
from photon.tiny.pool import MULTI, SINGLE, Supply, crops, tensors
from photon.tiny.reader import Reader, Session, load
from photon.tiny.scenes import draw_scene
from photon.tiny.schedule import STAGES, Stage
from photon.tiny.train import Trainer

SIZES = {
    "text": {**setup.SIZES["text"], "dim": 32, "ff_dim": 48, "n_layers": 2, "n_heads": 2, "n_kv_heads": 2},
    "vision": {
        **setup.SIZES["vision"],
        "enc_dim": 16,
        "enc_ff_dim": 24,
        "enc_n_layers": 3,
        "enc_n_heads": 2,
        "proj_out_dim": 32,
        "proj_inner_dim": 24,
    },
    "region": {**setup.SIZES["region"], "dim": 32, "inner_dim": 16},
}
SUPPLY = Supply(3, 1, 1.0, 0.5, keep_singles=4, keep_multis=2)


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return prompts.build_tokenizer()


@pytest.fixture
def model(tokenizer: Tokenizer) -> Moondream:
    """A minuscule model of the real layout."""
    model = Moondream(ModelConfig.from_dict(setup.raw_config(tokenizer, SIZES)))
    setup.initialise(model, 1)
    return model


def stages(steps: int) -> tuple[Stage, ...]:
    return tuple(replace(s, steps=steps, supply=SUPPLY, packing=(2, 48)) for s in STAGES)


def weights(trainer: Trainer) -> dict[str, torch.Tensor]:
    return {n: p.clone() for n, p in trainer.state.model.state_dict().items()}


def test_a_run_resumed_in_each_stage_ends_in_the_same_bits(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    whole = Trainer(tmp_path / "a", stages(4), seed=3, sizes=SIZES)
    whole.run()
    for stop in range(3):
        part = Trainer(tmp_path / "b", stages(4), seed=3, every=2, sizes=SIZES)
        save, seen = part._save, []

        def stopping(save=save, seen=seen, part=part, stop=stop) -> None:
            save()
            seen.append(None)
            if part.state.stage == stop and part.state.step == 2:
                raise KeyboardInterrupt

        part._save = stopping  # type: ignore[method-assign]
        with pytest.raises(KeyboardInterrupt):
            part.run()
    rest = Trainer(tmp_path / "b", stages(4), seed=3, sizes=SIZES)
    rest.run()
    for name, weight in weights(whole).items():
        assert torch.equal(weight, weights(rest)[name]), name


def test_each_stage_moves_only_what_it_trains(tmp_path: Path) -> None:
    trainer = Trainer(tmp_path, stages(2)[:1], seed=0, sizes=SIZES)
    before = weights(trainer)
    trainer.run()
    moved = {n.split(".")[0] for n, w in weights(trainer).items() if not torch.equal(w, before[n])}
    assert moved == {"vision", "region"}
    assert torch.equal(before["region.coord_features"], weights(trainer)["region.coord_features"])


def test_the_export_loads_back_strictly_and_equals_the_weights_in_bfloat16(tmp_path: Path) -> None:
    trainer = Trainer(tmp_path, stages(1)[:1], seed=0, sizes=SIZES)
    trainer.run()
    loaded = load_model(tmp_path / "export")
    assert loaded.config.vocabulary == tuple(prompts.vocabulary())
    assert loaded.config.name == "photon-tiny"
    model, _ = load(tmp_path / "export")
    for name, weight in trainer.state.model.state_dict().items():
        assert torch.equal(model.state_dict()[name], weight.bfloat16().float()), name


def test_the_real_sizes_fit_the_file_limit(tokenizer: Tokenizer) -> None:
    config = ModelConfig.from_dict(setup.raw_config(tokenizer))
    assert sum(p.numel() for p in Moondream(config).parameters()) * 2 < 8_000_000 - 100_000


@torch.no_grad()
def test_packed_prompts_decode_like_each_prompt_alone(model: Moondream, tokenizer: Tokenizer) -> None:
    config, scene, rng = model.config, draw_scene(4, MULTI), Random(0)
    reader, encoder = Reader(model, tokenizer), Encoder(tokenizer, config.tokenizer)
    image = reader.see(*crops([prepare(scene, config)]))
    asks = [prompts.ask_count(rng, scene), prompts.ask_color(rng, scene)]
    asks.append(prompts.ask_where(rng, scene, "detect"))
    rows = [empty(60), empty(60)]
    for number, ask in enumerate(asks):
        assert put(rows[number % 2], ask, number, encoder, config.text.prefix_attn, None)
    hidden, _ = decode(model, image, tensors(stack(rows)))
    session = Session(reader, image, [(0, ask) for ask in asks], limit=4)
    for number, ask in enumerate(asks):
        row = rows[number % 2]
        last = (row.prompt == number).nonzero()[0][len(encoder.prompt_ids(ask)) - 1]
        assert torch.allclose(hidden[number % 2, last], session.hidden[number], atol=1e-5)


@torch.no_grad()
def test_training_embeds_like_the_model_does(model: Moondream) -> None:
    samples = [prepare(draw_scene(n, style), model.config) for n, style in enumerate((SINGLE, MULTI, MULTI))]
    pixels, tilings = crops(samples)
    expected = model.vision.embed(pixels, tuple(tilings))
    assert torch.allclose(embed(model.vision, pixels, tilings)[0], expected, atol=1e-5)


def test_orthogonalised_updates_have_singular_values_near_one() -> None:
    torch.manual_seed(0)
    values = torch.linalg.svdvals(orthogonalise(torch.randn(2, 24, 16)))
    assert values.min() > 0.5
    assert values.max() < 1.4


def test_matching_counts_each_truth_once() -> None:
    truth = [(0.2, 0.2, 0.1, 0.1), (0.8, 0.8, 0.2, 0.2)]
    assert evaluate.matches(truth, truth, evaluate.overlap) == 2
    assert evaluate.matches([truth[0], truth[0]], truth, evaluate.overlap) == 1
    assert evaluate.matches([(0.24, 0.2)], truth, evaluate.closeness) == 1
    assert evaluate.matches([(0.26, 0.2)], truth, evaluate.closeness) == 0
    assert evaluate.matches([], truth, evaluate.closeness) == 0
