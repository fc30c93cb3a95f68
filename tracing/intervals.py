"""Sets of time as sorted, disjoint, half-open intervals; pure.

An interval set is an int64 array of shape (N, 2): rows [start, end) with start < end, ascending, and
a gap between neighbours (touching ones are one interval). `union` makes such a set from any pairs,
in any order; the other functions take sets and return sets. All of them cost O(n log n) in numpy.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import numpy as np
import numpy.typing as npt

Intervals = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]


def pairs(starts: npt.ArrayLike, ends: npt.ArrayLike) -> Intervals:
    """(N, 2) array of two columns; not yet a set: give it to `union`."""
    return np.column_stack([np.asarray(starts, np.int64), np.asarray(ends, np.int64)])


def union(items: Intervals | Iterable[tuple[int, int]]) -> Intervals:
    """The set of instants that any of the items covers; empty and inverted items cover none."""
    rows = items if isinstance(items, np.ndarray) else np.array(list(items), np.int64)
    rows = rows.reshape(-1, 2)
    rows = rows[rows[:, 0] < rows[:, 1]]
    if not len(rows):
        return rows
    rows = rows[np.argsort(rows[:, 0], kind="stable")]
    reach = np.maximum.accumulate(rows[:, 1])
    first = np.concatenate([[True], rows[1:, 0] > reach[:-1]])
    last = np.concatenate([first[1:], [True]])
    return np.column_stack([rows[first, 0], reach[last]])


def intersect(a: Intervals, b: Intervals) -> Intervals:
    """Instants in both."""
    return _combine(a, b, lambda in_a, in_b: in_a & in_b)


def subtract(a: Intervals, b: Intervals) -> Intervals:
    """Instants in `a` and not in `b`."""
    return _combine(a, b, lambda in_a, in_b: in_a & ~in_b)


def clip(a: Intervals, start: int, end: int) -> Intervals:
    """Instants of `a` in [start, end)."""
    return intersect(a, union([(start, end)]))


def total(a: Intervals) -> int:
    """Length of the set."""
    return int((a[:, 1] - a[:, 0]).sum())


def _combine(a: Intervals, b: Intervals, keep: Callable[[Bools, Bools], Bools]) -> Intervals:
    """Cuts time at every endpoint; each piece lies wholly inside or outside either set."""
    cuts = np.unique(np.concatenate([a.ravel(), b.ravel()]))
    if len(cuts) < 2:
        return np.empty((0, 2), np.int64)
    kept = keep(_covers(a, cuts[:-1]), _covers(b, cuts[:-1]))
    return union(np.column_stack([cuts[:-1], cuts[1:]])[kept])


def _covers(a: Intervals, times: npt.NDArray[np.int64]) -> Bools:
    started = np.searchsorted(a[:, 0], times, side="right")
    ended = np.searchsorted(a[:, 1], times, side="right")
    return started > ended


def covered(a: Intervals, times: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Length of `a` before each time; covered(end) - covered(start) is what [start, end) shares with it."""
    lengths = np.concatenate([[0], np.cumsum(a[:, 1] - a[:, 0])])
    begun = np.searchsorted(a[:, 0], times, side="right")
    ends = np.concatenate([[np.iinfo(np.int64).min], a[:, 1]])
    ahead = np.where(ends[begun] > times, ends[begun] - times, 0)
    return np.asarray(lengths[begun] - ahead, np.int64)
