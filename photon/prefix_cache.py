"""PrefixCache: which images already have KV pages. Pure bookkeeping, no tensors.

    positions   0 .............................. prefix-1 | prompt and answer
    pages       [ full ][ full ] ... [ full ][ tail            ][ ... ]
                \\______ read by all who ask _____/ \\__ copied by each, who then goes on writing in the copy

The cached unit is the image prefix, BOS and image: attention runs both ways inside it, so its keys and
values are a function of the image and the adapter, and of nothing behind it. An entry is made of the pages
of the sequence that computed it, when that step is committed, and nothing is copied: the cache becomes one
more holder of them. The sequence goes on writing in its tail page, behind the prefix, where no reader of
the entry looks.

Owns: key -> pages, and the order of their last use. Does not own: the pages (`pages.py`), nor when an entry
is made or must go (`residency.py`).

Planning reads it as a mapping: key -> pages that the cache alone holds of that entry. So many fewer can be
had for others when a sequence takes the entry.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping

from photon.pages import PagePool

PrefixKey = tuple[bytes, int | None]
"""Content hash of the image (size, pixels, preprocessing) and adapter_id. A name that is loaded again has a
new adapter_id, so what another adapter computed is never found."""


class PrefixCache(Mapping[PrefixKey, int]):
    """At most `max_images` entries; the one whose last use is longest ago goes first."""

    def __init__(self, pool: PagePool, max_images: int) -> None:
        self._pool = pool
        self._max_images = max_images
        self._entries: dict[PrefixKey, tuple[int, ...]] = {}  # in order of last use

    def __getitem__(self, key: PrefixKey) -> int:
        return sum(map(self._pool.is_cached, self._entries[key]))

    def __contains__(self, key: object) -> bool:
        return key in self._entries

    def __iter__(self) -> Iterator[PrefixKey]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def pages(self) -> list[int]:
        """Pages of all entries."""
        return [page for pages in self._entries.values() for page in pages]

    def use(self, key: PrefixKey) -> tuple[int, ...]:
        """The entry's pages, full ones first; it counts as used just then."""
        self._entries[key] = pages = self._entries.pop(key)
        return pages

    def insert(self, key: PrefixKey, pages: list[int]) -> list[int]:
        """Hold the pages under the key, unless it has some; returns pages that are free by it."""
        if key in self._entries:
            self.use(key)
            return []
        if not self._max_images:
            return []
        freed = self._remove(next(iter(self._entries))) if len(self._entries) >= self._max_images else []
        self._pool.cache(pages)
        self._entries[key] = tuple(pages)
        return freed

    def evict(self, keep: Collection[PrefixKey] = ()) -> list[int]:
        """Give up the oldest entry that frees a page and is not to be kept; returns those pages.

        That there is one has been checked: a shortage here is our bug.
        """
        key = next((key for key in self._entries if self[key] and key not in keep), None)
        assert key is not None, "I11: no page can be evicted"
        return self._remove(key)

    def _remove(self, key: PrefixKey) -> list[int]:
        return self._pool.uncache(self._entries.pop(key))
