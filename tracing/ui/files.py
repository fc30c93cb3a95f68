"""TracesTab: save what was recorded, open what was saved, see what changed between two files.

    with gr.Tab("Traces"):
        TracesTab(sources, Path("assets/traces"))

Saving is a link to the export route, made when it is clicked. An opened file goes into `sources`, so that
the docked timeline can show it; a session keeps ids only. A bad file is answered by its one sentence, and
what else the page shows stays.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any, NamedTuple

import gradio as gr

from tracing.files import load
from tracing.histograms import histograms
from tracing.report import compare
from tracing.ui.compare import EVENT, as_json, plot
from tracing.ui.compare_html import failure
from tracing.ui.files_html import SAVE, difference, opened
from tracing.ui.show import SHOW_JS
from tracing.ui.sources import Sources

Updates = dict[Any, Any]
_PAIR = "Or open two that come with the page: the same requests on a GPU, blocking and pipelined"
# The link is completed when it is used: the timeline may have moved since the page was made.
_SAVE_JS = """
element.addEventListener('click', (event) => {
  const link = event.target.closest('a[data-format]');
  if (!link) return;
  const form = element.querySelector('form'), query = new URLSearchParams({format: link.dataset.format});
  const timeline = window.photonTimeline, what = form.elements.what.value;
  if (what === 'last') query.set('last_s', form.elements.seconds.value);
  if (what === 'shown' && timeline) {
    const [start, end] = timeline.range().map((ns) => BigInt(timeline.base) + BigInt(Math.round(ns)));
    for (const [key, value] of Object.entries({source: timeline.source, start, end})) query.set(key, value);
  }
  link.href = new URL('wb/trace/export?' + query, document.baseURI).href;
});
element.addEventListener('submit', (event) => event.preventDefault());
"""


class Held(NamedTuple):
    """What a session has opened: the uploaded file, and the id of its trace in Sources."""

    path: str
    source: str


class TracesTab:
    """Components and events of the tab. Holds no data of any session."""

    def __init__(self, sources: Sources, recorded: Path | None = None) -> None:
        """Build inside the current Blocks context. recorded: a folder of two traces that Gradio may serve."""
        self._sources = sources
        gr.HTML(SAVE, js_on_load=_SAVE_JS, apply_default_css=False, elem_id="traces_save")
        held = gr.State((None, None))
        with gr.Row(equal_height=True, elem_id="traces_files"):
            labels = ("Open a trace: a .json.gz saved here", "Compare it with another")
            ids = ("traces_file", "traces_other")
            files = [
                gr.File(label=label, elem_id=elem_id, height=110)
                for label, elem_id in zip(labels, ids, strict=True)
            ]
        pair = gr.Button(_PAIR, size="sm", elem_id="traces_recorded", visible=recorded is not None)
        self._difference = gr.HTML("", apply_default_css=False, elem_id="traces_difference")
        self._histograms = plot("traces_histograms")
        shown = [
            gr.HTML("", js_on_load=SHOW_JS, apply_default_css=False, elem_id=elem_id)
            for elem_id in ("traces_a", "traces_b")
        ]
        self._held, self._shown = held, shown
        events = [event for file in files for event in (file.upload, file.clear)]
        outputs = [held, self._difference, self._histograms, *shown]
        gr.on(events, self.show, [held, *files], outputs, **EVENT)
        paths = [str(path) for path in sorted(recorded.glob("*.json.gz"))] if recorded else [None, None]
        pair.click(lambda: paths, None, files, **EVENT).then(self.show, [held, *files], outputs, **EVENT)

    async def show(self, held: tuple[Held | None, ...], *paths: str | None) -> Updates:
        """Open what was uploaded since; show each file, and the difference when there are two."""
        updates: Updates = {}
        now: list[Held | None] = []
        for before, path, place in zip(held, paths, self._shown, strict=True):
            if before and before.path == path:
                now.append(before)
                continue
            one, updates[place] = await asyncio.to_thread(self._open, path)
            now.append(one)
        return updates | {self._held: tuple(now)} | await asyncio.to_thread(self._compare, now)

    def _open(self, path: str | None) -> tuple[Held | None, str]:
        """The file's place in Sources and its HTML; no place and the sentence for a bad one."""
        if path is None:
            return None, ""
        title = Path(path).name
        try:
            trace = load(path)
            source = self._sources.add(trace, title)
        except ValueError as error:  # TraceFileError, or more records than Sources holds
            return None, failure(f"{title}: {error}")
        return Held(path, source), opened(trace, title, source)

    def _compare(self, held: list[Held | None]) -> Updates:
        a, b = (one and self._sources.get(one.source) for one in held)
        if a is None or b is None:
            return {self._difference: "", self._histograms: ""}
        titles = [
            f"{side}: {self._sources.title(one.source)}" for side, one in zip("AB", held, strict=True) if one
        ]
        return {
            self._difference: difference(compare(a, b), titles),
            self._histograms: as_json(histograms(a, b, (titles[0], titles[1]))),
        }
