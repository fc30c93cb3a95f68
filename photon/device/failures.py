"""The sentences of a DeviceError, the same on every device, and a failure that stays."""

from __future__ import annotations

import contextlib
import traceback
from collections.abc import Iterator

from photon.errors import DeviceError

CLOSED = "The device is closed."
NOT_RECORDED = "synchronize() on an event that was never recorded"
NO_TIME = "time_ns() needs an event with timing=True whose last record is reached"


def describe(error: BaseException) -> str:
    """The exception in one line: its type and message."""
    return " ".join("".join(traceback.format_exception_only(error)).split())


def program_failed(program: str, error: BaseException) -> str:
    return f"Program {program!r} failed on the device: {describe(error)}"


def build_failed(error: BaseException) -> str:
    return f"The runner could not be built: {describe(error)}"


def cuda_failed(error: BaseException) -> str:
    return f"CUDA failed: {describe(error)}"


class StickyFailure:
    """The first failure of a device, and whether it is closed: after either, nothing runs any more."""

    def __init__(self) -> None:
        self._failure: str | None = None
        self._is_closed = False

    def is_accepting(self) -> bool:
        """Whether work still runs (no failure). Raises DeviceError on a closed device."""
        if self._is_closed:
            raise DeviceError(CLOSED)
        return self._failure is None

    def check(self) -> None:
        """Raise DeviceError when nothing will run any more."""
        if not self.is_accepting():
            raise DeviceError(self._failure)

    def fail(self, sentence: str) -> None:
        """Remember the first failure; all that follow are its consequences."""
        self._failure = self._failure or sentence

    @contextlib.contextmanager
    def errors(self) -> Iterator[None]:
        """Turn errors of CUDA (RuntimeError in torch) into the failure, raised here."""
        try:
            yield
        except RuntimeError as error:
            self.fail(cuda_failed(error))
            raise DeviceError(self._failure) from error
