"""The Compare tab's engine side: controls, presets, and the generator that follows a comparison.

`comparisons.py` runs it; a view that this module does not know draws the two traces. Stop, a new comparison
and a closed tab end the run in the engine at once.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Any, Protocol

import gradio as gr

from photon.lab import Lab
from photon.ui import markup
from photon.ui.comparisons import BEAT_S, Comparisons, Rounds, Take, Turn
from photon.ui.events import AT_ONCE, PAGE, headline
from photon.ui.examples import picked
from photon.ui.lab_controls import Form, Preset, build_controls, preset_cards
from photon.ui.lab_endpoint import compare_endpoint, error_sentence
from photon.ui.session import Session

Updates = dict[Any, Any]
_IDLE = "Ready. Click a preset, or set up two sides and press Compare."


class View(Protocol):
    """Whoever draws: `show` and `document` get A and B of every round, on a worker thread, and block."""

    @property
    def outputs(self) -> list[Any]:
        """The components it updates."""

    def show(self, rounds: Rounds) -> Updates: ...

    def empty(self) -> Updates:
        """While there is nothing to show."""

    def document(self, rounds: Rounds) -> dict[str, Any]:
        """The same for programs, as plain JSON values."""


class LabPanel:
    """Components and events of the tab's upper half. Holds no data of any session."""

    def __init__(self, lab: Lab, presets: Sequence[Preset]) -> None:
        """Build inside the current Blocks context; `wire` it once there is something to show results in."""
        self._lab, self._presets = lab, presets
        self.session = gr.State(Session())
        self.cards = preset_cards(presets)
        self.controls = build_controls()
        self.status = gr.HTML(markup.status("idle", _IDLE), apply_default_css=False, elem_id="lab_status")
        gr.HTML(f'<p class="pw-hint">{cost(lab)}</p>', apply_default_css=False, elem_id="lab_cost")

    def wire(self, take: Take, view: View) -> None:
        """Connect the events, and register the endpoint /compare.

        Args:
            take: called with each run's result right after it, on a worker thread; blocks.
        """
        self._view, self._comparisons = view, Comparisons(self._lab, take)
        compare_endpoint(self._comparisons, view.document)
        c = self.controls
        shown = [self.status, c.run, c.stop, *view.outputs]
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
        preset = picked(self._presets, event._data or {})
        if preset is None:
            return gr.skip()
        return dict(zip(self.controls.inputs, preset.form.values, strict=True))

    def stop(self, session: Session) -> None:
        session.stop()

    async def run(self, session: Session, *values: Any) -> AsyncIterator[Updates]:
        """Compare what the controls say. Each update is the whole of what is shown (see playground.py)."""
        turn, nothing = Turn(session, session.begin()), self._view.empty()
        work = asyncio.ensure_future(self._compare(turn, Form.of(values)))
        try:
            before = ""
            while not work.done():
                if turn.words != before:
                    before = turn.words
                    yield nothing | self._busy(before)
                await asyncio.wait({work}, timeout=BEAT_S)
            if session.turn == turn.number:
                yield nothing | work.result()
        except Exception as error:
            if session.turn == turn.number:
                sentence = error_sentence(error)
                yield nothing | self._ended("error", headline(error), sentence)
                raise gr.Error(sentence, duration=8, print_exception=False) from None
        finally:
            work.cancel()
            session.end(turn.number)

    async def _compare(self, turn: Turn, form: Form) -> Updates:
        """What to show in the end."""
        rounds = await self._comparisons.measure(turn, form)
        if rounds is None:
            return self._ended("stopped", "Stopped", "Nothing is compared.")
        turn.words = "Measuring"
        view = await asyncio.to_thread(self._view.show, rounds)
        words = ". ".join(f"{side.name}: {side.setting}" for side in rounds[0])
        return view | self._ended("done", "Compared", f"{words}.")

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
