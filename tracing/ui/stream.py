"""Server-sent events of a source: its records as columns.

A live source sends 4 times a second while there are new records, at most LIMIT spans per message. Its
first message holds the newest HISTORY_S seconds; a client that reconnects goes on where it was; one that
falls behind by more than BACKLOG records skips the oldest and is told how many it missed. The generator
ends when the client goes. Records are copied without the recorder's lock and encoded afterwards, on the
event loop: about a millisecond for LIMIT spans.

An opened trace sends all of its records in messages of at most LIMIT, then one `event: end`; a client
closes the stream on it.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator, Iterator, Mapping
from typing import Any

import numpy as np
import orjson
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse

from tracing.recorder import Columns, Cursor, Recorder
from tracing.trace import Table, Trace
from tracing.ui.sources import LIVE, Sources

PERIOD_S = 0.25
HISTORY_S = 20.0
LIMIT = 8_000
BACKLOG = 16 * LIMIT
KEEPALIVE_S = 15.0
HEADERS = {"Cache-Control": "no-cache, no-transform", "X-Accel-Buffering": "no"}
MARK_COLUMNS = {"request": "request_id", "step": "step_id", "name": "name"}
ROW_COLUMNS = {"request": "request_id", "step": "step_id"}
GONE = "This trace is not held any more; open its file again."


class SourceStream:
    """GET wb/trace/stream?source=ID: the live stream, or the records of an opened trace."""

    def __init__(self, sources: Sources) -> None:
        self.sources, self.live = sources, TraceStream(sources.live)

    async def respond(self, request: Request) -> Response:
        source = request.query_params.get("source", LIVE)
        if source == LIVE:
            return _events(self.live.events(request, self.live.resume(request.headers)))
        trace = self.sources.get(source)
        if trace is None:
            return JSONResponse({"error": GONE}, status_code=404)
        return _events(trace_events(trace))


def _events(parts: AsyncIterator[bytes]) -> Response:
    return StreamingResponse(parts, media_type="text/event-stream", headers=HEADERS)


class TraceStream:
    """Server-sent events of one recorder; one generator per client, no state shared but the base."""

    def __init__(self, recorder: Recorder, limit: int = LIMIT, backlog: int = BACKLOG) -> None:
        self.recorder, self.limit, self.backlog = recorder, limit, backlog
        self.run = uuid.uuid4().hex[:8]  # tells a client of an earlier process from one of ours
        self.base: int | None = None  # times are sent relative to this: a double holds them exactly

    def resume(self, headers: Mapping[str, str]) -> Cursor | None:
        """Where the client had come, if it is ours and says so."""
        run, *numbers = headers.get("last-event-id", "").split("-")
        is_ours = run == self.run and len(numbers) == len(Cursor._fields) and "".join(numbers).isdigit()
        return Cursor(*map(int, numbers)) if is_ours else None

    async def events(self, request: Request, cursor: Cursor | None) -> AsyncIterator[bytes]:
        """From the cursor on, or from the recent past, for as long as the client stays."""
        names, silent = 0, KEEPALIVE_S  # a first comment opens the stream at once
        reset = cursor is None
        if cursor is None:  # a look at everything held, a tenth of a second for a full recorder
            cursor = await asyncio.to_thread(self.recorder.cursor_at, int(HISTORY_S * 1e9))
        while not await request.is_disconnected():
            skipped = self._behind(cursor)
            start = Cursor(*(a + b for a, b in zip(cursor, skipped, strict=True)))
            cursor, columns = self.recorder.columns_since(start, self.limit)
            count = max(map(len, (columns.spans, columns.marks, columns.rows)))
            if count or reset:
                message = self.message(columns, names) | {"reset": reset, "dropped": self.recorder.dropped}
                message |= {"info": dict(self.recorder.info())} if reset else {}
                message["skipped"] += sum(skipped)
                yield f"id: {'-'.join(map(str, (self.run, *cursor)))}\n".encode()
                yield encode(message)
                names, reset, silent = len(columns.names), False, 0.0
            elif silent >= KEEPALIVE_S:
                yield b": still here\n\n"
                silent = 0.0
            pause = PERIOD_S / 10 if count == self.limit else PERIOD_S
            await asyncio.sleep(pause)
            silent += pause

    def _behind(self, cursor: Cursor) -> Cursor:
        """How many records of each kind a client must skip to be no more than BACKLOG late."""
        newest = self.recorder.newest()
        return Cursor(*(max(0, n - at - self.backlog) for n, at in zip(newest, cursor, strict=True)))

    def message(self, columns: Columns, names_from: int) -> dict[str, Any]:
        """Columns relative to `base`, starts relative to `t0`; the names the client does not have yet."""
        if self.base is None:
            self.base = earliest(columns)
        return as_message(columns, names_from, self.base or 0)


async def trace_events(trace: Trace) -> AsyncIterator[bytes]:
    """All records of a trace, then `event: end`."""
    base, names_from, reset = trace.window[0], 0, True
    for columns in _batches(trace):
        message = as_message(columns, names_from, base) | {"reset": reset, "dropped": trace.dropped}
        yield encode(message | {"info": dict(trace.info)})
        names_from, reset = len(trace.names), False
        await asyncio.sleep(0)  # other clients' turn
    yield b"event: end\ndata: {}\n\n"


def _batches(trace: Trace) -> Iterator[Columns]:
    tables = trace.span_table, trace.mark_table, trace.row_table
    for i in range(0, max(1, *map(len, tables)), LIMIT):
        spans, marks, rows = (table[i : i + LIMIT] for table in tables)
        yield Columns(spans, marks, rows, trace.names, 0)


def earliest(columns: Columns) -> int | None:
    """The first instant in the records, ns; None without any."""
    times = (columns.spans["start_ns"], columns.marks["time_ns"], columns.rows["time_ns"])
    return min((int(t.min()) for t in times if len(t)), default=None)


def as_message(columns: Columns, names_from: int, base: int) -> dict[str, Any]:
    """What the page's store takes; see assets/timeline_store.js."""
    return {
        "base": str(base),
        "names_from": names_from,
        "names": columns.names[names_from:],
        "skipped": columns.skipped,
        "spans": _span_columns(columns.spans, base),
        "marks": _columns(columns.marks, base, MARK_COLUMNS),
        "rows": _columns(columns.rows, base, ROW_COLUMNS) | {"flags": _flags(columns.rows)},
    }


def encode(message: Mapping[str, Any]) -> bytes:
    """The data line of an event, and its end."""
    return b"data: " + orjson.dumps(message, option=orjson.OPT_SERIALIZE_NUMPY) + b"\n\n"


def _span_columns(rows: Table, base: int) -> dict[str, Any]:
    first = int(rows["start_ns"].min()) if len(rows) else base
    out: dict[str, Any] = {"t0": first - base, "start": rows["start_ns"] - first}
    out["dur"] = rows["end_ns"] - rows["start_ns"]
    for column in ("track", "name", "kind", "slot", "rows", "zombies", "padding"):
        out[column] = np.ascontiguousarray(rows[column])
    return out | {"step": np.ascontiguousarray(rows["step_id"])}


def _columns(rows: Table, base: int, columns: Mapping[str, str]) -> dict[str, Any]:
    first = int(rows["time_ns"].min()) if len(rows) else base
    out = {key: np.ascontiguousarray(rows[column]) for key, column in columns.items()}
    return {"t0": first - base, "time": rows["time_ns"] - first} | out


def _flags(rows: Table) -> Any:
    """1 zombie, 2 delivered."""
    return rows["is_zombie"].astype(np.uint8) + 2 * rows["is_delivered"].astype(np.uint8)
