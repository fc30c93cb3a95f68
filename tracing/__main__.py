"""python -m tracing FILE [FILE2]: the metrics of a trace file, or what changed from one to another.

    python -m tracing run.json.gz                       facts, metrics, sync leaks, costliest bubbles
    python -m tracing depth1.json.gz depth2.json.gz     every metric of both, step times, tokens
    python -m tracing run.json.gz --last 2 --csv spans.csv --html run.html

Exit status 2 and one sentence on stderr for a file that cannot be read or written.
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

from tracing.bubbles import bubbles
from tracing.exports import clock_note, facts, last, metrics_document, spans_csv
from tracing.files import TraceFileError, load
from tracing.leaks import leaks
from tracing.metrics import METRICS
from tracing.report import as_document, as_text, columns, compare, number
from tracing.trace import Trace

MAX_LINES = 10


def parse_flags(argv: Sequence[str] | None) -> argparse.Namespace:
    """All flags; see --help."""
    parser = argparse.ArgumentParser(
        prog="python -m tracing", description="Metrics of a trace file, or the difference of two."
    )
    add = parser.add_argument
    add("file", help="a .json.gz or .json that the workbench saved")
    add("other", nargs="?", help="a second one: print what changed from the first to it")
    add("--json", action="store_true", help="print JSON instead of tables")
    add("--last", type=_seconds, metavar="SECONDS", help="look at the last seconds of each file only")
    add("--csv", metavar="OUT", help="also write the spans of the first file as CSV")
    add("--html", metavar="OUT", help="also write the first file as a web page that needs nothing else")
    return parser.parse_args(argv)


def _seconds(text: str) -> float:
    value = float(text)
    if not 0 < value < 1e9:
        raise argparse.ArgumentTypeError(f"must be more than 0 seconds, got {text}")
    return value


def main(argv: Sequence[str] | None = None) -> int:
    """Returns the exit status."""
    flags = parse_flags(argv)
    path = flags.file
    try:
        traces = []
        for path in [flags.file, flags.other] if flags.other else [flags.file]:
            traces.append(last(load(path), flags.last))
        _write(traces[0], flags)
    except (TraceFileError, OSError) as error:
        where = path if isinstance(error, TraceFileError) else error.filename
        what = error if isinstance(error, TraceFileError) else error.strerror
        print(f"python -m tracing: {where}: {what}", file=sys.stderr)
        return 2
    print(_one(traces[0], flags.json) if len(traces) == 1 else _diff(traces[0], traces[1], flags.json))
    return 0


def _write(trace: Trace, flags: argparse.Namespace) -> None:
    if flags.csv:
        Path(flags.csv).write_text(spans_csv(trace), encoding="utf-8")
    if flags.html:
        from tracing.page import page  # plotly is loaded by those who want a picture

        Path(flags.html).write_text(page(trace, Path(flags.file).name), encoding="utf-8")


def _diff(a: Trace, b: Trace, as_json: bool) -> str:
    report = compare(a, b)
    return json.dumps(as_document(report), indent=2) if as_json else as_text(report)


def _one(trace: Trace, as_json: bool) -> str:
    if as_json:
        return json.dumps(metrics_document(trace), indent=2)
    metrics = [[m.name, m.unit, number(m.function(trace)), m.formula] for m in METRICS]
    parts = [
        columns([[name, text] for name, text in facts(trace)]),
        columns([["metric", "unit", "value", "formula"], *metrics], right=(2,)),
        clock_note(trace),
        _leaks(trace),
        _bubbles(trace),
    ]
    return "\n\n".join(parts)


def _leaks(trace: Trace) -> str:
    found = sorted(leaks(trace), key=lambda leak: leak.start_ns - leak.end_ns)
    if not found:
        return "Sync leaks: none; the host never waited for the device inside launch or sample."
    lines = [
        [f"step {x.step_id}", f"in {x.inside}: {x.call}", f"{(x.end_ns - x.start_ns) / 1e3:,.1f} us"]
        for x in found[:MAX_LINES]
    ]
    return f"Sync leaks: {len(found)}, the longest:\n{columns(lines, right=(2,))}"


def _bubbles(trace: Trace) -> str:
    found = sorted(bubbles(trace), key=lambda bubble: bubble.start_ns - bubble.end_ns)
    if not found:
        return "Bubbles: none."
    start = trace.window[0]
    lines = [[f"at {(b.start_ns - start) / 1e6:,.3f} ms", b.text] for b in found[:MAX_LINES]]
    return f"Bubbles: {len(found)}, the longest:\n{columns(lines)}"


if __name__ == "__main__":
    if hasattr(signal, "SIGPIPE"):
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # whoever reads us, say `head`, has seen enough
    sys.exit(main())
