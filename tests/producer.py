"""A producer of records that looks like an engine: runs of steps with three requests each."""

from __future__ import annotations

import threading
import time
from functools import partial

from photon.observe import StepRecord, StepRow
from tracing.recorder import Recorder
from tracing.trace import MarkRecord, SpanRecord

MS = 1_000_000


Row = partial(
    StepRow,
    position=17,
    token_id=5,
    x=float("nan"),
    y=float("nan"),
    mask="ANY",
    is_zombie=False,
    is_delivered=True,
    refs_before=1,
    refs_after=1,
    pages=2,
    lora_slot=0,
)
WAITS = "launch: nothing | sample: copy for sampled | commit: host for copied"
Step = partial(StepRecord, padding=1, waits=WAITS)


def step(recorder: Recorder, step_id: int, start: int, depth: int = 2) -> int:
    """Records one step of three requests as an engine would; returns when the next one starts."""
    us, slot, kind = 1000, step_id % 2, "prefill" if step_id % 50 == 0 else "decode"
    tail = (step_id, slot, kind, 4, int(step_id % 7 == 0), 1)
    device = start + 300 * us
    spans = [
        ("host", "plan", start, start + 100 * us),
        ("host", "launch", start + 100 * us, start + 260 * us),
        ("host", "wait", start + 300 * us, start + 1700 * us),
        ("compute", "forward" if kind == "decode" else "prefill", device, device + 1300 * us),
        ("compute", "sample", device + 1300 * us, device + 1400 * us),
        ("copy", "d2h", device + 1400 * us, device + 1410 * us),
        ("host", "commit", start + 1720 * us, start + 1900 * us),
    ]
    if step_id % 11 == 0:
        leak = "sync: Stream.synchronize in Runtime.launch"
        spans.insert(2, ("host", leak, start + 120 * us, start + 200 * us))
    for track, name, a, b in spans:
        recorder.on_span(SpanRecord(track, name, a, b, *tail))
    first = step_id // 50 * 3
    rows = [Row(first + i) for i in range(3)]
    if step_id % 7 == 0 and first:
        rows.append(Row(first - 3, is_zombie=True, is_delivered=False, refs_after=0))
    recorder.on_step(Step(step_id, slot, kind, start + 1900 * us, rows=rows))
    return start + (1400 if depth == 2 else 2000) * us


def run(recorder: Recorder, first: int, start: int, steps: int = 50, depth: int = 2) -> int:
    """Records a run of one to `steps` steps of three requests; returns its end."""
    ids = [first // 50 * 3 + i for i in range(3)]
    for i in ids:
        recorder.on_mark(MarkRecord("arrival", start - 200_000, i))
        recorder.on_mark(MarkRecord("admitted", start, i))
    for step_id in range(first, first + steps):
        start = step(recorder, step_id, start, depth)
    for i in ids:
        recorder.on_mark(MarkRecord("finish", start, i, first + steps - 1))
    return start


class Feed:
    """Runs that follow each other in real time on a thread, until stopped."""

    def __init__(self, recorder: Recorder) -> None:
        self.recorder, self.stop, self.pause = recorder, threading.Event(), threading.Event()
        self.turn = threading.Lock()
        self.next_step, self.end = 50_000, 0
        self.thread = threading.Thread(target=self._run, daemon=True)

    def _run(self) -> None:
        while not self.stop.wait(0.05):
            with self.turn:
                if not self.pause.is_set():
                    start = max(time.perf_counter_ns(), self.end + MS)
                    self.end = run(self.recorder, self.next_step, start, depth=1)
                    self.next_step += 50

    def hold(self) -> None:
        """No more runs; the last one is whole."""
        self.pause.set()
        with self.turn:
            pass
