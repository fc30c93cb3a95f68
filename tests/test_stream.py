"""Pins what the event stream sends: the recent past exactly, then what is new; an opened trace whole."""

from __future__ import annotations

import asyncio
import json
from typing import Any

from producer import MS, Row, Step, run

from tracing.recorder import Cursor, Recorder
from tracing.trace import MarkRecord, SpanRecord
from tracing.ui.stream import TraceStream, trace_events


class Visitor:
    """A request whose client stays for `polls` polls."""

    def __init__(self, polls: int, last_id: str = "") -> None:
        self.polls, self.headers = polls, {"last-event-id": last_id}

    async def is_disconnected(self) -> bool:
        self.polls -= 1
        return self.polls < 0


def visit(stream: Any, polls: int = 2, last_id: str = "") -> list[dict[str, Any]]:
    """The messages that a client gets, with their ids."""

    async def collect() -> list[bytes]:
        visitor = Visitor(polls, last_id)
        cursor = stream.resume(visitor.headers)
        return [part async for part in stream.events(visitor, cursor)]

    text = b"".join(asyncio.run(collect())).decode()
    events = [e.split("\n") for e in text.split("\n\n") if "data: " in e]
    return [json.loads(data.removeprefix("data: ")) | {"id": i.removeprefix("id: ")} for i, data in events]


def test_a_new_client_gets_the_recent_past_exactly() -> None:
    recorder = Recorder()
    base = 1 << 61
    recorder.on_span(SpanRecord("compute", "forward", base + 7, base + 9, 3, 1, "decode", 4, 1, 2))
    recorder.on_mark(MarkRecord("arrival", base + 5, 11, -1))
    recorder.on_step(
        Step(3, 1, "decode", base + 12, rows=[Row(11), Row(10, is_zombie=True, is_delivered=False)])
    )
    (message,) = visit(TraceStream(recorder))
    assert message["reset"] is True
    assert int(message["base"]) == base + 5
    spans, names = message["spans"], message["names"]
    assert spans["t0"] + spans["start"][0] == 2
    assert (spans["dur"], spans["step"], spans["slot"]) == ([2], [3], [1])
    assert [names[spans[c][0]] for c in ("track", "name", "kind")] == ["compute", "forward", "decode"]
    assert (spans["rows"], spans["zombies"], spans["padding"]) == ([4], [1], [2])
    marks = message["marks"]
    assert (marks["t0"] + marks["time"][0], names[marks["name"][0]], marks["request"]) == (0, "arrival", [11])
    rows = message["rows"]
    assert [rows["t0"] + t for t in rows["time"]] == [7, 7]
    assert (rows["step"], rows["request"], rows["flags"]) == ([3, 3], [11, 10], [2, 1])


def test_a_client_that_comes_back_goes_on_where_it_was() -> None:
    recorder = Recorder()
    stream = TraceStream(recorder)
    run(recorder, 0, 0)
    first = visit(stream)
    run(recorder, 50, 200 * MS)
    (again,) = visit(stream, last_id=first[-1]["id"])
    assert again["reset"] is False
    assert set(again["spans"]["step"]) == set(range(50, 100))
    assert visit(TraceStream(recorder), last_id=first[-1]["id"])[0]["reset"] is True  # another process


def test_long_histories_come_in_capped_messages() -> None:
    recorder = Recorder()
    run(recorder, 0, 0)
    messages = visit(TraceStream(recorder, limit=100), polls=5)
    assert [len(m["spans"]["start"]) for m in messages] == [100, 100, 100, 55]
    names = [name for m in messages for name in m["names"]]
    assert len(names) == len(set(names))


def test_a_client_too_slow_is_told_what_it_missed() -> None:
    recorder = Recorder()
    stream = TraceStream(recorder, backlog=10)
    run(recorder, 0, 0)
    (message,) = visit(stream, polls=1, last_id=f"{stream.run}-0-0-0")
    assert len(message["spans"]["start"]) == 10
    assert message["skipped"] == 355 - 10 + 150 - 10


def test_nothing_is_sent_while_nothing_happens() -> None:
    """user_reports 72."""
    recorder = Recorder()
    run(recorder, 0, 0)
    assert len(visit(TraceStream(recorder), polls=4)) == 1


def test_a_cursor_of_the_future_is_no_cursor_of_ours() -> None:
    stream = TraceStream(Recorder())
    assert stream.resume({"last-event-id": f"{stream.run}-5-6-7"}) == Cursor(5, 6, 7)
    assert stream.resume({"last-event-id": "other-5-6-7"}) is None
    assert stream.resume({"last-event-id": f"{stream.run}-x-6-7"}) is None
    assert stream.resume({}) is None


def test_an_opened_trace_is_sent_whole_and_then_ends() -> None:
    recorder = Recorder()
    run(recorder, 0, 0)
    trace = recorder.snapshot()

    async def collect() -> list[bytes]:
        return [part async for part in trace_events(trace)]

    *parts, last = asyncio.run(collect())
    messages = [json.loads(part.removeprefix(b"data: ")) for part in parts]
    assert last.startswith(b"event: end\n")
    assert [m["reset"] for m in messages] == [True, *[False] * (len(messages) - 1)]
    assert sum(len(m["spans"]["start"]) for m in messages) == len(trace.span_table)
    assert sum(len(m["marks"]["time"]) for m in messages) == len(trace.mark_table)
    assert sum(len(m["rows"]["time"]) for m in messages) == len(trace.row_table)
    assert int(messages[0]["base"]) == trace.window[0]
