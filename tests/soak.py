"""Soak: short requests without end, a fifth of them cancelled at a random age; memory and tables must stay.

    python tests/soak.py [--requests 5000]

The embedded model on the cpu device, with a recorder and a meter as in the app. Twelve callers ask about
ninety pictures, more than the prefix cache holds. Prints how the memory of both processes grew over the
second half, as the slope of a line fitted to samples of it, and compares every counter with its value at
the start. Exit status 1 if one differs or memory grows.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import gc
import os
import queue
import random
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))  # run by hand, from anywhere

from photon import Engine, EngineConfig, Handle, Request, load_model, open_device  # noqa: E402
from photon.api import Meter  # noqa: E402
from photon.tiny.pool import MULTI, SINGLE  # noqa: E402
from photon.tiny.scenes import draw_scene  # noqa: E402
from tracing.recorder import Recorder  # noqa: E402

NUM_CALLERS = 12
NUM_PICTURES = 90
CANCELLED = 0.2
SAMPLE_EVERY = 50
WARM_UP = 1000  # requests that fill caches, the recorder and the allocator's pools
MAX_GROWTH = 0.02
"""Of the memory of a process, over the second half: what its allocator has not settled yet."""
MAX_OBJECTS = 0.01
"""Python objects per request that are there at the end and were not after the warm-up."""
RECORDER_BYTES = 1 << 20  # full within the first half
PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_LIBC = ctypes.CDLL(None)


@dataclass
class Soak:
    """Plays requests on an engine; all counts are of the callers' side."""

    engine: Engine
    make_request: Callable[[random.Random], Request]
    num_requests: int
    ends: Counter[str] = field(default_factory=Counter)
    samples: list[tuple[int, ...]] = field(default_factory=list)
    """Requests ended, and KiB of this process and of the device's."""
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def run(self) -> None:
        """Blocks until all have ended; one that fails is counted by its error."""
        numbers: queue.SimpleQueue[int] = queue.SimpleQueue()
        for number in range(self.num_requests):
            numbers.put(number)
        callers = [threading.Thread(target=self._call, args=(numbers,)) for _ in range(NUM_CALLERS)]
        for caller in callers:
            caller.start()
        for caller in callers:
            caller.join()

    def _call(self, numbers: queue.SimpleQueue[int]) -> None:
        with contextlib.suppress(queue.Empty):
            while True:
                end = self._one(random.Random(numbers.get_nowait()))
                with self._lock:
                    self.ends[end] += 1
                    if self.ends.total() % SAMPLE_EVERY == 0:
                        self.samples.append((self.ends.total(), *self.memory()))

    def _one(self, dice: random.Random) -> str:
        """Ask, and sometimes give up: at once, after a while, or after some pieces of the answer."""
        handle = self.engine.submit(self.make_request(dice))
        if dice.random() < CANCELLED:
            self._give_up(handle, dice)
        try:
            return str(handle.result(timeout=120)["finish_reason"])
        except Exception as error:
            return f"{type(error).__name__}: {error}"

    def _give_up(self, handle: Handle, dice: random.Random) -> None:
        how = dice.choice(("at once", "by age", "by age", "stream"))
        if how == "stream":
            stream = handle.stream()
            for _ in range(dice.randrange(3)):
                next(stream, None)
            del stream  # what is dropped is cancelled
        else:
            time.sleep(0 if how == "at once" else dice.uniform(0, 0.1))
            handle.cancel()

    def memory(self) -> tuple[int, ...]:
        """KiB of this process and of the device's; of this one without what its allocator only keeps."""
        _LIBC.malloc_trim(0)
        pids = [os.getpid(), getattr(self.engine.device, "pid", os.getpid())]
        return tuple(rss_kib(pid) for pid in pids)


def rss_kib(pid: int) -> int:
    """Resident memory of a process."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * PAGE_BYTES // 1024


def tables(engine: Engine) -> dict[str, int]:
    """Sizes of everything in the engine that could grow, when it is idle; checks its invariants as well."""

    def look() -> dict[str, int]:
        engine.check()
        stats, roster = engine._snapshot(), engine._roster
        names = ("waiting", "schedulable", "resident", "zombies", "in_flight_steps", "free_lora_slots")
        return {name: int(stats[name]) for name in names} | {
            "free and cached pages": stats["free_pages"] + stats["cached_pages"],
            "batch rows": engine._residency.capacity().rows,
            "handles": len(roster),
            "inbox": engine._worker.num_pending,
            "ahead": roster.num_ahead,
        }

    return engine._worker.call(look)


def num_objects() -> int:
    """What the garbage collector knows, when there is no garbage."""
    gc.collect()
    return len(gc.get_objects())


def slopes(samples: list[tuple[int, ...]]) -> list[float]:
    """KiB per request over the second half, for each process."""
    half = np.array(samples[len(samples) // 2 :], dtype=float)
    return [float(np.polyfit(half[:, 0], half[:, column], 1)[0]) for column in range(1, half.shape[1])]


def scene_requests() -> Callable[[random.Random], Request]:
    """Short questions of all four tasks about drawn scenes."""
    scenes = [draw_scene(seed, SINGLE if seed % 3 else MULTI).image for seed in range(NUM_PICTURES)]
    asks = (
        ("query", "how many circles are there?"),
        ("point", "circle"),
        ("detect", "star"),
        ("caption", ""),
    )

    def make(dice: random.Random) -> Request:
        task, prompt = dice.choice(asks)
        settings = {"max_tokens": dice.randint(1, 24), "temperature": dice.choice((0, 1)), "seed": 1}
        return Request(task, dice.choice(scenes), prompt, length="short", settings=settings)

    return make


def main() -> int:
    parser = argparse.ArgumentParser(description="Many short requests; memory and counters must stay.")
    parser.add_argument("--requests", type=int, default=5000, help="how many; at least 200")
    flags = parser.parse_args()
    recorder, meter = Recorder(max_bytes=RECORDER_BYTES), Meter()
    model = load_model(ROOT / "assets" / "tiny")
    with Engine(model, open_device("cpu"), EngineConfig(), observers=[recorder, meter]) as engine:
        start, make_request = tables(engine), scene_requests()
        Soak(engine, make_request, WARM_UP).run()
        soak, objects = Soak(engine, make_request, flags.requests), num_objects()
        began = time.monotonic()
        soak.run()
        seconds = time.monotonic() - began
        end, stats, more = tables(engine), engine.stats(), num_objects() - objects
    print(f"{flags.requests} requests in {seconds:.0f} s: {dict(soak.ends)}")
    print(
        f"steps {stats['steps']}, tokens {stats['tokens']}, zombie rows {stats['zombie_rows']}, "
        f"prefix hits {stats['prefix_hits']}"
    )
    growth = []
    for name, column, slope in zip(("host", "device"), (1, 2), slopes(soak.samples), strict=True):
        line = [sample[column] / 1024 for sample in soak.samples]
        growth.append(slope * flags.requests / 2 / 1024 / line[-1])
        print(
            f"{name}: {line[0]:.1f}, {line[len(line) // 2]:.1f} and {line[-1]:.1f} MiB at first, half, end; "
            f"second half {slope:+.3f} KiB a request, {growth[-1]:+.2%}"
        )
    print(f"Python objects: {more:+d} since the warm-up")
    print("counters at the end as at the start" if end == start else f"counters differ: {start} {end}")
    return int(end != start or max(growth) > MAX_GROWTH or more > MAX_OBJECTS * flags.requests)


if __name__ == "__main__":
    sys.exit(main())
