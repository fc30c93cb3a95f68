"""Pins the interval algebra against sets of integers: the slow, obvious implementation."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tracing.intervals import Intervals, clip, intersect, subtract, total, union

instants = st.integers(-20, 60)
raw = st.lists(st.tuples(instants, instants), max_size=12)


def points(items: Intervals) -> set[int]:
    return {t for start, end in items.tolist() for t in range(start, end)}


def is_a_set(items: Intervals) -> bool:
    flat = items.ravel()
    return items.dtype == np.int64 and items.shape[1:] == (2,) and bool((np.diff(flat) > 0).all())


@given(raw)
def test_union_covers_exactly_the_instants_of_its_items(items: list[tuple[int, int]]) -> None:
    result = union(items)
    assert is_a_set(result)
    assert points(result) == {t for start, end in items for t in range(start, end)}
    assert total(result) == len(points(result))


@given(raw, raw)
def test_intersect_and_subtract_agree_with_sets(a: list[tuple[int, int]], b: list[tuple[int, int]]) -> None:
    x, y = union(a), union(b)
    assert is_a_set(intersect(x, y))
    assert is_a_set(subtract(x, y))
    assert points(intersect(x, y)) == points(x) & points(y)
    assert points(subtract(x, y)) == points(x) - points(y)


@given(raw, raw)
def test_what_is_in_and_what_is_out_add_up(a: list[tuple[int, int]], b: list[tuple[int, int]]) -> None:
    x, y = union(a), union(b)
    assert total(intersect(x, y)) + total(subtract(x, y)) == total(x)
    assert np.array_equal(intersect(x, y), intersect(y, x))
    assert np.array_equal(union(x), x)


@given(raw, instants, instants)
def test_clip_keeps_the_instants_inside(items: list[tuple[int, int]], start: int, end: int) -> None:
    assert points(clip(union(items), start, end)) == points(union(items)) & set(range(start, end))


def test_touching_intervals_are_one() -> None:
    assert union([(0, 5), (5, 9)]).tolist() == [[0, 9]]


def test_nothing_is_a_set_too() -> None:
    nothing = union([])
    assert nothing.shape == (0, 2)
    assert total(nothing) == 0
    assert total(subtract(nothing, union([(0, 5)]))) == 0


def test_large_times_stay_exact() -> None:
    base = 1 << 61
    assert total(subtract(union([(base, base + 10)]), union([(base + 3, base + 4)]))) == 9
