"""What the commands that serve share: which port they take, and how they end."""

from __future__ import annotations

import signal
import socket

FIRST_PORT, NUM_PORTS = 7860, 100


def choose_port(host: str, port: int | None) -> int:
    """The port to serve on: the one asked for, or else the first free one.

    Raises:
        OSError: it is busy; the message names the port and the flag.
    """
    if port is not None:
        if _is_free(host, port):
            return port
        raise OSError(f"Port {port} is busy or not allowed; pass another --port.")
    for candidate in range(FIRST_PORT, FIRST_PORT + NUM_PORTS):
        if _is_free(host, candidate):
            return candidate
    last = FIRST_PORT + NUM_PORTS - 1
    raise OSError(f"Ports {FIRST_PORT} to {last} are all busy; pass a free one with --port.")


def _is_free(host: str, port: int) -> bool:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except (OSError, OverflowError):
            return False
    return True


def end_on_signals() -> None:
    """From now on SIGINT and SIGTERM raise KeyboardInterrupt; a script's background job ignores the first."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.default_int_handler)
