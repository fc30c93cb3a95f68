"""A trace as an engine would record it, built by rule: the same numbers in every test that needs one."""

from __future__ import annotations

from tracing.trace import MarkRecord, RowRecord, SpanRecord, Trace

US = 1_000
BASE = 5_000_000_000_000
INFO = {"device": "cpu", "model": "tiny", "depth": "2", "clock_uncertainty_ns": "0"}
COMMIT_US = 560  # after the next step has begun, this one is committed
LEAK = "sync: Stream.synchronize in Runtime.sample"


def recorded(steps: int = 12, period_us: int = 1400, first_step: int = 40, first_request: int = 3) -> Trace:
    """Three requests that decode together; the last ends one step early and leaves a zombie behind.

    Each step is committed while the next computes; the device works 1,300 us in each period. The third step
    holds a sync leak of 40 us, the fourth 40 us of injected host time.
    """
    spans, rows, marks = [], [], []
    requests = [first_request + i for i in range(3)]
    for k in range(steps):
        start, step = BASE + k * period_us * US, first_step + k
        is_last = k == steps - 1
        spans += _spans(start, step, period_us, zombies=int(is_last), kind="decode" if k else "prefill")
        spans += [SpanRecord("host", LEAK, start + 280 * US, start + 320 * US, step)] if k == 2 else []
        injected = SpanRecord("host", "injected: host time", start + 100 * US, start + 140 * US, step)
        spans += [injected] if k == 3 else []
        rows += [
            RowRecord(
                start + (period_us + COMMIT_US) * US, step, i, r, 20 + k, 100 + 7 * k + i, 0.25, mask="ANY"
            )._replace(
                is_zombie=is_last and i == 2, is_delivered=not (is_last and i == 2), pages=2, refs_before=1
            )
            for i, r in enumerate(requests)
        ]
    end = BASE + (steps - 1) * period_us * US + (period_us + COMMIT_US) * US
    for i, r in enumerate(requests):
        marks += [MarkRecord("arrival", BASE - (200 - i) * US, r), MarkRecord("admitted", BASE, r)]
        marks += [MarkRecord("first_token", BASE + (period_us + COMMIT_US) * US, r, first_step)]
        marks += [MarkRecord("finish", end - (period_us * US if i == 2 else 0), r, first_step + steps - 1)]
    return Trace.of(spans, marks, rows=rows, info=INFO)


def _spans(start: int, step: int, period_us: int, *, zombies: int, kind: str) -> list[SpanRecord]:
    tail = (step, step % 2, kind, 3, zombies, 1)
    wait = period_us + 340
    parts = [("host", "plan", 0, 100), ("host", "launch", 100, 260), ("host", "sample", 270, 330)]
    parts += [
        ("host", "wait", wait, wait + 20),
        ("host", "commit", wait + 40, period_us + COMMIT_US),
        ("compute", "h2d", 300, 340),
    ]
    parts += [("compute", kind if kind == "prefill" else "forward", 340, 1500)]
    parts += [("compute", "sample", 1500, 1600), ("copy", "d2h", 1600, 1610)]
    return [SpanRecord(track, name, start + a * US, start + b * US, *tail) for track, name, a, b in parts]
