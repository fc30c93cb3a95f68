"""The What-if tab: the engine on a simulated GPU, at depth 1 and depth 2 on one time axis, beside what was
published; and how the gain goes with streams and with the speed of the GPU.

Whatever draws traces is given by the caller: this module knows a recorder only as something that watches a
run and gives a trace of a window. Every figure says where it is from: published, simulated or derived.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Protocol

import gradio as gr

from photon.device.cost import PRESETS
from photon.errors import PhotonError
from photon.observe import Observer
from photon.simulation import TASKS, Comparison, Run, Scenario, compare
from photon.ui import markup
from photon.ui.sweeps import Gains, over_speed, over_streams, sweeps_figure

STREAMS = (1, 2, 4, 8, 16, 32, 64)
MAX_TOKENS = 256
SMALL = "up to 378 px (2 crops)"
PICTURES = {"no picture": 0, SMALL: 2, "640 x 480 (9 crops)": 9}
STEADY, ENDS, BEGINNING = "steady state", "first end", "beginning"
VIEWS = (STEADY, ENDS, BEGINNING)
DEPTHS = {"both": (1, 2), "1 · blocking": (1,), "2 · pipelined": (2,)}
NUM_PERIODS = 9  # of blocking decode steps, in the picture
_EVENT: dict[str, Any] = {"show_progress": "hidden", "api_visibility": "private"}
Updates = dict[Any, Any]


class Watcher(Observer, Protocol):
    """An observer that gives what it saw of a window."""

    def snapshot(self, since_ns: int | None = None, until_ns: int | None = None) -> Any: ...


Watch = Callable[[Mapping[str, str]], Watcher]
Draw = Callable[[Sequence[tuple[str, Any]]], str]


class Player:
    """Plays a scenario at both depths and draws its timelines; the last few are kept."""

    def __init__(self, watch: Watch, draw: Draw) -> None:
        self._watch, self._draw = watch, draw
        self.play = functools.lru_cache(maxsize=32)(self._play)

    def _play(self, gpu: str, streams: int, tokens: int, *more: Any) -> tuple[Comparison, str]:
        """In the order of the controls. The comparison, and its figure. Raises InvalidRequestError."""
        task, picture, leak, depth, view = more
        crops = PICTURES[picture] or (0 if task == "query" else PICTURES[SMALL])
        scenario = Scenario(PRESETS[gpu], streams, tokens, task, crops=crops, sync_masks=leak)
        facts = {"device": scenario.cost.name, "model": "scripted answers"}
        watchers = [self._watch({**facts, "depth": str(number)}) for number in (1, 2)]
        found = compare(scenario, ([watchers[0]], [watchers[1]]))
        runs = zip((found.blocking, found.pipelined), watchers, strict=True)
        panels = [
            (f"depth {run.depth}, simulated", watcher.snapshot(*window(found, run, view)))
            for run, watcher in runs
            if run.depth in DEPTHS[depth]
        ]
        return found, self._draw(panels)


class WhatIf:
    """Components and events of the tab. Holds no data of any session."""

    def __init__(
        self,
        tab: gr.Tab,
        *,
        watch: Watch,
        draw: Draw,
        plot: Callable[[str], gr.HTML],
    ) -> None:
        """Build inside the tab.

        Args:
            watch: facts of a run -> who watches it.
            draw: (title, trace) of each panel -> the figure, as the plot takes it.
            plot: element id -> a place for figures.
        """
        self._player = Player(watch, draw)
        self.inputs = _controls()
        self.status = gr.HTML(
            markup.status("idle", "Ready."), apply_default_css=False, elem_id="whatif_status"
        )
        self.table = gr.HTML("", apply_default_css=False, elem_id="whatif_table")
        self.timelines, self.sweeps = plot("whatif_timelines"), plot("whatif_sweeps")
        run: dict[str, Any] = {"fn": self.run, "inputs": self.inputs, "outputs": self.outputs, **_EVENT}
        # One at a time for the whole page, and of many changes only the last.
        run |= {"concurrency_limit": 1, "concurrency_id": "whatif", "trigger_mode": "always_last"}
        changes = [item.release if isinstance(item, gr.Slider) else item.input for item in self.inputs]
        gr.on(changes, **run)
        first = tab.select(**run)
        first.then(self.sweep, None, self.sweeps, concurrency_id="whatif", **_EVENT)

    @property
    def outputs(self) -> list[Any]:
        return [self.status, self.table, self.timelines]

    def run(self, *values: Any) -> Updates:
        """Simulate what the controls say, and show it. Blocks: a second or two at most."""
        try:
            found, figure = self._player.play(*values)
        except PhotonError as error:
            return {
                **dict.fromkeys(self.outputs, ""),
                self.status: markup.status("error", "Not run", str(error)),
            }
        return {
            self.status: markup.status("done", headline(found), detail(found)),
            self.table: table(found),
            self.timelines: figure,
        }

    def sweep(self) -> Iterator[str]:
        """Both sweeps, line by line; at once where they are known already."""
        streams: dict[str, Gains] = {}
        speeds: dict[int, Gains] = {}
        for key in PRESETS:
            streams[key] = over_streams(key)
            yield sweeps_figure(streams, speeds)
        for count in (1, 8, 32):
            speeds[count] = over_speed(count)
            yield sweeps_figure(streams, speeds)


def window(found: Comparison, run: Run, view: str) -> tuple[int, int]:
    """What to show of a run: as much time at either depth."""
    longest = found.blocking.period_ms or found.blocking.duration_ms / max(found.blocking.num_steps, 1)
    width = round(NUM_PERIODS * longest * 1e6)
    if view == BEGINNING:
        return 0, width
    period = run.period_ms or longest
    before = NUM_PERIODS * longest + 2 * period if view == STEADY else 3 * period
    start = max(0, run.first_finish_ns - round(before * 1e6))
    return start, start + width


def headline(found: Comparison) -> str:
    """The gain in one line."""
    scenario = found.scenario
    what = f"{scenario.cost.name}, {scenario.streams} stream{'s' * (scenario.streams > 1)}"
    if found.gain_percent is None:
        return f"{what}: depth 2 changes a whole run by {found.run_gain_percent:+.1f} %"
    return f"{what}: depth 2 gains {found.gain_percent:+.1f} %"


def detail(found: Comparison) -> str:
    """Where the durations are from, and where the case lies."""
    cost = found.scenario.cost
    parts = [f"Durations are {cost.label}: {cost.source}."]
    if found.scenario.sync_masks:
        parts.append("With a sync leak: the host waits for each forward before it samples.")
    elif found.pipelined.period_ms and found.pipelined.bubble_percent > 15:
        parts.append("Host-bound: the device idles at depth 2 as well, and a faster one would gain nothing.")
    return " ".join(parts)


def table(found: Comparison) -> str:
    """Every figure, in columns that say where it is from."""
    known, one, two = found.published, found.blocking, found.pipelined
    head = ["", f"simulated <small>durations {found.scenario.cost.label}</small>"]
    rows = [
        ["period, depth 1", _ms(one.period_ms)],
        ["period, depth 2", _ms(two.period_ms)],
        ["gain, steady state", _percent(found.gain_percent)],
    ]
    if known:
        head.append("published")
        gains = (
            f"{_percent(known.observed_percent)} observed<br>{_percent(known.predicted_percent)} predicted"
        )
        for row, theirs in zip(rows, (_ms(known.blocking_ms), _ms(known.pipelined_ms), gains), strict=True):
            row.append(theirs)
    rest = [
        ["gain, whole run with prefill and tail", "", _percent(found.run_gain_percent)],
        ["zombie tax", "", f"{two.zombie_tax_percent:.2f} %"],
        ["bubble", f"{one.bubble_percent:.1f} %", f"{two.bubble_percent:.1f} %"],
        ["tokens per second", f"{one.tokens_per_s:,.0f}", f"{two.tokens_per_s:,.0f}"],
    ]
    rest_head = ["simulated", "depth 1", "depth 2"]
    return f'<div class="cmp-tables">{_table(head, rows)}{_table(rest_head, rest)}</div>'


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    cells = "".join(f"<th>{name}</th>" for name in head)
    body = "".join(
        f"<tr><th>{name}</th>" + "".join(f"<td>{text}</td>" for text in texts) + "</tr>"
        for name, *texts in rows
    )
    return f'<div class="cmp-table"><table><thead><tr>{cells}</tr></thead><tbody>{body}</tbody></table></div>'


def _ms(value: float | None) -> str:
    return "–" if value is None else f"{value:.2f} ms"


def _percent(value: float | None) -> str:
    return "–" if value is None else f"{value:+.1f} %"


def _controls() -> list[Any]:
    """In the order of `Player.play`."""
    gpus = [(f"{cost.name} · {cost.label}", key) for key, cost in PRESETS.items()]
    with gr.Row(elem_id="whatif_controls"):
        gpu = gr.Dropdown(gpus, value="b200", label="GPU", min_width=170, elem_id="whatif_gpu")
        streams = gr.Dropdown(
            list(STREAMS), value=32, label="Streams", min_width=100, elem_id="whatif_streams_n"
        )
        tokens = gr.Slider(1, MAX_TOKENS, 104, step=1, label="Tokens of an answer", elem_id="whatif_tokens")
        task = gr.Dropdown(
            [(name.capitalize(), name) for name in TASKS], value="query", label="Task", min_width=110
        )
        picture = gr.Dropdown(list(PICTURES), value=SMALL, label="Picture", min_width=170)
    with gr.Row(equal_height=True):
        depth = gr.Radio(
            list(DEPTHS), value="both", label="Depth", scale=2, min_width=340, elem_id="whatif_depth"
        )
        view = gr.Radio(
            list(VIEWS), value=STEADY, label="Show", scale=2, min_width=340, elem_id="whatif_view"
        )
        leak = gr.Checkbox(
            False, label="Synchronous mask upload (a sync leak)", elem_id="whatif_leak", min_width=200
        )
    return [gpu, streams, tokens, task, picture, leak, depth, view]
