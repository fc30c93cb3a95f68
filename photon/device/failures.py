"""The sentences of a DeviceError, the same on every device."""

from __future__ import annotations

import traceback

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
