"""Replica and Front: one engine of many and what stands before them, as Ray Serve runs them.

    client ─> Ray's proxy ─> Front ─> consistent hash of the image ─> Replica: engine and all its routes
                             key, size                                <─ ASGI messages, as they come

A replica answers with the same routes that one engine has, so the format is the same. The front reads no
more of a body than where the image in it begins and ends: questions about one image go to one replica,
whose prefix cache knows it, unless that one is full. Routing, scaling, health and restarts are Ray's.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import re
from collections.abc import AsyncIterator, Mapping
from typing import Any

from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest
from prometheus_client.core import Metric
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import Collector
from ray import serve
from ray.exceptions import RayError
from ray.serve.exceptions import RayServeException
from ray.serve.handle import DeploymentHandle
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from photon import Engine, EngineConfig, load_model, open_device
from photon.api import ApiConfig, Meter, routes
from photon.api.calls import failure_event
from photon.api.errors import HANDLERS
from photon.api.gate import Gate
from photon.errors import EngineDeadError
from photon.memory import choose_dtype

log = logging.getLogger(__name__)

REPLICA_HEADER = b"x-photon-replica"
"""In every response: which replica answered, as Ray's status and logs name it."""

_CONNECTION = ("type", "asgi", "http_version", "scheme", "client", "server", "root_path")
_SCOPE_KEYS = (*_CONNECTION, "method", "path", "raw_path", "query_string", "headers")
_DATA_URL = re.compile(rb'"data:[^"]*')
_GONE = "The replica that worked on this request has ended; ask again."
_PATIENCE_S = 5.0


class Replica:
    """One engine and its routes. Model and device as `load_model` and `open_device` take them."""

    def __init__(self, model: str, device: str, config: EngineConfig, api: ApiConfig) -> None:
        self.name = serve.get_replica_context().replica_id.unique_id
        self._meter, opened = Meter(), open_device(device)
        dtype = choose_dtype("auto", opened)
        self._engine = Engine(load_model(model), opened, config, observers=[self._meter], dtype=dtype)
        self._app = Starlette(routes=routes(self._engine, self._meter, api))

    async def respond(self, scope: Scope, body: bytes) -> AsyncIterator[Message]:
        """The ASGI messages of a response, as they come; who leaves early takes the request along."""
        messages: asyncio.Queue[Message | None] = asyncio.Queue()
        bodies = [{"type": "http.request", "body": body}]

        async def receive() -> Message:
            return bodies.pop() if bodies else await asyncio.get_running_loop().create_future()

        answer = asyncio.create_task(self._app(scope, receive, messages.put))
        answer.add_done_callback(lambda _: messages.put_nowait(None))
        try:
            while message := await messages.get():
                if message["type"] == "http.response.start":
                    message["headers"].append((REPLICA_HEADER, self.name.encode()))
                yield message
            await answer
        finally:
            answer.cancel()

    async def exposition(self) -> tuple[str, str]:
        """The replica's name and its figures in Prometheus' text format."""
        stats = await asyncio.to_thread(self._engine.stats)
        return self.name, self._meter.exposition(stats).decode()

    async def check_health(self) -> None:
        """Called by Ray, which replaces a replica that raises."""
        if not (await asyncio.to_thread(self._engine.stats))["alive"]:
            raise EngineDeadError("The engine has ended.")

    def __del__(self) -> None:
        if hasattr(self, "_engine"):
            self._engine.close()


@serve.ingress()
class Front:
    """Key, sizes and number of requests; all else is the replicas'."""

    def __init__(self, replicas: DeploymentHandle, config: ApiConfig) -> None:
        self._replicas, self._config = replicas, config

    def __serve_build_asgi_app__(self) -> ASGIApp:
        forward = Forward(self._replicas)
        table = [
            Route("/v1/{path:path}", Gate(forward, self._config)),
            Route("/metrics", self.metrics),
            Route("/healthz", forward),
        ]
        return Starlette(routes=table, exception_handlers=dict(HANDLERS))

    async def metrics(self, request: Request) -> Response:
        """The figures of all replicas, each with the label `replica`."""
        answers = self._replicas.broadcast("exposition")
        texts = await answers.results_async(timeout_s=_PATIENCE_S, return_exceptions=True)
        whole = exposition(dict(text for text in texts if not isinstance(text, Exception)))
        return Response(whole, media_type=CONTENT_TYPE_LATEST)


class Forward:
    """ASGI app: the response of the replica that knows the image."""

    def __init__(self, replicas: DeploymentHandle) -> None:
        self._respond = replicas.options(method_name="respond", stream=True)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        body = await Request(scope, receive).body()
        has_begun = False
        plain = {key: scope[key] for key in _SCOPE_KEYS if key in scope}
        response: Any = self._respond.options(session_id=image_hash(body)).remote(plain, body)
        try:
            async for message in response:
                has_begun = True
                await send(message)
        except (RayError, RayServeException) as cause:
            log.error("a replica has ended", exc_info=cause)
            error = EngineDeadError(_GONE)
            if not has_begun:
                raise error from None
            await send({"type": "http.response.body", "body": failure_event(error)})
        finally:
            response.cancel()


def image_hash(body: bytes) -> str:
    """What questions about one image have in common; "" for a body without one, which any replica takes."""
    found = _DATA_URL.search(body)
    return hashlib.blake2b(found[0], digest_size=16).hexdigest() if found else ""


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
