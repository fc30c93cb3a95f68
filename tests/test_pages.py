"""Pins the page pool: each page is free or owned, never both, never lost (I11); none is freed twice (I10)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from photon.pages import NULL_PAGE, PagePool


@given(st.integers(1, 40), st.data())
def test_any_order_of_taking_and_giving_keeps_the_pool_whole(num_pages: int, data: st.DataObject) -> None:
    pool, tables = PagePool(num_pages, 4), []
    for _ in range(data.draw(st.integers(0, 20))):
        if tables and data.draw(st.booleans()):
            pool.free(tables.pop(data.draw(st.integers(0, len(tables) - 1))))
        else:
            tables.append(pool.allocate(data.draw(st.integers(0, pool.num_free))))
        pool.check(tables)
        assert NULL_PAGE not in {page for table in tables for page in table}
        assert pool.num_free == num_pages - sum(map(len, tables))
    for table in tables:
        pool.free(table)
    pool.check([])
    assert sorted(pool.allocate(num_pages)) == list(range(1, num_pages + 1))


@given(st.integers(0, 10_000), st.integers(1, 1024))
def test_pages_hold_just_enough_positions(num_positions: int, page_size: int) -> None:
    pages = PagePool(1, page_size).pages_for(num_positions)
    assert (pages - 1) * page_size < num_positions <= pages * page_size or (pages, num_positions) == (0, 0)


def test_a_shortage_is_our_bug() -> None:
    with pytest.raises(AssertionError, match="I11: 3 pages wanted, 2 free"):
        PagePool(2, 4).allocate(3)


def test_freeing_twice_is_our_bug() -> None:
    pool = PagePool(4, 4)
    pages = pool.allocate(2)
    pool.free(pages)
    with pytest.raises(AssertionError, match="I10"):
        pool.free(pages)


@pytest.mark.parametrize("tables", [[[1], [1]], [[1]], [[1, 2, 3]], []])
def test_check_finds_tables_that_differ_from_the_pool(tables: list[list[int]]) -> None:
    pool = PagePool(4, 4)
    pool.allocate(2)
    with pytest.raises(AssertionError, match="I11"):
        pool.check(tables)
