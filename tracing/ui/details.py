"""Answers to a click: one step as the engine saw it, one bubble and its cause; as JSON.

    GET wb/trace/step?source=ID&step=N                  tracing.inspect.inspect(trace, N)
    GET wb/trace/bubble?source=ID&start=NS&end=NS       the bubble that covers most of [start, end)

`source` is "live" when it is left out. 404 and {"error": sentence} for what is not held. Both look at what
lies near, not at all that is held.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from tracing.bubbles import bubbles
from tracing.inspect import inspect
from tracing.ui.sources import LIVE, Sources
from tracing.ui.stream import GONE

Answer = Callable[[Sources, Mapping[str, str]], dict[str, Any]]


def detail_routes(sources: Sources) -> list[Route]:
    """The routes of this module."""
    return [
        Route("/wb/trace/step", _answering(sources, step_detail)),
        Route("/wb/trace/bubble", _answering(sources, bubble_detail)),
    ]


def step_detail(sources: Sources, query: Mapping[str, str]) -> dict[str, Any]:
    """Step `query["step"]`; LookupError in one sentence when it is not held, ValueError for no number."""
    source, step = query.get("source", LIVE), int(query.get("step", ""))
    when = sources.live.when(step) if source == LIVE else None
    trace = sources.around(source, *when) if when else sources.get(source)
    if trace is None:
        raise LookupError(GONE)
    return inspect(trace, step)


def bubble_detail(sources: Sources, query: Mapping[str, str]) -> dict[str, Any]:
    """The bubble at [query["start"], query["end"]): {"step", "us", "cause", "text"}; errors as above."""
    start, end = int(query.get("start", "")), int(query.get("end", ""))
    near = sources.around(query.get("source", LIVE), start, end)
    if near is None:
        raise LookupError(GONE)
    found = max(bubbles(near), key=lambda b: min(b.end_ns, end) - max(b.start_ns, start), default=None)
    if found is None or found.end_ns <= start or found.start_ns >= end:
        raise LookupError("The trace holds no bubble there.")
    us = (found.end_ns - found.start_ns) / 1e3
    return {"step": found.step_id, "us": us, "cause": found.cause, "text": found.text}


def _answering(sources: Sources, answer: Answer) -> Callable[[Request], Any]:
    """A handler that works in a thread: it copies what a full recorder holds, in tens of milliseconds."""

    def find(query: Mapping[str, str]) -> tuple[int, dict[str, Any]]:
        try:
            return 200, answer(sources, query)
        except LookupError as error:
            return 404, {"error": str(error.args[0])}
        except (ValueError, OverflowError):
            return 400, {"error": "Steps and times are whole numbers."}

    async def respond(request: Request) -> Response:
        status, content = await asyncio.to_thread(find, request.query_params)
        return JSONResponse(content, status_code=status)

    return respond
