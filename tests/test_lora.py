"""Pins adapters: who holds which slot, h + B(A x) per row, and that a slot forgets its last tenant.

pipeline_bugs 45, 46.
"""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from photon.lora import LoraBuffers, LoraTable
from photon.model.config import TextConfig

CONFIG = TextConfig(dim=8, ff_dim=12, n_layers=2, n_heads=2, n_kv_heads=2)
SIZES = {"attn.qkv": (8, 24), "attn.proj": (8, 8), "mlp.fc1": (8, 12), "mlp.fc2": (12, 8)}


def buffers() -> LoraBuffers:
    return LoraBuffers(CONFIG, num_slots=2, max_rank=4, dtype=torch.float32, torch_device="cpu")


def adapter(seed: int, rank: int = 4, targets: tuple[str, ...] = tuple(SIZES)) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    tensors = {}
    for layer in range(CONFIG.n_layers):
        for target in targets:
            width_in, width_out = SIZES[target]
            tensors[f"text.blocks.{layer}.{target}.A"] = torch.randn(rank, width_in, generator=generator)
            tensors[f"text.blocks.{layer}.{target}.B"] = torch.randn(width_out, rank, generator=generator)
    return tensors


def deltas(lora: LoraBuffers, slots: list[int]) -> dict[tuple[int, str], torch.Tensor]:
    """What every layer and target adds to a fixed input, for rows in these slots."""
    rows = torch.tensor(slots)
    inputs = {
        target: torch.linspace(-1, 1, width).expand(len(slots), 3, width)
        for target, (width, _) in SIZES.items()
    }
    return {(layer, t): lora.delta(layer, rows)(t, x) for layer in range(2) for t, x in inputs.items()}


def test_slot_0_adds_nothing() -> None:
    lora = buffers()
    lora.load(1, adapter(1))
    assert all(not value.any() for value in deltas(lora, [0, 0]).values())


def test_each_row_gets_the_delta_of_its_own_slot() -> None:
    lora, tensors = buffers(), adapter(1)
    lora.load(1, tensors)
    lora.load(2, adapter(2))
    mixed, alone = deltas(lora, [2, 0, 1]), deltas(lora, [1])
    x = torch.linspace(-1, 1, 8)
    a, b = tensors["text.blocks.1.attn.qkv.A"], tensors["text.blocks.1.attn.qkv.B"]
    assert torch.allclose(alone[1, "attn.qkv"][0, 0], b @ (a @ x), atol=1e-5)
    for key, value in mixed.items():
        assert torch.allclose(value[2], alone[key][0], atol=1e-6)
        assert not value[1].any()


@pytest.mark.parametrize("second", [adapter(3, rank=1), adapter(3, targets=("mlp.fc1",)), {}])
def test_a_slot_loaded_again_holds_nothing_of_the_first(second: dict[str, torch.Tensor]) -> None:
    """pipeline_bugs 46: a smaller rank, fewer modules, none."""
    used, fresh = buffers(), buffers()
    used.load(1, adapter(1))
    used.load(1, second)
    fresh.load(1, second)
    for got, expected in zip(deltas(used, [1]).values(), deltas(fresh, [1]).values(), strict=True):
        assert torch.equal(got, expected)


def test_an_adapter_is_loaded_once_however_many_hold_it() -> None:
    table = LoraTable(2)
    assert table.acquire(7) == (1, True)
    assert table.acquire(7) == (1, False)
    assert table.num_free == 1
    table.release(7)
    assert table.resident == {7}
    table.release(7)
    assert table.num_free == 2
    assert table.acquire(7) == (1, True), "its slot may have had another tenant"


def test_releasing_what_nobody_holds_is_our_bug() -> None:
    with pytest.raises(AssertionError, match="I10"):
        LoraTable(1).release(3)


@given(st.integers(1, 3), st.lists(st.tuples(st.booleans(), st.integers(1, 4)), max_size=40))
def test_no_two_adapters_share_a_slot(num_slots: int, moves: list[tuple[bool, int]]) -> None:
    table = LoraTable(num_slots)
    holders: dict[int, int] = {}
    slots: dict[int, int] = {}
    for is_release, adapter_id in moves:
        if is_release and holders.get(adapter_id):
            table.release(adapter_id)
            holders[adapter_id] -= 1
        elif not is_release and (holders.get(adapter_id) or table.num_free):
            slots[adapter_id], must_load = table.acquire(adapter_id)
            assert must_load == (not holders.get(adapter_id))
            holders[adapter_id] = holders.get(adapter_id, 0) + 1
        held = {adapter_id for adapter_id, count in holders.items() if count}
        assert table.resident == held
        assert table.num_free == num_slots - len(held)
        assert len({slots[adapter_id] for adapter_id in held}) == len(held)
        assert all(1 <= slots[adapter_id] <= num_slots for adapter_id in held)
