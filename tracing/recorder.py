"""Recorder: keeps the newest spans, marks and rows in bounded memory; hands out a Trace or live columns.

    engine thread  -- on_span, on_mark, on_step -->  three rings of packed records   (one lock)
    any thread     <-- snapshot -------------------  Trace, one time window
    SSE route      <-- columns_since --------------  what came after a cursor, as columns

A step's rows become visible together. Half of the memory is for spans, three eighths for rows, the rest for
marks: at six rows a step spans and rows reach equally far back.

A record is packed with `struct` into one row of a numpy structured array: one call instead of one
assignment per column. Measured on 2 shared cores: see `tests/test_recorder.py`, which prints it.

Threads. Writers hold the lock for one packing; readers never take it. A writer gives up the oldest records
before it writes over them. A reader copies first and looks at the counter afterwards: what was given up
meanwhile is cut off, so that a copy of many megabytes delays no engine step. Names are interned, so a record
holds no Python object.

When a ring is full the oldest records go; `dropped` counts them. Records that end before they start,
or that arrive when 65,535 distinct names are used up, are not stored; `refused` counts those.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from tracing.protocol import MarkLike, SpanLike, StepLike
from tracing.trace import (
    MARK_PACK,
    MARK_TABLE,
    MAX_NAMES,
    ROW_PACK,
    ROW_TABLE,
    SPAN_PACK,
    SPAN_TABLE,
    Codes,
    Table,
    Tables,
    Trace,
    alive,
    make_trace,
)


class _Ring:
    """Fixed memory for the newest `capacity` records; record number n lies in row n % capacity."""

    def __init__(self, row: np.dtype[np.void], max_bytes: int) -> None:
        self.capacity = max_bytes // row.itemsize
        self.itemsize = row.itemsize
        self.memory = np.zeros(self.capacity * row.itemsize, np.uint8)
        self.bytes = self.memory.data
        self.table: Table = self.memory.view(row)
        self.written = self.reserved = 0

    @property
    def oldest(self) -> int:
        return max(0, self.reserved - self.capacity)

    def offset(self, number: int) -> int:
        """Byte at which record `number` lies."""
        return number % self.capacity * self.itemsize

    def copy(self, first: int, last: int) -> tuple[int, Table]:
        """(number of the first record, records) of first..last-1 that are still held."""
        first = max(first, self.oldest)
        if last <= first:
            return last, self.table[:0].copy()
        a, b = first % self.capacity, (last - 1) % self.capacity + 1
        rows = self.table[a:b].copy() if a < b else np.concatenate([self.table[a:], self.table[:b]])
        lost = min(max(0, self.oldest - first), len(rows))  # overwritten while we copied
        return first + lost, rows[lost:]


class Cursor(NamedTuple):
    """How far a reader of the live stream has come: the next record numbers."""

    spans: int = 0
    marks: int = 0
    rows: int = 0


class Columns(NamedTuple):
    """Records after a cursor, in order of arrival. Codes index `names`. `skipped`: gone before read."""

    spans: Table
    marks: Table
    rows: Table
    names: tuple[str, ...]
    skipped: int


class Recorder:
    """Observer of any number of threads that holds at most `max_bytes` of records.

    `info` says where they come from, in free text; it is asked at every snapshot, by the reader's thread.
    """

    def __init__(self, max_bytes: int = 32 << 20, info: Callable[[], Mapping[str, str]] = dict) -> None:
        if max_bytes < 1024:
            raise ValueError(f"max_bytes must be at least 1024, got {max_bytes}")
        self._lock = threading.Lock()
        self._codes = Codes()
        self._spans = _Ring(SPAN_TABLE, max_bytes // 2)
        self._marks = _Ring(MARK_TABLE, max_bytes // 8)
        self._rows = _Ring(ROW_TABLE, max_bytes * 3 // 8)
        self.info = info
        self.refused = 0

    def on_span(self, span: SpanLike) -> None:
        ring, codes = self._spans, self._codes
        with self._lock:
            start, end = span.start_ns, span.end_ns
            if end < start or len(codes) > MAX_NAMES - 3:
                self.refused += 1
                return
            counts = (span.step_id, span.rows, span.zombies, span.padding)
            words = (codes[span.track], codes[span.name], codes[span.kind])
            ring.reserved = ring.written + 1
            offset = ring.offset(ring.written)
            SPAN_PACK.pack_into(ring.bytes, offset, start, end, *counts, *words, span.slot)
            ring.written += 1

    def on_mark(self, mark: MarkLike) -> None:
        ring, codes = self._marks, self._codes
        with self._lock:
            if len(codes) > MAX_NAMES - 1:
                self.refused += 1
                return
            values = (mark.time_ns, mark.request_id, mark.step_id, codes[mark.name])
            ring.reserved = ring.written + 1
            MARK_PACK.pack_into(ring.bytes, ring.offset(ring.written), *values)
            ring.written += 1

    def on_step(self, step: StepLike) -> None:
        ring, codes, count = self._rows, self._codes, len(step.rows)
        with self._lock:
            if count > ring.capacity or len(codes) > MAX_NAMES - 1 - count:
                self.refused += count
                return
            ring.reserved = ring.written + count
            pack, memory, written, capacity = ROW_PACK.pack_into, ring.bytes, ring.written, ring.capacity
            time, step_id, waits, size = step.time_ns, step.step_id, codes[step.waits], ring.itemsize
            for i, row in enumerate(step.rows):  # written out: this runs once per token
                request, position, token, x, y, mask, is_zombie, is_delivered, refs, after, pages, lora = row
                pack(
                    memory, (written + i) % capacity * size, time, step_id, request, x, y, position, token,
                    pages, i, codes[mask], waits, lora, refs, after, is_zombie, is_delivered,
                )  # fmt: skip
            ring.written += count

    @property
    def dropped(self) -> int:
        """Records overwritten by newer ones."""
        return self._spans.oldest + self._marks.oldest + self._rows.oldest

    def snapshot(self, since_ns: int | None = None, until_ns: int | None = None) -> Trace:
        """The trace of one window, say of one run; without bounds, of all that is held of every kind."""
        tables, _ = self._tables()
        return self._trace(tables, self._complete_since(tables) if since_ns is None else since_ns, until_ns)

    def around(self, start_ns: int, end_ns: int) -> Trace:
        """The part of a window of which every kind of record is held. Costs a tenth of a whole snapshot."""
        tables, _ = self._tables()
        columns = (tables.spans["end_ns"], tables.marks["time_ns"], tables.rows["time_ns"])
        newest = max(int(times.max(initial=start_ns)) for times in columns)
        since = self._complete_since(tables)
        return self._trace(tables, start_ns if since is None else max(start_ns, since), min(end_ns, newest))

    def when(self, step_id: int) -> tuple[int, int] | None:
        """From the first to the last instant of the step's spans; None where none is held."""
        _, spans = self._spans.copy(0, self._spans.written)
        own = spans[spans["step_id"] == step_id]
        return (int(own["start_ns"].min()), int(own["end_ns"].max())) if len(own) else None

    def columns_since(self, cursor: Cursor, limit: int = 8000) -> tuple[Cursor, Columns]:
        """At most `limit` records of each kind after the cursor, and the cursor after those."""
        rings = self._rings()
        ends = [min(ring.written, max(n, ring.oldest) + limit) for ring, n in zip(rings, cursor, strict=True)]
        copies = [ring.copy(n, end) for ring, n, end in zip(rings, cursor, ends, strict=True)]
        skipped = sum(first - n for (first, _), n in zip(copies, cursor, strict=True))
        spans, marks, rows = (table for _, table in copies)
        return Cursor(*ends), Columns(spans, marks, rows, tuple(self._codes.names), skipped)

    def newest(self) -> Cursor:
        """The cursor of a reader that has seen everything."""
        return Cursor(*(ring.written for ring in self._rings()))

    def cursor_at(self, last_ns: int) -> Cursor:
        """Where a new reader starts, to get the newest `last_ns` nanoseconds held and, of the requests
        alive in them, all marks and rows."""
        (spans, marks, rows), firsts = self._tables()
        newest = [spans["end_ns"][-1000:], marks["time_ns"][-1000:], rows["time_ns"][-1000:]]
        now = int(np.concatenate([[0], *newest]).max())
        living = alive(marks, tuple(self._codes.names), now - last_ns, now + 1)
        recent = spans["end_ns"] >= now - last_ns
        kept = (rows["time_ns"] >= now - last_ns) | np.isin(rows["request_id"], living)
        wanted = (recent, np.isin(marks["request_id"], living), kept)
        return Cursor(*(first + _first(found) for first, found in zip(firsts, wanted, strict=True)))

    def _trace(self, tables: Tables, since_ns: int | None, until_ns: int | None) -> Trace:
        names = tuple(self._codes.names)
        return make_trace(tables, names, (since_ns, until_ns), dropped=self.dropped, info=self.info())

    def _rings(self) -> tuple[_Ring, _Ring, _Ring]:
        """In the order of Cursor and Tables."""
        return self._spans, self._marks, self._rows

    def _tables(self) -> tuple[Tables, list[int]]:
        """Everything held, and the number of the first record of each kind."""
        copies = [ring.copy(0, ring.written) for ring in self._rings()]
        return Tables(*(table for _, table in copies)), [first for first, _ in copies]

    def _complete_since(self, tables: Tables) -> int | None:
        """From when on no kind of record has been dropped; None where nothing was."""
        columns = (tables.spans["start_ns"], tables.marks["time_ns"], tables.rows["time_ns"])
        rings = zip(self._rings(), columns, strict=True)
        return max((int(times[0]) for ring, times in rings if ring.oldest and len(times)), default=None)


def _first(kept: npt.NDArray[np.bool_]) -> int:
    return int(kept.argmax()) if kept.any() else len(kept)
