"""When the card's kernels ran by torch's profiler: a witness for event times that knows nothing of events.

The profiler (CUPTI) stamps every kernel and copy, those of replayed graphs too. It makes the host several
times slower, so what it sees is compared with spans of the same run, never with those of another.
"""

from __future__ import annotations

import contextlib
import json
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from torch.profiler import ProfilerActivity, profile

Interval = tuple[int, int]

CLOSE_NS = 10_000
"""Shorter gaps between two kernels are the card's own, as inside a graph: nobody was waited for."""
_ON_CARD = ("kernel", "gpu_memcpy", "gpu_memset")


@contextlib.contextmanager
def watch_kernels() -> Iterator[list[Interval]]:
    """A list that holds, at the end of the block, when the busiest stream worked, on the host clock.

    The block must wait for all it enqueues. Starting the profiler for the first time takes seconds.
    """
    found: list[Interval] = []
    offset_ns = time.time_ns() - time.perf_counter_ns()
    with profile(activities=[ProfilerActivity.CUDA], acc_events=True) as profiler:
        yield found
    with tempfile.TemporaryDirectory(prefix="photon-kernels-") as folder:
        path = Path(folder, "trace.json")
        profiler.export_chrome_trace(str(path))
        document = json.loads(path.read_text(encoding="utf-8"))
    found += busy_intervals(document, offset_ns)


def busy_intervals(document: dict[str, Any], offset_ns: int) -> list[Interval]:
    """From a trace as torch's profiler writes it, whose clock is `offset_ns` ahead of the host's.

    Of the stream with the most work: the compute stream. Gaps up to CLOSE_NS are closed.
    """
    events = [event for event in document["traceEvents"] if event.get("cat") in _ON_CARD]
    streams = Counter(event["args"]["stream"] for event in events)
    busiest = streams.most_common(1)[0][0] if streams else None
    base_ns = document.get("baseTimeNanoseconds", 0) - offset_ns
    mine = [event for event in events if event["args"]["stream"] == busiest]
    spans = [(round(event["ts"] * 1e3), round(event["dur"] * 1e3)) for event in mine]
    found: list[Interval] = []
    for start, length in sorted(spans):
        start_ns, end_ns = base_ns + start, base_ns + start + length
        if found and start_ns - found[-1][1] <= CLOSE_NS:
            found[-1] = found[-1][0], max(found[-1][1], end_ns)
        else:
            found.append((start_ns, end_ns))
    return found
