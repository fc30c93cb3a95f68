"""LoraSlots: adapter weights at fixed addresses, mixed per row. lora_slot 0 is no adapter.

Host half: `LoraTable` says which adapter sits in which slot (refcounted; pure). Device half:
`LoraBuffers` holds the tensors; slot 0 stays zero. A slot is zeroed before an adapter is loaded, so that
an adapter with fewer modules or a smaller rank never sees its predecessor.
Source: engine_facts 1.12 (h + B(A x), no alpha).
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from photon.model.config import TextConfig
from photon.model.text import Delta


class LoraTable:
    """Which adapter is in which slot, and how many sequences hold it."""

    def __init__(self, num_slots: int) -> None:
        self.num_slots = num_slots
        self._slot_of: dict[int, int] = {}
        self._holders: dict[int, int] = {}

    @property
    def num_free(self) -> int:
        return self.num_slots - len(self._slot_of)

    @property
    def resident(self) -> frozenset[int]:
        return frozenset(self._slot_of)

    def acquire(self, adapter_id: int) -> tuple[int, bool]:
        """(slot, must be loaded). The caller has checked that a slot is free."""
        is_new = adapter_id not in self._slot_of
        if is_new:
            taken = set(self._slot_of.values())
            free = [slot for slot in range(1, self.num_slots + 1) if slot not in taken]
            assert free, "I10: no free lora_slot; the scheduler admitted too many adapters"
            self._slot_of[adapter_id] = free[0]
        self._holders[adapter_id] = self._holders.get(adapter_id, 0) + 1
        return self._slot_of[adapter_id], is_new

    def release(self, adapter_id: int) -> None:
        assert self._holders.get(adapter_id, 0) > 0, f"I10: adapter {adapter_id} released twice"
        self._holders[adapter_id] -= 1
        if not self._holders[adapter_id]:
            del self._holders[adapter_id], self._slot_of[adapter_id]


class LoraBuffers:
    """A (slots, R, in) and B (slots, out, R) of every target in every layer."""

    def __init__(
        self, config: TextConfig, *, num_slots: int, max_rank: int, dtype: torch.dtype, torch_device: str
    ) -> None:
        self._layers: list[dict[str, tuple[Tensor, Tensor]]] = [
            {
                target: (
                    torch.zeros(num_slots + 1, max_rank, width_in, dtype=dtype, device=torch_device),
                    torch.zeros(num_slots + 1, width_out, max_rank, dtype=dtype, device=torch_device),
                )
                for target, (width_in, width_out) in config.adaptable.items()
            }
            for _ in range(config.n_layers)
        ]

    def load(self, slot: int, tensors: Mapping[str, Tensor]) -> None:
        """Zero the slot, then copy an adapter into it; keys `text.blocks.N.TARGET.A` and `.B`."""
        for layer, targets in enumerate(self._layers):
            for target, (a, b) in targets.items():
                a[slot].zero_()
                b[slot].zero_()
                down = tensors.get(f"text.blocks.{layer}.{target}.A")
                up = tensors.get(f"text.blocks.{layer}.{target}.B")
                if down is not None and up is not None:
                    a[slot, : down.shape[0]].copy_(down)
                    b[slot, :, : up.shape[1]].copy_(up)

    def delta(self, layer: int, lora_slot: Tensor) -> Delta:
        """What the adapters of these rows (B,) add in this layer."""
        targets = self._layers[layer]

        def add(target: str, x: Tensor) -> Tensor:
            a, b = targets[target]
            down = torch.bmm(x, a[lora_slot].transpose(1, 2))  # (B, T, R)
            return torch.bmm(down, b[lora_slot].transpose(1, 2))  # (B, T, out)

        return add
