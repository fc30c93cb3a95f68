"""Pins what memory decides: dtype, pages, a refusal of what does not fit; and that loading takes it once."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from engines import GOLDEN, tiny_model
from full_size import load_peak
from safetensors.torch import save_file

from photon import Engine, EngineConfig
from photon.device.deferred import DeferredDevice
from photon.device.host_memory import free_host_bytes
from photon.errors import DeviceError
from photon.memory import choose_dtype, engine_bytes, kv_page_bytes, pages_of, pool_pages
from photon.model.config import ModelConfig, TextConfig
from photon.model.moondream import Moondream

MIB = 1 << 20
TEXT = tiny_model().config.text
PER_REQUEST = pages_of(TEXT, 16)
WORK = 256 * MIB


def free_for(num_bytes: int) -> int:
    """What must be free, so that so much may be taken."""
    return -(-num_bytes * 10 // 9)


class SmallDevice(DeferredDevice):
    """Has so much memory left."""

    def __init__(self, free_bytes: int | None, torch_device: str = "cpu") -> None:
        super().__init__()
        self._free_bytes = free_bytes
        self.torch_device = torch_device

    def free_bytes(self) -> int | None:
        return self._free_bytes


def pages(free_bytes: int | None, dtype: str = "float32", **config: int) -> int:
    return pool_pages(tiny_model(), SmallDevice(free_bytes), EngineConfig(**config), dtype)


def weights_bytes(item: int) -> int:
    return sum(parameter.numel() for parameter in tiny_model().checkpoint.build().parameters()) * item


def test_with_room_there_are_pages_for_a_full_batch() -> None:
    assert pages(10**12, max_batch_size=8) == pages(None, max_batch_size=8) == 8 * PER_REQUEST
    assert pages(10**12, num_pages=5) == 5


@pytest.mark.parametrize(("dtype", "item"), [("float32", 4), ("bfloat16", 2)])
def test_pages_are_sized_from_what_the_model_leaves(dtype: str, item: int) -> None:
    page_bytes = kv_page_bytes(TEXT, 16, dtype)
    assert page_bytes == 2 * 2 * 32 * item * 16  # layers, keys and values, width, item, positions
    left = (PER_REQUEST + 2) * page_bytes
    assert pages(free_for(weights_bytes(item) + WORK + left), dtype) == PER_REQUEST + 2


def test_a_card_keeps_more_for_its_graphs() -> None:
    """Of Moondream 2 in bfloat16: half of the weights instead of a fifth."""
    model: Any = SimpleNamespace(config=ModelConfig(), checkpoint=SimpleNamespace(num_parameters=2 * 10**9))
    free_bytes, config = 8 * 10**9, EngineConfig()
    found = [
        pool_pages(model, SmallDevice(free_bytes, name), config, "bfloat16") for name in ("cpu", "cuda:0")
    ]
    page_bytes = kv_page_bytes(model.config.text, config.page_size, "bfloat16")
    assert found == [int(free_bytes * 0.9 - 4e9 - share * 4e9) // page_bytes for share in (0.2, 0.5)]


def test_an_engine_takes_its_weights_and_its_pages() -> None:
    kv_bytes = 8 * PER_REQUEST * kv_page_bytes(TEXT, 16, "bfloat16")
    config = EngineConfig(max_batch_size=8)
    assert engine_bytes(tiny_model(), config, "bfloat16") == weights_bytes(2) + kv_bytes


def test_a_model_that_does_not_fit_is_refused_with_both_numbers() -> None:
    """user_reports 66."""
    with pytest.raises(DeviceError) as caught:
        pages(WORK)
    assert str(caught.value) == (
        "moondream2 in float32 needs about 0.3 GB on deferred (weights 0.0 GB), but only 0.3 GB are free; "
        "close other programs, or load it in bfloat16."
    )
    with pytest.raises(DeviceError, match=r"close other programs\.$"):
        pages(WORK, "bfloat16")


def test_pages_that_were_asked_for_must_fit() -> None:
    free_bytes = free_for(weights_bytes(4) + WORK + 20 * kv_page_bytes(TEXT, 16, "float32"))
    assert pages(free_bytes, num_pages=20) == 20
    with pytest.raises(DeviceError, match="are free"):
        pages(free_bytes, num_pages=21)


def test_an_engine_refuses_before_it_loads() -> None:
    device = SmallDevice(WORK)
    with pytest.raises(DeviceError, match="are free"):
        Engine(tiny_model(), device, threaded=False)
    device.load(Nothing())  # it had loaded nothing: a runner is still welcome


class Nothing:
    def build(self, torch_device: str) -> object:
        return object()


def test_auto_is_bfloat16_on_cuda_and_float32_elsewhere() -> None:
    """user_reports 63."""
    cpu, cuda = SmallDevice(None), SmallDevice(None, "cuda:0")
    assert [choose_dtype("auto", device) for device in (cpu, cuda)] == ["float32", "bfloat16"]
    assert choose_dtype("bfloat16", cpu) == "bfloat16"
    assert choose_dtype("float16", cuda) == "float16"
    with pytest.raises(DeviceError, match="float16 needs a CUDA device; use bfloat16 or float32"):
        choose_dtype("float16", cpu)


def test_free_memory_is_the_machines_or_the_containers(tmp_path: Path) -> None:
    assert free_host_bytes(tmp_path) is None
    write(tmp_path / "proc/meminfo", "MemTotal: 9000 kB\nMemAvailable:   4000 kB\n")
    assert free_host_bytes(tmp_path) == 4000 * 1024
    write(tmp_path / "sys/fs/cgroup/memory.max", "max\n")
    write(tmp_path / "sys/fs/cgroup/memory.current", "1000000\n")
    write(tmp_path / "sys/fs/cgroup/memory.stat", "anon 5\ninactive_file 600000\n")
    assert free_host_bytes(tmp_path) == 4000 * 1024
    write(tmp_path / "sys/fs/cgroup/memory.max", "1500000\n")
    assert free_host_bytes(tmp_path) == 1_500_000 - 1_000_000 + 600_000


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_loading_takes_the_weights_once(tmp_path: Path) -> None:
    """At most 1.15 times the file, at 77 million parameters; the full size is `full_size.py`'s."""
    text = {"dim": 512, "ff_dim": 2048, "n_layers": 24, "vocab_size": 512, "n_heads": 8, "n_kv_heads": 8}
    vision = {"enc_dim": 64, "enc_n_layers": 1, "enc_ff_dim": 64, "enc_n_heads": 2, "proj_out_dim": 512}
    raw = {"text": text, "vision": {**vision, "proj_inner_dim": 64}, "region": {"dim": 512, "inner_dim": 64}}
    (tmp_path / "config.json").write_text(json.dumps(raw))
    with torch.device("meta"):
        shapes = {name: p.shape for name, p in Moondream(ModelConfig.from_dict(raw)).state_dict().items()}
    path = tmp_path / "model.safetensors"
    save_file({name: torch.zeros(shape, dtype=torch.bfloat16) for name, shape in shapes.items()}, path)
    shutil.copy(GOLDEN / "tokenizer.json", tmp_path)
    assert load_peak(tmp_path, "bfloat16") <= 1.15


def test_a_page_of_moondream_2_holds_what_the_facts_say() -> None:
    assert kv_page_bytes(TextConfig(), 1, "bfloat16") == 196_608
