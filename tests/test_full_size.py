"""Pins the full-size check: its checkpoints are what the loader takes, in both layouts; by hand, itself."""

from __future__ import annotations

from pathlib import Path

import pytest
from full_size import run
from safetensors import safe_open

from photon.model.random_weights import LAYOUTS, old_name, write_checkpoint
from photon.model.weights import Checkpoint, Model


def test_the_old_names_are_the_old_layouts(golden_dir: Path) -> None:
    with (
        safe_open(golden_dir / "model.safetensors", framework="pt") as new,
        safe_open(golden_dir / "model_old_layout.safetensors", framework="pt") as old,
    ):
        assert {old_name(key.removeprefix("model.")) for key in new.keys()} == set(old.keys())  # noqa: SIM118


@pytest.mark.parametrize("layout", LAYOUTS)
def test_what_is_written_is_a_checkpoint_of_the_config(
    layout: str, golden_model: Model, tmp_path: Path
) -> None:
    path = tmp_path / "model.safetensors"
    write_checkpoint(path, golden_model.config, layout)
    module = Checkpoint.open(path, golden_model.config).build()
    assert module.region.size_features.shape == (2, golden_model.config.region.size_feat_dim // 2)


@pytest.mark.slow
@pytest.mark.parametrize("layout", LAYOUTS)
def test_moondream_2_at_full_size_answers_through_the_pipeline(layout: str) -> None:
    figures = run(layout, "bfloat16", num_threads=2)
    point, query, _ = figures["results"]
    assert figures["parameters"] == 1_927_237_104
    assert figures["load_peak_over_file"] <= 1.15
    assert figures["host_peak_over_file"] <= 0.15, "the parent holds no copy"
    assert figures["max_in_flight"] == 2
    assert len(point["points"]) == 2
    assert query["answer"]
