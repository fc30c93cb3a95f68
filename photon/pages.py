"""PagePool: which KV pages are free, in use, or kept by the prefix cache. Pure bookkeeping, no tensors.

    free      nobody holds it
    owned     in the table of one sequence, or of several that read the same image prefix
    cached    held by the prefix cache alone; its content is valid, and it is free as soon as it is needed

A page is counted by its holders: the tables that list it, and the cache. What reaches zero is free.

Page 0 is never handed out: padding rows and padded prompt positions write there, so that a fixed-shape
step needs no branch for rows that do not exist.

Invariant I11: free + owned + cached = total, disjoint.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

NULL_PAGE = 0


class PagePool:
    """A stack of free page numbers 1..num_pages, and who holds the others."""

    def __init__(self, num_pages: int, page_size: int) -> None:
        self.num_pages = num_pages
        self.page_size = page_size
        self.num_cached = 0
        """Pages that the cache alone holds."""
        self._free = list(range(num_pages, 0, -1))
        self._num_holders = [0] * (num_pages + 1)
        self._in_cache: set[int] = set()

    @property
    def num_free(self) -> int:
        return len(self._free)

    def pages_for(self, num_positions: int) -> int:
        """Pages that hold this many KV positions."""
        return -(-num_positions // self.page_size)

    def is_cached(self, page: int) -> bool:
        """The cache alone holds it."""
        return page in self._in_cache and self._num_holders[page] == 1

    def allocate(self, count: int) -> list[int]:
        """Take `count` pages. The caller has checked `num_free`: a shortage here is our bug."""
        assert 0 <= count <= len(self._free), f"I11: {count} pages wanted, {len(self._free)} free"
        pages = [self._free.pop() for _ in range(count)]
        for page in pages:
            self._num_holders[page] = 1
        return pages

    def share(self, pages: Iterable[int]) -> None:
        """One more table lists these pages, to read them."""
        for page in pages:
            assert self._num_holders[page], f"I11: page {page} is shared and free"
            self.num_cached -= self.is_cached(page)
            self._num_holders[page] += 1

    def free(self, pages: Iterable[int]) -> list[int]:
        """A table gives its pages back; returns those that are free by it.

        Freeing a page that no table lists is our bug (I10).
        """
        freed = []
        for page in pages:
            assert self._num_holders[page] > (page in self._in_cache), f"I10: page {page} freed twice"
            freed += self._drop(page)
            self.num_cached += self.is_cached(page)
        return freed

    def cache(self, pages: Iterable[int]) -> None:
        """The cache holds these pages as well, which some table lists."""
        for page in pages:
            assert self._num_holders[page], f"I11: page {page} is cached and free"
            assert page not in self._in_cache, f"I11: page {page} cached twice"
            self._num_holders[page] += 1
            self._in_cache.add(page)

    def uncache(self, pages: Iterable[int]) -> list[int]:
        """The cache gives these pages back; returns those that are free by it."""
        freed = []
        for page in pages:
            self.num_cached -= self.is_cached(page)
            self._in_cache.remove(page)
            freed += self._drop(page)
        return freed

    def _drop(self, page: int) -> list[int]:
        """One holder less; returns the page if it was the last."""
        self._num_holders[page] -= 1
        if self._num_holders[page]:
            return []
        self._free.append(page)
        return [page]

    def check(self, tables: Iterable[Iterable[int]], cached: Iterable[int] = ()) -> None:
        """Assert I11 against the page lists of all resident sequences, and of the cache."""
        lists = [list(table) for table in tables] + [list(cached)]
        for pages in lists:
            assert len(pages) == len(set(pages)), "I11: one page twice in a table"
        assert set(lists[-1]) == self._in_cache, "I11: cached pages differ from the cache's"
        holders = Counter(page for pages in lists for page in pages)
        assert [holders[page] for page in range(self.num_pages + 1)] == self._num_holders, "I11: holders"
        free = [page for page in range(1, self.num_pages + 1) if not holders[page]]
        assert sorted(self._free) == free, "I11: free pages differ from those that nobody holds"
        assert self.num_cached == sum(map(self.is_cached, self._in_cache)), "I11: cached pages miscounted"
