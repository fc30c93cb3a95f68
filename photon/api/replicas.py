"""Replica and Front: one engine of many and what stands before them, as Ray Serve runs them.

    client ─> Ray's proxy ─> Front ─> /v1: hash of the image ─> Replica: engine, all its routes, its page
                             key, size  the page: cookie      <─ ASGI messages, as they come

A replica answers with the same routes that one engine has, so the format is the same. Questions about one
image go to one replica, whose prefix cache knows it, unless that one is full; of a body the front reads no
more than where the image in it begins and ends. A browser stays with the replica that gave it the page: the
cookie names it, whatever others come and go. Routing, scaling, health and restarts are Ray's.
"""

from __future__ import annotations

import asyncio
import pkgutil
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from typing import Protocol

from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest
from prometheus_client.core import Metric
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import Collector
from ray import serve
from ray.serve.handle import DeploymentHandle
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route
from starlette.types import ASGIApp, Message, Scope

from photon import Engine, EngineConfig, load_model, open_device
from photon.api import ApiConfig, Meter, routes
from photon.api.errors import HANDLERS
from photon.api.gate import Gate
from photon.api.relay import Exchange, ForwardByImage, ForwardByVisitor
from photon.errors import EngineDeadError, InvalidRequestError
from photon.observe import Observer

NO_PAGE = "none"
_PATIENCE_S = 5.0


class Page(Protocol):
    """What a replica shows of its engine; `find_page` finds the class by name."""

    @property
    def observers(self) -> Sequence[Observer]:
        """To be given to the engine."""

    def asgi(self, engine: Engine, api: Sequence[BaseRoute]) -> Starlette:
        """The app that has the routes for programs and whatever else; its lifespan will be run."""


class Programs:
    """No page: the routes for programs alone."""

    observers = ()

    def asgi(self, engine: Engine, api: Sequence[BaseRoute]) -> Starlette:
        """The routes are the app."""
        return Starlette(routes=api)


def find_page(name: str) -> Callable[[], Page]:
    """The class that MODULE:CLASS names, or Programs for "none".

    Raises:
        InvalidRequestError: it cannot be imported here; one sentence.
    """
    if name == NO_PAGE:
        return Programs
    try:
        found = pkgutil.resolve_name(name)
        if not isinstance(found, type):
            raise ValueError("it is no class")
    except (ImportError, AttributeError, ValueError) as error:
        raise InvalidRequestError(
            f"The page {name} cannot be imported ({error}); start where app.py lies, or pass --page none."
        ) from error
    return found


class Replica:
    """One engine, its routes and its page. Model and device as `load_model` and `open_device` take them."""

    async def __init__(  # type: ignore[misc]  # Ray awaits it, on the loop that all of the rest runs on
        self, model: str, device: str, config: EngineConfig, api: ApiConfig, page: str
    ) -> None:
        self.name = serve.get_replica_context().replica_id.unique_id
        self._exchanges: dict[str, Exchange] = {}
        self._opened = AsyncExitStack()
        shown, self._meter, opened = find_page(page)(), Meter(), open_device(device)
        observers = [self._meter, *shown.observers]
        self._engine = Engine(load_model(model), opened, config, observers=observers)
        self._opened.enter_context(self._engine)
        self._app = shown.asgi(self._engine, routes(self._engine, self._meter, api))
        await self._opened.enter_async_context(self._app.router.lifespan_context(self._app))

    async def respond(self, scope: Scope, body: Message) -> AsyncIterator[Message]:
        """The ASGI messages of a response, as they come, and wishes for more of the body; see `feed`.

        Who leaves early is a client that has disconnected: the app is told, and ends as it does anywhere.
        """
        exchange = Exchange(self.name, body)
        self._exchanges[exchange.name] = exchange
        answer = asyncio.create_task(self._app(scope, exchange.receive, exchange.send))
        answer.add_done_callback(lambda _: exchange.messages.put_nowait(None))
        answer.add_done_callback(lambda _: self._exchanges.pop(exchange.name))
        try:
            while message := await exchange.messages.get():
                yield message
            await answer
        finally:
            exchange.leave()

    async def feed(self, exchange: str, body: Message) -> None:
        """The part of a body that `respond` has asked for."""
        if exchange in self._exchanges:
            self._exchanges[exchange].feed(body)

    async def exposition(self) -> tuple[str, str]:
        """The replica's name and its figures in Prometheus' text format."""
        stats = await asyncio.to_thread(self._engine.stats)
        return self.name, self._meter.exposition(stats).decode()

    async def check_health(self) -> None:
        """Called by Ray, which replaces a replica that raises."""
        if not (await asyncio.to_thread(self._engine.stats))["alive"]:
            raise EngineDeadError("The engine has ended.")

    async def __del__(self) -> None:
        """Called, and awaited, by Ray."""
        await self._opened.aclose()


@serve.ingress()
class Front:
    """Key, sizes and number of requests; all else is the replicas'."""

    def __init__(self, replicas: DeploymentHandle, config: ApiConfig, page: ApiConfig | None) -> None:
        self._replicas, self._config, self._page = replicas, config, page

    def __serve_build_asgi_app__(self) -> ASGIApp:
        programs, browsers = ForwardByImage(self._replicas), ForwardByVisitor(self._replicas)
        table = [
            Route("/v1/{path:path}", Gate(programs, self._config)),
            Route("/metrics", self.metrics),
            Route("/healthz", programs),
        ]
        if self._page:
            table.append(Route("/{path:path}", Gate(browsers, self._page)))
        return Starlette(routes=table, exception_handlers=dict(HANDLERS))

    async def metrics(self, request: Request) -> Response:
        """The figures of all replicas, each with the label `replica`."""
        answers = self._replicas.broadcast("exposition")
        texts = await answers.results_async(timeout_s=_PATIENCE_S, return_exceptions=True)
        whole = exposition(dict(text for text in texts if not isinstance(text, Exception)))
        return Response(whole, media_type=CONTENT_TYPE_LATEST)


class _Families(Collector):
    """Metrics that are known already."""

    def __init__(self) -> None:
        self.families: dict[str, Metric] = {}

    def collect(self) -> list[Metric]:
        return list(self.families.values())


def exposition(texts: Mapping[str, str]) -> bytes:
    """Prometheus texts by replica as one, every sample labelled with its replica."""
    known, registry = _Families(), CollectorRegistry()
    for replica, text in texts.items():
        for part in text_string_to_metric_families(text):
            whole = known.families.setdefault(part.name, Metric(part.name, part.documentation, part.type))
            for sample in part.samples:
                whole.add_sample(sample.name, sample.labels | {"replica": replica}, sample.value)
    registry.register(known)
    return generate_latest(registry)
