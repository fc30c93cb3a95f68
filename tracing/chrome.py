"""to_chrome, from_chrome: Chrome Trace Event JSON that Perfetto opens, and back without loss.

    pid 1 host       one thread            X events, counter of steps in flight
    pid 2 device     slot 0, slot 1, copy  X events, arrows launch -> device span, counter of rows
                     bubbles               X events named by their cause
    pid 3 requests   one async lane each   b ... e, every mark as n
                     commits               i events that list the rows of their step

Rules that viewers punish silently: ts and dur are microseconds from the trace's first instant, so never
negative and exact to the nanosecond in a double; both ends are whole nanoseconds and dur is their
difference; X events of one thread nest or are disjoint, spans that do not go to another thread of the
same track; an arrow is a `bind_id` of its own on the two events that it joins (an event of its own would
bind to whatever slice came last), and is drawn only when the device span does not start before its launch
(`otherData.arrows_left_out` counts the others; no time is moved).

What the events cannot say exactly lies in `args`: step, slot, kind, rows, zombies, padding; the rows of a
step as lists in the order of `otherData.row_columns`. Large integers (the clock's base) are strings.
`otherData` comes first, so that a reader knows the format before it reads the events. `from_chrome` reads
what `to_chrome` wrote, nothing else. The device's process is called what `Trace.info` calls it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import count, groupby
from math import isfinite, isnan, nan
from typing import Any

from tracing.bubbles import bubbles
from tracing.requests import RequestLife, request_lives
from tracing.trace import MarkRecord, RowRecord, SpanRecord, Trace

FORMAT = "photon-workbench-trace/1"
HOST, DEVICE, REQUESTS = 1, 2, 3
COMMITS, BUBBLES = 1, 1  # thread ids below those of all lanes
LANE_TIDS = 10_000  # thread ids of one lane: its own, and those of spans that do not fit into it
DERIVED = "bubble (derived)"  # category of events that are computed from the others and not read back
ROW_COLUMNS = [name for name in RowRecord._fields if name not in ("time_ns", "step_id", "waits")]
Event = dict[str, Any]
Placed = tuple[SpanRecord, int]


def to_chrome(trace: Trace) -> dict[str, Any]:
    """A JSON-serialisable document."""
    base = _base(trace)
    spans = _with_threads(list(trace.spans))
    arrows, left_out = _arrows(spans)
    other = {
        "format": FORMAT,
        "clock": "producer's, ns",
        "base_ns": str(base),
        "window_ns": [str(t) for t in trace.window],
        "dropped_records": trace.dropped,
        "arrows_left_out": left_out,
        "info": dict(trace.info),
        "row_columns": ROW_COLUMNS,
    }
    events = list(_names(spans, trace.info.get("device", "device")))
    events += [_span(s, tid, base) | arrows.get(i, {}) for i, (s, tid) in enumerate(spans)]
    events += [*_counters(spans, base), *_bubbles(trace, base)]
    events += [*_requests(trace, base), *_commits(trace, base)]
    return {"displayTimeUnit": "ms", "otherData": other, "traceEvents": events}


def from_chrome(document: Any) -> Trace:
    """The trace that a document of `to_chrome` holds; ValueError says in one sentence what is wrong."""
    other = document.get("otherData") if isinstance(document, dict) else None
    if not isinstance(other, dict) or other.get("format") != FORMAT:
        raise ValueError(f"This is not a trace of Photon Workbench: otherData.format is not {FORMAT!r}")
    try:
        base, events = int(other["base_ns"]), document["traceEvents"]
        start, end = (int(t) for t in other["window_ns"])
        spans = [_read_span(e, base) for e in events if e["ph"] == "X" and e["cat"] != DERIVED]
        marks = [_read_mark(e, base) for e in events if e["ph"] == "n"]
        rows = [row for e in events if e["ph"] == "i" for row in _read_rows(e, other["row_columns"], base)]
        trace = Trace.of(spans, marks, (start, end), rows=rows)
        trace = replace(trace, dropped=int(other["dropped_records"]), info=_checked(trace, other["info"]))
    except (KeyError, TypeError, ValueError, OverflowError, AttributeError) as error:
        raise ValueError(f"The trace is damaged: {type(error).__name__}: {error}") from error
    return trace


def dumps(document: dict[str, Any]) -> str:
    """Strict JSON: no NaN, no infinity."""
    return json.dumps(document, allow_nan=False, separators=(",", ":"))


def _checked(trace: Trace, info: dict[str, str]) -> dict[str, str]:
    """The info; raises when a name, a text or a time is not what `to_chrome` writes."""
    for text in (*trace.names, *info, *info.values()):
        text.encode()  # half a surrogate pair could be written to no file
    if max(map(abs, trace.window)) >= 1 << 62:
        raise OverflowError("the window lies beyond any clock")
    return info


def _base(trace: Trace) -> int:
    columns = (trace.span_table["start_ns"], trace.mark_table["time_ns"], trace.row_table["time_ns"])
    return min((int(column.min()) for column in columns if len(column)), default=trace.window[0])


def _us(time_ns: int, base: int) -> float:
    return (time_ns - base) / 1000


def _ns(event: Event, key: str) -> int:
    return round(event[key] * 1000)


# --- spans ----------------------------------------------------------------------------------------


def _lane(span: SpanRecord) -> tuple[int, int, str]:
    """(pid, rank, name) of the lane, in the order in which lanes are shown."""
    if span.track == "host":
        return HOST, 0, "host"
    if span.track == "compute":
        return DEVICE, 0, f"slot {span.slot}" if span.slot >= 0 else "device"
    return DEVICE, 1, span.track


def _with_threads(spans: Sequence[SpanRecord]) -> list[Placed]:
    """Each span with a thread on which it nests in, or follows, what came before; spans come sorted."""
    lanes = {lane: LANE_TIDS * i for i, lane in enumerate(sorted({_lane(s) for s in spans}), start=1)}
    open_ends: dict[int, list[int]] = {}  # per thread, the ends of the spans that are still open
    placed = []
    for span in spans:
        tid = next(t for t in count(lanes[_lane(span)]) if _fits(span, open_ends.setdefault(t, [])))
        open_ends[tid].append(span.end_ns)
        placed.append((span, tid))
    return placed


def _fits(span: SpanRecord, ends: list[int]) -> bool:
    while ends and ends[-1] <= span.start_ns:
        ends.pop()
    return not ends or span.end_ns <= ends[-1]


def _names(spans: list[Placed], device: str) -> Iterator[Event]:
    for pid, name in ((HOST, "host"), (DEVICE, device), (REQUESTS, "requests")):
        yield _meta(pid, 0, "process_name", {"name": name})
        yield _meta(pid, 0, "process_sort_index", {"sort_index": pid})
    yield _meta(REQUESTS, COMMITS, "thread_name", {"name": "commits"})
    yield _meta(DEVICE, BUBBLES, "thread_name", {"name": "bubbles"})
    for tid, (pid, _, name) in sorted({tid: _lane(span) for span, tid in spans}.items()):
        label = f"{name}, overlapping {tid % LANE_TIDS}" if tid % LANE_TIDS else name
        yield _meta(pid, tid, "thread_name", {"name": label})
        yield _meta(pid, tid, "thread_sort_index", {"sort_index": tid})


def _meta(pid: int, tid: int, name: str, args: Event) -> Event:
    return {"ph": "M", "name": name, "pid": pid, "tid": tid, "args": args}


def _span(span: SpanRecord, tid: int, base: int) -> Event:
    args = {"track": span.track, "name": span.name, "step": span.step_id, "slot": span.slot}
    args |= {"kind": span.kind, "rows": span.rows, "zombies": span.zombies, "padding": span.padding}
    shown = span.kind if span.name == "forward" and span.kind else span.name
    where = {"name": shown, "cat": span.track, "pid": _lane(span)[0], "tid": tid}
    times = {"ts": _us(span.start_ns, base), "dur": (span.end_ns - span.start_ns) / 1000}
    return {"ph": "X", **where, **times, "args": args}


def _read_span(event: Event, base: int) -> SpanRecord:
    args, start, length = event["args"], base + _ns(event, "ts"), _ns(event, "dur")
    if length < 0:
        raise ValueError("a span ends before it starts")
    who = (args["track"], args["name"], start, start + length)
    return SpanRecord(
        *who, args["step"], args["slot"], args["kind"], *(args[k] for k in ("rows", "zombies", "padding"))
    )


def _arrows(spans: list[Placed]) -> tuple[dict[int, Event], int]:
    """From each launch to its step's first device span: what their events say besides, by their places in
    `spans`; and how many arrows could not be drawn."""
    first: dict[int, int] = {}
    for i, (span, _) in enumerate(spans):
        if span.track == "compute":
            first.setdefault(span.step_id, i)
    ends: dict[int, Event] = {}
    left_out = 0
    for i, (span, _) in enumerate(spans):
        work = first.pop(span.step_id, None) if (span.track, span.name) == ("host", "launch") else None
        if work is None:
            continue
        if spans[work][0].start_ns < span.start_ns:
            left_out += 1
            continue
        link = {"bind_id": hex(i + 1)}
        ends |= {i: link | {"flow_out": True}, work: link | {"flow_in": True}}
    return ends, left_out


def _bubbles(trace: Trace, base: int) -> Iterator[Event]:
    for bubble in bubbles(trace):
        args = {"step": bubble.step_id, "why": bubble.text, "launch latency ns": bubble.latency_ns}
        args |= {f"{name} ns": ns for name, ns in bubble.phases if ns}
        where = {"name": f"bubble: {bubble.cause}", "cat": DERIVED, "pid": DEVICE, "tid": BUBBLES}
        times = {"ts": _us(bubble.start_ns, base), "dur": (bubble.end_ns - bubble.start_ns) / 1000}
        yield {"ph": "X", **where, **times, "args": args}


def _counters(spans: list[Placed], base: int) -> Iterator[Event]:
    """Rows of each forward; steps in flight, of the steps whose launch and commit are both known."""
    starts: dict[int, int] = {}
    ends: dict[int, int] = {}
    for span, _ in spans:
        if span.track == "compute" and span.name == "forward":
            args = {"live": span.rows - span.zombies, "zombie": span.zombies, "padding": span.padding}
            yield _counter("rows", DEVICE, _us(span.start_ns, base), args)
        elif span.track == "host" and span.name == "launch":
            starts[span.step_id] = span.start_ns
        elif span.track == "host" and span.name == "commit":
            ends[span.step_id] = span.end_ns
    steps = starts.keys() & ends.keys()
    changes = sorted([(starts[s], 1) for s in steps] + [(ends[s], -1) for s in steps])
    in_flight = 0
    for time, change in changes:
        in_flight += change
        yield _counter("steps", HOST, _us(time, base), {"in flight": in_flight})


def _counter(name: str, pid: int, ts: float, args: Event) -> Event:
    return {"ph": "C", "name": name, "pid": pid, "tid": 0, "ts": ts, "args": args}


# --- requests -------------------------------------------------------------------------------------


def _requests(trace: Trace, base: int) -> Iterator[Event]:
    """Lanes begin at the arrival, or where the trace does; they end at the end, or where the trace does."""
    marks: dict[int, list[MarkRecord]] = {}
    for mark in trace.marks:
        marks.setdefault(mark.request_id, []).append(mark)
    for lane, life in enumerate(request_lives(trace)):
        yield from _request(lane, life, marks.get(life.request_id, []), (base, trace.window[1]))


def _request(
    lane: int, life: RequestLife, marks: list[MarkRecord], bounds: tuple[int, int]
) -> Iterator[Event]:
    base, last = bounds
    times = [m.time_ns for m in marks]
    start = min([*times, base if life.arrival_ns is None else life.arrival_ns])
    end = max([*times, last if life.end_ns is None else life.end_ns])
    # A local id: Perfetto shows a lane with a global one outside of its process.
    same = {"cat": "request", "id2": {"local": hex(lane)}, "pid": REQUESTS, "tid": 0}
    args = {"tokens": len(life.tokens_ns), "cancelled": life.is_cancelled}
    title = f"request {life.request_id}"
    yield {"ph": "b", "name": title, "ts": _us(start, base), "args": args, **same}
    for mark in marks:
        args = {"request": mark.request_id, "step": mark.step_id}
        yield {"ph": "n", "name": mark.name, "ts": _us(mark.time_ns, base), "args": args, **same}
    yield {"ph": "e", "name": title, "ts": _us(end, base), **same}


def _read_mark(event: Event, base: int) -> MarkRecord:
    return MarkRecord(event["name"], base + _ns(event, "ts"), event["args"]["request"], event["args"]["step"])


def _commits(trace: Trace, base: int) -> Iterator[Event]:
    """One instant per committed step, with its rows; NaN is null, an infinite number its name."""
    for (time, step, waits), rows in groupby(trace.rows, key=lambda r: (r.time_ns, r.step_id, r.waits)):
        table = [[_plain(getattr(row, column)) for column in ROW_COLUMNS] for row in rows]
        where = {"name": "commit", "cat": "rows", "s": "t", "pid": REQUESTS, "tid": COMMITS}
        yield {
            "ph": "i",
            **where,
            "ts": _us(time, base),
            "args": {"step": step, "waits": waits, "rows": table},
        }


def _plain(value: Any) -> Any:
    """A value that strict JSON has."""
    if not isinstance(value, float) or isfinite(value):
        return value
    return None if isnan(value) else str(value)


def _read_rows(event: Event, columns: list[str], base: int) -> Iterator[RowRecord]:
    args = event["args"]
    same: Event = {"time_ns": base + _ns(event, "ts"), "step_id": args["step"], "waits": args["waits"]}
    for row in args["rows"]:
        values = dict(zip(columns, row, strict=True))
        point = {key: nan if values[key] is None else float(values[key]) for key in ("x", "y")}
        yield RowRecord(**same | values | point)
