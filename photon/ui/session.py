"""What one browser tab is doing. One Session per tab, in gr.State: made for the session, never shared."""

from __future__ import annotations

from typing import Protocol


class Cancellable(Protocol):
    """What a tab has in an engine."""

    def cancel(self) -> None: ...


class Session:
    """Numbers the turns of a tab. Whatever belongs to an older turn is cancelled and never shown.

    Used on the event loop and on Gradio's threads; each method is a few assignments, and cancelling a
    run twice is harmless.
    """

    def __init__(self) -> None:
        self.turn = 0
        self.run: Cancellable | None = None
        self.stop_asked = False
        self.picture = 0
        self.is_fresh = True
        """No run has begun since the picture was changed."""
        self.size: tuple[int, int] | None = None
        """Width and height of the picture that is shown."""

    def begin(self) -> int:
        """Start a turn: what ran before is cancelled, its late results are dropped."""
        self._cancel()
        self.turn += 1
        self.stop_asked = self.is_fresh = False
        return self.turn

    def new_picture(self) -> None:
        """Another picture, or none: nothing of the old one may stay or arrive later."""
        self.begin()
        self.is_fresh = True
        self.picture += 1
        self.size = None

    def attach(self, turn: int, run: Cancellable) -> None:
        """The turn's requests are in the engine now; Stop may have been pressed before they were."""
        if turn != self.turn:
            run.cancel()
            return
        self.run = run
        if self.stop_asked:
            run.cancel()

    def stop(self) -> None:
        """End the current run, keep what it has."""
        self.stop_asked = True
        if self.run is not None:
            self.run.cancel()

    def end(self, turn: int) -> None:
        """The turn's event is over, for whatever reason: nothing of it may go on in the engine."""
        if turn == self.turn:
            self._cancel()

    def _cancel(self) -> None:
        if self.run is not None:
            self.run.cancel()
        self.run = None
