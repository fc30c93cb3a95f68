"""The workbench: flags, engine, recorder and page, put together. Nothing else happens here.

    python app.py                       the embedded model on the best device there is
    python app.py --model PATH          Moondream 2 weights
    python app.py --help                all flags

photon (the engine and its tabs) and tracing (the recorder and its timeline) do not know each other; they
meet in `build`. Gradio is imported inside functions: it reads its environment when it is imported, and a
device's worker process imports this file again without needing a page.
"""

from __future__ import annotations

import argparse
import contextlib
import logging
import os
import sys
import time
from collections.abc import AsyncIterator, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import gradio as gr
    from fastapi import FastAPI
    from starlette.routing import BaseRoute

    from photon import Engine
    from photon.api import Meter
    from photon.lab import Lab
    from tracing.recorder import Recorder
    from tracing.ui.sources import Sources

ASSETS = Path(__file__).resolve().parent / "assets"
MAX_UPLOAD_MB = 32
MAX_UPLOAD = f"{MAX_UPLOAD_MB}mb"
MAX_QUEUE = 128
DAY_S = 86_400
# Shown in the browser after each run: its window in the timeline, until "Follow live" is pressed.
# The first run may end before the timeline has its script and its first message: it is shown then.
SHOW_RUN_JS = """(start, end) => {
  const isReady = () => window.photonTimeline && window.photonTimeline.spans > 0;
  const show = () => (isReady() ? window.photonTimeline.showRun(start, end) : setTimeout(show, 100));
  show();
}"""


def parse_flags(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """All flags of the app; see --help."""
    parser = argparse.ArgumentParser(
        prog="app.py", description="Photon Workbench: a vision language model and the pipeline it runs in."
    )
    add = parser.add_argument
    add(
        "--model",
        default=str(ASSETS / "tiny"),
        help="folder or .safetensors file of Moondream 2, or moondream2: the published weights, from the "
        "cache or downloaded once; without it, the small embedded model",
    )
    add("--tokenizer", default=None, help="tokenizer.json or its folder; without it, beside the weights")
    add("--device", default="auto", help="cpu, cuda, cuda:N, sim:b200, deferred, auto: cuda if there is one")
    add(
        "--dtype",
        choices=("auto", "bfloat16", "float32", "float16"),
        default="auto",
        help="of weights and KV cache; auto (the default): bfloat16 on CUDA, float32 on a CPU",
    )
    add("--threads", type=int, default=1, help="torch threads of the cpu device; more for a large model")
    add("--depth", type=int, choices=(1, 2), default=2, help="steps in flight: 1 blocking, 2 pipelined")
    add("--max-batch-size", type=int, default=8, help="rows of one decode step, 1 to 32; 8 without it")
    add("--host", default="127.0.0.1", help="address to listen on; 0.0.0.0 lets other machines in")
    add("--port", type=int, default=None, help="port to listen on; without it, the first free from 7860")
    add("--api-key", default=None, help="key that programs must send to /v1, or @FILE that holds it")
    add("--root-path", default=None, help="path under which a proxy serves this page, for example /vlm")
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> int:
    """Load, then open the port, then serve until interrupted. Returns the exit status."""
    flags = parse_flags(argv)
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(name)s: %(message)s")
    from photon.api import read_key
    from photon.api.serving import choose_port
    from photon.errors import PhotonError

    try:
        # Asked before minutes of loading as well as after, so that a busy port is known at once.
        choose_port(flags.host, flags.port)
        api_key = read_key(flags.api_key)
        engine, recorder, meter = load(flags)
    except (PhotonError, OSError) as error:
        print(f"app.py: {error}", file=sys.stderr)
        return 2
    try:
        return serve(flags, engine, recorder, api_routes(engine, meter, api_key))
    finally:
        engine.close()


def load(flags: argparse.Namespace) -> tuple[Engine, Recorder, Meter]:
    """The engine with its model on its device, and the recorder and the meter that listen to it.

    Raises:
        PhotonError: the model or the device is not what the flags say; one sentence.
    """
    from photon import Engine, EngineConfig, load_model, open_device
    from photon.api import Meter
    from photon.lab import facts
    from tracing.recorder import Recorder

    recorder, meter = Recorder(info=lambda: facts(engine)), Meter()
    config = EngineConfig(depth=flags.depth, max_batch_size=flags.max_batch_size)
    model = load_model(flags.model, tokenizer=flags.tokenizer)
    device = open_device(flags.device, num_threads=flags.threads)
    try:
        engine = Engine(model, device, config, observers=[recorder, meter], dtype=flags.dtype)
        return engine, recorder, meter
    except BaseException:
        device.close()
        raise


def api_routes(engine: Engine, meter: Meter, api_key: str | None = None) -> list[BaseRoute]:
    """The routes for programs, to be served on the page's port with the page's limits."""
    from photon.api import ApiConfig, routes

    config = ApiConfig(time.time, api_key, max_image_bytes=MAX_UPLOAD_MB * 2**20, max_open=MAX_QUEUE)
    return routes(engine, meter, config)


def serve(flags: argparse.Namespace, engine: Engine, recorder: Recorder, api: list[BaseRoute]) -> int:
    """Open the port and serve until interrupted."""
    from photon.api.serving import choose_port, end_on_signals
    from tracing.ui.sources import Sources

    sources, lab = Sources(recorder), new_lab(engine)
    demo = build(engine, sources, lab)
    try:
        port = choose_port(flags.host, flags.port)
        launch(demo, sources, api, server_name=flags.host, server_port=port, root_path=flags.root_path)
    except OSError as error:
        print(f"app.py: {error}", file=sys.stderr)
        return 2
    print(banner(engine, flags, port), flush=True)
    end_on_signals()
    with contextlib.closing(lab):
        demo.block_thread()
    return 0


def new_lab(engine: Engine) -> Lab:
    """An engine like this one, for comparisons; opened by the first of them."""
    from photon.lab import Lab

    return Lab(engine.model, engine.device.name.split()[0], engine.dtype)


def build(engine: Engine, sources: Sources, lab: Lab) -> gr.Blocks:
    """The page. Everything of the engine above, the timeline of its steps below."""
    _quiet_gradio()
    import gradio as gr

    from photon.ui import markup
    from photon.ui.about import about
    from photon.ui.batch import BatchTab
    from photon.ui.endpoints import endpoints
    from photon.ui.examples import read_examples
    from photon.ui.facts import cuda_note, describe, limits
    from photon.ui.playground import Playground
    from tracing.ui.files import TracesTab
    from tracing.ui.live import LiveTimeline

    facts = describe(engine)
    with gr.Blocks(title="Photon Workbench", analytics_enabled=False, delete_cache=(3600, DAY_S)) as demo:
        gr.HTML(markup.header(facts), apply_default_css=False)
        token = gr.BrowserState(storage_key="photon-batch")
        with gr.Tabs():
            with gr.Tab("Playground"):
                playground = Playground(engine, read_examples(ASSETS / "examples.json"), SHOW_RUN_JS)
            with gr.Tab("Batch"):
                BatchTab(engine, demo, token)
            with gr.Tab("Compare"):
                comparison(lab, sources)
            with gr.Tab("What-if") as tab:
                what_if(tab)
            with gr.Tab("Traces"):
                TracesTab(sources, ASSETS / "traces")
            with gr.Tab("About"):
                about(engine, [*facts, ("cuda", cuda_note(engine))], limits(engine, MAX_UPLOAD, MAX_QUEUE))
        LiveTimeline(engine.device.name)
        endpoints(engine)
        demo.load(playground.get_depth, None, playground.depth, api_visibility="private", queue=False)
    # Admission is the engine's: no event has a limit of its own, and the queue only refuses floods.
    return demo.queue(max_size=MAX_QUEUE, default_concurrency_limit=None)


def comparison(lab: Lab, sources: Sources) -> None:
    """The Compare tab: photon runs one workload twice, tracing shows the two traces."""
    from photon.ui.lab import LabPanel
    from photon.ui.lab_controls import presets
    from tracing.recorder import Recorder
    from tracing.ui.compare import ComparisonView, run_trace

    lab.observers.append(recorder := Recorder(info=lab.facts))
    panel = LabPanel(lab, presets(ASSETS / "samples" / "hearts_on_paper.png", "green heart"))
    panel.wire(partial(run_trace, recorder), ComparisonView(sources))


def what_if(tab: gr.Tab) -> None:
    """The What-if tab: photon simulates, tracing draws."""
    from photon.ui.whatif import WhatIf
    from tracing.recorder import Recorder
    from tracing.timeline import timelines
    from tracing.ui.compare import as_json, plot

    WhatIf(
        tab,
        watch=lambda facts: Recorder(info=lambda: facts),
        draw=lambda panels: as_json(timelines(panels)),
        plot=plot,
    )


def launch(demo: gr.Blocks, sources: Sources, api: Sequence[BaseRoute] = (), **where: Any) -> None:
    """Start serving in the background, on this machine alone: no sharing."""
    demo.launch(prevent_thread_lock=True, quiet=True, share=False, **options(sources, api), **where)


def options(sources: Sources, api: Sequence[BaseRoute]) -> dict[str, Any]:
    """How Gradio serves the page, whoever runs the server: the routes beside it, its looks and its limits."""
    from photon.ui.theme import STYLE_SHEET, theme
    from tracing.ui.live import routes

    return {
        "ssr_mode": False,
        "run_history": False,
        "show_error": True,
        "theme": theme(),
        "css_paths": [STYLE_SHEET],
        "max_file_size": MAX_UPLOAD,
        "allowed_paths": [str(ASSETS / "samples"), str(ASSETS / "traces")],
        "footer_links": ["api", "settings"],
        "app_kwargs": {"routes": [*api, *routes(sources)]},
    }


class Page:
    """The page for a server that is not Gradio's own: of every replica of `photon.api.ray_serve` one."""

    def __init__(self) -> None:
        from photon.lab import facts
        from tracing.recorder import Recorder

        self._recorder = Recorder(info=lambda: facts(self._engine))
        self.observers = [self._recorder]

    def asgi(self, engine: Engine, api: Sequence[BaseRoute]) -> FastAPI:
        """The app that has the routes for programs and the page; its lifespan ends what the page opened."""
        from fastapi import FastAPI

        from tracing.ui.sources import Sources

        self._engine, sources, lab = engine, Sources(self._recorder), new_lab(engine)
        demo = build(engine, sources, lab)

        @contextlib.asynccontextmanager
        async def lifespan(_: FastAPI) -> AsyncIterator[None]:
            with contextlib.closing(lab):
                yield

        from gradio import mount_gradio_app

        return mount_gradio_app(FastAPI(lifespan=lifespan), demo, "/", **options(sources, api))


def banner(engine: Engine, flags: argparse.Namespace, port: int) -> str:
    """What a person sees in the terminal once the page is there."""
    from photon.ui.facts import cuda_note, describe

    depth = f"{engine.depth} ({'pipelined' if engine.depth == 2 else 'blocking'})"
    url = f"http://{'127.0.0.1' if flags.host == '0.0.0.0' else flags.host}:{port}"
    facts = {**dict(describe(engine)), "depth": depth, "cuda": cuda_note(engine), "url": url}
    width = max(map(len, facts))
    return "\n".join(["Photon Workbench", *(f"  {name:<{width}}  {value}" for name, value in facts.items())])


def _quiet_gradio() -> None:
    """Before Gradio is imported: no telemetry, no look at a hub."""
    os.environ["GRADIO_ANALYTICS_ENABLED"] = "False"
    os.environ["HF_HUB_OFFLINE"] = "1"


if __name__ == "__main__":
    sys.exit(main())
