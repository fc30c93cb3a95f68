"""A batch: one task on many files, a bounded number at a time, going on from what is kept.

    waiting -> running -> done            kept for the next batch
        |         +-----> error           a sentence; the other files go on
        |         +-----> stopped         by Stop, or because its visitor left
        +-> kept                          known from before: the same bytes, task, prompt and settings

All batches of the page share one Room, so that the rest of the engine's rows stay free for everybody else.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from photon import Engine
from photon.errors import ImageError, InvalidRequestError, QueueFullError
from photon.images import load_image
from photon.ui.ask import SPATIAL, Ask, check_task, split_labels
from photon.ui.exports import Item
from photon.ui.files import SaveError
from photon.ui.kept import Kept
from photon.ui.results import as_json, finish_reason
from photon.ui.runs import Outcome, Run, complete, submit

MAX_FILES = 2000
BUSY_S = 0.5
"""How long a batch holds back while the engine's queue is full."""


@dataclass(frozen=True)
class Job:
    """What is asked about every file."""

    task: str
    prompt: str = ""
    length: str = "normal"
    settings: Mapping[str, Any] = field(default_factory=dict)

    def prompts(self) -> list[str]:
        """One per row of a file: labels run together, questions one by one.

        Raises:
            InvalidRequestError: there is none, or there are too many labels.
        """
        check_task(self.task, self.length)
        if self.task == "caption":
            return [""]
        if not self.prompt.strip():
            raise InvalidRequestError(f"The prompt is empty; say what to {self.task} for.")
        if self.task in SPATIAL:
            split_labels(self.prompt)
            return [self.prompt]
        return [line.strip() for line in self.prompt.splitlines() if line.strip()]

    def asked(self, prompt: str) -> dict[str, Any]:
        """All that a result depends on beside the picture."""
        length = self.length if self.task == "caption" else ""
        return {"task": self.task, "prompt": prompt, "length": length, "settings": dict(self.settings)}


@dataclass
class Row:
    """One file and one prompt."""

    number: int
    file: str
    """The name it came with."""
    path: str
    prompt: str
    state: str = "waiting"
    result: dict[str, Any] | None = None
    error: str = ""

    @property
    def item(self) -> Item:
        return Item(self.file, self.result, self.error)

    def fail(self, sentence: str) -> None:
        self.state, self.error = "error", sentence


def rows_of(files: Sequence[tuple[str, str]], job: Job) -> list[Row]:
    """A row per file and prompt; files are (name, path).

    Raises:
        InvalidRequestError: no file, too many, or a job that can't be done.
    """
    if not files:
        raise InvalidRequestError("There are no pictures; add some files or a folder.")
    pairs = [(name, path, prompt) for name, path in files for prompt in job.prompts()]
    if len(pairs) > MAX_FILES:
        raise InvalidRequestError(f"{len(pairs)} rows are too many for one batch; use at most {MAX_FILES}.")
    return [Row(number, *pair) for number, pair in enumerate(pairs, 1)]


class Room:
    """So many requests of all batches together are in the engine; first come, first served."""

    def __init__(self, size: int) -> None:
        self.size = size
        self._seats = asyncio.Semaphore(size)
        self._door = asyncio.Lock()

    @asynccontextmanager
    async def take(self, count: int) -> AsyncIterator[None]:
        """Wait for seats for `count` requests, or for all of them if that is more."""
        taken = 0
        try:
            async with self._door:  # one at a time, so that no two wait for each other's seats
                while taken < min(count, self.size):
                    await self._seats.acquire()
                    taken += 1
            yield
        finally:
            for _ in range(taken):
                self._seats.release()


class Batch:
    """One batch of one visitor. All but `cancel` on the event loop."""

    def __init__(self, engine: Engine, room: Room, kept: Kept, job: Job, rows: list[Row]) -> None:
        self.job, self.rows = job, rows
        self.note = ""
        """A sentence about what did not stop the batch."""
        self.is_stopped = False
        self.started_ns = engine.device.now_ns()
        self._engine, self._room, self._kept = engine, room, kept
        self._runs: set[Run] = set()

    def cancel(self) -> None:
        """Start no more files, end those in the engine now. Harmless when it is over; from any thread."""
        self.is_stopped = True
        for run in self._runs.copy():
            run.cancel()

    def counts(self) -> Counter[str]:
        """Rows by state."""
        return Counter(row.state for row in self.rows)

    @property
    def elapsed_s(self) -> float:
        return (self._engine.device.now_ns() - self.started_ns) / 1e9

    async def run(self) -> None:
        """Until every file is done or Stop.

        Raises:
            InvalidRequestError: what is asked is wrong for every file.
            EngineDeadError: the engine has ended.
        """
        todo = iter(self.rows)
        try:
            async with asyncio.TaskGroup() as group:
                for _ in range(self._room.size):
                    group.create_task(self._work(todo))
        except ExceptionGroup as group_error:
            raise group_error.exceptions[0] from None
        finally:
            self.cancel()
            for row in self.rows:
                row.state = "stopped" if row.state in ("waiting", "running") else row.state

    async def _work(self, todo: Iterator[Row]) -> None:
        for row in todo:
            if self.is_stopped:
                return
            try:
                await self._do(row)
            except ImageError as error:
                row.fail(str(error))
            except SaveError as error:
                self.note = str(error)

    async def _do(self, row: Row) -> None:
        """One row to its end. Raises ImageError for this file's failure, SaveError with the result there."""
        row.state = "running"
        key = await asyncio.to_thread(self._kept.key, row.path, self.job.asked(row.prompt))
        if known := await asyncio.to_thread(self._kept.get, key):
            row.result, row.state = known, "kept"
            return
        outcome = await self._ask(row)
        if outcome is None or finish_reason(outcome) == "cancelled":
            return
        row.result, row.state = as_json(outcome), "done"
        if outcome.errors:
            row.fail(" ".join(outcome.errors))
        else:
            await asyncio.to_thread(self._kept.put, key, row.result)

    async def _ask(self, row: Row) -> Outcome | None:
        """The answer; None when the batch was stopped before the engine was asked."""
        count = len(split_labels(row.prompt)) if self.job.task in SPATIAL else 1
        async with self._room.take(count):
            image = await asyncio.to_thread(load_image, row.path)
            job = self.job
            ask = Ask(job.task, image, row.prompt, job.length, job.settings)
            while not self.is_stopped:
                try:
                    run = await submit(self._engine, ask)
                except QueueFullError:
                    await asyncio.sleep(BUSY_S)
                    continue
                return await self._complete(run)
        return None

    async def _complete(self, run: Run) -> Outcome:
        self._runs.add(run)
        try:
            if self.is_stopped:
                run.cancel()
            return await complete(run)
        finally:
            self._runs.discard(run)


def files_of(uploads: Sequence[Mapping[str, Any]] | None) -> list[tuple[str, str]]:
    """Name and path of what was uploaded; Gradio has checked that they are uploads of this page."""
    return [
        (str(upload.get("orig_name") or Path(upload["path"]).name), upload["path"])
        for upload in uploads or ()
    ]
