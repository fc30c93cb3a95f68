"""to_chrome, from_chrome: Chrome Trace Event JSON that Perfetto opens, and back without loss.

    pid 1 host       one thread            X events
    pid 2 device     slot 0, slot 1, copy  X events, arrows launch -> device span, counter of rows
    pid 3 requests   one async lane each   b ... e, every mark as n

Rules that viewers punish silently: ts and dur are microseconds from the trace's first instant, so never
negative and exact to the nanosecond in a double; both ends are whole nanoseconds and dur is their
difference; X events of one thread nest or are disjoint, spans that do not go to another thread of the
same track; an arrow ends with bp "e", has an id of its own, and is drawn only when the device span does
not start before its launch (`otherData.arrows_left_out` counts the others; no time is moved).

What the events cannot say exactly lies in `args`: step, slot, kind, rows, zombies, padding. Large
integers (the clock's base) are strings. `from_chrome` reads what `to_chrome` wrote, nothing else.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any

from tracing.requests import RequestLife, request_lives
from tracing.trace import MarkRecord, SpanRecord, Trace

FORMAT = "photon-workbench-trace/1"
HOST, DEVICE, REQUESTS = 1, 2, 3
EXTRA = 100  # threads of one lane for spans that neither nest in nor follow its others
Event = dict[str, Any]


def to_chrome(trace: Trace, device_label: str = "device") -> dict[str, Any]:
    """A JSON-serialisable document; device_label names the device's process."""
    base = _base(trace)
    spans = _with_threads(trace.spans)
    arrows, left_out = _arrows(spans, base)
    other = {
        "format": FORMAT,
        "clock": "producer's, ns",
        "base_ns": str(base),
        "window_ns": [str(t) for t in trace.window],
        "dropped_records": trace.dropped,
        "arrows_left_out": left_out,
    }
    events = [*_names(spans, device_label), *(_span(s, tid, base) for s, tid in spans), *arrows]
    events += [*_counters(spans, base), *_requests(trace, base)]
    return {"displayTimeUnit": "ms", "otherData": other, "traceEvents": events}


def from_chrome(document: Any) -> Trace:
    """The trace that a document of `to_chrome` holds; ValueError says in one sentence what is wrong."""
    other = document.get("otherData") if isinstance(document, dict) else None
    if not isinstance(other, dict) or other.get("format") != FORMAT:
        raise ValueError(f"this is not a trace of Photon Workbench: otherData.format is not {FORMAT!r}")
    try:
        base, events = int(other["base_ns"]), document["traceEvents"]
        start, end = (int(t) for t in other["window_ns"])
        spans = [_read_span(e, base) for e in events if e["ph"] == "X"]
        marks = [_read_mark(e, base) for e in events if e["ph"] == "n"]
        trace = replace(Trace.of(spans, marks, (start, end)), dropped=int(other["dropped_records"]))
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise ValueError(f"the trace file is damaged: {type(error).__name__}: {error}") from error
    return trace


def dumps(document: dict[str, Any]) -> str:
    """Strict JSON: no NaN, no infinity."""
    return json.dumps(document, allow_nan=False, separators=(",", ":"))


def _base(trace: Trace) -> int:
    times = [*trace.span_table["start_ns"].tolist(), *trace.mark_table["time_ns"].tolist()]
    return min(times, default=trace.window[0])


def _us(time_ns: int, base: int) -> float:
    return (time_ns - base) / 1000


def _ns(event: Event, key: str) -> int:
    return round(event[key] * 1000)


def _lane(span: SpanRecord) -> tuple[int, int, str]:
    """(pid, first tid, name) of the lane."""
    if span.track == "host":
        return HOST, 1_000, "host"
    if span.track == "compute":
        return (
            (DEVICE, 2_000 + 200 * span.slot, f"slot {span.slot}")
            if span.slot >= 0
            else (DEVICE, 1_000, "device")
        )
    return (DEVICE, 90_000, "copy") if span.track == "copy" else (DEVICE, 95_000, span.track)


def _with_threads(spans: Iterable[SpanRecord]) -> list[tuple[SpanRecord, int]]:
    """Each span with a thread on which it nests in, or follows, what came before; spans come sorted."""
    open_ends: dict[int, list[int]] = {}  # per thread, the ends of the spans that are still open
    placed = []
    for span in spans:
        first = _lane(span)[1]
        tid = next(t for t in range(first, first + EXTRA) if _fits(span, open_ends.setdefault(t, [])))
        open_ends[tid].append(span.end_ns)
        placed.append((span, tid))
    return placed


def _fits(span: SpanRecord, ends: list[int]) -> bool:
    while ends and ends[-1] <= span.start_ns:
        ends.pop()
    return not ends or span.end_ns <= ends[-1]


def _names(spans: list[tuple[SpanRecord, int]], device_label: str) -> Iterator[Event]:
    for pid, name in ((HOST, "host"), (DEVICE, device_label), (REQUESTS, "requests")):
        yield _meta(pid, 0, "process_name", {"name": name})
        yield _meta(pid, 0, "process_sort_index", {"sort_index": pid})
    lanes = {tid: _lane(span) for span, tid in spans}
    for tid, (pid, first, name) in sorted(lanes.items()):
        label = name if tid == first else f"{name}, overlapping {tid - first}"
        yield _meta(pid, tid, "thread_name", {"name": label})
        yield _meta(pid, tid, "thread_sort_index", {"sort_index": tid})


def _meta(pid: int, tid: int, name: str, args: Event) -> Event:
    return {"ph": "M", "name": name, "pid": pid, "tid": tid, "args": args}


def _span(span: SpanRecord, tid: int, base: int) -> Event:
    args = {"track": span.track, "name": span.name, "step": span.step_id, "slot": span.slot}
    args |= {"kind": span.kind, "rows": span.rows, "zombies": span.zombies, "padding": span.padding}
    shown = span.kind if span.name == "forward" and span.kind else span.name
    times = {"ts": _us(span.start_ns, base), "dur": (span.end_ns - span.start_ns) / 1000}
    return {
        "ph": "X",
        "name": shown,
        "cat": span.track,
        "pid": _lane(span)[0],
        "tid": tid,
        **times,
        "args": args,
    }


def _arrows(spans: list[tuple[SpanRecord, int]], base: int) -> tuple[list[Event], int]:
    """From each launch to its step's first device span; and how many could not be drawn."""
    first: dict[int, tuple[SpanRecord, int]] = {}
    for span, tid in spans:
        if span.track == "compute":
            first.setdefault(span.step_id, (span, tid))
    events: list[Event] = []
    left_out = 0
    for span, tid in spans:
        if span.track == "host" and span.name == "launch" and span.step_id in first:
            work, to = first[span.step_id]
            left_out += work.start_ns < span.start_ns
            if work.start_ns >= span.start_ns:
                link = {"id": len(events) // 2 + 1, "name": "launch", "cat": "launch"}
                events.append({"ph": "s", **link, "pid": HOST, "tid": tid, "ts": _us(span.start_ns, base)})
                at = {"pid": DEVICE, "tid": to, "ts": _us(work.start_ns, base)}
                events.append({"ph": "f", "bp": "e", **link, **at})
    return events, left_out


def _counters(spans: list[tuple[SpanRecord, int]], base: int) -> Iterator[Event]:
    for span, _ in spans:
        if span.track == "compute" and span.name == "forward":
            args = {"live": span.rows - span.zombies, "zombie": span.zombies, "padding": span.padding}
            yield {
                "ph": "C",
                "name": "rows",
                "pid": DEVICE,
                "tid": 0,
                "ts": _us(span.start_ns, base),
                "args": args,
            }


def _requests(trace: Trace, base: int) -> Iterator[Event]:
    """Lanes begin at the arrival, or where the trace does; they end at the end, or where the trace does."""
    marks: dict[int, list[MarkRecord]] = {}
    for mark in trace.marks:
        marks.setdefault(mark.request_id, []).append(mark)
    for lane, life in enumerate(request_lives(trace)):
        yield from _request(lane, life, marks[life.request_id], trace, base)


def _request(
    lane: int, life: RequestLife, marks: list[MarkRecord], trace: Trace, base: int
) -> Iterator[Event]:
    times = [m.time_ns for m in marks]
    start = min([*times, base] if life.arrival_ns is None else times)
    end = max([*times, trace.window[1]] if life.end_ns is None else times)
    same = {"cat": "request", "id": hex(lane), "pid": REQUESTS, "tid": 0}
    args = {"tokens": len(life.tokens_ns), "cancelled": life.is_cancelled}
    title = f"request {life.request_id}"
    yield {"ph": "b", "name": title, "ts": _us(start, base), "args": args, **same}
    for mark in marks:
        args = {"request": mark.request_id, "step": mark.step_id}
        yield {"ph": "n", "name": mark.name, "ts": _us(mark.time_ns, base), "args": args, **same}
    yield {"ph": "e", "name": title, "ts": _us(end, base), **same}


def _read_span(event: Event, base: int) -> SpanRecord:
    args, start = event["args"], base + _ns(event, "ts")
    who = (args["track"], args["name"], start, start + _ns(event, "dur"))
    return SpanRecord(
        *who, args["step"], args["slot"], args["kind"], *(args[k] for k in ("rows", "zombies", "padding"))
    )


def _read_mark(event: Event, base: int) -> MarkRecord:
    return MarkRecord(event["name"], base + _ns(event, "ts"), event["args"]["request"], event["args"]["step"])
