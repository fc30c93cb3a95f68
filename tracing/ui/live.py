"""LiveTimeline: the component on the page. routes(recorder): what feeds it. See assets/timeline.js.

    LiveTimeline("cpu worker")                                  # inside gr.Blocks; label of the device rows
    demo.launch(app_kwargs={"routes": routes(recorder)})        # or gr.mount_gradio_app with the same routes

The component is a `gr.HTML` with a static template: Gradio never re-renders it, so zoom and pan survive.
It draws with its own plotly.js, served from the plotly package, and opens one event stream. All its
URLs are relative to the page, so that a proxy with a root path works. No request leaves the host.

**Jump to a run.** In the page `window.photonTimeline.showRun(startNs, endNs)` zooms to [startNs, endNs):
times of the recorder's clock (the spans' `perf_counter_ns`), as strings, BigInt or numbers; give strings,
since a number above 2**53 has lost its last digits. It may be called before the last spans have
arrived; they appear as they come. The view stays until the user moves it or a new request arrives,
then the timeline follows live again. One text "start,end" does as well, so that a Gradio handler can
return it to a hidden component (an empty text is no run and changes nothing):

    done = run.click(handler, inputs, [..., window_text])
    done.then(None, window_text, None, js="text => { window.photonTimeline?.showRun(text); }")

or, from any script: `window.dispatchEvent(new CustomEvent("photon:run", {detail: {startNs, endNs}}))`.
`window.photonTimeline` also has live(), pause(), setWindow(name), look(start, end), range(), following,
spans, drawn (rectangles), draws, redrawMs (median of the last 41), metrics(startNs, endNs).

**The stream** sends columns, 4 times a second while there are new records, at most LIMIT spans per
message. Its first message holds the newest HISTORY_S seconds; a client that reconnects goes on where it
was; one that falls behind by more than BACKLOG records skips the oldest and is told how many it missed.
The generator ends when the client goes. Records are copied without the recorder's lock and encoded
afterwards, on the event loop: about a millisecond for LIMIT spans.
"""

from __future__ import annotations

import asyncio
import hashlib
import uuid
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

import gradio as gr
import numpy as np
import orjson
import plotly
from starlette.requests import Request
from starlette.responses import FileResponse, Response, StreamingResponse
from starlette.routing import Route

from tracing.lanes import as_props
from tracing.metrics import METRICS
from tracing.recorder import Columns, Cursor, Recorder
from tracing.trace import Table

ASSETS = Path(__file__).parents[2] / "assets"
SCRIPTS = (ASSETS / "timeline_store.js", ASSETS / "timeline.js")
PLOTLY = Path(plotly.__file__).parent / "package_data" / "plotly.min.js"
PERIOD_S = 0.25
HISTORY_S = 20.0
LIMIT = 8_000
BACKLOG = 16 * LIMIT
KEEPALIVE_S = 15.0
WINDOWS = ("20 ms", "60 ms", "250 ms", "1 s", "4 s", "run")
IMMUTABLE = {"Cache-Control": "public, max-age=31536000, immutable"}
# key of the metric, decimals, value at which its meter is full
KPIS = (
    ("device_busy_percent", 1, 100),
    ("bubble_percent", 1, 100),
    ("overlap_factor", 2, 2),
    ("host_hidden_percent", 1, 100),
    ("zombie_rows_percent", 1, 100),
    ("tokens_per_s", 0, 0),
)


def LiveTimeline(
    device_label: str = "device", *, window: str = "250 ms", elem_id: str = "timeline", **kwargs: Any
) -> gr.HTML:
    """The live timeline with its row of figures; `device_label` says what the device rows are.

    A function named like the components it stands among, not a subclass of gr.HTML: beside a module that
    defines one, Gradio writes a .pyi file into the source tree.
    """
    if window not in WINDOWS:
        raise ValueError(f"window must be one of {', '.join(WINDOWS)}, got {window!r}")
    return gr.HTML(
        html_template='<div class="pt"></div>',
        css_template=(ASSETS / "timeline.css").read_text(encoding="utf-8"),
        js_on_load=_LOADER,
        apply_default_css=False,
        elem_id=elem_id,
        config=_config(device_label, window),
        **kwargs,
    )


_LOADER = """
(async () => {
  const root = element.querySelector('.pt'), config = {...props.config, base: document.baseURI};
  for (const path of config.scripts) await new Promise((done, failed) => {
    document.head.append(Object.assign(document.createElement('script'),
      {src: new URL(path, config.base).href, onload: done, onerror: failed}));
  });
  await window.photonTimelineMount(root, config);
})().catch((error) => {
  element.textContent = 'The timeline could not be loaded: ' + (error.message || 'no answer');
});
"""


def _config(device_label: str, window: str) -> dict[str, Any]:
    by_key = {metric.key: metric for metric in METRICS}
    kpis = [
        {"key": key, "name": by_key[key].name, "unit": by_key[key].unit, "digits": digits, "full": full}
        | {"formula": by_key[key].formula}
        for key, digits, full in KPIS
    ]
    urls = {
        "stream": "wb/trace/stream",
        "plotly": f"wb/plotly.min.js?v={plotly.__version__}",
        "scripts": [f"wb/{path.name}?v={_digest(path)}" for path in SCRIPTS],
    }
    return {"device": device_label, "window": window, "kpis": kpis, **urls, **as_props()}


def routes(recorder: Recorder) -> list[Route]:
    """The routes that LiveTimeline asks for; give them to the app that serves the page."""
    stream = TraceStream(recorder)
    return [
        Route("/wb/trace/stream", stream.respond),
        Route("/wb/plotly.min.js", _file(PLOTLY)),
        *(Route(f"/wb/{path.name}", _file(path)) for path in SCRIPTS),
    ]


def _file(path: Path) -> Any:
    async def respond(request: Request) -> Response:
        return FileResponse(path, media_type="text/javascript", headers=IMMUTABLE)

    return respond


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()[:12]


class TraceStream:
    """Server-sent events of one recorder; one generator per client, no state shared but the base."""

    def __init__(self, recorder: Recorder) -> None:
        self.recorder = recorder
        self.run = uuid.uuid4().hex[:8]  # tells a client of an earlier process from one of ours
        self.base: int | None = None  # times are sent relative to this: a double holds them exactly

    async def respond(self, request: Request) -> Response:
        cursor = self.resume(request.headers)
        headers = {"Cache-Control": "no-cache, no-transform", "X-Accel-Buffering": "no"}
        return StreamingResponse(
            self._events(request, cursor), media_type="text/event-stream", headers=headers
        )

    def resume(self, headers: Mapping[str, str]) -> Cursor | None:
        """Where the client had come, if it is ours and says so."""
        run, _, rest = headers.get("last-event-id", "").partition("-")
        spans, _, marks = rest.partition("-")
        return Cursor(int(spans), int(marks)) if run == self.run and (spans + marks).isdigit() else None

    async def _events(self, request: Request, cursor: Cursor | None) -> AsyncIterator[bytes]:
        names, silent = 0, KEEPALIVE_S  # a first comment opens the stream at once
        reset = cursor is None
        if cursor is None:  # a look at everything held, a tenth of a second for a full recorder
            cursor = await asyncio.to_thread(self.recorder.cursor_at, int(HISTORY_S * 1e9))
        while not await request.is_disconnected():
            skipped = self._behind(cursor)
            start = Cursor(cursor.spans + skipped.spans, cursor.marks + skipped.marks)
            cursor, columns = self.recorder.columns_since(start, LIMIT)
            if len(columns.spans) + len(columns.marks) or reset:
                message = self.message(columns, names) | {"reset": reset, "dropped": self.recorder.dropped}
                message["skipped"] += sum(skipped)
                yield f"id: {self.run}-{cursor.spans}-{cursor.marks}\ndata: ".encode()
                yield orjson.dumps(message, option=orjson.OPT_SERIALIZE_NUMPY) + b"\n\n"
                names, reset, silent = len(columns.names), False, 0.0
            elif silent >= KEEPALIVE_S:
                yield b": still here\n\n"
                silent = 0.0
            full = max(len(columns.spans), len(columns.marks)) == LIMIT
            pause = PERIOD_S / 10 if full else PERIOD_S
            await asyncio.sleep(pause)
            silent += pause

    def _behind(self, cursor: Cursor) -> Cursor:
        """How many spans and marks a client must skip to be no more than BACKLOG late."""
        newest = self.recorder.newest()
        late = (newest.spans - cursor.spans, newest.marks - cursor.marks)
        return Cursor(*(max(0, n - BACKLOG) for n in late))

    def message(self, columns: Columns, names_from: int) -> dict[str, Any]:
        """Columns relative to `base`, starts relative to `t0`; the names the client does not have yet."""
        if self.base is None and len(columns.spans) + len(columns.marks):
            times = [*columns.spans["start_ns"].tolist(), *columns.marks["time_ns"].tolist()]
            self.base = min(times)
        base = self.base or 0
        return {
            "base": str(base),
            "names_from": names_from,
            "names": columns.names[names_from:],
            "skipped": columns.skipped,
            "spans": _span_columns(columns.spans, base),
            "marks": _mark_columns(columns.marks, base),
        }


def _span_columns(rows: Table, base: int) -> dict[str, Any]:
    first = int(rows["start_ns"].min()) if len(rows) else base
    out: dict[str, Any] = {"t0": first - base, "start": rows["start_ns"] - first}
    out["dur"] = rows["end_ns"] - rows["start_ns"]
    for column in ("track", "name", "kind", "slot", "rows", "zombies", "padding"):
        out[column] = np.ascontiguousarray(rows[column])
    return out | {"step": np.ascontiguousarray(rows["step_id"])}


def _mark_columns(rows: Table, base: int) -> dict[str, Any]:
    first = int(rows["time_ns"].min()) if len(rows) else base
    columns = {"request": "request_id", "step": "step_id", "name": "name"}
    out = {key: np.ascontiguousarray(rows[column]) for key, column in columns.items()}
    return {"t0": first - base, "time": rows["time_ns"] - first} | out
