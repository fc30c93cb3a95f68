"""What the tests of the HTTP routes share: the routes on a real socket, without the page."""

from __future__ import annotations

import base64
import io
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Thread
from typing import Any

import httpx
import numpy as np
import uvicorn
from PIL import Image
from starlette.applications import Starlette

from photon import Engine, EngineConfig, open_device
from photon.api import ApiConfig, Meter, routes
from photon.model.weights import Model

NOW_S = 1_700_000_000


def png(seed: int = 1, width: int = 60, height: int = 40) -> bytes:
    """An encoded picture of random pixels."""
    file = io.BytesIO()
    picture(seed, width, height).save(file, "PNG")
    return file.getvalue()


def picture(seed: int = 1, width: int = 60, height: int = 40) -> Image.Image:
    pixels = np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)
    return Image.fromarray(pixels)


def data_url(image: bytes) -> str:
    return "data:image/png;base64," + base64.b64encode(image).decode()


def wait_until(condition: Callable[[], bool], seconds: float = 20.0) -> None:
    """Poll; other work on the machine may make anything slow."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "this did not happen in time"
        time.sleep(0.02)


class Server:
    """The routes of one engine at `url`, and a client of them."""

    def __init__(self, engine: Engine, port: int) -> None:
        self.engine, self.port = engine, port
        self.url = f"http://127.0.0.1:{port}"
        self.http = httpx.Client(base_url=self.url, timeout=60, trust_env=False)

    def ask(self, task: str, **body: Any) -> httpx.Response:
        return self.http.post(f"/v1/{task}", json=body)

    def count(self, series: str) -> float:
        """The value of one series of /metrics; 0 where there is none."""
        lines = [
            line for line in self.http.get("/metrics").text.splitlines() if line.startswith(series + " ")
        ]
        return float(lines[0].split()[-1]) if lines else 0.0


@contextmanager
def serving(engine: Engine, meter: Meter, **limits: Any) -> Iterator[Server]:
    """Serve on a free port until the block ends; the engine stays the caller's."""
    app = Starlette(routes=routes(engine, meter, ApiConfig(lambda: NOW_S, **limits)))
    server = uvicorn.Server(uvicorn.Config(app, port=0, log_level="critical", lifespan="off", ws="none"))
    thread = Thread(target=server.run)
    thread.start()
    try:
        wait_until(lambda: server.started)
        running = Server(engine, server.servers[0].sockets[0].getsockname()[1])
        yield running
        running.http.close()
    finally:
        server.should_exit = True
        thread.join()


@contextmanager
def serving_model(model: Model, config: EngineConfig | None = None, **limits: Any) -> Iterator[Server]:
    """The same with an engine of its own, on the cpu device."""
    meter = Meter()
    with (
        Engine(model, open_device("cpu"), config, observers=[meter]) as engine,
        serving(engine, meter, **limits) as running,
    ):
        yield running
