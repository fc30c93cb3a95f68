"""The worker process of the cpu device: it owns the runner and executes both streams.

    host  ----- commands (pipe) ----->  [ deque of compute | deque of copy ]  one executor loop
    host  <---- wakes, results (pipe) -
    host  <===> shared memory: items done per stream, event times, host buffers

The loop lets records and met waits pass, takes in whatever the host has sent, then runs one program: the
copy stream's head if it may run, else the compute stream's. So copies run between two pieces of compute
work, on the same core (a laptop has no copy engine), and nothing is ever run out of a stream's order.
Every item of a stream has a number; "record r of an event is reached" is "items done of its stream >= r",
so an event that is recorded again can never be mistaken for its earlier self.

The host asks to be woken for a number only when it is about to block. The loop publishes a number before
it looks for commands, and the host looks at the number after it has sent the command, so no wake is lost.

A program that raises stops both streams for good, as an error in CUDA does; the traceback goes to stderr,
one line of it to the host. When the command pipe closes, for whatever reason, the process ends at once.
"""

from __future__ import annotations

import gc
import io
import marshal
import mmap
import os
import pickle
import select
import struct
import time
import traceback
from collections import deque
from collections.abc import Iterator
from typing import Any

from photon.device.failures import build_failed, program_failed

WORK, RECORD, WAIT, NOTIFY, CALL, LOAD = range(6)
"""Commands: (WORK, stream, program, args), (RECORD, stream, cell), (WAIT, stream, other, number),
(NOTIFY, stream, number), (CALL, program, args), (LOAD, pickled spec, torch threads, is metered)."""

WAKE, FAILED, RESULT, RAISED = range(4)
"""Replies: (WAKE,), (FAILED, sentence), (RESULT, pickled value), (RAISED, sentence)."""

TABLE_BYTES = 1 << 17
"""int64 words: items done on compute, on copy, then two time cells (one per stream) per timing event; in the
second half, when metered, as many for the CPU time that the worker's thread had used by then."""
NUM_STREAMS = 2
CPU_CELLS = TABLE_BYTES // 8 // 2
MAX_TIMING_EVENTS = CPU_CELLS // NUM_STREAMS - 1
NO_CELL = -1

_LENGTH = struct.Struct("<I")


def frame(message: tuple[Any, ...]) -> bytes:
    """A message as bytes. Raises ValueError for what marshal does not know (numpy ints, enums, ...)."""
    payload = marshal.dumps(message)
    return _LENGTH.pack(len(payload)) + payload


def write_all(fd: int, data: bytes) -> None:
    """os.write until all is written: a pipe takes large data in parts."""
    written = os.write(fd, data)
    while written < len(data):
        written += os.write(fd, data[written:])


class FrameReader:
    """Splits the bytes of a pipe into messages again."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._rest = b""

    def read(self) -> Iterator[tuple[Any, ...]]:
        """Block for at least one byte, yield the messages that are complete. Raises EOFError at the end."""
        data = os.read(self._fd, 1 << 16)
        if not data:
            raise EOFError
        data = self._rest + data
        begin, size = 0, len(data)
        while size - begin >= 4:
            end = begin + 4 + _LENGTH.unpack_from(data, begin)[0]
            if end > size:
                break
            yield marshal.loads(data[begin + 4 : end])
            begin = end
        self._rest = data[begin:]


class _SpecUnpickler(pickle.Unpickler):
    """Turns references to host buffers into tensors on the shared memory (see link._SpecPickler)."""

    def __init__(self, data: bytes, memory_fd: int) -> None:
        super().__init__(io.BytesIO(data))
        self._memory = mmap.mmap(memory_fd, 0)

    def persistent_load(self, reference: Any) -> Any:
        import torch

        offset, num_bytes, dtype, *geometry = reference
        base = torch.frombuffer(self._memory, dtype=torch.uint8, count=num_bytes, offset=offset)
        return torch.empty(0, dtype=dtype).set_(base.untyped_storage(), *geometry)


class Executor:
    """Takes commands in, runs both streams, tells the host. One thread."""

    def __init__(self, command_fd: int, reply_fd: int, memory_fd: int) -> None:
        self._reply_fd, self._memory_fd = reply_fd, memory_fd
        self._commands = FrameReader(command_fd)
        self._poller = select.poll()
        self._poller.register(command_fd, select.POLLIN)
        self._table = memoryview(mmap.mmap(memory_fd, TABLE_BYTES)).cast("q")
        self._queues: tuple[deque[Any], deque[Any]] = (deque(), deque())
        self._done = [0, 0]
        self._waiters = [0, 0]  # per stream, the number the host blocks for; 0: it does not
        self._runner: Any = None
        self._failed = self._is_metered = False

    def serve(self) -> None:
        """Run until the host closes the command pipe: raises EOFError then."""
        while True:
            if self._settle() is None or self._poller.poll(0):
                for command in self._commands.read():
                    self._take(command)
            stream = self._settle()
            if stream is not None:
                self._run_head(stream)

    def _settle(self) -> int | None:
        """Let records and met waits pass; return the stream whose program runs next, if any may run."""
        done, moved = self._done, True
        while moved:
            moved = False
            for stream in (1, 0):
                queue = self._queues[stream]
                while queue and queue[0][0] != WORK:
                    item = queue[0]
                    if item[0] == RECORD:
                        if item[2] != NO_CELL:
                            self._table[item[2]] = time.perf_counter_ns()
                            if self._is_metered:
                                self._table[item[2] + CPU_CELLS] = time.thread_time_ns()
                    elif done[item[2]] < item[3]:
                        break
                    queue.popleft()
                    self._publish(stream)
                    moved = True
        for stream in (1, 0):
            if self._queues[stream] and self._queues[stream][0][0] == WORK:
                return stream
        return None

    def _publish(self, stream: int) -> None:
        self._done[stream] = self._table[stream] = number = self._done[stream] + 1
        if 0 < self._waiters[stream] <= number:
            self._waiters[stream] = 0
            self._reply((WAKE,))

    def _run_head(self, stream: int) -> None:
        _, _, program, args = self._queues[stream].popleft()
        try:
            self._run(program, args)
        except Exception as error:
            self._fail(program_failed(program, error))
        else:
            self._publish(stream)

    def _run(self, program: str, args: tuple[Any, ...]) -> Any:
        if self._runner is None:
            raise RuntimeError("no runner is loaded")
        return getattr(self._runner, program)(*args)

    def _fail(self, sentence: str) -> None:
        traceback.print_exc()
        self._failed = True
        for queue in self._queues:
            queue.clear()
        self._reply((FAILED, sentence))

    def _take(self, command: tuple[Any, ...]) -> None:
        kind = command[0]
        if kind <= WAIT:
            if not self._failed:
                self._queues[command[1]].append(command)
        elif kind == NOTIFY:
            self._notify(*command[1:])
        elif kind == CALL:
            self._call(*command[1:])
        else:
            self._load(*command[1:])

    def _notify(self, stream: int, number: int) -> None:
        if self._done[stream] >= number:
            self._reply((WAKE,))
        else:
            self._waiters[stream] = number

    def _call(self, program: str, args: tuple[Any, ...]) -> None:
        """Run at once: the host has waited for both streams."""
        try:
            reply: tuple[Any, ...] = (RESULT, pickle.dumps(self._run(program, args)))
        except Exception as error:
            reply = (RAISED, program_failed(program, error))
        self._reply(reply)

    def _load(self, data: bytes, num_threads: int, is_metered: bool) -> None:
        import torch

        self._is_metered = is_metered
        torch.set_num_threads(num_threads)
        try:
            self._runner = _SpecUnpickler(data, self._memory_fd).load().build("cpu")
        except Exception as error:
            self._reply((RAISED, build_failed(error)))
            return
        gc.collect()
        gc.freeze()  # a full collection while serving need not look at torch and the model
        self._reply((RESULT, pickle.dumps(None)))

    def _reply(self, message: tuple[Any, ...]) -> None:
        write_all(self._reply_fd, frame(message))


def main(command_fd: int, reply_fd: int, memory_fd: int) -> None:
    """Entry point of the process, on file descriptors it inherited. Never returns."""
    import torch  # noqa: F401  (takes a second or two: now, while the host goes on)

    status = 1
    try:
        Executor(command_fd, reply_fd, memory_fd).serve()
    except (EOFError, BrokenPipeError):
        status = 0
    except BaseException:
        traceback.print_exc()
    os._exit(status)  # without torch's and the runner's teardown: nobody is left to see it
