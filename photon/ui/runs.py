"""Run: the engine requests of one Ask, submitted together, followed by polling, cancelled as one.

    submit(engine, ask)        crops in a worker thread, then the requests share the engine's batches
    async for _ in follow(run) one beat every 80 ms while something is unfinished
    run.outcome()              what came out, request by request; errors stay with their own label
    run.cancel()               at once, whatever the stage; what was decoded stays readable

Polling a snapshot instead of consuming a stream keeps the page at 12 updates a second however fast the
tokens come, needs no thread per request, and is the same for text, points and boxes.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

from photon import Engine, Handle, Request
from photon.errors import EngineDeadError, InvalidRequestError, PhotonError, QueueFullError
from photon.ui.ask import RESULT_KEY, SPATIAL, Ask
from photon.ui.facts import describe

BEAT_S = 0.08
_STAGES = ("queued", "prefill", "decode", "finished")


@dataclass(frozen=True)
class Part:
    """What one request of a run has produced so far, or in the end."""

    label: str
    data: Any
    """Text, or a list of points or boxes, all normalised."""
    request_id: int = 0
    finish_reason: str = ""
    truncated: bool = False
    metrics: Any = None
    error: str = ""


@dataclass(frozen=True)
class Outcome:
    """A snapshot of a run: `stage` is that of its slowest request."""

    ask: Ask
    parts: tuple[Part, ...]
    stage: str
    num_tokens: int = 0
    elapsed_ms: float = 0.0
    num_ahead: int = 0
    """Requests that wait before the first of its own that waits."""
    model: str = ""

    @property
    def text(self) -> str:
        """The answer or caption; "" for point and detect."""
        return "" if self.ask.task in SPATIAL else self.parts[0].data

    @property
    def found(self) -> dict[str, list[dict[str, float]]]:
        """Points or boxes by label; empty for text tasks. Labels that failed are left out."""
        spatial = self.ask.task in SPATIAL
        return {part.label: part.data for part in self.parts if spatial and not part.error}

    @property
    def errors(self) -> list[str]:
        return [part.error for part in self.parts if part.error]


@dataclass(frozen=True)
class Refused:
    """What a label has instead of a handle when the engine does not take it: the others run without it."""

    error: InvalidRequestError
    key: str
    stage: str = "finished"
    request_id: int = 0
    num_tokens: int = 0
    num_ahead: int = 0
    metrics: None = None

    def partial(self) -> dict[str, Any]:
        return {self.key: []}

    def result(self, timeout: float | None = None) -> dict[str, Any]:
        raise self.error

    def cancel(self) -> None: ...


@dataclass(eq=False)
class Run:
    """The requests of one ask, alive in the engine."""

    engine: Engine
    ask: Ask
    handles: list[Handle | Refused]
    started_ns: int

    @property
    def finished(self) -> bool:
        return all(handle.stage == "finished" for handle in self.handles)

    @property
    def elapsed_ms(self) -> float:
        return (self.engine.device.now_ns() - self.started_ns) / 1e6

    def cancel(self) -> None:
        """Finish every request now. Harmless when they are finished already."""
        for handle in self.handles:
            handle.cancel()

    def snapshot(self) -> Outcome:
        """How far the run has come. Never blocks, never raises."""
        stages = [handle.stage for handle in self.handles]
        key = RESULT_KEY[self.ask.task]
        parts = tuple(
            Part(label, handle.partial()[key], handle.request_id)
            for label, handle in zip(self.ask.labels, self.handles, strict=True)
        )
        tokens = sum(handle.num_tokens for handle in self.handles)
        queued = [handle.num_ahead for handle in self.handles if handle.stage == "queued"]
        stage = min(stages, key=_STAGES.index)
        return Outcome(self.ask, parts, stage, tokens, self.elapsed_ms, min(queued, default=0))

    def outcome(self) -> Outcome:
        """The final result. Only once `finished`."""
        parts = tuple(
            self._part(label, handle) for label, handle in zip(self.ask.labels, self.handles, strict=True)
        )
        tokens = sum(handle.num_tokens for handle in self.handles)
        model = dict(describe(self.engine))["model"]
        return Outcome(self.ask, parts, "finished", tokens, self.elapsed_ms, model=model)

    def _part(self, label: str, handle: Handle | Refused) -> Part:
        key = RESULT_KEY[self.ask.task]
        try:
            result = handle.result(timeout=10)
        except EngineDeadError:
            raise
        except PhotonError as error:
            return Part(label, handle.partial()[key], handle.request_id, "error", error=str(error))
        return Part(
            label,
            result[key],
            handle.request_id,
            result["finish_reason"],
            result["truncated"],
            handle.metrics,
        )


async def submit(engine: Engine, ask: Ask) -> Run:
    """Hand the ask to the engine without blocking the event loop.

    Cancelled meanwhile, the requests are cancelled as soon as they exist.

    Raises:
        InvalidRequestError, ImageError: no label was taken, or too many requests wait; nothing was queued.
        EngineDeadError: the engine refuses, and says why.
    """
    work = asyncio.ensure_future(asyncio.to_thread(_submit, engine, ask))
    try:
        return await asyncio.shield(work)
    except asyncio.CancelledError:
        work.add_done_callback(_cancel_late)
        raise


def _submit(engine: Engine, ask: Ask) -> Run:
    started_ns = engine.device.now_ns()
    run = Run(engine, ask, [], started_ns)
    try:
        # Several labels share one encoded picture, so that the encoder runs once for all of them.
        image = engine.encode_image(ask.image) if len(ask.labels) > 1 else ask.image
        for request in ask.requests(image):
            run.handles.append(_submit_label(engine, request))
    except BaseException:
        run.cancel()
        raise
    refused = [handle.error for handle in run.handles if isinstance(handle, Refused)]
    if len(refused) == len(run.handles):
        raise refused[0]
    return run


def _submit_label(engine: Engine, request: Request) -> Handle | Refused:
    try:
        return engine.submit(request)
    except QueueFullError:
        raise
    except InvalidRequestError as error:
        return Refused(error, RESULT_KEY[str(request.skill)])


def _cancel_late(work: asyncio.Future[Run]) -> None:
    if not work.cancelled() and work.exception() is None:
        work.result().cancel()


async def follow(run: Run) -> AsyncIterator[Outcome]:
    """Snapshots while the run lasts, at most one a beat, none that equals the one before."""
    before: tuple[Any, ...] = ()
    while not run.finished:
        now = run.snapshot()
        state = (now.stage, now.num_ahead, now.num_tokens, int(now.elapsed_ms // 250))
        if state != before:
            before = state
            yield now
        await asyncio.sleep(BEAT_S)


async def complete(run: Run) -> Outcome:
    """Wait for the end; leaving early (a client that hung up) cancels the requests."""
    try:
        async for _ in follow(run):
            pass
        return await asyncio.to_thread(run.outcome)
    finally:
        run.cancel()
