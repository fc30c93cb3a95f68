"""A trace to take away.

    GET wb/trace/export?source=ID&format=chrome     .json.gz: for Perfetto, and for `tracing.files.load`
                                  format=csv        the spans
                                  format=json       the metrics with their formulas
                                  format=html       timeline and metrics as one page
                        &last_s=N                   the last seconds only
                        &start=NS&end=NS            this window only

`source` is "live" and `format` is "chrome" when they are left out. A live trace ends where the device's work
is known, before the steps in flight. 404 and {"error": sentence} for a source
that is not held, 400 for a query that cannot be meant. The file is made in a thread.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable, Mapping

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from tracing.chrome import dumps, to_chrome
from tracing.exports import last, metrics_document, settled, spans_csv
from tracing.files import pack
from tracing.page import page
from tracing.trace import Trace
from tracing.ui.sources import LIVE, Sources
from tracing.ui.stream import GONE

# format: ending of the file name, media type, what makes the file from a trace and its title
FORMATS: dict[str, tuple[str, str, Callable[[Trace, str], bytes]]] = {
    "chrome": (".json.gz", "application/gzip", lambda trace, _: pack(dumps(to_chrome(trace)).encode())),
    "csv": ("-spans.csv", "text/csv", lambda trace, _: spans_csv(trace).encode()),
    "json": (
        "-metrics.json",
        "application/json",
        lambda trace, _: json.dumps(metrics_document(trace), indent=2).encode(),
    ),
    "html": (".html", "text/html", lambda trace, title: page(trace, title).encode()),
}


def export_routes(sources: Sources) -> list[Route]:
    """The route of this module."""

    def make(query: Mapping[str, str]) -> Response:
        source = query.get("source", LIVE)
        trace = sources.get(source)
        if trace is None:
            return JSONResponse({"error": GONE}, 404)
        try:
            trace = part(settled(trace) if source == LIVE else trace, query)
            ending, media_type, write = FORMATS[query.get("format", "chrome")]
        except KeyError:
            return JSONResponse({"error": f"The format must be one of {', '.join(FORMATS)}."}, 400)
        except (ValueError, OverflowError):
            sentence = "Seconds must be a number above 0, start and end whole nanoseconds."
            return JSONResponse({"error": sentence}, 400)
        title = sources.title(source) or "Photon Workbench trace"
        name = f'attachment; filename="{file_stem(title)}{ending}"'
        return Response(write(trace, title), media_type=media_type, headers={"Content-Disposition": name})

    async def respond(request: Request) -> Response:
        return await asyncio.to_thread(make, request.query_params)

    return [Route("/wb/trace/export", respond)]


def part(trace: Trace, query: Mapping[str, str]) -> Trace:
    """The window that the query asks for, or else the whole trace; ValueError for what is no window."""
    if "start" in query or "end" in query:
        start, end = int(query.get("start", trace.window[0])), int(query.get("end", trace.window[1]))
        if max(abs(start), abs(end)) >= 1 << 62:
            raise ValueError("beyond any clock")
        return trace.within(start, end)
    seconds = float(query["last_s"]) if "last_s" in query else None
    if seconds is not None and not 0 < seconds < 1e9:
        raise ValueError("not a number of seconds")
    return last(trace, seconds)


def file_stem(title: str) -> str:
    """A title as the start of a file name on any system."""
    stem = re.sub(r"\.(json|gz|json\.gz)$", "", title)
    return re.sub(r"[^A-Za-z0-9]+", "-", stem).strip("-").lower()[:60] or "trace"
