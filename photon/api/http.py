"""The routes of Moondream's cloud API: query, caption, point and detect.

    POST /v1/query     {"question", "image_url"?, "reasoning"?, "spatial_refs"?, "stream"?, "settings"?}
    POST /v1/caption   {"image_url", "length"?, "stream"?, "settings"?}
    POST /v1/point     {"image_url", "object", "settings"?}          -> {"points": [{"x", "y"}]}
    POST /v1/detect    {"image_url", "object", "settings"?}          -> {"objects": [{"x_min", ...}]}

Images are data URLs. With "stream": true the answer comes as server-sent lines

    data: {"chunk": "two ", "completed": false}
    data: {"chunk": "", "completed": true, "finish_reason": "stop", ...}

Source of the format: the `moondream` client, whose calls work unchanged with this server as its endpoint.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Annotated, Any

from fastapi import APIRouter
from pydantic import BaseModel, ConfigDict, Field
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from photon.api.calls import Call, Calls, EventStream, pieces
from photon.api.models import check_model
from photon.errors import InvalidRequestError

_IMAGE = Field(description="The image as data:image/...;base64,...; web addresses are refused.")

ImageUrl = Annotated[str, _IMAGE]
Refs = Annotated[
    list[list[float]] | None,
    Field(description="Points [x, y] and boxes [x_min, y_min, x_max, y_max], from 0 to 1."),
]
Model = Annotated[str | None, Field(description="Nothing, or the name that /v1/models gives.")]
Settings = Annotated[
    dict[str, Any] | None,
    Field(description="temperature (0, greedy, if left out), top_p, max_tokens, max_objects, seed, stop."),
]
Stream = Annotated[bool, Field(description="Answer in server-sent lines; query and caption only.")]


class Body(BaseModel):
    """What all four tasks take."""

    model_config = ConfigDict(extra="forbid")

    model: Model = None
    settings: Settings = None
    stream: Stream = False


class QueryBody(Body):
    """A question, with or without an image."""

    question: str
    image_url: Annotated[str | None, _IMAGE] = None
    reasoning: bool = False
    spatial_refs: Refs = None


class CaptionBody(Body):
    """A description of the image."""

    image_url: ImageUrl
    length: Annotated[str, Field(description="short, normal or long.")] = "normal"


class DetectBody(Body):
    """All instances of an object."""

    image_url: ImageUrl
    object: str


class PointBody(DetectBody):
    """As DetectBody, beside given points or boxes: the object "gaze" beside a head is where it looks."""

    spatial_refs: Refs = None


def moondream_routes(calls: Calls) -> APIRouter:
    """The four routes."""
    routes = APIRouter(tags=["Moondream"])

    @routes.post("/query")
    async def query(body: QueryBody, request: Request) -> Response:
        """Answer a question."""
        wanted = {
            "prompt": body.question,
            "reasoning": body.reasoning,
            "spatial_refs": _refs(body.spatial_refs),
        }
        return await text(request, body, "query", "answer", **wanted)

    @routes.post("/caption")
    async def caption(body: CaptionBody, request: Request) -> Response:
        """Describe the image."""
        return await text(request, body, "caption", "caption", length=body.length)

    @routes.post("/point")
    async def point(body: PointBody, request: Request) -> Response:
        """The centre of every instance of an object."""
        return await places(request, body, "point", "points", spatial_refs=_refs(body.spatial_refs))

    @routes.post("/detect")
    async def detect(body: DetectBody, request: Request) -> Response:
        """A box around every instance of an object."""
        return await places(request, body, "detect", "objects")

    async def text(request: Request, body: Any, task: str, key: str, **wanted: Any) -> Response:
        check_model(calls.engine, body.model)
        call = await calls.start(task, body.image_url, settings=body.settings or {}, **wanted)
        if body.stream:
            return EventStream(events(call, key), lambda: calls.close(call))
        result = await calls.result(call, request)
        return JSONResponse({key: result[key], **tail(call, result)})

    async def places(request: Request, body: DetectBody, task: str, key: str, **wanted: Any) -> Response:
        check_model(calls.engine, body.model)
        if body.stream:
            raise InvalidRequestError(f"The task {task} does not stream; leave out stream.")
        settings = body.settings or {}
        call = await calls.start(task, body.image_url, prompt=body.object, settings=settings, **wanted)
        result = await calls.result(call, request)
        return JSONResponse({key: [clamped(place) for place in result[key]], **tail(call, result)})

    return routes


async def events(call: Call, key: str) -> AsyncIterator[dict[str, Any]]:
    """Chunks of text, then how it ended."""
    async for piece in pieces(call, key):
        yield {"chunk": piece, "completed": False}
    yield {"chunk": "", "completed": True, **tail(call, call.handle.result(timeout=0))}


def tail(call: Call, result: dict[str, Any]) -> dict[str, Any]:
    """What every finished answer says besides itself."""
    metrics = call.handle.metrics
    assert metrics is not None, "a finished request has its metrics"
    reasoning = {"reasoning": result["reasoning"]} if "reasoning" in result else {}
    return reasoning | {
        "request_id": str(call.handle.request_id),
        "finish_reason": result["finish_reason"],
        "metrics": {
            "input_tokens": metrics.input_tokens,
            "output_tokens": metrics.output_tokens,
            "cached_tokens": metrics.cached_tokens,
            "prefill_time_ms": metrics.prefill_ms,
            "decode_time_ms": metrics.decode_ms,
            "ttft_ms": metrics.ttft_ms,
        },
    }


def clamped(place: dict[str, float]) -> dict[str, float]:
    """Coordinates within the image; the model's own may reach over its edge."""
    return {key: min(1.0, max(0.0, value)) for key, value in place.items()}


def _refs(refs: list[list[float]] | None) -> tuple[tuple[float, ...], ...]:
    return tuple(tuple(ref) for ref in refs or ())
