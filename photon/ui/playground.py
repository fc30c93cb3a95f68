"""The playground tab: a picture, a task, a prompt; Run and Stop; what came out, drawn and in numbers.

One press of Run is one async generator: it empties what belonged to the run before, submits, follows the
engine at 12 Hz and yields only what changed. Its `finally` cancels whatever is still in the engine, so a
closed tab, a new picture or an error never leaves a request behind. Stop has its own lane and cancels in
the engine, which lets the same generator report the partial result.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import gradio as gr

from photon import Engine
from photon.errors import InvalidRequestError
from photon.images import load_image
from photon.ui import markup, references, results
from photon.ui.about import vocabulary_hint
from photon.ui.ask import WITH_REFS, Ask, check_task
from photon.ui.events import AT_ONCE, PAGE, headline, sentence
from photon.ui.examples import Example, example_cards, picked
from photon.ui.exports import Item
from photon.ui.files import Folder, SaveError
from photon.ui.image_input import is_animated, path_of
from photon.ui.layout import EMPTY_STAGE, View, build_controls, build_depth, build_details, build_result
from photon.ui.runs import Outcome, follow, submit
from photon.ui.session import Session
from photon.ui.stage import Stage, layer
from photon.ui.tasks import prompt_update, settings_from

Updates = dict[Any, Any]
_IDLE = "Ready. Click an example, or add a picture and press Run."
_NO_IMAGE = "There is no picture; drop one in, paste one, or click an example."


class Playground:
    """Components and events of the tab. Holds no data of any session."""

    def __init__(self, engine: Engine, examples: tuple[Example, ...], on_run_js: str) -> None:
        """Build inside the current Blocks context.

        Args:
            on_run_js: a JavaScript function (startNs, endNs), called in the browser after each run with
                the run's window on the device's host clock.
        """
        self._engine = engine
        self._examples = examples
        self.session = gr.State(Session())
        self.cards = example_cards(examples)
        if hint := vocabulary_hint(engine):
            gr.HTML(hint, apply_default_css=False)
        with gr.Row(elem_id="playground", equal_height=False):
            with gr.Column(scale=5, min_width=320, elem_id="controls"):
                self.controls = build_controls()
            with gr.Column(scale=7, min_width=320, elem_id="result"):
                result = build_result(_IDLE)
        self.view = View(*result, *build_details())
        self.depth = build_depth(engine)
        self._wire(on_run_js)

    def _wire(self, on_run_js: str) -> None:
        c, v = self.controls, self.view
        asked = [self.session, c.image, c.task, c.prompt, c.length, c.refs, *c.settings]
        shown = [*v.outputs, c.run, c.stop]
        after = f"(window_ns) => {{ const [a, b] = window_ns.split(','); if (b) ({on_run_js})(a, b); }}"
        run: dict[str, Any] = {"fn": self.run, "inputs": asked, "outputs": shown, "concurrency_limit": None}
        set_by_card = [c.image, c.task, c.prompt, c.length, c.refs, c.clear_refs, v.refs]
        runs = (
            gr.on([c.run.click, c.prompt.submit], **run, **PAGE),
            # Two events: a generator that also sets the picture leaves it without its path in the browser.
            self.cards.click(self.pick, self.session, set_by_card, **AT_ONCE).then(
                **run, trigger_mode="multiple", **PAGE
            ),
        )
        for event in runs:
            event.then(None, v.window, js=after)
        c.stop.click(self.stop, self.session, None, **AT_ONCE)
        picture, emptied = [self.session, c.image], [*shown, c.refs, v.refs]
        new_picture = [c.image.upload, c.image.clear, c.image.input]
        cleared = gr.on(new_picture, self.clear, picture, emptied, cancels=list(runs), **AT_ONCE)
        # Once more: what a cancelled run had sent by then may reach the browser behind the first answer.
        settled = cleared.then(self.settle, picture, emptied, **AT_ONCE)
        Stage(self.session, c, v).wire(settled, AT_ONCE)
        self.depth.input(self.set_depth, self.depth, None, **AT_ONCE)

    # ---- events

    async def run(self, session: Session, file: dict[str, Any] | None, *asked: Any) -> AsyncIterator[Updates]:
        """Run what the controls say."""
        turn = session.begin()
        async for updates in self._turn(session, turn, path_of(file), asked):
            yield updates

    def pick(self, session: Session, event: gr.EventData) -> Updates:
        """Set the controls to the card that was clicked; the run follows."""
        session.new_picture()
        example = picked(self._examples, event._data or {})
        if example is None:
            return gr.skip()
        c = self.controls
        prompt, length, has_refs = prompt_update(example.task, example.prompt)
        session.size = load_image(example.image).size
        return {
            c.image: example.image,
            c.task: example.task,
            c.prompt: prompt | {"value": example.prompt},
            c.length: length | {"value": example.length},
            c.refs: has_refs | {"value": ""},
            c.clear_refs: has_refs,
            self.view.refs: layer(session, example.task, ""),
        }

    def stop(self, session: Session) -> None:
        """End this session's run wherever it is; its generator shows what there is."""
        session.stop()

    def clear(self, session: Session, file: dict[str, Any] | None) -> Updates:
        """Another picture, or none."""
        session.new_picture()
        return self._cleared(file)

    def settle(self, session: Session, file: dict[str, Any] | None) -> Updates:
        """What `clear` said again, unless a run has begun since."""
        return self._cleared(file) if session.is_fresh else gr.skip()

    def get_depth(self) -> int:
        """For a page that is being loaded: somebody may have switched."""
        return self._engine.depth

    def set_depth(self, depth: int) -> None:
        """Switch the whole engine; steps in flight are committed first."""
        self._engine.set_depth(int(depth))

    # ---- one turn

    async def _turn(
        self, session: Session, turn: int, path: str | None, asked: tuple[Any, ...]
    ) -> AsyncIterator[Updates]:
        """The updates of one turn, up to its end or until a newer turn makes them stale.

        Each one is the whole of what is shown: the browser applies differences to an object it may not have
        looked at yet, so an update that the next one leaves out can be lost. On the wire the unchanged
        part costs nothing.
        """
        shown = self._empty()
        try:
            async for updates in self._steps(session, turn, path, asked):
                if session.turn != turn:
                    return
                shown |= updates
                yield dict(shown)
        except Exception as error:
            if session.turn != turn:
                return
            why = sentence(error)
            yield shown | self._failed(headline(error), why)
            raise gr.Error(why, duration=8, print_exception=False) from None
        finally:
            session.end(turn)

    async def _steps(
        self, session: Session, turn: int, path: str | None, asked: tuple[Any, ...]
    ) -> AsyncIterator[Updates]:
        v = self.view
        yield self._busy("Reading the picture")
        task, prompt, length, refs, *settings = asked
        check_task(task, length)
        if path is None:
            raise InvalidRequestError(_NO_IMAGE)
        spatial_refs = references.parse(refs) if task in WITH_REFS else ()
        image = await asyncio.to_thread(load_image, path)
        ask = Ask(task, image, prompt, length, settings_from(*settings), spatial_refs=spatial_refs)
        run = await submit(self._engine, ask)
        session.attach(turn, run)
        yield {v.picture: await asyncio.to_thread(markup.picture, image), v.call: results.python_call(ask)}
        async for outcome in follow(run):
            yield self._marks(outcome) | self._busy(results.progress(outcome))
        outcome = await asyncio.to_thread(run.outcome)
        result = results.as_json(outcome)
        note = " Animated picture: its first frame was used." if is_animated(path) else ""
        yield self._done(outcome, result, note)
        try:
            with Folder() as folder:
                written = await asyncio.to_thread(folder.save_run, image, Item(Path(path).name, result))
                yield {
                    v.downloads[kind]: gr.update(value=file, interactive=True)
                    for kind, file in written.items()
                }
        except SaveError as error:
            yield self._done(outcome, result, f"{note} {error}")

    # ---- what the components show

    def _empty(self) -> Updates:
        v = self.view
        return {
            v.picture: markup.empty_picture(*EMPTY_STAGE),
            v.marks: "",
            v.answer: "",
            v.numbers: "",
            v.json: None,
            v.call: "",
            **dict.fromkeys(v.downloads.values(), gr.update(value=None, interactive=False)),
            v.window: "",
            **self._buttons(running=False),
        }

    def _cleared(self, file: dict[str, Any] | None) -> Updates:
        words = _IDLE if path_of(file) is None else "Reading the picture"
        nothing = {self.controls.refs: "", self.view.refs: "", self.view.status: markup.status("idle", words)}
        return self._empty() | nothing

    def _buttons(self, *, running: bool) -> Updates:
        c = self.controls
        return {c.run: gr.update(interactive=not running), c.stop: gr.update(interactive=running)}

    def _busy(self, words: str) -> Updates:
        return {self.view.status: markup.status("busy", words), **self._buttons(running=True)}

    def _marks(self, outcome: Outcome) -> Updates:
        """What has been found or said so far."""
        v, ask = self.view, outcome.ask
        return {
            v.marks: markup.marks(outcome.found, ask.size, ask.labels) if outcome.found else "",
            v.answer: markup.answer(outcome.text),
        }

    def _done(self, outcome: Outcome, result: dict[str, Any], note: str) -> Updates:
        v = self.view
        reason = results.finish_reason(outcome)
        state = {"cancelled": "stopped", "error": "error"}.get(reason, "done")
        window = results.run_window(outcome.parts)
        return {
            **self._marks(outcome),
            v.status: markup.status(
                state,
                results.amount(outcome),
                results.why_it_ended(outcome) + note,
                results.counts(outcome),
                outcome.ask.labels,
            ),
            v.numbers: markup.numbers(result["metrics"], self._engine.depth),
            v.json: result,
            v.window: f"{window.start_ns},{window.end_ns}" if window else "",
            **self._buttons(running=False),
        }

    def _failed(self, what: str, why: str) -> Updates:
        status = markup.status("error", what, why)
        return {self.view.status: status, **self._buttons(running=False)}
