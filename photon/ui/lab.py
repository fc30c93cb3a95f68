"""The Compare tab's engine side: controls, presets, and the generator that runs one workload twice.

    Compare   read the form -> wait for the lab -> warm up -> A, B, A, B, ... -> show

One comparison at a time has the lab; others wait in line and see how many are before them. Whatever a
run recorded is taken right after it (`take`), and shown by whoever draws (`show`): this module knows
nothing of traces. Stop, a new comparison and a closed tab end the run in the engine at once.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import gradio as gr

from photon.errors import InvalidRequestError, PhotonError
from photon.lab import Lab, Setting
from photon.ui import markup
from photon.ui.lab_controls import AT_ONCE, PAGE, Form, Preset, build_controls, preset_cards
from photon.ui.session import Session
from photon.workload import Workload, WorkloadResult, WorkloadRun

log = logging.getLogger(__name__)

BEAT_S = 0.1
Updates = dict[Any, Any]
_IDLE = "Ready. Click a preset, or set up two sides and press Compare."


class Side(NamedTuple):
    """One side of a finished comparison: "A" or "B", its setting in words, and what `take` returned."""

    name: str
    setting: str
    taken: Any


Take = Callable[[WorkloadResult], Any]
Show = Callable[[Sequence[Sequence[Side]]], Updates]


@dataclass
class Told:
    """How far a comparison has come, in words."""

    words: str


class LabPanel:
    """Components and events of the tab's upper half. Holds no data of any session."""

    def __init__(self, lab: Lab, presets: Sequence[Preset]) -> None:
        """Build inside the current Blocks context; `wire` it once there is something to show results in."""
        self._lab, self._presets = lab, presets
        self._line: list[object] = []
        self.session = gr.State(Session())
        self.cards = preset_cards(presets)
        self.controls = build_controls()
        self.status = gr.HTML(markup.status("idle", _IDLE), apply_default_css=False, elem_id="lab_status")
        gr.HTML(f'<p class="pw-hint">{cost(lab)}</p>', apply_default_css=False, elem_id="lab_cost")

    def wire(self, take: Take, show: Show, empty: Callable[[], Updates], outputs: Sequence[Any]) -> None:
        """Connect the events.

        Args:
            take: called with each run's result right after it, on a worker thread; blocks.
            show: A and B of every round -> updates of `outputs`, on a worker thread; blocks.
            empty: updates of `outputs` while there is nothing to show.
        """
        self._take, self._show, self._empty = take, show, empty
        c = self.controls
        shown = [self.status, c.run, c.stop, *outputs]
        run: dict[str, Any] = {
            "fn": self.run,
            "inputs": [self.session, *c.inputs],
            "outputs": shown,
            "concurrency_limit": None,
            **PAGE,
        }
        c.run.click(**run)
        picked = self.cards.click(self.pick, self.session, c.inputs, **AT_ONCE)
        picked.then(**run, trigger_mode="multiple")
        c.stop.click(self.stop, self.session, None, **AT_ONCE)

    # ---- events

    def pick(self, session: Session, event: gr.EventData) -> Updates:
        """Set the controls to the preset that was clicked; the comparison follows."""
        session.begin()
        index = (event._data or {}).get("index")
        if not isinstance(index, int) or not 0 <= index < len(self._presets):
            return {}
        return dict(zip(self.controls.inputs, self._presets[index].form.values, strict=True))

    def stop(self, session: Session) -> None:
        session.stop()

    async def run(self, session: Session, *values: Any) -> AsyncIterator[Updates]:
        """Compare what the controls say. Each update is the whole of what is shown (see playground.py)."""
        turn, nothing = session.begin(), self._empty()
        told = Told("Reading the picture")
        work = asyncio.ensure_future(self._compare(session, turn, Form.of(values), told))
        try:
            before = ""
            while not work.done():
                if told.words != before:
                    before = told.words
                    yield nothing | self._busy(before)
                await asyncio.wait({work}, timeout=BEAT_S)
            if session.turn == turn:
                yield nothing | work.result()
        except Exception as error:
            if session.turn == turn:
                sentence = _sentence(error)
                headline = "Not run" if isinstance(error, InvalidRequestError) else "Failed"
                yield nothing | self._ended("error", headline, sentence)
                raise gr.Error(sentence, duration=8, print_exception=False) from None
        finally:
            work.cancel()
            session.end(turn)

    # ---- one comparison

    async def _compare(self, session: Session, turn: int, form: Form, told: Told) -> Updates:
        """Wait for the lab, run both sides, and return what to show in the end."""
        settings, num_rounds = form.settings(), form.num_rounds()
        workload = await asyncio.to_thread(form.workload)
        ticket = object()
        self._line.append(ticket)
        try:
            while self._line[0] is not ticket and _goes_on(session, turn):
                before = self._line.index(ticket)
                told.words = f"Waiting: {before} comparison{'s' * (before > 1)} before this one"
                await asyncio.sleep(BEAT_S)
            rounds = await self._rounds(session, turn, (workload, settings, num_rounds), told)
        finally:
            self._line.remove(ticket)
        if not _goes_on(session, turn):
            return self._ended("stopped", "Stopped", "Nothing is compared.")
        told.words = "Measuring"
        view = await asyncio.to_thread(self._show, rounds)
        words = ". ".join(f"{side.name}: {side.setting}" for side in rounds[0])
        return view | self._ended("done", "Compared", f"{words}.")

    async def _rounds(
        self, session: Session, turn: int, what: tuple[Workload, tuple[Setting, Setting], int], told: Told
    ) -> list[list[Side]]:
        """Warm up; then A and B in turn, so that both meet the same machine. Incomplete when stopped."""
        workload, settings, num_rounds = what
        told.words = "Warming up" if self._lab.is_open else "Opening the engine for comparisons"
        await asyncio.to_thread(self._lab.open)
        told.words = "Warming up"
        for setting in settings:
            await self._play(session, turn, self._lab.warm_up, workload, setting)
        rounds: list[list[Side]] = [[] for _ in range(num_rounds)]
        for number, sides in enumerate(rounds, 1):
            for name, setting in zip("AB", settings, strict=True):
                told.words = f"Round {number} of {num_rounds}, {name}: {setting}"
                if result := await self._play(session, turn, self._lab.run, workload, setting):
                    sides.append(Side(name, str(setting), await asyncio.to_thread(self._take, result)))
        return rounds

    async def _play(
        self, session: Session, turn: int, start: Callable[..., WorkloadRun], *what: Any
    ) -> WorkloadResult | None:
        """One run; None when it was stopped."""
        if not _goes_on(session, turn):
            return None
        run = await asyncio.to_thread(start, *what)
        try:
            session.attach(turn, run)
            result = await asyncio.to_thread(run.finish)
        finally:
            run.cancel()
        return result if _goes_on(session, turn) else None

    # ---- what the components show

    def _busy(self, words: str) -> Updates:
        return {self.status: markup.status("busy", words), **self._buttons(running=True)}

    def _ended(self, state: str, headline: str, detail: str) -> Updates:
        return {self.status: markup.status(state, headline, detail), **self._buttons(running=False)}

    def _buttons(self, *, running: bool) -> Updates:
        c = self.controls
        return {c.run: gr.update(interactive=not running), c.stop: gr.update(interactive=running)}


def cost(lab: Lab) -> str:
    """What a second engine takes, said before it is opened."""
    size = lab.memory_bytes / 1e6
    words = f"{size / 1000:.1f} GB" if size >= 1000 else f"{size:.0f} MB"
    return (
        "Comparisons run on an engine of their own, so that nobody else's request is touched. It opens at "
        f"the first comparison, takes about {words} of memory for weights and KV pages, and is kept."
    )


def _goes_on(session: Session, turn: int) -> bool:
    """Neither was Stop pressed, nor did a newer comparison take this one's place."""
    return session.turn == turn and not session.stop_asked


def _sentence(error: Exception) -> str:
    """What to tell the person; the details of anything unexpected go to the log only."""
    if isinstance(error, (PhotonError, ValueError)):
        return str(error)
    log.exception("a comparison failed unexpectedly", exc_info=error)
    return "Something unexpected went wrong; the server's log has the details. Try again."
