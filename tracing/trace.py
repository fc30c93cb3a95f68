"""Trace: the records of one time window, immutable and sorted.

Records lie in two numpy structured arrays, packed as `struct` packs them (`SPAN_PACK`, `MARK_PACK`), so
that the recorder can write a row in one call and everyone else reads columns. Names are codes into
`Trace.names`.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from tracing.protocol import MarkLike, SpanLike

Table = npt.NDArray[np.void]

_SPAN_FIELDS = ["start_ns", "end_ns", "step_id", "rows", "zombies", "padding"]
_SPAN_FIELDS += ["track", "name", "kind", "slot"]
_MARK_FIELDS = ["time_ns", "request_id", "step_id", "name"]
SPAN_PACK = struct.Struct("<qqqiiiHHHh4x")
MARK_PACK = struct.Struct("<qqqH6x")
MAX_NAMES = 65_535
ENDS = ("finish", "cancel")  # marks that end a request


def _table_type(fields: list[str], packed: str, itemsize: int) -> np.dtype[np.void]:
    formats = [np.dtype("<" + {"q": "i8", "i": "i4", "H": "u2", "h": "i2"}[code]) for code in packed]
    offsets = np.concatenate([[0], np.cumsum([f.itemsize for f in formats])[:-1]]).tolist()
    return np.dtype({"names": fields, "formats": formats, "offsets": offsets, "itemsize": itemsize})


SPAN_TABLE = _table_type(_SPAN_FIELDS, "qqqiiiHHHh", SPAN_PACK.size)
MARK_TABLE = _table_type(_MARK_FIELDS, "qqqH", MARK_PACK.size)


class SpanRecord(NamedTuple):
    """One span of a Trace; satisfies SpanLike."""

    track: str
    name: str
    start_ns: int
    end_ns: int
    step_id: int = -1
    slot: int = -1
    kind: str = ""
    rows: int = 0
    zombies: int = 0
    padding: int = 0


class MarkRecord(NamedTuple):
    """One mark of a Trace; satisfies MarkLike."""

    name: str
    time_ns: int
    request_id: int
    step_id: int = -1


class Codes(dict[str, int]):
    """Name -> small integer, given at first use; `names` is the way back."""

    def __init__(self, names: Iterable[str] = ()) -> None:
        super().__init__()
        self.names: list[str] = []
        for name in names:
            self[name]

    def __missing__(self, name: str) -> int:
        if len(self.names) >= MAX_NAMES:
            raise OverflowError(f"more than {MAX_NAMES} distinct names")
        self.names.append(name)  # before the code is handed out: readers look names up without the lock
        code = self[name] = len(self.names) - 1
        return code


@dataclass(frozen=True, eq=False)
class Trace:
    """Spans that touch `window`, sorted by start (the longer first); marks sorted by time.

    The marks are those of every request that lived in the window, the ones outside of it included:
    when a request arrived decides about demand and latency inside. `window` is [start, end) ns.
    """

    span_table: Table
    mark_table: Table
    names: tuple[str, ...]
    window: tuple[int, int]
    dropped: int = 0

    @classmethod
    def of(
        cls,
        spans: Iterable[SpanLike] = (),
        marks: Iterable[MarkLike] = (),
        window: tuple[int, int] | None = None,
    ) -> Trace:
        """A trace of any records. Without a window: from the first instant in them to the last."""
        codes = Codes()

        def code(x: SpanLike) -> tuple[int, int, int]:
            return codes[x.track], codes[x.name], codes[x.kind]

        s = [
            (*(x.start_ns, x.end_ns, x.step_id, x.rows, x.zombies, x.padding), *code(x), x.slot)
            for x in spans
        ]
        m = [(x.time_ns, x.request_id, x.step_id, codes[x.name]) for x in marks]
        tables = np.array(s, SPAN_TABLE), np.array(m, MARK_TABLE)
        return make_trace(*tables, tuple(codes.names), window or (None, None), 0)

    @property
    def spans(self) -> Iterator[SpanRecord]:
        name = self.names
        for start, end, step, rows, zombies, padding, track, label, kind, slot in self.span_table.tolist():
            ids = (name[track], name[label], start, end, step, slot, name[kind])
            yield SpanRecord(*ids, rows, zombies, padding)

    @property
    def marks(self) -> Iterator[MarkRecord]:
        for time, request, step, label in self.mark_table.tolist():
            yield MarkRecord(self.names[label], time, request, step)

    def where(self, track: str, *labels: str, kind: str | None = None) -> Table:
        """Rows of the spans on a track; of those names only, and that kind only, where given."""
        rows = self.span_table
        kept = rows["track"] == self._code(track)
        if labels:
            kept &= np.isin(rows["name"], [self._code(label) for label in labels])
        if kind is not None:
            kept &= rows["kind"] == self._code(kind)
        return rows[kept]

    def within(self, start_ns: int, end_ns: int) -> Trace:
        """The same records seen through a smaller window."""
        return make_trace(self.span_table, self.mark_table, self.names, (start_ns, end_ns), self.dropped)

    def _code(self, name: str) -> int:
        return self.names.index(name) if name in self.names else -1


def alive(marks: Table, names: tuple[str, ...], start: int, end: int) -> npt.NDArray[np.bool_]:
    """Which marks belong to requests that lived at some instant of [start, end)."""
    if not len(marks):
        return np.zeros(0, bool)
    ids, owner = np.unique(marks["request_id"], return_inverse=True)
    first = np.full(len(ids), np.iinfo(np.int64).max)
    last = np.full(len(ids), np.iinfo(np.int64).min)
    np.minimum.at(first, owner, marks["time_ns"])
    np.maximum.at(last, owner, marks["time_ns"])
    ended = np.isin(marks["name"], [names.index(n) for n in ENDS if n in names])
    last[np.setdiff1d(np.arange(len(ids)), owner[ended])] = np.iinfo(np.int64).max
    return ((first < end) & (last >= start))[owner]


def make_trace(
    spans: Table,
    marks: Table,
    names: tuple[str, ...],
    window: tuple[int | None, int | None],
    dropped: int,
) -> Trace:
    start, end = window
    if start is None or end is None:
        times = np.concatenate([spans["start_ns"], spans["end_ns"], marks["time_ns"]])
        low, high = (int(times.min()), int(times.max())) if len(times) else (0, 0)
        start, end = low if start is None else start, high if end is None else end
    touching = (spans["start_ns"] < end) & (spans["end_ns"] > start)
    instants = (
        (spans["start_ns"] == spans["end_ns"]) & (spans["start_ns"] >= start) & (spans["end_ns"] <= end)
    )
    spans = spans[touching | instants]
    spans = spans[np.lexsort((-spans["end_ns"], spans["start_ns"]))]
    marks = marks[alive(marks, names, start, end + 1)]
    marks = marks[np.argsort(marks["time_ns"], kind="stable")]
    spans.flags.writeable = marks.flags.writeable = False
    return Trace(spans, marks, names, (start, max(start, end)), dropped)
