"""Calls: engine requests on behalf of HTTP handlers. Nothing here blocks the event loop.

    call = await calls.start("query", image_url, prompt=...)   decode, crop and submit, in a thread
    await calls.result(call, request)                          to its end; a client that hangs up cancels it
    async for piece in pieces(call, "answer")                  text as it comes
    calls.close(call)                                          cancels what runs, counts how it ended

A handle is asked now and then instead of waited for: no thread per request, and at most 1 / MAX_BEAT_S
messages a second however fast the tokens come.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from starlette.exceptions import HTTPException
from starlette.requests import Request as HttpRequest
from starlette.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from photon import Engine, Handle, Request
from photon.api.config import ApiConfig
from photon.api.data_url import image_bytes
from photon.api.errors import CLIENT_GONE, error_body, status_of
from photon.api.metrics import Meter
from photon.errors import EngineDeadError, PhotonError, QueueFullError

MIN_BEAT_S = 0.004
MAX_BEAT_S = 0.04
NUM_PREPARING = 4
"""Images decoded at a time, so that a flood of them leaves the page its own threads and memory."""


class Call:
    """One request in the engine, and what it is counted as."""

    def __init__(self, task: str, handle: Handle) -> None:
        self.task, self.handle = task, handle

    @property
    def is_finished(self) -> bool:
        return self.handle.stage == "finished"

    def outcome(self) -> str:
        """stop, length, cancelled or failed."""
        try:
            return self.handle.result(timeout=0)["finish_reason"]
        except TimeoutError:
            return "cancelled"
        except PhotonError:
            return "failed"


class Calls:
    """Thread-safe as the engine is; one per server."""

    def __init__(self, engine: Engine, meter: Meter, config: ApiConfig) -> None:
        self.engine, self.config = engine, config
        self._meter = meter
        self._pool = ThreadPoolExecutor(NUM_PREPARING, thread_name_prefix="photon-api")

    async def start(self, task: str, image_url: str | None, **wanted: Any) -> Call:
        """Submit `Request(task, image, **wanted)`. Cancelled meanwhile, it is cancelled once it exists.

        Raises:
            InvalidRequestError, QueueFullError, EngineDeadError: nothing was queued; one sentence.
        """
        loop = asyncio.get_running_loop()
        work = loop.run_in_executor(self._pool, self._submit, task, image_url, wanted)
        try:
            return Call(task, await asyncio.shield(work))
        except asyncio.CancelledError:
            work.add_done_callback(_cancel_late)
            raise
        except PhotonError as error:
            self._meter.count(task, _refusal(error))
            raise

    def _submit(self, task: str, image_url: str | None, wanted: dict[str, Any]) -> Handle:
        image = None if image_url is None else image_bytes(image_url, self.config.max_image_bytes)
        return self.engine.submit(Request(task, image, **wanted))

    async def result(self, call: Call, request: HttpRequest) -> dict[str, Any]:
        """The finished result, the call closed.

        Raises:
            RequestFailedError, EngineDeadError: it failed.
            HTTPException: the client has gone.
        """
        gone = asyncio.ensure_future(_gone(request))
        try:
            async for _ in _beats(call):
                if gone.done():
                    raise HTTPException(CLIENT_GONE, "The client has gone.")
            return call.handle.result(timeout=0)
        finally:
            gone.cancel()
            self.close(call)

    def close(self, call: Call) -> None:
        """Exactly once per call."""
        call.handle.cancel()
        self._meter.count(call.task, call.outcome())


async def pieces(call: Call, key: str) -> AsyncIterator[str]:
    """The text of a call as it comes, to its end. Raises what the result raises."""
    num_sent = 0
    async for _ in _beats(call):
        text = call.handle.partial()[key]
        if len(text) > num_sent:
            yield text[num_sent:]
            num_sent = len(text)
    if tail := call.handle.result(timeout=0)[key][num_sent:]:
        yield tail


class EventStream(StreamingResponse):
    """Server-sent events of one call; `close` runs however the response ends, begun or not."""

    def __init__(self, events: AsyncIterator[Any], close: Callable[[], None]) -> None:
        headers = {"Cache-Control": "no-cache, no-transform", "X-Accel-Buffering": "no"}
        super().__init__(_lines(events), media_type="text/event-stream", headers=headers)
        self._close = close

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._close()


async def _lines(events: AsyncIterator[Any]) -> AsyncIterator[bytes]:
    """Each event as `data: JSON`; a string goes as it is. A failure is the last event."""
    try:
        async for event in events:
            text = event if isinstance(event, str) else json.dumps(event)
            yield f"data: {text}\n\n".encode()
    except PhotonError as error:
        yield failure_event(error)


def failure_event(error: PhotonError) -> bytes:
    """The last event of a stream that failed."""
    last = error_body(*status_of(error), str(error)) | {"completed": True}
    return f"data: {json.dumps(last)}\n\n".encode()


async def _beats(call: Call) -> AsyncIterator[None]:
    """Now and then while the call runs: soon at first, for answers of a few milliseconds."""
    pause = MIN_BEAT_S
    while not call.is_finished:
        yield
        await asyncio.sleep(pause)
        pause = min(1.25 * pause, MAX_BEAT_S)


async def _gone(request: HttpRequest) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


def _cancel_late(work: asyncio.Future[Handle]) -> None:
    if not work.cancelled() and work.exception() is None:
        work.result().cancel()


def _refusal(error: PhotonError) -> str:
    kinds = ((QueueFullError, "busy"), (EngineDeadError, "dead"))
    return next((word for kind, word in kinds if isinstance(error, kind)), "refused")
