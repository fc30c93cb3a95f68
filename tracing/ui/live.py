"""LiveTimeline: the component on the page. routes(sources): what feeds it. See assets/timeline.js.

    LiveTimeline("cpu worker")                                  # inside gr.Blocks; label of the device rows
    demo.launch(app_kwargs={"routes": routes(sources)})         # or gr.mount_gradio_app with the same routes

The component is a `gr.HTML` with a static template: Gradio never re-renders it, so zoom and pan survive.
It draws with its own plotly.js, served from the plotly package, and opens one event stream. All its
URLs are relative to the page, so that a proxy with a root path works. No request leaves the host.

**Jump to a run.** In the page `window.photonTimeline.showRun(startNs, endNs)` zooms to [startNs, endNs):
times of the recorder's clock (the spans' `perf_counter_ns`), as strings, BigInt or numbers; give strings,
since a number above 2**53 has lost its last digits. It may be called before the last spans have
arrived; they appear as they come. An opened trace gives way to it. The view stays until the user moves
it or a new request arrives, then the timeline follows live again. One text "start,end" does as well, so
that a Gradio handler can return it to a hidden component (an empty text is no run and changes nothing):

    done = run.click(handler, inputs, [..., window_text])
    done.then(None, window_text, None, js="text => { window.photonTimeline?.showRun(text); }")

or, from any script: `window.dispatchEvent(new CustomEvent("photon:run", {detail: {startNs, endNs}}))`.
`window.photonTimeline` also has live(), pause(), setWindow(name), look(start, end), range(), following,
spans, held, drawn (rectangles), draws, redrawMs (median of the last 41), metrics(startNs, endNs), and:

    open(source, title)    show an opened trace (an id of Sources); live() goes back
    select(step)           outline, arrow from its launch, inspector; also {type: "bubble", start, end},
                           {type: "request", id}, {type: "range", start, end}, and null
    find("step 41"), fit(), selected, step (the inspector's answer), source, loading
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any, NamedTuple

import gradio as gr
import plotly
from starlette.requests import Request
from starlette.responses import FileResponse, Response
from starlette.routing import Route

from tracing.lanes import as_props
from tracing.metrics import METRICS, TWO_CLOCKS
from tracing.ui.details import detail_routes
from tracing.ui.export_route import export_routes
from tracing.ui.sources import Sources
from tracing.ui.stream import SourceStream

ASSETS = Path(__file__).parents[2] / "assets"
SCRIPTS = tuple(  # in the order in which they build on each other
    ASSETS / f"timeline{part}.js"
    for part in (
        *("_intervals", "_store", "_figures", "_layout", "_picture", "_overlay", "_pick"),
        *("_overview", "_inspector", "_panel", "_controls", "", "_state", "_events"),
    )
)
PLOTLY = Path(plotly.__file__).parent / "package_data" / "plotly.min.js"
WINDOWS = ("20 ms", "60 ms", "250 ms", "1 s", "4 s", "run")
IMMUTABLE = {"Cache-Control": "public, max-age=31536000, immutable"}


class Card(NamedTuple):
    """A figure above the timeline, and perhaps a second one beside it, by the keys of tracing.metrics."""

    key: str
    digits: int
    full: float = 0  # value at which the sparkline is full; 0: the largest of the minute
    also: str = ""
    name: str = ""  # where the metric's own is too long
    hidden: bool = False  # unless it is above 0


CARDS = (
    Card("device_busy_percent", 1, 100),
    Card("bubble_percent", 1, 100),
    Card("host_hidden_percent", 1, 100),
    Card("overlap_factor", 2, 2),
    Card("pipeline_depth", 2, 2),
    Card("zombie_rows_percent", 1, 100, "zombie_tax_upper_percent", "zombies / tax ≤"),
    Card("tokens_per_s", 0),
    Card("ttft_p50_ms", 0, 0, "ttft_p99_ms", "TTFT p50/p99"),
    Card("itl_p50_ms", 1, 0, "itl_p99_ms", "ITL p50/p99"),
    Card("sync_leaks", 0, hidden=True),
)


def LiveTimeline(
    device_label: str = "device", *, window: str = "250 ms", elem_id: str = "timeline", **kwargs: Any
) -> gr.HTML:
    """The live timeline with its row of figures; `device_label` says what the device rows are.

    A function named like the components it stands among, not a subclass of gr.HTML: beside a module that
    defines one, Gradio writes a .pyi file into the source tree.
    """
    if window not in WINDOWS:
        raise ValueError(f"window must be one of {', '.join(WINDOWS)}, got {window!r}")
    return gr.HTML(
        html_template='<div class="pt"></div>',
        css_template=(ASSETS / "timeline.css").read_text(encoding="utf-8"),
        js_on_load=_LOADER,
        apply_default_css=False,
        elem_id=elem_id,
        config=_config(device_label, window),
        **kwargs,
    )


_LOADER = """
(async () => {
  const root = element.querySelector('.pt'), config = {...props.config, base: document.baseURI};
  for (const path of config.scripts) await new Promise((done, failed) => {
    document.head.append(Object.assign(document.createElement('script'),
      {src: new URL(path, config.base).href, onload: done, onerror: failed}));
  });
  await window.photonTimelineMount(root, config);
})().catch((error) => {
  element.textContent = 'The timeline could not be loaded: ' + (error.message || 'no answer');
});
"""


def _config(device_label: str, window: str) -> dict[str, Any]:
    urls = {
        "stream": "wb/trace/stream",
        "step": "wb/trace/step",
        "bubble": "wb/trace/bubble",
        "plotly": f"wb/plotly.min.js?v={plotly.__version__}",
        "scripts": [f"wb/{path.name}?v={_digest(path)}" for path in SCRIPTS],
    }
    return {
        "device": device_label,
        "window": window,
        "kpis": [_card(card) for card in CARDS],
        **urls,
        **as_props(),
    }


def _card(card: Card) -> dict[str, Any]:
    """As the page's script reads it; the formulas of both figures."""
    by_key = {metric.key: metric for metric in METRICS}
    metric, shown = by_key[card.key], [by_key[key] for key in (card.key, card.also) if key]
    unit = metric.unit.replace("steps", "").replace("tokens", "tok")
    formulas = [metric.formula] if len(shown) == 1 else [f"{m.name}: {m.formula}" for m in shown]
    clocks = any(m.key in TWO_CLOCKS for m in shown)
    return card._asdict() | {
        "name": card.name or metric.name,
        "unit": unit,
        "formulas": formulas,
        "clocks": clocks,
    }


def routes(sources: Sources) -> list[Route]:
    """The routes that LiveTimeline asks for; give them to the app that serves the page."""
    return [
        Route("/wb/trace/stream", SourceStream(sources).respond),
        *detail_routes(sources),
        *export_routes(sources),
        Route("/wb/plotly.min.js", _file(PLOTLY)),
        *(Route(f"/wb/{path.name}", _file(path)) for path in SCRIPTS),
    ]


def _file(path: Path) -> Any:
    async def respond(request: Request) -> Response:
        return FileResponse(path, media_type="text/javascript", headers=IMMUTABLE)

    return respond


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()[:12]
