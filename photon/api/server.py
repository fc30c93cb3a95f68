"""All routes together, for the server that has the page: /v1/..., /healthz and /metrics."""

from __future__ import annotations

import asyncio
from typing import Any

from fastapi import FastAPI
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, Response
from starlette.routing import BaseRoute, Route

from photon import Engine
from photon.api.calls import Calls
from photon.api.config import ApiConfig
from photon.api.docs import page
from photon.api.errors import HANDLERS, ErrorBody
from photon.api.gate import Gate
from photon.api.http import moondream_routes
from photon.api.metrics import Meter
from photon.api.models import model_routes
from photon.api.openai import chat_routes

PREFIX = "/v1"
PATIENCE_S = 1.0
_DESCRIPTION = (
    "Questions, captions, points and boxes in the format of Moondream's cloud, and one question in the "
    "format of OpenAI's chat. A server that was given an API key wants it as Authorization: Bearer KEY "
    "or X-Moondream-Auth: KEY."
)


def routes(engine: Engine, meter: Meter, config: ApiConfig) -> list[BaseRoute]:
    """What to give to the app that serves the page, before its own routes. `meter` observes the engine."""
    pulse = Pulse(engine)

    async def healthz(request: Request) -> Response:
        alive = (await pulse.latest()).get("alive", True)
        return JSONResponse({"status": "ok" if alive else "dead"}, 200 if alive else 503)

    async def metrics(request: Request) -> Response:
        return Response(meter.exposition(await pulse.latest()), media_type=CONTENT_TYPE_LATEST)

    return [
        # Not a Mount: below one, routes are not found when a proxy strips the root path.
        Route(f"{PREFIX}/{{path:path}}", Gate(api(Calls(engine, meter, config)), config)),
        Route("/healthz", healthz),
        Route("/metrics", metrics),
    ]


def api(calls: Calls) -> FastAPI:
    """The app that has /v1/..., with its own error format and OpenAPI document."""
    app = FastAPI(
        title="Photon Workbench",
        description=_DESCRIPTION,
        openapi_url=f"{PREFIX}/openapi.json",
        docs_url=None,
        redoc_url=None,
        exception_handlers=dict(HANDLERS),
        responses={"4XX": {"model": ErrorBody}, "5XX": {"model": ErrorBody}},
    )
    for router in (
        moondream_routes(calls),
        chat_routes(calls),
        model_routes(calls.engine, int(calls.config.now_s())),
    ):
        app.include_router(router, prefix=PREFIX)

    @app.get(f"{PREFIX}/docs", include_in_schema=False)
    async def readable() -> Response:
        return HTMLResponse(page(app.openapi()))

    return app


class Pulse:
    """The newest `Engine.stats()`, for a loop that must not wait as long as a tick may take.

    While the engine is inside a long tick, the snapshot before is given; the empty one if there is none.
    """

    def __init__(self, engine: Engine, patience_s: float = PATIENCE_S) -> None:
        self._engine, self._patience_s = engine, patience_s
        self._asking: asyncio.Future[dict[str, Any]] | None = None
        self._known: dict[str, Any] = {}

    async def latest(self) -> dict[str, Any]:
        """Asks the engine, unless an earlier question is still open; waits `patience_s` at most."""
        if self._asking is None or self._asking.done():
            self._asking = asyncio.ensure_future(asyncio.to_thread(self._engine.stats))
        await asyncio.wait([self._asking], timeout=self._patience_s)
        if self._asking.done():
            self._known = self._asking.result()
        return self._known
