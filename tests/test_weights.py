"""Loading is strict: what does not fit is refused from the header, in one sentence that names it."""

from __future__ import annotations

import dataclasses
import json
import pickle
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from photon.errors import CheckpointError
from photon.model.config import ModelConfig
from photon.model.weights import Checkpoint, Model, load_adapter, load_model

Edit = Callable[[dict[str, Tensor]], object]


@pytest.fixture
def config(golden: dict[str, Any]) -> ModelConfig:
    return ModelConfig.from_dict(golden["config"])


@pytest.fixture
def refused(config: ModelConfig, golden_dir: Path, tmp_path: Path) -> Callable[[Edit], str]:
    """Edit the golden weights, open them, return the message of the refusal."""

    def attempt(edit: Edit) -> str:
        weights = load_file(golden_dir / "model.safetensors")
        edit(weights)
        save_file(weights, tmp_path / "edited.safetensors")
        with pytest.raises(CheckpointError) as caught:
            Checkpoint.open(tmp_path / "edited.safetensors", config)
        return str(caught.value)

    return attempt


def test_both_layouts_give_identical_tensors(config: ModelConfig, golden_dir: Path) -> None:
    new = Checkpoint.open(golden_dir / "model.safetensors", config).build()
    old = Checkpoint.open(golden_dir / "model_old_layout.safetensors", config).build()
    theirs = old.state_dict()
    assert new.state_dict().keys() == theirs.keys()
    assert all(torch.equal(tensor, theirs[name]) for name, tensor in new.state_dict().items())


def test_build_gives_a_frozen_module_in_the_dtype_asked_for(golden_model: Model) -> None:
    module = golden_model.checkpoint.build("cpu", torch.bfloat16)
    assert not module.training
    assert {(p.dtype, p.requires_grad, p.is_contiguous()) for p in module.parameters()} == {
        (torch.bfloat16, False, True)
    }


def test_a_checkpoint_travels_to_another_process(golden_model: Model) -> None:
    checkpoint = pickle.loads(pickle.dumps(golden_model.checkpoint))
    assert checkpoint == golden_model.checkpoint
    with pytest.raises(dataclasses.FrozenInstanceError):
        checkpoint.path = Path("other")


def test_a_file_that_changed_since_it_was_opened_is_refused(
    config: ModelConfig, golden_dir: Path, tmp_path: Path
) -> None:
    weights = load_file(golden_dir / "model.safetensors")
    save_file(weights, tmp_path / "model.safetensors")
    checkpoint = Checkpoint.open(tmp_path / "model.safetensors", config)
    del weights["model.text.wte"]
    save_file(weights, tmp_path / "model.safetensors")
    with pytest.raises(CheckpointError, match=r"1 missing \(text\.wte"):
        checkpoint.build()


def test_every_difference_is_listed_at_once(refused: Callable[[Edit], str]) -> None:
    """user_reports 54."""

    def edit(weights: dict[str, Tensor]) -> None:
        weights["model.text.wrong"] = weights.pop("model.text.wte")
        weights["model.vision.pos_emb"] = torch.zeros(1, 728, 32)

    message = refused(edit)
    assert "1 missing (text.wte [512, 128])" in message
    assert "1 unexpected (text.wrong [512, 128])" in message
    assert "1 misshapen (vision.pos_emb [1, 728, 32] instead of [1, 729, 32])" in message


def test_at_most_five_names_are_listed(refused: Callable[[Edit], str]) -> None:
    """user_reports 54."""
    message = refused(lambda weights: [weights.pop(key) for key in list(weights) if ".blocks.1." in key])
    assert "missing" in message
    assert message.count("[") == 5
    assert len(message) < 500


def test_compiled_and_wrapped_names_are_accepted(
    config: ModelConfig, golden_dir: Path, tmp_path: Path
) -> None:
    weights = load_file(golden_dir / "model.safetensors")
    renamed = {
        key.replace("text.", "text._orig_mod.").removeprefix("model."): t for key, t in weights.items()
    }
    save_file(renamed, tmp_path / "compiled.safetensors")
    module = Checkpoint.open(tmp_path / "compiled.safetensors", config).build()
    assert torch.equal(module.text.wte, weights["model.text.wte"])


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("text.blocks.0.attn.tau.alpha", "Moondream 3"),
        ("text.blocks.4.mlp.router.weight", "Moondream 3"),
        ("region_model.coordinate_head.weight", "Moondream 3"),
        ("text.blocks.0.attn.qkv.weight.packed", "int4"),
    ],
)
def test_other_models_are_refused_by_name(name: str, found: str, refused: Callable[[Edit], str]) -> None:
    message = refused(lambda weights: weights.update({name: torch.zeros(1)}))
    assert found in message
    assert name in message


def test_integer_weights_are_refused(refused: Callable[[Edit], str]) -> None:
    message = refused(
        lambda weights: weights.update({"model.text.wte": torch.zeros(512, 128, dtype=torch.int8)})
    )
    assert "model.text.wte as I8" in message


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 3854538968\n", "Git LFS pointer"),
        (b"PK\x03\x04 a pickled checkpoint in a zip file", "not a safetensors file"),
        (b"<!DOCTYPE html><html>Sign in</html>", "not a safetensors file"),
        (b"", "not a safetensors file"),
        ((1000).to_bytes(8, "little") + b'{"a":', "truncated inside its header"),
        ((5).to_bytes(8, "little") + b'{"a":', "damaged header"),
        ((6).to_bytes(8, "little") + b'{"a":1}', "damaged header"),
        ((7).to_bytes(8, "little") + b'{"a":1}', "damaged header"),
    ],
)
def test_files_that_are_no_checkpoint_are_named(
    content: bytes, message: str, config: ModelConfig, tmp_path: Path
) -> None:
    """user_reports 57."""
    (tmp_path / "model.safetensors").write_bytes(content)
    with pytest.raises(CheckpointError, match=rf"^model\.safetensors .*{message}.*[a-z]\.$"):
        Checkpoint.open(tmp_path / "model.safetensors", config)


@pytest.mark.parametrize(
    ("cut", "message"), [(-1, "truncated: 4,547,919 of 4,547,920 bytes"), (2000, "header")]
)
def test_a_truncated_file_is_recognised(
    cut: int, message: str, config: ModelConfig, golden_dir: Path, tmp_path: Path
) -> None:
    (tmp_path / "cut.safetensors").write_bytes((golden_dir / "model.safetensors").read_bytes()[:cut])
    with pytest.raises(CheckpointError, match=message):
        Checkpoint.open(tmp_path / "cut.safetensors", config)


def test_the_weights_file_itself_may_be_given(golden_model: Model) -> None:
    again = load_model(golden_model.path / "model.safetensors")
    assert again.config == golden_model.config
    assert again.checkpoint == golden_model.checkpoint


def test_a_missing_model_names_what_is_wanted(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"no model\.safetensors in .*; give a folder"):
        load_model(tmp_path)
    with pytest.raises(CheckpointError, match="give a folder"):
        load_model("nobody/no-such-model")


@pytest.mark.parametrize("content", ["{", "[]", '{"text": 3}', '{"text": {"dim": "wide"}}'])
def test_a_damaged_config_is_named(content: str, golden_model: Model, tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").symlink_to(golden_model.path / "model.safetensors")
    (tmp_path / "config.json").write_text(content)
    with pytest.raises(CheckpointError, match=r"config\.json"):
        load_model(tmp_path)


def test_without_a_config_it_is_moondream_2(golden_dir: Path, tmp_path: Path) -> None:
    shutil.copy(golden_dir / "model.safetensors", tmp_path)
    with pytest.raises(CheckpointError, match=r"vision\.pos_emb \[1, 729, 32\] instead of \[1, 729, 1152\]"):
        load_model(tmp_path)


def test_the_outdated_tokenizer_of_moondream_2_is_recognised(
    golden: dict[str, Any], golden_dir: Path, tmp_path: Path
) -> None:
    raw = json.loads(json.dumps(golden["config"]))
    raw["text"]["vocab_size"] = 51200
    weights = load_file(golden_dir / "model.safetensors")
    weights["model.text.wte"] = torch.zeros(51200, 128)
    weights["model.text.lm_head.weight"] = torch.zeros(51200, 128)
    weights["model.text.lm_head.bias"] = torch.zeros(51200)
    save_file(weights, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text(json.dumps(raw))
    shutil.copy(golden_dir / "tokenizer.json", tmp_path)
    with pytest.raises(CheckpointError, match=r"moondream/starmie-v1"):
        load_model(tmp_path)


@pytest.mark.parametrize("how", ["its config", "its code"])
def test_a_legacy_release_is_refused_by_name(
    how: str, golden: dict[str, Any], golden_model: Model, tmp_path: Path
) -> None:
    raw = json.loads(json.dumps(golden["config"]))
    if how == "its config":
        raw["tokenizer"] |= {"bos_id": 50256, "eos_id": 50256}
    else:
        (tmp_path / "moondream.py").write_text('Tokenizer.from_pretrained("vikhyatk/moondream2")')
    (tmp_path / "config.json").write_text(json.dumps(raw))
    for name in ("model.safetensors", "tokenizer.json"):
        (tmp_path / name).symlink_to(golden_model.path / name)
    with pytest.raises(CheckpointError, match=r"legacy Moondream 2 .*; use the release of 2025-06-21"):
        load_model(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps(golden["config"]))
    (tmp_path / "moondream.py").write_text('Tokenizer.from_pretrained("moondream/starmie-v1")')
    assert load_model(tmp_path).config == golden_model.config


def test_another_tokenizer_may_be_given(golden_model: Model, golden_dir: Path) -> None:
    model = load_model(golden_model.path, tokenizer=golden_dir)
    assert model.tokenizer.encode("dog") == golden_model.tokenizer.encode("dog")
    with pytest.raises(CheckpointError, match="expected"):
        load_model(golden_model.path, tokenizer=golden_dir / "expected.json")


def test_an_adapter_is_read(config: ModelConfig, golden_dir: Path) -> None:
    adapter = load_adapter(golden_dir / "lora.safetensors", config, max_rank=8)
    tensors = adapter.tensors()
    assert adapter.rank == 4
    assert tensors["text.blocks.2.mlp.fc2.A"].shape == (4, 256)
    assert len(tensors) == 24


def _without(tensors: dict[str, Tensor], prefix: str) -> None:
    for key in [key for key in tensors if key.startswith(prefix)]:
        del tensors[key]


def _saved_adapter(golden_dir: Path, path: Path, edit: Edit) -> Path:
    tensors = load_file(golden_dir / "lora.safetensors")
    edit(tensors)
    save_file(tensors, path)
    return path


def test_an_adapter_may_leave_modules_out(config: ModelConfig, golden_dir: Path, tmp_path: Path) -> None:
    def edit(tensors: dict[str, Tensor]) -> None:
        for key in [key for key in tensors if ".mlp.fc1." not in key]:
            del tensors[key]

    path = _saved_adapter(golden_dir, tmp_path / "part.safetensors", edit)
    assert load_adapter(path, config, max_rank=4).names == tuple(
        f"text.blocks.{i}.mlp.fc1.{part}" for i in range(3) for part in "AB"
    )


def test_an_adapter_in_the_old_layout_is_the_same_adapter(
    config: ModelConfig, golden_dir: Path, tmp_path: Path
) -> None:
    """As the reference's training code saved them: parametrized, under the old names."""

    def edit(tensors: dict[str, Tensor]) -> None:
        for key in list(tensors):
            old = key.replace("text.blocks.", "text_model.transformer.h.").replace(".qkv.", ".Wqkv.")
            old = old.replace(".attn.proj.", ".mixer.out_proj.").replace(".attn.", ".mixer.")
            head, _, part = old.rpartition(".")
            tensors[f"{head}.parametrizations.weight.0.{part}"] = tensors.pop(key)

    path = _saved_adapter(golden_dir, tmp_path / "old.safetensors", edit)
    theirs = load_adapter(path, config, max_rank=4).tensors()
    ours = load_adapter(golden_dir / "lora.safetensors", config, max_rank=4).tensors()
    assert theirs.keys() == ours.keys()
    assert all(torch.equal(tensor, theirs[name]) for name, tensor in ours.items())


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (lambda t: t.pop("text.blocks.0.attn.qkv.A"), r"missing \(text\.blocks\.0\.attn\.qkv\.A"),
        (lambda t: t.pop("text.blocks.0.attn.qkv.B"), r"missing \(text\.blocks\.0\.attn\.qkv\.B"),
        (
            lambda t: t.update({"text.blocks.9.attn.qkv.A": torch.zeros(4, 128)}),
            r"unexpected \(text\.blocks\.9",
        ),
        (lambda t: t.update({"vision.blocks.0.attn.qkv.A": torch.zeros(4, 32)}), r"unexpected \(vision"),
        (lambda t: t.update({"text.blocks.0.attn.qkv.B": torch.zeros(383, 4)}), r"misshapen .*\[383, 4\]"),
        (lambda t: t.update({"text.blocks.0.attn.qkv.A": torch.zeros(5, 128)}), "misshapen"),
        (lambda t: _without(t, "text.blocks.2.mlp.fc1."), r"2 missing \(text\.blocks\.2\.mlp\.fc1\.A"),
        (lambda t: t.clear(), "no adapter"),
    ],
)
def test_an_adapter_that_does_not_fit_is_refused(
    edit: Edit, message: str, config: ModelConfig, golden_dir: Path, tmp_path: Path
) -> None:
    path = _saved_adapter(golden_dir, tmp_path / "bad.safetensors", edit)
    with pytest.raises(CheckpointError, match=message):
        load_adapter(path, config, max_rank=8)


def test_an_adapter_above_the_engines_rank_is_refused(config: ModelConfig, golden_dir: Path) -> None:
    with pytest.raises(CheckpointError, match="rank 4, but the engine was opened for at most 2"):
        load_adapter(golden_dir / "lora.safetensors", config, max_rank=2)
