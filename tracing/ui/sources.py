"""Sources: what a page can show: the live recorder, and the traces that were opened.

    sources = Sources(recorder)
    source = sources.add(trace, "run.json.gz")      # a random id: who does not know it cannot ask for it
    sources.get(source)                             # the Trace, or None when it has gone
    sources.get("live")                             # a snapshot of everything the recorder holds
    sources.around(source, start_ns, end_ns)        # what lies near: of the recorder a tenth of the work

Opened traces are held in memory, MAX_TRACES of them and MAX_BYTES of tables at most; the oldest go. Any
thread may call.
"""

from __future__ import annotations

import threading
import uuid

from tracing.recorder import Recorder
from tracing.trace import Trace

LIVE = "live"
MAX_TRACES = 16
MAX_BYTES = 512 << 20
AROUND_NS = 2_000_000_000  # in it lie the steps that explain a step or a bubble


class Sources:
    """The recorder `live`, and a bounded number of opened traces by id."""

    def __init__(self, live: Recorder) -> None:
        self.live = live
        self._lock = threading.Lock()
        self._opened: dict[str, tuple[str, Trace]] = {}  # in order of opening

    def add(self, trace: Trace, title: str) -> str:
        """Hold the trace and return its id; the oldest go until the limits are kept.

        Raises:
            ValueError: the trace alone is larger than MAX_BYTES.
        """
        if table_bytes(trace) > MAX_BYTES:
            raise ValueError(f"{title} has more than {MAX_BYTES >> 20} MB of records; open a part of it.")
        source = uuid.uuid4().hex
        with self._lock:
            self._opened[source] = (title, trace)
            while len(self._opened) > MAX_TRACES or self._bytes() > MAX_BYTES:
                self._opened.pop(next(iter(self._opened)))
        return source

    def get(self, source: str) -> Trace | None:
        """The trace with that id, or a snapshot of the recorder for "live"."""
        if source == LIVE:
            return self.live.snapshot()
        return self._find(source)[1]

    def around(self, source: str, start_ns: int, end_ns: int) -> Trace | None:
        """What the source holds in [start_ns, end_ns) and AROUND_NS on either side; None when it has gone."""
        start, end = start_ns - AROUND_NS, end_ns + AROUND_NS
        if source == LIVE:
            return self.live.around(start, end)
        trace = self.get(source)
        return trace and trace.within(max(start, trace.window[0]), min(end, trace.window[1]))

    def title(self, source: str) -> str:
        """What the trace was opened as; "" for unknown ids and for "live"."""
        return self._find(source)[0]

    def _find(self, source: str) -> tuple[str, Trace | None]:
        with self._lock:
            return self._opened.get(source, ("", None))

    def _bytes(self) -> int:
        return sum(table_bytes(trace) for _, trace in self._opened.values())


def table_bytes(trace: Trace) -> int:
    """Bytes of the trace's tables."""
    return trace.span_table.nbytes + trace.mark_table.nbytes + trace.row_table.nbytes
