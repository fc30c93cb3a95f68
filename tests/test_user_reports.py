"""Pins what users of demos like this one reported and no module's own tests hold; see data/requirements.csv.

The page's server runs in this process, behind a proxy that serves it under a path.
"""

from __future__ import annotations

import asyncio
import gc
import io
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from threading import Thread

import gradio as gr
import httpx
import numpy as np
import pytest
import uvicorn
from engines import build, finish, picture, small, tick, tiny_model
from gradio_client import Client, handle_file
from PIL import Image
from served import wait_until
from starlette.applications import Starlette
from starlette.requests import Request as HttpRequest
from starlette.responses import StreamingResponse
from starlette.routing import Route
from test_app import close_gradios_loops

import app
from photon import Engine, open_device
from photon.api import Meter
from photon.api.serving import choose_port
from photon.images import load_image
from photon.ui.ask import Ask
from photon.ui.playground import Playground
from photon.ui.results import as_json
from photon.ui.runs import complete, submit
from photon.ui.session import Session
from tracing.recorder import Recorder
from tracing.ui.sources import Sources

pytestmark = [
    pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning"),  # see test_app.close_gradios_loops
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),  # Gradio's own loops
    pytest.mark.filterwarnings("ignore:'future.no_silent_downcasting' is deprecated"),  # Gradio with pandas
]
PATH = "/vlm"


# Pictures ------------------------------------------------------------------------------------------------


def test_a_photograph_of_fifteen_megabytes_is_read() -> None:
    """user_reports 7: the limit that the app names is above what a camera makes."""
    noise = np.random.default_rng(1).integers(0, 256, (2900, 3600, 3), dtype=np.uint8)
    file = io.BytesIO()
    Image.fromarray(noise).save(file, "JPEG", quality=98)
    assert 15 * 10**6 < file.tell() < app.MAX_UPLOAD_MB * 2**20
    assert load_image(file.getvalue()).size == (3600, 2900)


# The page ------------------------------------------------------------------------------------------------


def test_a_result_says_which_task_and_which_exact_prompt_ran() -> None:
    """user_reports 20."""
    with build(threaded=True) as engine:
        ask = Ask("query", Image.fromarray(picture(1)), " How many  dogs? ", settings={"max_tokens": 3})
        result = as_json(asyncio.run(complete(asyncio.run(submit(engine, ask)))))
    assert (result["task"], result["prompt"]) == ("query", " How many  dogs? ")


def test_a_run_says_within_its_first_update_what_it_does(tmp_path: Path) -> None:
    """user_reports 65: reading, waiting, prefill, tokens; each before the next begins."""
    Image.fromarray(picture(1)).save(tmp_path / "picture.png")
    seen: list[str] = []

    async def watch(engine: Engine, playground: Playground) -> None:
        file, settings = {"path": str(tmp_path / "picture.png")}, ["", "", "12", "", "", ""]
        stream = playground.run(Session(), file, "query", "tell me more", "normal", "", *settings)
        seen.append((await anext(stream))[playground.view.status])
        for _ in range(2):  # the picture is shown, and then the place in the line
            update = await anext(stream)
        seen.append(update[playground.view.status])
        tick(engine)
        seen.append((await anext(stream))[playground.view.status])
        for _ in range(5):
            tick(engine)
        seen.append((await anext(stream))[playground.view.status])
        await stream.aclose()

    with build(small(max_batch_size=1)) as engine, gr.Blocks(analytics_enabled=False):
        asyncio.run(watch(engine, Playground(engine, (), "() => {}")))
        finish(engine)
    gc.collect()
    words = ["Reading the picture", "Queued", "Prefill", "token"]
    assert [word for word, status in zip(words, seen, strict=True) if word.lower() in status.lower()] == words


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    with Engine(tiny_model(), open_device("cpu")) as engine:
        yield engine


@pytest.fixture(scope="module")
def demo(engine: Engine) -> Iterator[gr.Blocks]:
    lab = app.new_lab(engine)
    demo = app.build(engine, Sources(Recorder()), lab)
    yield demo
    demo.close(verbose=False)
    lab.close()
    close_gradios_loops()


def test_files_of_visitors_are_deleted_after_a_day(demo: gr.Blocks) -> None:
    """user_reports 52: looked after every hour; a session that lives keeps its own by using them."""
    assert demo.delete_cache == (3600, 24 * 3600)


# Behind a proxy ------------------------------------------------------------------------------------------


@contextmanager
def proxy(target: str) -> Iterator[str]:
    """A reverse proxy that serves `target` under PATH and strips it, as nginx does; its address."""
    client = httpx.AsyncClient(base_url=target, timeout=60, trust_env=False)

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        yield
        await client.aclose()

    async def forward(request: HttpRequest) -> StreamingResponse:
        path = request.url.path.removeprefix(PATH) or "/"
        url = httpx.URL(path=path, query=request.url.query.encode())
        sent = client.build_request(
            request.method, url, headers=request.headers.raw, content=await request.body()
        )
        answer = await client.send(sent, stream=True)

        async def body() -> AsyncIterator[bytes]:
            async for piece in answer.aiter_raw():
                yield piece
            await answer.aclose()

        return StreamingResponse(body(), answer.status_code, dict(answer.headers))

    routes = [Route(PATH + "/{path:path}", forward, methods=["GET", "POST", "HEAD"])]
    config = uvicorn.Config(
        Starlette(routes=routes, lifespan=lifespan),
        port=0,
        log_level="critical",
        ws="none",
        timeout_graceful_shutdown=1,  # a page's heartbeat never ends by itself
    )
    server = uvicorn.Server(config)
    thread = Thread(target=server.run)
    thread.start()
    try:
        wait_until(lambda: server.started)
        yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}{PATH}"
    finally:
        server.should_exit = True
        thread.join()


def test_behind_a_proxy_with_a_path_page_api_and_timeline_are_found(
    engine: Engine, demo: gr.Blocks, tmp_path: Path
) -> None:
    """user_reports 61: page, upload, streaming, and the routes beside the page, all under the path."""
    Image.fromarray(picture(1)).save(tmp_path / "picture.png")
    port = choose_port("127.0.0.1", None)
    sources = Sources(Recorder())
    where = {"server_name": "127.0.0.1", "server_port": port, "root_path": PATH}
    app.launch(demo, sources, app.api_routes(engine, Meter()), **where)
    with proxy(f"http://127.0.0.1:{port}") as url, httpx.Client(timeout=60, trust_env=False) as http:
        assert PATH in http.get(f"{url}/").text
        for path in ("healthz", "metrics", "v1/models", "v1/docs", "wb/trace/export"):
            assert http.get(f"{url}/{path}").status_code == 200, path
        client = Client(url, verbose=False, analytics_enabled=False)
        image = handle_file(str(tmp_path / "picture.png"))
        result = client.predict(image=image, object="dog", settings={"max_objects": 2}, api_name="/point")
        assert result["image"] == {"width": 24, "height": 24}
        body = {"question": "?", "stream": True, "settings": {"max_tokens": 3}}
        assert '"completed": true' in http.post(f"{url}/v1/query", json=body).text
