"""Pins the page pool: each page is free, owned or cached, never two of them, never lost (I11); none is freed
twice (I10). pipeline_bugs 50: a page in use by one table is not free because another gave it back.
"""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from photon.pages import NULL_PAGE, PagePool


@given(st.integers(1, 40), st.data())
def test_any_order_of_taking_sharing_caching_and_giving_keeps_the_pool_whole(
    num_pages: int, data: st.DataObject
) -> None:
    """pipeline_bugs 50."""
    pool = PagePool(num_pages, 4)
    tables: list[list[int]] = []
    cached: list[list[int]] = []

    def one_of(lists: list[list[int]]) -> int:
        return data.draw(st.integers(0, len(lists) - 1))

    for _ in range(data.draw(st.integers(0, 30))):
        action = data.draw(st.sampled_from(("allocate", "free", "share", "cache", "uncache")))
        if action == "allocate":
            tables.append(pool.allocate(data.draw(st.integers(0, pool.num_free))))
        elif action == "free" and tables:
            pool.free(tables.pop(one_of(tables)))
        elif action == "share" and (lists := tables + cached):
            tables.append(list(lists[one_of(lists)]))
            pool.share(tables[-1])
        elif action == "cache" and tables:
            held = {page for pages in cached for page in pages}
            cached.append([page for page in tables[one_of(tables)] if page not in held])
            pool.cache(cached[-1])
        elif action == "uncache" and cached:
            pool.uncache(cached.pop(one_of(cached)))
        owned, kept = ({page for pages in lists for page in pages} for lists in (tables, cached))
        pool.check(tables, kept)
        assert NULL_PAGE not in owned | kept
        assert (pool.num_free, pool.num_cached) == (num_pages - len(owned | kept), len(kept - owned))
    for pages in tables:
        pool.free(pages)
    for pages in cached:
        pool.uncache(pages)
    pool.check([])
    assert sorted(pool.allocate(num_pages)) == list(range(1, num_pages + 1))


@given(st.integers(0, 10_000), st.integers(1, 1024))
def test_pages_hold_just_enough_positions(num_positions: int, page_size: int) -> None:
    pages = PagePool(1, page_size).pages_for(num_positions)
    assert (pages - 1) * page_size < num_positions <= pages * page_size or (pages, num_positions) == (0, 0)


def test_a_page_is_free_when_its_last_holder_gives_it_back() -> None:
    pool = PagePool(4, 4)
    pages = pool.allocate(2)
    pool.share(pages)
    pool.cache(pages)
    assert pool.free(pages) == []
    assert pool.num_cached == 0, "another table still lists them"
    assert pool.free(pages) == []
    assert pool.num_cached == 2
    assert pool.uncache(pages) == pages
    assert (pool.num_free, pool.num_cached) == (4, 0)


def test_a_shortage_is_our_bug() -> None:
    with pytest.raises(AssertionError, match="I11: 3 pages wanted, 2 free"):
        PagePool(2, 4).allocate(3)


def test_freeing_twice_is_our_bug() -> None:
    pool = PagePool(4, 4)
    pages = pool.allocate(2)
    pool.free(pages)
    with pytest.raises(AssertionError, match="I10"):
        pool.free(pages)


def test_freeing_what_only_the_cache_holds_is_our_bug() -> None:
    pool = PagePool(4, 4)
    pages = pool.allocate(2)
    pool.cache(pages)
    pool.free(pages)
    with pytest.raises(AssertionError, match="I10"):
        pool.free(pages)


def test_sharing_or_caching_a_free_page_is_our_bug() -> None:
    for verb in (PagePool(4, 4).share, PagePool(4, 4).cache):
        with pytest.raises(AssertionError, match="I11: page 3 is"):
            verb([3])


@pytest.mark.parametrize(
    ("tables", "cached"),
    [([[1], [1]], []), ([[1]], []), ([[1, 2, 3]], []), ([], []), ([[1, 2, 2]], []), ([[1, 2]], [2])],
)
def test_check_finds_tables_that_differ_from_the_pool(tables: list[list[int]], cached: list[int]) -> None:
    pool = PagePool(4, 4)
    pool.allocate(2)
    with pytest.raises(AssertionError, match="I11"):
        pool.check(tables, cached)
