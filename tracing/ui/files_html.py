"""HTML of the Traces tab: what to save, one opened file, the difference of two. Pure; foreign words are
escaped."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from tracing.bubbles import bubbles
from tracing.exports import clock_note, facts
from tracing.inspect import steps
from tracing.leaks import leaks
from tracing.metrics import METRICS
from tracing.report import Report, number
from tracing.trace import Trace
from tracing.ui.compare_html import chips, escape, leak_sentence, show_button
from tracing.ui.compare_html import table as difference_table

MAX_STEPS, MAX_BUBBLES = 200, 5
_FORMATS = {
    "chrome": "Trace (.json.gz)",
    "csv": "Spans as CSV",
    "json": "Metrics as JSON",
    "html": "Web page",
}
_LINKS = "".join(
    f'<a href="wb/trace/export" data-format="{key}" download>{name}</a>' for key, name in _FORMATS.items()
)
SAVE = f"""<form class="cmp">
<p class="cmp-headline">Save what was recorded</p>
<p class="tr-what">
<label><input type="radio" name="what" value="last" checked> the last
<input type="number" name="seconds" value="10" min="0.1" step="any" aria-label="seconds"> seconds</label>
<label><input type="radio" name="what" value="all"> everything held</label>
<label><input type="radio" name="what" value="shown"> what the timeline below shows</label></p>
<p class="cmp-run">{_LINKS}</p>
<p class="pw-hint">The trace is a Chrome Trace Event file. Open it below, or with <code>python -m tracing
FILE</code>, or drop it on the Perfetto page (ui.perfetto.dev, or a copy of your own); this page sends it
nowhere.</p>
</form>"""


def opened(trace: Trace, title: str, source: str) -> str:
    """One file: what it is, its metrics, why the device idled, its newest steps."""
    link = f"wb/trace/export?source={source}&amp;format="
    links = "".join(f'<a href="{link}{key}" download>{name}</a>' for key, name in _FORMATS.items())
    notes = "".join(f"<li>{note}</li>" for note in _notes(trace))
    return (
        f'<section class="cmp" data-state="opened"><p class="cmp-headline">{escape(title)}</p>'
        f'<p class="pw-chips">{chips(facts(trace))}</p>'
        f'<p class="cmp-run">{show_button(source, title, "Show in the timeline")}{links}</p>'
        f"<ul>{notes}</ul></section>"
        f'<details class="tr-part" open><summary>Metrics</summary>{_metrics(trace)}</details>'
        f'<details class="tr-part"><summary>Steps</summary>{_steps(trace, title, source)}</details>'
    )


def difference(report: Report, titles: Sequence[str]) -> str:
    """What changed from the first file to the second."""
    state = "differs" if report.tokens.is_error else "better" if report.tokens.is_equal else "equal"
    names = " → ".join(map(escape, titles))
    return (
        f'<section class="cmp" data-state="{state}"><p class="cmp-headline">{names}</p>'
        f"<p>{escape(str(report.tokens))}</p></section>{difference_table(report)}"
    )


def _notes(trace: Trace) -> Iterable[str]:
    """Sentences, escaped: sync leaks, then the longest bubbles."""
    if found := leaks(trace):
        sentence = leak_sentence("this trace", found, trace.window[1] - trace.window[0])
        yield f'<span class="cmp-leak">{sentence}</span>'
    longest = sorted(bubbles(trace), key=lambda bubble: bubble.start_ns - bubble.end_ns)
    yield from (escape(bubble.text) for bubble in longest[:MAX_BUBBLES])


def _metrics(trace: Trace) -> str:
    cells = (
        f'<div class="pw-cell" title="{escape(m.formula)}"><dt>{escape(m.name)}</dt>'
        f"<dd>{number(m.function(trace))}<small>{escape(m.unit)}</small></dd></div>"
        for m in METRICS
    )
    return f'<dl class="pw-numbers">{"".join(cells)}</dl><p class="pw-hint">{escape(clock_note(trace))}</p>'


def _steps(trace: Trace, title: str, source: str) -> str:
    lines = steps(trace, MAX_STEPS)
    if not lines:
        return "<p>There are no steps in this trace.</p>"
    head = "".join(f"<th>{escape(name.replace('_', ' '))}</th>" for name in lines[0])
    body = "".join(f"<tr>{''.join(_step_cells(line, title, source))}</tr>" for line in lines)
    table = f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
    return f'<div class="cmp-table tr-steps">{table}</div>'


def _step_cells(line: dict[str, Any], title: str, source: str) -> Iterable[str]:
    for name, value in line.items():
        if name == "step":
            yield f'<th scope="row">{show_button(source, title, str(value), value)}</th>'
        else:
            yield f"<td>{escape(value or '') if name in ('kind', 'cause') else number(value)}</td>"
