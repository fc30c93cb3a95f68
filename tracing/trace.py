"""Trace: the records of one time window, immutable and sorted.

Records lie in three numpy structured arrays, packed as `struct` packs them (`SPAN_PACK`, `MARK_PACK`,
`ROW_PACK`), so that the recorder can write a record in one call and everyone else reads columns. Names are
codes into `Trace.names`. A row is one row of one committed step.
"""

from __future__ import annotations

import functools
import math
import re
import struct
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple, TypeVar, cast

import numpy as np
import numpy.typing as npt

from tracing.protocol import MarkLike, SpanLike

Table = npt.NDArray[np.void]
Result = TypeVar("Result")

_SPAN_FIELDS = ["start_ns", "end_ns", "step_id", "rows", "zombies", "padding"]
_SPAN_FIELDS += ["track", "name", "kind", "slot"]
_MARK_FIELDS = ["time_ns", "request_id", "step_id", "name"]
_ROW_FIELDS = ["time_ns", "step_id", "request_id", "x", "y", "position", "token_id", "pages"]
_ROW_FIELDS += ["row", "mask", "waits", "lora_slot", "refs_before", "refs_after", "is_zombie", "is_delivered"]
SPAN_PACK = struct.Struct("<qqqiiiHHHh4x")
MARK_PACK = struct.Struct("<qqqH6x")
ROW_PACK = struct.Struct("<qqqddiiiHHHhbb??")
MAX_NAMES = 65_535
ENDS = ("finish", "cancel")  # marks that end a request


def _table_type(fields: list[str], pack: struct.Struct) -> np.dtype[np.void]:
    """The same layout as numpy sees it: both spell a type by the same letter, padding apart."""
    formats = [np.dtype("<" + code) for code in re.findall(r"\d*x|[a-zH?]", pack.format) if "x" not in code]
    offsets = np.concatenate([[0], np.cumsum([f.itemsize for f in formats])[:-1]]).tolist()
    return np.dtype({"names": fields, "formats": formats, "offsets": offsets, "itemsize": pack.size})


SPAN_TABLE = _table_type(_SPAN_FIELDS, SPAN_PACK)
MARK_TABLE = _table_type(_MARK_FIELDS, MARK_PACK)
ROW_TABLE = _table_type(_ROW_FIELDS, ROW_PACK)


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


class RowRecord(NamedTuple):
    """One row of a committed step, as StepRowLike says it, with what the step says: when its tokens count
    as committed, and what waited for which event."""

    time_ns: int
    step_id: int
    row: int
    request_id: int
    position: int = -1
    token_id: int = -1
    x: float = math.nan
    y: float = math.nan
    mask: str = ""
    waits: str = ""
    is_zombie: bool = False
    is_delivered: bool = True
    refs_before: int = 0
    refs_after: int = 0
    pages: int = 0
    lora_slot: int = 0


class Tables(NamedTuple):
    """The three arrays of a trace: SPAN_TABLE, MARK_TABLE, ROW_TABLE."""

    spans: Table
    marks: Table
    rows: Table


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
    """Spans that touch `window`, sorted by start (the longer first); marks and rows sorted by time.

    The marks and rows are those of every request that lived in the window, the ones outside of it included:
    when a request arrived decides about demand and latency inside. `window` is [start, end) ns; `info` says
    in free text where the records come from (device, model, depth, ...).
    """

    span_table: Table
    mark_table: Table
    row_table: Table
    names: tuple[str, ...]
    window: tuple[int, int]
    dropped: int = 0
    info: Mapping[str, str] = field(default_factory=dict)
    _known: dict[object, object] = field(default_factory=dict, init=False, repr=False)

    @classmethod
    def of(
        cls,
        spans: Iterable[SpanLike] = (),
        marks: Iterable[MarkLike] = (),
        window: tuple[int, int] | None = None,
        *,
        rows: Iterable[RowRecord] = (),
        info: Mapping[str, str] | None = None,
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
        r = [
            (
                *(x.time_ns, x.step_id, x.request_id, x.x, x.y, x.position, x.token_id, x.pages, x.row),
                *(codes[x.mask], codes[x.waits], x.lora_slot, x.refs_before, x.refs_after),
                *(x.is_zombie, x.is_delivered),
            )
            for x in rows
        ]
        tables = Tables(np.array(s, SPAN_TABLE), np.array(m, MARK_TABLE), np.array(r, ROW_TABLE))
        return make_trace(tables, tuple(codes.names), window or (None, None), info=info)

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

    @property
    def rows(self) -> Iterator[RowRecord]:
        for time, step, request, x, y, position, token, pages, row, *rest in self.row_table.tolist():
            mask, waits, lora_slot, before, after, is_zombie, is_delivered = rest
            words = (self.names[mask], self.names[waits], is_zombie, is_delivered)
            yield RowRecord(
                time, step, row, request, position, token, x, y, *words, before, after, pages, lora_slot
            )

    def where(self, track: str, *labels: str, kind: str | None = None) -> Table:
        """Rows of the spans on a track; of those names only, and that kind only, where given.

        A label that ends with a colon stands for all names that begin with it.
        """
        rows = self.span_table
        kept = rows["track"] == self._code(track)
        if labels:
            prefixes = tuple(label for label in labels if label.endswith(":"))
            codes = [i for i, name in enumerate(self.names) if name in labels or name.startswith(prefixes)]
            kept &= np.isin(rows["name"], codes)
        if kind is not None:
            kept &= rows["kind"] == self._code(kind)
        return rows[kept]

    def within(self, start_ns: int, end_ns: int) -> Trace:
        """The same records seen through a smaller window."""
        tables = Tables(self.span_table, self.mark_table, self.row_table)
        return make_trace(tables, self.names, (start_ns, end_ns), dropped=self.dropped, info=self.info)

    def _code(self, name: str) -> int:
        return self.names.index(name) if name in self.names else -1


def once(function: Callable[[Trace], Result]) -> Callable[[Trace], Result]:
    """The function's result is kept with the trace, which never changes; a dozen metrics ask for the same."""

    @functools.wraps(function)
    def call(trace: Trace) -> Result:
        if function not in trace._known:
            trace._known[function] = function(trace)
        return cast(Result, trace._known[function])

    return call


def alive(marks: Table, names: tuple[str, ...], start: int, end: int) -> npt.NDArray[np.int64]:
    """The requests that, as their marks say, lived at some instant of [start, end)."""
    ids, owner = np.unique(marks["request_id"], return_inverse=True)
    first = np.full(len(ids), np.iinfo(np.int64).max)
    last = np.full(len(ids), np.iinfo(np.int64).min)
    np.minimum.at(first, owner, marks["time_ns"])
    np.maximum.at(last, owner, marks["time_ns"])
    ended = np.isin(marks["name"], [names.index(n) for n in ENDS if n in names])
    last[np.setdiff1d(np.arange(len(ids)), owner[ended])] = np.iinfo(np.int64).max
    return np.asarray(ids[(first < end) & (last >= start)], np.int64)


def make_trace(
    tables: Tables,
    names: tuple[str, ...],
    window: tuple[int | None, int | None] = (None, None),
    *,
    dropped: int = 0,
    info: Mapping[str, str] | None = None,
) -> Trace:
    """The records of `tables` that belong to the window; an open end is the first or last instant in them."""
    spans, marks, rows = tables
    start, end = window
    if start is None or end is None:
        times = np.concatenate([spans["start_ns"], spans["end_ns"], marks["time_ns"], rows["time_ns"]])
        low, high = (int(times.min()), int(times.max())) if len(times) else (0, 0)
        start, end = low if start is None else start, high if end is None else end
    touching = (spans["start_ns"] < end) & (spans["end_ns"] > start)
    instants = (
        (spans["start_ns"] == spans["end_ns"]) & (spans["start_ns"] >= start) & (spans["end_ns"] <= end)
    )
    spans = spans[touching | instants]
    spans = spans[np.lexsort((-spans["end_ns"], spans["start_ns"]))]
    living = alive(marks, names, start, end + 1)
    marks = marks[np.isin(marks["request_id"], living)]
    marks = marks[np.argsort(marks["time_ns"], kind="stable")]
    recent = (rows["time_ns"] >= start) & (rows["time_ns"] <= end) | np.isin(
        rows["step_id"], spans["step_id"]
    )
    rows = rows[recent | np.isin(rows["request_id"], living)]
    rows = rows[np.lexsort((rows["row"], rows["step_id"], rows["time_ns"]))]
    for table in (spans, marks, rows):
        table.flags.writeable = False
    return Trace(spans, marks, rows, names, (start, max(start, end)), dropped, info or {})
