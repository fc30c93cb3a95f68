"""The host's end of the cpu device's worker process: its pipes, its memory, its death.

Owns the process and every file descriptor; `close`, garbage collection and the interpreter's exit all end
in one `_stop`. Knows nothing of streams and events. One thread (the engine's), except `close`.
"""

from __future__ import annotations

import contextlib
import io
import json
import mmap
import os
import pickle
import select
import subprocess
import sys
import tempfile
import weakref
from typing import Any

from photon.device.failures import CLOSED
from photon.device.worker import FAILED, LOAD, RAISED, RESULT, TABLE_BYTES, FrameReader, frame, write_all
from photon.errors import DeviceError

_PIPE_BYTES = 1 << 20
# Ctrl-C reaches the worker too, but is the host's to handle: it closes the pipe
_BOOT = """
import json, signal, sys
signal.signal(signal.SIGINT, signal.SIG_IGN)
sys.path[:] = json.loads(sys.argv[1])
from photon.device.worker import main
main({})
"""


class WorkerLink:
    """Starts the worker at once; it imports torch while the host goes on.

    Attributes:
        table: the shared int64 words (worker.TABLE_BYTES).
        failure: why nothing will run any more, in one sentence; None while all is well.

    Raises:
        DeviceError: the process could not be started.
    """

    def __init__(self) -> None:
        self.failure: str | None = None
        self._result: tuple[Any, ...] | None = None
        self._memory_fd = _open_memory()
        os.ftruncate(self._memory_fd, TABLE_BYTES)
        self.table = memoryview(mmap.mmap(self._memory_fd, TABLE_BYTES)).cast("q")
        self._memory_bytes = TABLE_BYTES
        self._buffers: dict[int, tuple[int, int]] = {}
        self.process, self._command_fd, reply_fd = _start_worker(self._memory_fd)
        fds = self._command_fd, reply_fd, self._memory_fd
        self._stop = weakref.finalize(self, _stop_worker, self.process, *fds)
        self._replies = FrameReader(reply_fd)
        self._poller = select.poll()
        self._poller.register(reply_fd, select.POLLIN)

    def host_buffer(self, num_bytes: int) -> Any:
        """A zeroed uint8 tensor on memory that the worker maps too; lives as long as the tensor."""
        import torch

        self.check()
        offset = self._memory_bytes
        self._memory_bytes += -(-num_bytes // mmap.ALLOCATIONGRANULARITY) * mmap.ALLOCATIONGRANULARITY
        os.ftruncate(self._memory_fd, self._memory_bytes)
        tensor = torch.frombuffer(mmap.mmap(self._memory_fd, num_bytes, offset=offset), dtype=torch.uint8)
        self._buffers[tensor.data_ptr()] = (offset, num_bytes)
        return tensor

    def load(self, spec: Any, num_threads: int, is_metered: bool) -> None:
        file = io.BytesIO()
        _SpecPickler(file, self._buffers).dump(spec)
        self.exchange((LOAD, file.getvalue(), num_threads, is_metered))

    def send(self, message: tuple[Any, ...]) -> None:
        """Give the worker one command. A dead worker is not noticed here but at the next `receive`."""
        data = frame(message)
        if not self._stop.alive:
            raise DeviceError(CLOSED)
        with contextlib.suppress(OSError):  # dead, or closed this moment by another thread
            write_all(self._command_fd, data)

    def exchange(self, message: tuple[Any, ...]) -> Any:
        """Send a command that has an answer, block for it and return it."""
        self.check()
        self._result = None
        self.send(message)
        while self._result is None:
            self.check()
            self.receive()
        kind, value = self._result
        if kind == RAISED:
            raise DeviceError(value)
        return pickle.loads(value)

    def receive(self) -> None:
        """Block for a reply, or until the worker is dead: afterwards look again at table and failure."""
        try:
            if self._poller.poll(1000):
                for message in self._replies.read():
                    self._take(message)
            elif self.process.poll() is not None:
                self._mourn()
        except (EOFError, OSError):  # OSError: closed by another thread
            self._mourn()

    def check(self) -> None:
        """Raise DeviceError when nothing will run any more."""
        if self.failure is not None:
            raise DeviceError(self.failure)

    def close(self) -> None:
        """Idempotent. Work that has not begun never runs."""
        self.failure = CLOSED
        self._stop()

    def _take(self, message: tuple[Any, ...]) -> None:
        if message[0] == FAILED:
            self.failure = message[1]
        elif message[0] in (RESULT, RAISED):
            self._result = message

    def _mourn(self) -> None:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(1.0)
        code = self.process.returncode
        self.failure = self.failure or f"The cpu worker process died (exit code {code})."


class _SpecPickler(pickle.Pickler):
    """Pickles a spec; its host buffers, and views of them, as references into the shared memory."""

    def __init__(self, file: io.BytesIO, buffers: dict[int, tuple[int, int]]) -> None:
        super().__init__(file)
        self._buffers = buffers  # address -> (offset in the memory, bytes)

    def persistent_id(self, value: Any) -> Any:
        import torch

        if not isinstance(value, torch.Tensor):
            return None
        place = self._buffers.get(value.untyped_storage().data_ptr())
        if place is None:
            return None
        return (*place, value.dtype, value.storage_offset(), tuple(value.shape), value.stride())


def _open_memory() -> int:
    """A file descriptor of memory that has no name, so that nothing is left when all who map it are gone."""
    if hasattr(os, "memfd_create"):
        return os.memfd_create("photon")
    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())


def _start_worker(memory_fd: int) -> tuple[subprocess.Popen[bytes], int, int]:
    """Start the process; return it, the command pipe's end to write and the reply pipe's end to read.

    A plain interpreter and not `multiprocessing`: that would import the host's `__main__` (the page and
    gradio) in the worker. It gets the host's sys.path instead.
    """
    import fcntl  # not on Windows, where the class above cannot be used but this module is imported

    command_in, command_out = os.pipe()
    reply_in, reply_out = os.pipe()
    with contextlib.suppress(AttributeError, OSError):  # not on macOS; or a limit: 64 KiB do as well
        fcntl.fcntl(command_out, fcntl.F_SETPIPE_SZ, _PIPE_BYTES)
    fds = (command_in, reply_out, memory_fd)
    boot = _BOOT.format(", ".join(map(str, fds)))
    command = [sys.executable, "-c", boot, json.dumps(sys.path)]
    try:
        process = subprocess.Popen(command, pass_fds=fds, stdin=subprocess.DEVNULL)
    except OSError as error:
        raise DeviceError(f"The cpu worker process could not be started: {error}") from error
    finally:
        os.close(command_in)
        os.close(reply_out)
    return process, command_out, reply_in


def _stop_worker(process: subprocess.Popen[bytes], command_fd: int, reply_fd: int, memory_fd: int) -> None:
    """Close the pipe, which ends the worker; kill it when it has not noticed in half a second."""
    os.close(command_fd)
    try:
        process.wait(0.5)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    os.close(reply_fd)
    os.close(memory_fd)
