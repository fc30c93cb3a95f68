"""The Batch tab: many files or a folder, one task; a table of results, a picture per row, downloads of all.

Run is one async generator that looks at the batch four times a second. Closing the tab, Stop, or a lost
connection ends what is in the engine; what was done by then is kept (see kept.py), for a browser that comes
back with the same files. Downloads are made when asked for.
"""

from __future__ import annotations

import asyncio
import textwrap
from collections.abc import AsyncIterator, Iterator
from functools import partial
from typing import Any

import gradio as gr
from PIL import Image

from photon import Engine
from photon.errors import PhotonError
from photon.images import load_image
from photon.ui import markup
from photon.ui.ask import RESULT_KEY, SPATIAL
from photon.ui.batch_layout import HINT, build_controls, build_view, columns_of, label_of
from photon.ui.batch_run import Batch, Job, Room, Row, files_of, rows_of
from photon.ui.events import AT_ONCE, PAGE, headline, sentence
from photon.ui.exports import answer_of, in_words
from photon.ui.files import Folder, burnt_in, kinds_for
from photon.ui.kept import Home, valid
from photon.ui.session import Session
from photon.ui.tasks import prompt_update, settings_from

BEAT_S = 0.25
BEATS_PER_TABLE = 4
Updates = dict[Any, Any]
# The file is there once the event has ended; the link of a hidden button takes it to the browser.
_DOWNLOAD = "() => setTimeout(() => document.querySelector('#batch_file')?.click(), 100)"


class BatchSession(Session):
    """What one browser tab has of batches: the last one."""

    def __init__(self) -> None:
        super().__init__()
        self.batch: Batch | None = None


class BatchTab:
    """Components and events of the tab. Holds no data of any session, but for the results kept on disk."""

    def __init__(self, engine: Engine, demo: gr.Blocks, token: gr.BrowserState) -> None:
        """Build inside the current Blocks context.

        Args:
            token: the browser's key to what is kept for it. It lies outside of all tabs: what is in one is
                not read before the tab is opened.
        """
        self._engine, self._home = engine, Home()
        # Half of the rows: the other half answers everybody else without waiting for a batch.
        self._room = Room(max(1, engine.config.max_batch_size // 2))
        self.session = gr.State(BatchSession())
        self.token = token
        gr.HTML(f'<p class="pw-hint">{HINT}</p>', apply_default_css=False)
        with gr.Row(elem_id="batch", equal_height=False):
            with gr.Column(scale=4, min_width=320):
                self.controls = build_controls()
            with gr.Column(scale=8, min_width=320):
                self.view = build_view()
        self._wire(demo)

    def _wire(self, demo: gr.Blocks) -> None:
        c, v = self.controls, self.view
        demo.load(valid, self.token, self.token, **AT_ONCE)
        asked = [self.session, self.token, c.files, c.task, c.prompt, c.length, *c.settings]
        shown = [v.status, v.table, *v.saves.values(), c.run, c.stop]
        c.run.click(self.run, asked, shown, concurrency_limit=None, **PAGE)
        c.stop.click(self.stop, self.session, None, **AT_ONCE)
        c.task.input(self.choose, [c.task, c.prompt], [c.prompt, c.length], **AT_ONCE)
        c.folder.upload(self.add, [c.files, c.folder], c.files, **AT_ONCE)
        looked_at = [v.picture, v.marks, v.about, v.answer]
        v.table.select(self.look, self.session, looked_at, **AT_ONCE)
        for kind, button in v.saves.items():
            saved = button.click(
                partial(self.save, kind), self.session, v.file, concurrency_limit=None, **PAGE
            )
            saved.success(None, None, None, js=_DOWNLOAD)

    # ---- events

    def choose(self, task: str, prompt: str) -> tuple[dict[str, Any], ...]:
        """The controls follow the task."""
        prompt_shown, length, _ = prompt_update(task, prompt)
        return prompt_shown | {"label": label_of(task)}, length

    def add(self, files: list[dict[str, Any]] | None, folder: Any) -> list[str]:
        """A folder's files behind those that are there."""
        return [path for _, path in files_of([*(files or ()), *(folder or ())])]

    def stop(self, session: BatchSession) -> None:
        session.stop()

    async def run(self, session: BatchSession, token: str, files: Any, *asked: Any) -> AsyncIterator[Updates]:
        """Run the batch. Each update is the whole of what is shown (see playground.py)."""
        turn, work = session.begin(), None
        shown = self._state("busy", "Reading the list of files", running=True)
        try:
            yield dict(shown)
            task, prompt, length, *settings = asked
            job = Job(task, prompt, length, settings_from(*settings))
            kept = await asyncio.to_thread(self._home.of, token)
            batch = Batch(self._engine, self._room, kept, job, rows_of(files_of(files), job))
            session.batch = batch
            session.attach(turn, batch)
            work = asyncio.ensure_future(batch.run())
            async for now in self._follow(batch, work):
                shown |= now
                yield dict(shown)
            work.result()
            yield shown | self._ended(batch)
        except Exception as error:
            why = sentence(error)
            results = {} if work is None else self._results(batch)
            yield shown | results | self._state("error", headline(error), why)
            raise gr.Error(why, duration=8, print_exception=False) from None
        finally:
            if work is not None:
                work.cancel()
            session.end(turn)

    async def _follow(self, batch: Batch, work: asyncio.Future[None]) -> AsyncIterator[Updates]:
        beat, before = 0, None
        while not work.done():
            counts = batch.counts()
            if counts != before or beat % BEATS_PER_TABLE == 0:
                before = counts
                update = self._state("busy", progress(batch), running=True)
                yield update | ({self.view.table: table(batch)} if beat % BEATS_PER_TABLE == 0 else {})
            await asyncio.wait({work}, timeout=BEAT_S)
            beat += 1

    async def look(self, session: BatchSession, event: gr.SelectData) -> Updates:
        """Show the picture of the row that was clicked."""
        row, v = _row(session, event), self.view
        if row is None:
            return gr.skip()
        try:
            image = await asyncio.to_thread(load_image, row.path)
            picture = await asyncio.to_thread(markup.picture, image)
        except PhotonError as error:
            picture = markup.empty_picture(row.error or str(error))
        return {
            v.picture: picture,
            v.marks: _marks(row),
            v.about: _about(row),
            v.answer: markup.answer(answer_of(row.result or {})),
        }

    def save(self, kind: str, session: BatchSession) -> Iterator[Updates]:
        """Make a file of everything there is by now. Blocks while it is written."""
        rows = session.batch.rows if session.batch else []
        try:
            with Folder() as folder:
                if kind == "png":
                    path = folder.save_pictures(_drawn(rows))
                else:
                    path = folder.save(kind, [row.item for row in rows])
                yield {self.view.file: gr.update(value=path)}
        except Exception as error:
            raise gr.Error(sentence(error), duration=8, print_exception=False) from None

    # ---- what the components show

    def _state(self, state: str, headline: str, detail: str = "", *, running: bool = False) -> Updates:
        c = self.controls
        return {
            self.view.status: markup.status(state, headline, detail),
            c.run: gr.update(interactive=not running),
            c.stop: gr.update(interactive=running),
        }

    def _ended(self, batch: Batch) -> Updates:
        counts = batch.counts()
        state = "stopped" if counts["stopped"] else "error" if counts["error"] else "done"
        what = "Stopped; press Run to go on" if counts["stopped"] else "Done"
        return self._results(batch) | self._state(state, f"{what}: {progress(batch)}", batch.note)

    def _results(self, batch: Batch) -> Updates:
        """The table as it is in the end, and what can be saved."""
        kinds = kinds_for(batch.job.task) if any(row.result for row in batch.rows) else ()
        buttons = {b: gr.update(interactive=kind in kinds) for kind, b in self.view.saves.items()}
        return {**buttons, self.view.table: table(batch)}


def progress(batch: Batch) -> str:
    """How far a batch has come."""
    counts, total = batch.counts(), len(batch.rows)
    ready = counts["done"] + counts["kept"] + counts["error"]
    parts = [f"{ready} of {total}"]
    if counts["kept"]:
        parts.append(f"{counts['kept']} known from before")
    if counts["error"]:
        parts.append(f"{counts['error']} with an error")
    if counts["done"]:
        parts.append(f"{counts['done'] / max(batch.elapsed_s, 1e-3):.1f} per second")
    return " · ".join(parts)


def table(batch: Batch) -> dict[str, Any]:
    """The rows as the table shows them; columns that a task has no use for are left out."""
    columns = columns_of(batch.job.task)
    cells = [_cells(row) for row in batch.rows]
    return gr.update(
        value={"headers": list(columns), "data": [[line[name] for name in columns] for line in cells]},
        column_widths=list(columns.values()),
    )


def _cells(row: Row) -> dict[str, Any]:
    result = row.result or {}
    ms = result.get("metrics", {}).get("total_ms")
    return {
        "#": row.number,
        "file": row.file,
        "question": row.prompt,
        "found": in_words(result),
        "answer": answer_of(result),
        "ms": "" if ms is None else round(ms),
        "state": textwrap.shorten(row.error, 60, placeholder=" …") if row.error else row.state,
    }


def _row(session: BatchSession, event: gr.SelectData) -> Row | None:
    """The row that an event names; None for anything else a browser may send."""
    try:
        number = int(event.row_value[0])
    except (TypeError, ValueError, IndexError, KeyError, AttributeError):
        return None
    rows = session.batch.rows if session.batch else []
    return rows[number - 1] if 0 < number <= len(rows) else None


def _marks(row: Row) -> str:
    result = row.result or {}
    if result.get("task") not in SPATIAL:
        return ""
    places = result[RESULT_KEY[result["task"]]]
    found = {label: [p["normalized"] for p in places if p["label"] == label] for label in result["count"]}
    size = (result["image"]["width"], result["image"]["height"])
    return markup.marks(found, size, result["labels"])


def _about(row: Row) -> str:
    result = row.result or {}
    state = "error" if row.error else "done" if result else "idle"
    counts = {label: f"{count} {label}" for label, count in result.get("count", {}).items()}
    return markup.status(
        state, f"{row.number} · {row.file}", row.error or ", ".join(counts.values()) or row.prompt
    )


def _drawn(rows: list[Row]) -> Iterator[tuple[str, Image.Image]]:
    """Every picture that has a result, with its marks, one at a time."""
    return ((row.file, burnt_in(load_image(row.path), row.result)) for row in rows if row.result)
