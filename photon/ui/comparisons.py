"""Comparisons: one workload at two settings, round by round, one comparison at a time.

    wait in line -> warm up -> A, B, A, B, ...

Whatever a run recorded is taken right after it (`take`): this module knows nothing of traces. Stop, a
newer turn of the session and a cancelled task end the run in the engine at once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

from photon.lab import Lab, Setting
from photon.ui.lab_controls import Form
from photon.ui.session import Session
from photon.workload import Workload, WorkloadResult, WorkloadRun

BEAT_S = 0.1
Take = Callable[[WorkloadResult], Any]


class Side(NamedTuple):
    """One side of a round: "A" or "B", its setting in words, and what `take` returned."""

    name: str
    setting: str
    taken: Any


Rounds = list[list[Side]]


@dataclass
class Turn:
    """One comparison of a session; `words` say how far it has come."""

    session: Session
    number: int
    words: str = "Reading the picture"

    @property
    def goes_on(self) -> bool:
        """Neither was Stop pressed, nor did a newer turn take this one's place."""
        return self.session.turn == self.number and not self.session.stop_asked


class Comparisons:
    """Those of one lab; used on one event loop.

    Args:
        take: called with each run's result right after it, on a worker thread; blocks.
    """

    def __init__(self, lab: Lab, take: Take) -> None:
        self._lab, self._take = lab, take
        self._line: list[object] = []

    async def measure(self, turn: Turn, form: Form) -> Rounds | None:
        """A and B of every round; None when it was stopped.

        Raises:
            InvalidRequestError: the form is wrong, or the model cannot take the workload.
            DeviceError, EngineDeadError, RequestFailedError: the lab failed.
        """
        settings, num_rounds = form.settings(), form.num_rounds()
        workload = await asyncio.to_thread(form.workload)
        ticket = object()
        self._line.append(ticket)
        try:
            while self._line[0] is not ticket and turn.goes_on:
                before = self._line.index(ticket)
                turn.words = f"Waiting: {before} comparison{'s' * (before > 1)} before this one"
                await asyncio.sleep(BEAT_S)
            rounds = await self._rounds(turn, workload, settings, num_rounds)
        finally:
            self._line.remove(ticket)
        return rounds if turn.goes_on else None

    async def _rounds(
        self, turn: Turn, workload: Workload, settings: tuple[Setting, Setting], num_rounds: int
    ) -> Rounds:
        """Warm up; then A and B in turn, so that both meet the same machine. Incomplete when stopped."""
        turn.words = "Warming up" if self._lab.is_open else "Opening the engine for comparisons"
        await asyncio.to_thread(self._lab.open)
        turn.words = "Warming up"
        for setting in settings:
            await self._play(turn, self._lab.warm_up, workload, setting)
        rounds: Rounds = [[] for _ in range(num_rounds)]
        for number, sides in enumerate(rounds, 1):
            for name, setting in zip("AB", settings, strict=True):
                turn.words = f"Round {number} of {len(rounds)}, {name}: {setting}"
                if result := await self._play(turn, self._lab.run, workload, setting):
                    sides.append(Side(name, str(setting), await asyncio.to_thread(self._take, result)))
        return rounds

    async def _play(self, turn: Turn, start: Callable[..., WorkloadRun], *what: Any) -> WorkloadResult | None:
        """One run; None when it was stopped."""
        if not turn.goes_on:
            return None
        run = await asyncio.to_thread(start, *what)
        try:
            turn.session.attach(turn.number, run)
            result = await asyncio.to_thread(run.finish)
        finally:
            run.cancel()
        return result if turn.goes_on else None
