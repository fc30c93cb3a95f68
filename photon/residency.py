"""Residency: batch rows, KV pages and lora_slots, and the one door through which they go back.

    admit           pages of its own, and on a prefix hit the image's full pages, which it shares
    keep_prefixes   a prefill is committed: the prefix cache becomes a holder of the images' pages
    grow            pages for the next position
    release         everything goes back; a page that another table or the cache holds stays

A sequence is resident from its prefill launch until it is finished and no step in flight holds it (or
until it is preempted, which happens only with nothing in flight). Everything it holds is taken in `admit`
and `grow` and given back in `release`, nowhere else (I10). Where pages are short, entries of the prefix
cache give way, the one that was used longest ago first.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable

from photon.lora import LoraTable
from photon.pages import NULL_PAGE, PagePool
from photon.pipeline import Step
from photon.prefix_cache import PrefixCache, PrefixKey
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
        config = self._runtime.config
        self.pool = PagePool(self._runtime.num_pages, config.page_size)
        self.prefixes = PrefixCache(self.pool, config.max_cached_images)
        self.lora = LoraTable(config.max_lora_slots)
        self._free_rows = list(range(self._runtime.num_rows, 0, -1))

    def capacity(self) -> Capacity:
        pages = self.pool.num_free + self.pool.num_cached
        return Capacity(pages, len(self._free_rows), self.lora.num_free, self.lora.resident, self.prefixes)

    def admit(self, sequence: Sequence, hits: Collection[PrefixKey] = ()) -> None:
        """A batch row, the adapter, and pages for the prefill, which the scheduler has found free.

        hits: the keys of all rows of this step, if they take their prefix from the cache.
        """
        assert not sequence.is_resident, "I10: admitted twice"
        sequence.batch_idx = self._free_rows.pop()
        sequence.num_cached, sequence.pages = 0, []
        if (key := sequence.prefix_key) and key in hits:
            self._share_prefix(sequence, key)
        missing = self.pool.pages_for(sequence.num_prefill_positions) - len(sequence.pages)
        sequence.pages += self._allocate(missing, hits)
        if sequence.adapter_id is None:
            return
        sequence.lora_slot, must_load = self.lora.acquire(sequence.adapter_id)
        if must_load:
            self._runtime.load_adapter(sequence.lora_slot, sequence.adapter_id)

    def _share_prefix(self, sequence: Sequence, key: PrefixKey) -> None:
        """The entry's full pages, and where the prefill copies the partly filled one from.

        The latter needs no holder: no later work of the compute stream comes before that copy.
        """
        pages, num_full = self.prefixes.use(key), sequence.prefix // self.pool.page_size
        sequence.num_cached = sequence.prefix
        sequence.pages = list(pages[:num_full])
        sequence.tail_page = pages[num_full] if len(pages) > num_full else NULL_PAGE
        self.pool.share(sequence.pages)

    def _allocate(self, count: int, keep: Collection[PrefixKey] = ()) -> list[int]:
        """Free pages, for which the cache gives up its oldest entries, but not those to keep."""
        while self.pool.num_free < count:
            self._runtime.freed(self.prefixes.evict(keep))
        return self.pool.allocate(count)

    def grow(self, sequence: Sequence, num_pages: int) -> None:
        """Pages for the next position."""
        sequence.pages += self._allocate(num_pages)

    def keep_prefixes(self, step: Step) -> None:
        """A step is committed: from here on others may read the images it computed, those of zombies too."""
        for sequence in step.rows if step.kind == "prefill" else ():
            if (key := sequence.prefix_key) and not sequence.num_cached:
                pages = sequence.pages[: self.pool.pages_for(sequence.prefix)]
                self._runtime.freed(self.prefixes.insert(key, pages))

    def release(self, sequence: Sequence) -> bool:
        """Give everything back; False when there was nothing, so that it happens once however one ends."""
        assert sequence.inflight_refs == 0, "I10: released while a step holds it"
        if not sequence.is_resident:
            return False
        self._runtime.freed(self.pool.free(sequence.pages))
        self._free_rows.append(sequence.batch_idx)
        if sequence.lora_slot and sequence.adapter_id is not None:
            self.lora.release(sequence.adapter_id)
        sequence.pages, sequence.batch_idx, sequence.lora_slot = [], 0, 0
        return True

    def check(self, resident: Iterable[Sequence]) -> None:
        """Assert I11, that nobody writes in a shared page, and that no batch row stands for two sequences."""
        sequences = list(resident)
        self.pool.check((sequence.pages for sequence in sequences), self.prefixes.pages)
        written = [page for s in sequences for page in s.pages[s.prefix // self.pool.page_size :]]
        listed = Counter(page for sequence in sequences for page in sequence.pages)
        assert all(listed[page] == 1 for page in written), "I11: a shared page would be written"
        rows = [sequence.batch_idx for sequence in sequences] + self._free_rows
        assert sorted(rows) == list(range(1, self._runtime.num_rows + 1)), "I10: batch rows lost or doubled"
