"""PagePool: which KV pages are free and who owns the others. Pure bookkeeping, no tensors.

Page 0 is never handed out: padding rows and padded prompt positions write there, so that a fixed-shape
step needs no branch for rows that do not exist.

Invariant I11: free + owned = total, disjoint.
"""

from __future__ import annotations

from collections.abc import Iterable

NULL_PAGE = 0


class PagePool:
    """A stack of free page numbers 1..num_pages."""

    def __init__(self, num_pages: int, page_size: int) -> None:
        self.num_pages = num_pages
        self.page_size = page_size
        self._free = list(range(num_pages, 0, -1))
        self._owned: set[int] = set()

    @property
    def num_free(self) -> int:
        return len(self._free)

    def pages_for(self, num_positions: int) -> int:
        """Pages that hold this many KV positions."""
        return -(-num_positions // self.page_size)

    def allocate(self, count: int) -> list[int]:
        """Take `count` pages. The caller has checked `num_free`: a shortage here is our bug."""
        assert 0 <= count <= len(self._free), f"I11: {count} pages wanted, {len(self._free)} free"
        pages = [self._free.pop() for _ in range(count)]
        self._owned.update(pages)
        return pages

    def free(self, pages: Iterable[int]) -> None:
        """Give pages back. Freeing a page nobody owns is our bug (I10)."""
        for page in pages:
            assert page in self._owned, f"I10: page {page} freed twice"
            self._owned.remove(page)
            self._free.append(page)

    def check(self, tables: Iterable[Iterable[int]]) -> None:
        """Assert I11 against the page lists of all resident sequences."""
        listed = [page for table in tables for page in table]
        assert len(listed) == len(set(listed)), "I11: one page in two tables"
        assert set(listed) == self._owned, "I11: owned pages differ from the tables"
        assert not self._owned & set(self._free), "I11: a page both free and owned"
        assert len(self._owned) + len(self._free) == self.num_pages, "I11: pages lost"
