"""Pins the prefix cache's books: key -> pages, bounded, the one used longest ago goes first, and none that
is still to be read. What it means for tokens is in `test_engine_prefixes.py`.
"""

from __future__ import annotations

import pytest

from photon.pages import PagePool
from photon.prefix_cache import PrefixCache, PrefixKey

A, B, C = ((name, None) for name in (b"a", b"b", b"c"))


def filled(*keys: PrefixKey, max_images: int = 8) -> tuple[PagePool, PrefixCache, dict[PrefixKey, list[int]]]:
    """A pool of ten pages, two of which each key's sequence has computed and still holds."""
    pool = PagePool(10, 4)
    cache = PrefixCache(pool, max_images)
    tables = {key: pool.allocate(2) for key in keys}
    for key, pages in tables.items():
        cache.insert(key, pages)
    return pool, cache, tables


def test_an_entry_is_the_pages_of_the_sequence_that_computed_it() -> None:
    pool, cache, tables = filled(A)
    assert list(cache.use(A)) == tables[A]
    assert B not in cache
    assert cache[A] == 0, "a sequence holds them as well"
    pool.free(tables[A])
    assert cache[A] == pool.num_cached == 2
    pool.check([], cache.pages)


def test_what_is_computed_twice_is_kept_once() -> None:
    """pipeline_bugs 49: the first stays, the second's pages remain its own."""
    pool, cache, tables = filled(A)
    twin = pool.allocate(2)
    assert cache.insert(A, twin) == []
    assert list(cache.use(A)) == tables[A]
    assert pool.free(twin) == twin


def test_beyond_its_bound_the_one_used_longest_ago_goes() -> None:
    _, cache, _ = filled(A, B, max_images=2)
    cache.use(A)
    cache.insert(C, cache._pool.allocate(2))
    assert set(cache) == {A, C}


def test_eviction_passes_over_what_is_in_use_and_what_is_to_be_read() -> None:
    """pipeline_bugs 52."""
    pool, cache, tables = filled(A, B, C)
    pool.free(tables[B])
    pool.free(tables[C])
    assert cache.evict(keep={B}) == tables[C]
    assert set(cache) == {A, B}
    assert cache.evict() == tables[B]
    with pytest.raises(AssertionError, match="I11"):
        cache.evict()


def test_an_entry_that_goes_while_its_pages_are_read_frees_nothing() -> None:
    pool, cache, tables = filled(A, max_images=1)
    assert cache.insert(B, pool.allocate(2)) == []
    assert A not in cache
    assert pool.free(tables[A]) == tables[A]


def test_with_room_for_no_image_nothing_is_kept() -> None:
    pool, cache, tables = filled(A, max_images=0)
    assert len(cache) == 0
    assert pool.free(tables[A]) == tables[A]
