"""Worker: the engine's one thread, and the inbox through which all others reach it."""

from __future__ import annotations

import contextlib
import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

from photon.errors import EngineDeadError

T = TypeVar("T")
Command = Callable[[], None]


class Worker:
    """Runs commands and ticks, in turn, on one thread.

    Args:
        tick: returns True while there is more to do; an idle worker sleeps until a command comes.
        on_death: called once, on the worker's thread, with the exception that ended it.
        threaded: False runs everything inside `run_until_idle` and `call`, on the caller's thread.
    """

    def __init__(
        self, tick: Callable[[], bool], on_death: Callable[[BaseException], None], *, threaded: bool
    ) -> None:
        self._tick = tick
        self._on_death = on_death
        self._inbox: queue.SimpleQueue[Command] = queue.SimpleQueue()
        self._lock = threading.RLock()  # reentrant: a stream collected inside `post` cancels there
        self._death: BaseException | None = None
        self._thread: threading.Thread | None = None
        if threaded:
            self._thread = threading.Thread(target=self._run, name="photon-engine", daemon=True)
            self._thread.start()

    @property
    def death(self) -> BaseException | None:
        """Why the worker ended, or None while it lives."""
        return self._death

    @property
    def num_pending(self) -> int:
        """Commands that wait for the end of the tick."""
        return self._inbox.qsize()

    def post(self, command: Command) -> None:
        """Have `command` run before the next tick; returns at once. Raises EngineDeadError."""
        with self._lock:  # nothing may enter the inbox behind the death that empties it
            self._check_alive()
            self._inbox.put(command)

    def call(self, function: Callable[[], T]) -> T:
        """Run `function` between two ticks and return its result; blocks. Raises what it raises."""
        if self._thread is None or self._thread is threading.current_thread():
            self._check_alive()
            return function()
        future: Future[T] = Future()

        def run() -> None:
            try:
                self._check_alive()
                future.set_result(function())
            except BaseException as error:
                future.set_exception(error)

        self.post(run)
        while not future.done():
            if self._death is not None and not self._thread.is_alive():
                self._check_alive()
            try:
                return future.result(timeout=0.5)
            except TimeoutError:
                if future.done():
                    raise
        return future.result()

    def run_until_idle(self, *, max_ticks: int | None = None) -> int:
        """Unthreaded only: run commands and ticks until nothing is left; returns the number of ticks."""
        assert self._thread is None, "run_until_idle is for engines without a thread"
        ticks = 0
        while self._drain(block=False) and self._safe_tick():
            ticks += 1
            if max_ticks is not None and ticks >= max_ticks:
                break
        return ticks

    def stop(self, cause: BaseException) -> None:
        """End the worker with `cause` after the current tick and wait for it; idempotent."""
        if self._thread is None or self._thread is threading.current_thread():
            self._die(cause)
            return
        with self._lock:
            if self._death is None:
                self._inbox.put(lambda: self._die(cause))
        self._thread.join()

    def _run(self) -> None:
        is_busy = False
        try:
            while self._drain(block=not is_busy):
                is_busy = self._safe_tick()
        finally:  # whatever ends the thread, nobody may wait for it
            self._die(EngineDeadError("its thread ended"))

    def _drain(self, *, block: bool) -> bool:
        """Run the commands that are there (at least one when `block`); False when the worker has ended.

        Those that come meanwhile are for the next time, or commands without end would keep ticks out.
        """
        try:
            if block and self._death is None:
                self._inbox.get()()
            for _ in range(self._inbox.qsize()):
                if self._death is None:
                    self._inbox.get()()
        except BaseException as error:
            self._die(error)
        return self._death is None

    def _safe_tick(self) -> bool:
        try:
            return self._tick()
        except BaseException as error:
            self._die(error)
            return False

    def _die(self, error: BaseException) -> None:
        with self._lock:
            if self._death is not None:
                return
            self._death = error
        while not self._inbox.empty():  # posted before the death: whoever waits for an answer gets one
            with contextlib.suppress(Exception):
                self._inbox.get()()
        self._on_death(error)

    def _check_alive(self) -> None:
        if self._death is not None:
            raise EngineDeadError.of(self._death)
