"""HostWaits: what a device says whenever the host has waited for it; one branch where nobody listens."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")


class HostWaits:
    """One per device, shared by its streams and events.

    Attributes:
        now_ns: the device's host clock.
        on_wait: called as on_wait(call, start_ns) on the waiting thread behind every wait, whether or not
            there was something to wait for and also when it raised. A wait inside another is reported
            first. Must not raise.
    """

    def __init__(self, now_ns: Callable[[], int]) -> None:
        self.now_ns = now_ns
        self.on_wait: Callable[[str, int], None] | None = None


def blocks_host(call: str) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Decorates a method in which the host waits for the device; its object has `waits`, a HostWaits.

    Args:
        call: its name in the words of the protocol: "Event.synchronize", "Device.call".
    """

    def decorate(method: Callable[P, R]) -> Callable[P, R]:
        @functools.wraps(method)
        def waiting(*args: P.args, **kwargs: P.kwargs) -> R:
            owner: Any = args[0]
            waits: HostWaits = owner.waits
            if waits.on_wait is None:
                return method(*args, **kwargs)
            start_ns = waits.now_ns()
            try:
                return method(*args, **kwargs)
            finally:
                waits.on_wait(call, start_ns)

        return waiting

    return decorate
