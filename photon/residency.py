"""Residency: batch rows, KV pages and lora_slots, and the one door through which they go back.

A sequence is resident from its prefill launch until it is finished and no step in flight holds it (or
until it is preempted, which happens only with nothing in flight). Everything it holds is taken in `admit`
and `grow` and given back in `release`, nowhere else (I10).
"""

from __future__ import annotations

from collections.abc import Iterable

from photon.lora import LoraTable
from photon.pages import PagePool
from photon.runtime import Runtime
from photon.scheduler import Capacity
from photon.sequence import Sequence


class Residency:
    """Who holds which batch_idx, pages and lora_slot. batch_idx 0 is the padding rows'."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self.reset()

    def reset(self) -> None:
        """All free: at the start, and when the device has ended."""
        self.pool = PagePool(self._runtime.num_pages, self._runtime.config.page_size)
        self.lora = LoraTable(self._runtime.config.max_lora_slots)
        self._free_rows = list(range(self._runtime.num_rows, 0, -1))

    def capacity(self) -> Capacity:
        return Capacity(self.pool.num_free, len(self._free_rows), self.lora.num_free, self.lora.resident)

    def admit(self, sequence: Sequence) -> None:
        """A batch row, the adapter, and pages for the prefill, which the scheduler has found free."""
        assert not sequence.is_resident, "I10: admitted twice"
        sequence.batch_idx = self._free_rows.pop()
        sequence.pages = self.pool.allocate(self.pool.pages_for(sequence.num_prefill_positions))
        if sequence.adapter_id is None:
            return
        sequence.lora_slot, must_load = self.lora.acquire(sequence.adapter_id)
        if must_load:
            self._runtime.load_adapter(sequence.lora_slot, sequence.adapter_id)

    def grow(self, sequence: Sequence, num_pages: int) -> None:
        """Pages for the next position."""
        sequence.pages += self.pool.allocate(num_pages)

    def release(self, sequence: Sequence) -> bool:
        """Give everything back; False when there was nothing, so that it happens once however one ends."""
        assert sequence.inflight_refs == 0, "I10: released while a step holds it"
        if not sequence.is_resident:
            return False
        self.pool.free(sequence.pages)
        self._runtime.freed(sequence.pages)
        self._free_rows.append(sequence.batch_idx)
        if sequence.lora_slot and sequence.adapter_id is not None:
            self.lora.release(sequence.adapter_id)
        sequence.pages, sequence.batch_idx, sequence.lora_slot = [], 0, 0
        return True

    def check(self, resident: Iterable[Sequence]) -> None:
        """Assert I11, and that no batch row stands for two sequences."""
        sequences = list(resident)
        self.pool.check(sequence.pages for sequence in sequences)
        rows = [sequence.batch_idx for sequence in sequences] + self._free_rows
        assert sorted(rows) == list(range(1, self._runtime.num_rows + 1)), "I10: batch rows lost or doubled"
