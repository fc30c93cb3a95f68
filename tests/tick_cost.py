"""What a tick costs the host while 10, 1,000 and 10,000 requests wait: it must not depend on how many.

    python tests/tick_cost.py [--ticks 300] [--rounds 5]

Eight endless rows fill the batch of the embedded model on the cpu device; the others wait behind them. CPU
time of this process alone, the device's worker left out, as medians over the rounds with the lowest and the
highest. Three kinds of tick: one that only decodes, one in which the request that came last gives up, and
one in which a request ends and the first in the line takes its place.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))  # run by hand, from anywhere

from photon import Engine, EngineConfig, Handle, Request, load_model, open_device  # noqa: E402
from photon.measure.rounds import endless  # noqa: E402

WAITING = (10, 1000, 10_000)
ENDLESS = Request(endless, settings={"max_tokens": 1 << 20})
ROWS = 8


class Line:
    """An engine with a full batch and so many requests behind it."""

    def __init__(self, num_waiting: int) -> None:
        config = EngineConfig(max_batch_size=ROWS, max_waiting=2 * max(WAITING))
        self.engine = Engine(load_model(ROOT / "assets" / "tiny"), open_device("cpu"), config, threaded=False)
        self.running = [self.engine.submit(ENDLESS) for _ in range(ROWS)]
        self.engine.run_until_idle(max_ticks=ROWS + 4)
        self.waiting = [self.engine.submit(ENDLESS) for _ in range(num_waiting)]
        self.engine.run_until_idle(max_ticks=4)

    def decode(self) -> None:
        """Nothing but a tick."""

    def leave(self) -> None:
        """The last in the line gives up; another comes, so that the line stays as long."""
        self.waiting.pop().cancel()
        self.waiting.append(self.engine.submit(ENDLESS))

    def replace(self) -> None:
        """The oldest row ends, the first in the line is admitted, another comes."""
        self.running.pop(0).cancel()
        self.running.append(self.waiting.pop(0))
        self.waiting.append(self.engine.submit(ENDLESS))

    def tick_us(self, prepare: Callable[[], None], num_ticks: int) -> float:
        """Mean CPU time of this process per tick, `prepare` left out."""
        spent_ns = 0
        for _ in range(num_ticks):
            prepare()
            start_ns = time.process_time_ns()
            self.engine.run_until_idle(max_ticks=1)
            spent_ns += time.process_time_ns() - start_ns
        return spent_ns / num_ticks / 1e3


def ended(handles: list[Handle]) -> bool:
    return any(handle.stage == "finished" for handle in handles)


def main() -> int:
    parser = argparse.ArgumentParser(description="CPU time of a tick by the number of waiting requests.")
    parser.add_argument("--ticks", type=int, default=300, help="ticks of one figure")
    parser.add_argument("--rounds", type=int, default=5, help="times each figure is taken")
    flags = parser.parse_args()
    lines = {count: Line(count) for count in WAITING}
    figures: dict[tuple[int, str], list[float]] = {}
    for _ in range(flags.rounds):
        for count, line in lines.items():
            for prepare in (line.decode, line.leave, line.replace):
                figures.setdefault((count, prepare.__name__), []).append(line.tick_us(prepare, flags.ticks))
    print(f"{'waiting':>8}  {'tick':8} us of CPU, median (lowest to highest)")
    for (count, kind), values in figures.items():
        low, high = min(values), max(values)
        print(f"{count:>8}  {kind:8} {statistics.median(values):6.0f} ({low:.0f} to {high:.0f})")
    for line in lines.values():
        assert not ended(line.running), "a row ended by itself: the batch was not full"
        line.engine.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
