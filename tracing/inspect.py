"""One step as the engine saw it: its spans, what waited for what, its rows; and a table of the newest steps.

Everything is read from the trace: what is not held is None, and the sentences say less. Times are in
microseconds, from the step's launch; `start_ns` is text, since JavaScript loses the last digits of a large
number.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from tracing.bubbles import Bubble, bubbles
from tracing.trace import ENDS, RowRecord, SpanRecord, Trace
from tracing.values import in_ms

NEIGHBOURS = 64
"""Steps looked at before the ones asked for, to see whether steps overlap."""
ROW_KEYS = (
    *("row", "request", "state", "position", "token", "x", "y", "mask"),
    *("refs_before", "refs_after", "pages", "lora_slot", "why"),
)
COLUMNS = {
    "plan_us": ("host", "plan"),
    "launch_us": ("host", "launch"),
    "sample_us": ("host", "sample"),
    "device_us": ("compute", ""),
    "d2h_us": ("copy", "d2h"),
    "wait_us": ("host", "wait"),
    "commit_us": ("host", "commit"),
}


def inspect(trace: Trace, step_id: int) -> dict[str, Any]:
    """Step `step_id` as plain JSON values; LookupError in one sentence when it is not held."""
    ids = step_ids(trace)
    if step_id not in ids:
        held = f"the trace holds steps {ids[0]} to {ids[-1]}" if ids else "the trace holds no steps"
        raise LookupError(f"Step {step_id} is not held; {held}.")
    near = _near(trace, step_id, step_id)
    spans = [span for span in near.spans if span.step_id == step_id]
    rows = [row for row in near.rows if row.step_id == step_id]
    launch = next((s for s in spans if (s.track, s.name) == ("host", "launch")), None)
    bubble, heading = _longest(near).get(step_id), _heading(step_id, spans, rows)
    return {
        **heading,
        "waits": rows[0].waits.split(" | ") if rows and rows[0].waits else [],
        "spans": [_span(span, launch) for span in spans],
        "launch_latency_us": _latency_us(spans, launch),
        "bubble_before": bubble and {"us": _length_us(bubble), "cause": bubble.cause, "text": bubble.text},
        "previous": max((i for i in ids if i < step_id), default=None),
        "next": min((i for i in ids if i > step_id), default=None),
        "table": _table(near, launch, rows, heading["rows"], heading["padding"]),
    }


def steps(trace: Trace, newest: int = 50) -> list[dict[str, Any]]:
    """The newest steps, oldest first: step, slot, kind, rows, zombies, `COLUMNS` and bubble_us in us, cause.

    A step's time in a column is None where no such span is held; bubble_us is that of the longest bubble
    that the step's device work ended.
    """
    ids = step_ids(trace)[-newest:] if newest > 0 else []
    if not ids:
        return []
    near = _near(trace, ids[0], ids[-1])
    spans: dict[int, list[SpanRecord]] = {step: [] for step in ids}
    rows: dict[int, list[RowRecord]] = {step: [] for step in ids}
    for span in near.spans:
        spans.get(span.step_id, []).append(span)
    for row in near.rows:
        rows.get(row.step_id, []).append(row)
    before = _longest(near)
    return [_line(step, spans[step], rows[step], before.get(step)) for step in ids]


def step_ids(trace: Trace) -> list[int]:
    """The steps of which something is held, ascending."""
    ids = np.unique(np.concatenate([trace.span_table["step_id"], trace.row_table["step_id"]]))
    return ids[ids >= 0].tolist()


def _near(trace: Trace, first: int, last: int) -> Trace:
    """The window from NEIGHBOURS steps before `first` to the end of `last`."""
    spans, rows = trace.span_table, trace.row_table
    spans = spans[(spans["step_id"] >= first - NEIGHBOURS) & (spans["step_id"] <= last)]
    rows = rows[(rows["step_id"] >= first) & (rows["step_id"] <= last)]
    starts = [*spans["start_ns"].tolist(), *rows["time_ns"].tolist()]
    ends = [*spans["end_ns"].tolist(), *rows["time_ns"].tolist()]
    return trace.within(min(starts), max(ends))


def _longest(trace: Trace) -> dict[int, Bubble]:
    """Per step the longest bubble that its device work ended."""
    found = sorted(bubbles(trace), key=lambda bubble: bubble.end_ns - bubble.start_ns)
    return {bubble.step_id: bubble for bubble in found if bubble.step_id >= 0}


def _length_us(item: Bubble | SpanRecord) -> float:
    return (item.end_ns - item.start_ns) / 1e3


def _heading(step: int, spans: list[SpanRecord], rows: list[RowRecord]) -> dict[str, Any]:
    """How many zombies there were is known at the commit: spans that were sent before it say 0."""
    zombies = sum(row.is_zombie for row in rows) if rows else max(span.zombies for span in spans)
    return {
        "step": step,
        "slot": max((span.slot for span in spans), default=None),
        "kind": max((span.kind for span in spans), default=None),
        "rows": max(len(rows), *(span.rows for span in spans), 0),
        "zombies": zombies,
        "padding": max((span.padding for span in spans), default=0),
    }


def _line(step: int, spans: list[SpanRecord], rows: list[RowRecord], bubble: Bubble | None) -> dict[str, Any]:
    line = _heading(step, spans, rows)
    for column, (track, name) in COLUMNS.items():
        lengths = [_length_us(span) for span in spans if span.track == track and name in ("", span.name)]
        line[column] = sum(lengths) if lengths else None
    return line | {
        "bubble_us": bubble and _length_us(bubble),
        "cause": bubble and bubble.cause,
    }


def _span(span: SpanRecord, launch: SpanRecord | None) -> dict[str, Any]:
    offset = (span.start_ns - launch.start_ns) / 1e3 if launch else None
    words = {"track": span.track, "name": span.name, "start_ns": str(span.start_ns)}
    return {**words, "dur_us": _length_us(span), "offset_us": offset}


def _latency_us(spans: list[SpanRecord], launch: SpanRecord | None) -> float | None:
    begun = min((span.start_ns for span in spans if span.track == "compute"), default=None)
    return None if begun is None or launch is None else (begun - launch.end_ns) / 1e3


# --- rows -----------------------------------------------------------------------------------------


def _table(
    trace: Trace, launch: SpanRecord | None, rows: list[RowRecord], num_rows: int, num_padding: int
) -> list[dict[str, Any]]:
    padding = [
        dict.fromkeys(ROW_KEYS) | {"row": num_rows + i, "state": "padding"} for i in range(num_padding)
    ]
    return [_row(trace, launch, row) for row in rows] + padding


def _row(trace: Trace, launch: SpanRecord | None, row: RowRecord) -> dict[str, Any]:
    values = dict.fromkeys(ROW_KEYS) | row._asdict()
    x, y = (value if math.isfinite(value) else None for value in (row.x, row.y))
    state, why = ("zombie", _why(trace, launch, row)) if row.is_zombie else ("live", None)
    own = {"request": row.request_id, "token": row.token_id, "state": state, "x": x, "y": y, "why": why}
    return {key: (values | own | {"mask": row.mask or None})[key] for key in ROW_KEYS}


def _why(trace: Trace, launch: SpanRecord | None, row: RowRecord) -> str:
    """Why a zombie rides in the step of `row`, as far as the trace tells."""
    ends = [m for m in trace.marks if m.request_id == row.request_id and m.name in ENDS]
    who, step, released = f"Request {row.request_id}", row.step_id, "its pages are released now"
    if row.refs_after:
        released = "its pages stay until the last step that holds it is committed"
    so = f"so its row rides along, its token is dropped, and {released}."
    if not ends:
        return f"{who} had finished when step {step} was committed, {so}"
    how = "was cancelled" if ends[0].name == "cancel" else "ended"
    if ends[0].step_id >= 0:
        last = [r for r in trace.rows if (r.request_id, r.step_id) == (row.request_id, ends[0].step_id)]
        token = f" (with token {last[0].token_id})" if last else ""
        how = f"finished{token} when step {ends[0].step_id} was committed"
    if launch is None or ends[0].time_ns < launch.end_ns:
        return f"{who} {how}, {so}"
    earlier = in_ms(ends[0].time_ns - launch.end_ns)
    return f"{who} {how}; step {step} had been launched {earlier} before that, {so}"
