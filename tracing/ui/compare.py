"""ComparisonView: two traces on one time axis, their metrics, step times and tokens side by side.

    view = ComparisonView(sources)                      # inside gr.Blocks
    updates = view.show([[("A", "depth 1", trace), ("B", "depth 2", trace)], ...])   # one pair per round
    updates = view.empty()                                                          # of view.outputs

Both traces go into `sources`, so that either can be opened in the docked timeline, inspected step by step,
and exported. Two trace files can be compared as well. The figures are drawn in the browser by the page's own
plotly.js, in the colours of its theme; only ids are kept for a session.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

import gradio as gr
import plotly.graph_objects as go

from tracing.files import TraceFileError, load
from tracing.histograms import histograms
from tracing.lanes import CATEGORIES
from tracing.predict import step_times
from tracing.recorder import Recorder
from tracing.report import as_document, compare, compare_tokens, measured_gain
from tracing.timeline import Align, timelines
from tracing.trace import Trace
from tracing.ui.compare_html import Side, failure, summary, table
from tracing.ui.show import SHOW_JS
from tracing.ui.sources import Sources

Updates = dict[Any, Any]
START, STEP = "start of the run", "step"
AROUND = (-2.5, 9.5)  # periods of a step that are shown around the step the two are aligned at
EVENT: dict[str, Any] = {"show_progress": "hidden", "api_visibility": "private", "queue": False}
_GONE = "These traces are not held any more; compare again."
# Drawn by the timeline's plotly.js, in the page's colours, again when the theme is switched.
_PLOT_JS = """
const box = element.querySelector('.cmp-plot');
const isDark = () => document.body.classList.contains('dark');
let drawn = null;
const tint = (figure) => {
  const style = getComputedStyle(element), {layout} = figure, nth = isDark() ? 1 : 0;
  const colour = (key, old) => props.colours[key]?.[nth] ?? old;
  for (const shape of layout.shapes ?? []) {
    shape.fillcolor = colour(shape.name, shape.fillcolor);
    if (shape.line) shape.line.color = shape.fillcolor;
  }
  for (const trace of figure.data)
    if (trace.marker) trace.marker.color = colour(trace.name, trace.marker.color);
  layout.paper_bgcolor = layout.plot_bgcolor = 'rgba(0,0,0,0)';
  layout.font = {...layout.font, color: style.getPropertyValue('--body-text-color')};
  for (const key of Object.keys(layout).filter((name) => /^[xy]axis/.test(name)))
    layout[key].gridcolor = layout[key].zerolinecolor = style.getPropertyValue('--border-color-primary');
  return figure;
};
const draw = async () => {
  drawn = isDark();
  const text = props.value;
  while (text && !window.photonPlotly) await new Promise((done) => setTimeout(done, 100));
  if (text !== props.value) return;
  if (!text) return void (window.photonPlotly?.purge(box), box.replaceChildren());
  const {data, layout} = tint(JSON.parse(text));
  layout.width = width();
  // A plot of its own each time: react leaves shapes behind that a new figure does not have.
  await window.photonPlotly.newPlot(box, data, layout, {displaylogo: false});
};
watch('value', draw);
// Plotly's own responsive mode forgets the height. A narrow window scrolls.
const width = () => Math.max(element.clientWidth - 12, 720);
new ResizeObserver(() => {
  if (box.layout && element.clientWidth && box.layout.width !== width())
    window.photonPlotly.relayout(box, {width: width()});
}).observe(element);
new MutationObserver(() => drawn !== isDark() && draw())
  .observe(document.body, {attributes: true, attributeFilter: ['class']});
draw();
"""


class ComparisonView:
    """Components and events of the tab's lower half. Holds no data of any session."""

    def __init__(self, sources: Sources) -> None:
        """Build inside the current Blocks context."""
        self._sources = sources
        self.held = gr.State(())  # the ids of A and B
        with gr.Accordion("Compare two trace files", open=False, elem_id="cmp_files"):
            with gr.Row(equal_height=True):
                files = [
                    gr.File(
                        label=f"Trace {side}, a .json.gz saved here",
                        elem_id=f"cmp_file_{side.lower()}",
                        height=110,
                    )
                    for side in "AB"
                ]
            button = gr.Button("Compare files", elem_id="cmp_files_run")
        self.summary = gr.HTML("", js_on_load=SHOW_JS, apply_default_css=False, elem_id="cmp_summary")
        with gr.Row(visible=False, elem_id="cmp_align") as self.bar:
            align = gr.Radio([START, STEP], value=START, label="Aligned at", elem_id="cmp_align_at")
            step = gr.Textbox("20", label="Step of the run, from 0", max_lines=1, elem_id="cmp_step")
        self.timelines, self.histograms = plot("cmp_timelines"), plot("cmp_histograms")
        self.table = gr.HTML("", apply_default_css=False, elem_id="cmp_table")
        button.click(self.show_files, files, self.outputs, **EVENT)
        gr.on(
            [align.input, step.submit, step.blur],
            self.align,
            [self.held, align, step],
            self.outputs,
            **EVENT,
        )
        self._align, self._step = align, step

    @property
    def outputs(self) -> list[Any]:
        """What `show` and `empty` update."""
        return [self.held, self.summary, self.bar, self.timelines, self.histograms, self.table]

    def empty(self) -> Updates:
        """Nothing is compared."""
        blank = [self.summary, self.timelines, self.histograms, self.table]
        return {self.held: (), self.bar: gr.update(visible=False), **dict.fromkeys(blank, "")}

    def show(self, rounds: Sequence[Sequence[tuple[str, str, Trace]]]) -> Updates:
        """Rounds of two runs, each as (name, setting in words, trace); of several, one is shown.

        Takes a moment. Raises ValueError as `Sources.add`.
        """
        pairs = [(runs[0][2], runs[1][2]) for runs in rounds]
        shown = choose(pairs)
        a, b = (
            Side(name, words, trace, self._sources.add(trace, f"{name}: {words}"))
            for name, words, trace in rounds[shown]
        )
        report = compare(a.trace, b.trace)
        return {
            self.held: (a.source, b.source),
            self.summary: summary(a, b, report, [measured_gain(*pair) for pair in pairs]),
            self.bar: gr.update(visible=True),
            self.timelines: as_json(figure(a.trace, b.trace, (a.title, b.title), START)),
            self.histograms: as_json(histograms(a.trace, b.trace, (a.title, b.title))),
            self.table: table(report),
        }

    def document(self, rounds: Sequence[Sequence[tuple[str, str, Trace]]]) -> dict[str, Any]:
        """The same for programs: metrics, steps and tokens of the round that is shown; nothing is held."""
        pairs = [(runs[0][2], runs[1][2]) for runs in rounds]
        shown = choose(pairs)
        sides = {
            name.lower(): {"setting": words, "info": dict(trace.info)} for name, words, trace in rounds[shown]
        }
        gains = [measured_gain(*pair) for pair in pairs]
        return (
            {"gain_percent": gains[shown], "gains_percent": gains}
            | sides
            | as_document(compare(*pairs[shown]))
        )

    async def show_files(self, *paths: str | None) -> Updates:
        """Compare two files; what is wrong with one is said in one sentence, and nothing else changes."""
        try:
            runs = [
                (side, Path(path or "").name, await asyncio.to_thread(_load, side, path))
                for side, path in zip("AB", paths, strict=True)
            ]
            return await asyncio.to_thread(self.show, [runs])
        except ValueError as error:
            return self.empty() | {self.summary: failure(str(error))}

    def align(self, held: tuple[str, ...], at: str, step: str) -> Updates:
        """Draw both again, aligned at the start of the runs or at a step of them."""
        if not held:
            return gr.skip()
        a, b = (self._sources.get(source) for source in held)
        if a is None or b is None:
            return self.empty() | {self.summary: failure(_GONE)}
        titles = [self._sources.title(source) for source in held]
        if at == STEP and not step.strip().isdecimal():
            raise gr.Error(f"The step is {step!r}; it must be a whole number from 0.", print_exception=False)
        number = step.strip() if at == STEP else ""
        return {self.timelines: as_json(figure(a, b, titles, number or START))}


class Run(Protocol):
    """What is known of a run's time: its first arrival and its last finish."""

    @property
    def start_ns(self) -> int: ...
    @property
    def end_ns(self) -> int: ...


def run_trace(recorder: Recorder, run: Run) -> Trace:
    """What was recorded from the first arrival of a run to the commit of its last step.

    A zombie's step is committed after the last finish, and is part of what the run cost.
    """
    trace = recorder.snapshot(run.start_ns)
    rows = trace.within(run.start_ns, run.end_ns).row_table
    return trace.within(run.start_ns, int(rows["time_ns"].max(initial=run.end_ns)))


def choose(pairs: Sequence[tuple[Trace, Trace]]) -> int:
    """The round to show: the first whose tokens differ, or else the one of the median gain."""
    for number, pair in enumerate(pairs):
        if compare_tokens(*pair).is_equal is False:
            return number
    gains = [measured_gain(*pair) or 0.0 for pair in pairs]
    return sorted(range(len(pairs)), key=lambda number: gains[number])[len(pairs) // 2]


def figure(a: Trace, b: Trace, titles: Sequence[str], at: str) -> go.Figure:
    """Both timelines; aligned at a step, the steps around it fill the picture. `at`: START or a number."""
    align: Align = "start" if at == START else ("step", min(int(at), 1 << 30))
    made = timelines([(titles[0], a), (titles[1], b)], align=align)
    periods = [times.period_ms or 0 for trace in (a, b) if (times := step_times(trace))]
    if align != "start" and any(periods):
        made.update_xaxes(range=[side * max(periods) for side in AROUND])
    made.update_layout(
        dragmode="zoom", margin={"t": 40}, modebar={"remove": ["select", "lasso", "toimage", "autoscale"]}
    )
    return made


def as_json(made: go.Figure) -> str:
    """For the browser, without the template that plotly puts into every figure."""
    return made.update_layout(template="none").to_json()


def _load(side: str, path: str | None) -> Trace:
    if not path:
        raise TraceFileError(f"There is no file for {side}; add one.")
    try:
        return load(path)
    except TraceFileError as error:
        raise TraceFileError(f"{side}: {error}") from None


def plot(elem_id: str) -> gr.HTML:
    """A figure's place. The template is static, so Gradio never takes plotly's elements away."""
    colours = {key: [c.light, c.dark] for key, c in CATEGORIES.items()}
    return gr.HTML(
        "",
        html_template='<div class="cmp-plot"></div>',
        js_on_load=_PLOT_JS,
        apply_default_css=False,
        elem_id=elem_id,
        colours=colours | {c.name: [c.light, c.dark] for c in CATEGORIES.values()},
    )
