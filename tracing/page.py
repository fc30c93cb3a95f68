"""page(trace) -> HTML: timeline, metrics and facts of one trace in one file that needs nothing else.

plotly.js lies inside; nothing is loaded from anywhere, so that the file opens offline and years later.
Whatever the trace says about itself is escaped: a hostile trace is shown, never run.
"""

from __future__ import annotations

from collections.abc import Iterable
from html import escape

from tracing.exports import clock_note, facts
from tracing.metrics import METRICS
from tracing.report import number
from tracing.timeline import timeline
from tracing.trace import Trace

_STYLE = """
body { margin: 0 auto; max-width: 1200px; padding: 24px; color: #1f2937; background: #fff;
  font: 15px/1.5 ui-sans-serif, system-ui, "Segoe UI", Roboto, "Helvetica Neue", Arial, sans-serif; }
table { border-collapse: collapse; margin: 12px 0 28px; }
th, td { padding: 4px 16px 4px 0; border-bottom: 1px solid #e2e5ea; text-align: left; vertical-align: top; }
#metrics td:nth-child(2) { text-align: right; font-variant-numeric: tabular-nums; }
#metrics td:nth-child(4) { font: 13px ui-monospace, SFMono-Regular, Menlo, monospace; color: #5b6473; }
"""


def page(trace: Trace, title: str = "Photon Workbench trace") -> str:
    """A whole HTML document, about 5 MB."""
    figure = timeline(trace).to_html(
        full_html=False, include_plotlyjs=True, config={"displaylogo": False, "scrollZoom": True}
    )
    metrics = ((m.name, number(m.function(trace)), m.unit, m.formula) for m in METRICS)
    # No script, font or picture from elsewhere, whatever the texts below say.
    policy = "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data: blob:"
    return "\n".join(
        (
            '<!doctype html><html lang="en"><head><meta charset="utf-8">',
            f'<meta http-equiv="Content-Security-Policy" content="{policy}">',
            f"<title>{escape(title)}</title><style>{_STYLE}</style></head><body><h1>{escape(title)}</h1>",
            f'<table id="facts">{_rows(facts(trace))}</table>',
            figure,
            '<table id="metrics"><tr><th>metric<th>value<th>unit<th>formula</tr>',
            f"{_rows(metrics)}</table><p>{escape(clock_note(trace))}</p></body></html>",
        )
    )


def _rows(lines: Iterable[tuple[str, ...]]) -> str:
    return "".join(f"<tr>{''.join(f'<td>{escape(text)}' for text in line)}</tr>" for line in lines)
