"""Recorder: keeps the newest spans and marks in bounded memory; hands out a Trace or live columns.

    engine thread  -- on_span, on_mark -->  two rings of packed records   (constant cost, one lock)
    any thread     <-- snapshot ----------  Trace, one time window
    SSE route      <-- columns_since -----  what came after a cursor, as columns

A record is packed with `struct` into one row of a numpy structured array: one call instead of one
assignment per column. Measured on 2 shared cores: see `tests/test_recorder.py`, which prints it.

Threads. Writers hold the lock for one packing; readers never take it. A reader copies rows first and
looks at the counter afterwards: rows that were overwritten meanwhile are cut off, so that a copy of
many megabytes delays no engine step. Names are interned, so a row holds no Python object.

When a ring is full the oldest records go; `dropped` counts them. Records that end before they start,
or that arrive when 65,535 distinct names are used up, are not stored; `refused` counts those.
"""

from __future__ import annotations

import threading
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from tracing.protocol import MarkLike, SpanLike
from tracing.trace import (
    MARK_PACK,
    MARK_TABLE,
    MAX_NAMES,
    SPAN_PACK,
    SPAN_TABLE,
    Codes,
    Table,
    Trace,
    alive,
    make_trace,
)


class _Ring:
    """Fixed memory for the newest `capacity` records; record number n lies in row n % (capacity + 1).

    The spare row is the one that a writer may be packing: what counts as held is never half written.
    """

    def __init__(self, row: np.dtype[np.void], max_bytes: int) -> None:
        self.capacity = max_bytes // row.itemsize - 1
        self.itemsize = row.itemsize
        self.memory = np.zeros((self.capacity + 1) * row.itemsize, np.uint8)
        self.table: Table = self.memory.view(row)
        self.written = 0

    @property
    def oldest(self) -> int:
        return max(0, self.written - self.capacity)

    def offset(self) -> int:
        """Byte at which the next record goes."""
        return self.written % (self.capacity + 1) * self.itemsize

    def copy(self, first: int, last: int) -> tuple[int, Table]:
        """(number of the first row, rows) of the records first..last-1 that are still held."""
        first = max(first, self.oldest)
        if last <= first:
            return last, self.table[:0].copy()
        a, b = first % (self.capacity + 1), (last - 1) % (self.capacity + 1) + 1
        rows = self.table[a:b].copy() if a < b else np.concatenate([self.table[a:], self.table[:b]])
        lost = min(max(0, self.oldest - first), len(rows))  # overwritten while we copied
        return first + lost, rows[lost:]


class Cursor(NamedTuple):
    """How far a reader of the live stream has come: the next record numbers."""

    spans: int = 0
    marks: int = 0


class Columns(NamedTuple):
    """Records after a cursor, in order of arrival. Codes index `names`. `skipped`: gone before read."""

    spans: Table
    marks: Table
    names: tuple[str, ...]
    skipped: int


class Recorder:
    """Observer of any number of threads that holds at most `max_bytes` of records."""

    def __init__(self, max_bytes: int = 32 << 20) -> None:
        if max_bytes < 1024:
            raise ValueError(f"max_bytes must be at least 1024, got {max_bytes}")
        self._lock = threading.Lock()
        self._codes = Codes()
        self._spans = _Ring(SPAN_TABLE, max_bytes * 3 // 4)
        self._marks = _Ring(MARK_TABLE, max_bytes // 4)
        self.refused = 0

    def on_span(self, span: SpanLike) -> None:
        ring, codes = self._spans, self._codes
        with self._lock:
            start, end = span.start_ns, span.end_ns
            if end < start or len(codes) > MAX_NAMES - 3:
                self.refused += 1
                return
            offset = ring.offset()
            counts = (span.step_id, span.rows, span.zombies, span.padding)
            words = (codes[span.track], codes[span.name], codes[span.kind])
            SPAN_PACK.pack_into(ring.memory.data, offset, start, end, *counts, *words, span.slot)
            ring.written += 1

    def on_mark(self, mark: MarkLike) -> None:
        ring, codes = self._marks, self._codes
        with self._lock:
            if len(codes) > MAX_NAMES - 3:
                self.refused += 1
                return
            offset = ring.offset()
            values = (mark.time_ns, mark.request_id, mark.step_id, codes[mark.name])
            MARK_PACK.pack_into(ring.memory.data, offset, *values)
            ring.written += 1

    @property
    def dropped(self) -> int:
        """Records overwritten by newer ones."""
        return self._spans.oldest + self._marks.oldest

    def snapshot(self, since_ns: int | None = None, until_ns: int | None = None) -> Trace:
        """The trace of one window, say of one run; without bounds, of everything held."""
        _, spans = self._spans.copy(0, self._spans.written)
        _, marks = self._marks.copy(0, self._marks.written)
        return make_trace(spans, marks, tuple(self._codes.names), (since_ns, until_ns), self.dropped)

    def columns_since(self, cursor: Cursor, limit: int = 8000) -> tuple[Cursor, Columns]:
        """At most `limit` spans and `limit` marks after the cursor, and the cursor after those."""
        last = Cursor(
            min(self._spans.written, max(cursor.spans, self._spans.oldest) + limit),
            min(self._marks.written, max(cursor.marks, self._marks.oldest) + limit),
        )
        first_span, spans = self._spans.copy(cursor.spans, last.spans)
        first_mark, marks = self._marks.copy(cursor.marks, last.marks)
        skipped = first_span - cursor.spans + first_mark - cursor.marks
        return last, Columns(spans, marks, tuple(self._codes.names), skipped)

    def newest(self) -> Cursor:
        """The cursor of a reader that has seen everything."""
        return Cursor(self._spans.written, self._marks.written)

    def cursor_at(self, last_ns: int) -> Cursor:
        """Where a new reader starts, to get the newest `last_ns` nanoseconds held and, of the requests
        alive in them, all marks."""
        first_span, spans = self._spans.copy(0, self._spans.written)
        first_mark, marks = self._marks.copy(0, self._marks.written)
        now = max([0, *spans["end_ns"][-1000:].tolist(), *marks["time_ns"][-1000:].tolist()])
        recent = spans["end_ns"] >= now - last_ns
        living = alive(marks, tuple(self._codes.names), now - last_ns, now + 1)
        return Cursor(first_span + _first(recent), first_mark + _first(living))


def _first(kept: npt.NDArray[np.bool_]) -> int:
    return int(kept.argmax()) if kept.any() else len(kept)
