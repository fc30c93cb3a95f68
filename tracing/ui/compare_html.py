"""HTML of a comparison: what changed, in figures and in sentences. Pure; every foreign word is escaped."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape as html_escape
from itertools import groupby

from tracing.latency import tokens_per_s
from tracing.leaks import Leak, leaks
from tracing.metrics import (
    Metric,
    bubble_percent,
    device_busy_percent,
    zombie_rows,
    zombie_tax_upper_percent,
)
from tracing.predict import Prediction, predict, step_times
from tracing.report import Report, is_alike, measured_gain, number
from tracing.trace import Trace

EQUAL = 0.5  # percent: less is no difference
NOISY = 10.0  # percent between the device times of two like runs: more is other work on the machine
_PREDICTED = "from A alone: without and with the hand-over between host and device hidden"
_REMEDY = {
    "sample": "Upload masks on the copy stream and order them before the sampling by an event, so that the "
    "host can go on.",
    "launch": "Gather inputs on the device from where the last sample left them; read back in commit only.",
}


@dataclass(frozen=True)
class Side:
    """One of the two: "A" or "B", what it is in words, its trace, and the trace's id in Sources."""

    name: str
    words: str
    trace: Trace
    source: str

    @property
    def title(self) -> str:
        return f"{self.name}: {self.words}"


def escape(text: str) -> str:
    """Text that stays text: for HTML, and for Gradio's templates, which read ${...} and {{...}}."""
    safe = html_escape(text)
    return safe.replace("{", "&#123;").replace("}", "&#125;").replace("$", "&#36;")


def chips(pairs: Iterable[tuple[str, str]]) -> str:
    """Small labelled facts in a row."""
    return "".join(f'<span class="pw-chip"><span>{escape(k)}</span>{escape(v)}</span>' for k, v in pairs)


def show_button(source: str, title: str, text: str, step: int | None = None) -> str:
    """For SHOW_JS: show a trace, or a step of it, in the docked timeline."""
    at = "" if step is None else f' data-step="{step}"'
    data = f'data-source="{source}" data-title="{escape(title)}"{at}'
    return f'<button type="button" {data}>{escape(text)}</button>'


def summary(a: Side, b: Side, report: Report, gains: Sequence[float | None]) -> str:
    """The verdict, the figures it rests on, what there is to say about them, and both runs to take away.

    gains: of all rounds, in %; a and b are one of them.
    """
    headline, state = verdict(a, b, report, [gain for gain in gains if gain is not None])
    notes = "".join(f"<li>{note}</li>" for note in (*_rounds_note(gains), *_notes(a, b, report)))
    return (
        f'<section class="cmp" data-state="{state}"><p class="cmp-headline">{headline}</p>'
        f"{_figures(a, b, report)}<ul>{notes}</ul>{_run(a)}{_run(b)}</section>"
    )


def failure(sentence: str) -> str:
    return f'<section class="cmp" data-state="error" role="alert"><p>{escape(sentence)}</p></section>'


def verdict(a: Side, b: Side, report: Report, gains: Sequence[float]) -> tuple[str, str]:
    """(sentence, better | worse | equal | differs): how much faster B is, and whether it answers the same."""
    others = " but gives other tokens" if report.tokens.is_error else "; some tokens are rounded otherwise"
    same = {True: " and gives the same tokens", False: others, None: ""}[report.tokens.is_equal]
    gain = measured_gain(a.trace, b.trace)
    if gain is None:
        return "There is nothing to time in one of the two.", "equal"
    if len(gains) > 1 and min(gains) < -EQUAL and max(gains) > EQUAL:
        words, state = "The rounds disagree: other work on this machine drowned the difference", "equal"
        same = "; both give the same tokens" if report.tokens.is_equal else same
    elif abs(gain) < EQUAL:
        words, state = "B is as fast as A", "equal"
    else:
        words = f"B is {abs(gain):.1f} % {'faster' if gain > 0 else 'slower'} than A"
        state = "better" if gain > 0 else "worse"
    return f"{words}{same}.", "differs" if report.tokens.is_error else state


def _figures(a: Side, b: Side, report: Report) -> str:
    """The strip of pairs of numbers."""
    times = [step_times(side.trace) for side in (a, b)]
    cells = [_cell("Gain, measured", _percent(measured_gain(a.trace, b.trace)), _gain_hint(a, b))]
    if predicted := _prediction(a, b):
        cells.append(_cell("Gain, predicted", predicted_range(predicted), _PREDICTED))
    periods = [t and t.period_ms for t in times]
    cells.append(_cell("Step period", _pair(periods), "median time from one decode step to the next", "ms"))
    for name, function, unit in (
        ("Device busy", device_busy_percent, "%"),
        ("Bubble", bubble_percent, "%"),
        ("Goodput", tokens_per_s, "tokens/s"),
    ):
        values = [function(side.trace) for side in (a, b)]
        cells.append(_cell(name, _pair(values), Metric(name, unit, function).formula, unit))
    equal = {True: "equal", False: "differ", None: "–"}[report.tokens.is_equal]
    cells.append(_cell("Tokens", equal, str(report.tokens)))
    return f'<dl class="pw-numbers">{"".join(cells)}</dl>'


def _rounds_note(gains: Sequence[float | None]) -> Iterable[str]:
    known = [gain for gain in gains if gain is not None]
    if len(known) > 1:
        low, high = _percent(min(known)), _percent(max(known))
        yield f"Of {len(known)} rounds, A and B in turn, this is the one of the median gain: {low} to {high}."


def _gain_hint(a: Side, b: Side) -> str:
    if is_alike(a.trace, b.trace):
        return "median step period of A / that of B - 1"
    return "goodput of B / that of A - 1: the two have different numbers of requests"


def _cell(name: str, value: str, hint: str, unit: str = "") -> str:
    return (
        f'<div class="pw-cell" title="{escape(hint)}"><dt>{escape(name)}</dt><dd>{escape(value)}'
        f"<small>{escape(unit)}</small></dd></div>"
    )


def _pair(values: Sequence[float | None]) -> str:
    return " → ".join(number(value) for value in values)


def _percent(value: float | None) -> str:
    return "–" if value is None else f"{value:+.1f} %"


def _prediction(a: Side, b: Side) -> Prediction | None:
    """What A promises for two steps in flight; None where A has them already, or where B is other work."""
    return predict(a.trace) if is_alike(a.trace, b.trace) and predict(b.trace) is None else None


def _notes(a: Side, b: Side, report: Report) -> Iterable[str]:
    """Sentences, escaped, the most important first."""
    yield escape(str(report.tokens))
    if predicted := _prediction(a, b):
        yield escape(prediction_sentence(predicted))
    yield from _device_note(a, b, report)
    yield from _leak_notes(a, b)
    for side in (a, b):
        if injected := side.trace.info.get("injected"):
            yield f"<b>Injected into {side.name}:</b> {escape(injected)}."
        if count := zombie_rows(side.trace):
            tax = number(zombie_tax_upper_percent(side.trace))
            yield escape(
                f"{side.name} computed {count} zombie rows, of requests that had ended when their next step "
                f"was on its way: at most {tax} % of the device's time."
            )


def _device_note(a: Side, b: Side, report: Report) -> Iterable[str]:
    """Pipelining gains time between the device's steps; a device that was itself faster is no gain of it."""
    over, under = report.medians["device"]
    change = 100 * (under / over - 1) if over and under else 0.0
    is_same = is_alike(a.trace, b.trace) and a.trace.info.get("device") == b.trace.info.get("device")
    if is_same and abs(change) > NOISY:
        yield escape(
            f"The device's own time a step differs by {change:+.1f} % from A to B. If both did the same, "
            "the machine did not treat them alike: other programs had a share, and the gain has that in it."
        )


def predicted_range(predicted: Prediction) -> str:
    """The gain without and with the hand-over."""
    low, high = predicted.gain_percent, predicted.gain_with_hand_over_percent
    return _percent(low) if high is None or high <= low else f"{low:+.1f} to {_percent(high)}"


def prediction_sentence(predicted: Prediction) -> str:
    """Where the predicted gain comes from, and what the model leaves out."""
    device, host, both = map(number, (predicted.device_ms, predicted.host_ms, predicted.pipelined_ms))
    words = (
        f"Predicted from A alone: device {device} ms and host {host} ms a step, one after the other, become "
        f"{both} ms side by side."
    )
    if predicted.hand_over_ms is None:
        return words
    return (
        f"{words} With the {number(max(predicted.hand_over_ms, 0.0))} ms a step that A takes to hand over "
        f"between them hidden as well, it would be {_percent(predicted.gain_with_hand_over_percent)}."
    )


def _leak_notes(a: Side, b: Side) -> Iterable[str]:
    found = {side.name: leaks(side.trace) for side in (a, b)}
    if not any(found.values()):
        yield "No sync leak: the host never waited for the device inside launch or sample."
    for side in (a, b):
        if own := found[side.name]:
            length = side.trace.window[1] - side.trace.window[0]
            yield f'<span class="cmp-leak">{leak_sentence(side.name, own, length)}</span>'


def leak_sentence(name: str, found: Sequence[Leak], length_ns: int) -> str:
    """How many, how long, inside which verb, from which call, in which steps, and what to do about it."""
    parts = []
    for (inside, call), group in groupby(sorted(found, key=_where), _where):
        own = list(group)
        total = sum(leak.end_ns - leak.start_ns for leak in own)
        share = f", {100 * total / length_ns:.0f} % of the run" if length_ns else ""
        times = "once" if len(own) == 1 else f"{len(own)} times"
        parts.append(
            f"<b>Sync leak in {escape(name)}:</b> the host waited for the device {times} inside "
            f"{escape(inside)}, {total / 1e6:,.1f} ms in all{share}, in {escape(call)}, "
            f"{steps(leak.step_id for leak in own)}. {_REMEDY.get(inside, '')}"
        )
    return " ".join(parts)


def _where(leak: Leak) -> tuple[str, str]:
    return leak.inside, leak.call


def steps(ids: Iterable[int]) -> str:
    """ "step 4", or "steps 4 to 9, 12": runs of steps as ranges, at most five of them."""
    numbers = sorted(set(ids))
    runs: list[list[int]] = []
    for step in numbers:
        if runs and step == runs[-1][-1] + 1:
            runs[-1].append(step)
        else:
            runs.append([step])
    words = [f"{run[0]}" if len(run) == 1 else f"{run[0]} to {run[-1]}" for run in runs[:5]]
    more = f" and {len(runs) - 5} more runs of steps" if len(runs) > 5 else ""
    return f"step{'s' * (len(numbers) > 1)} {', '.join(words)}{more}"


def _run(side: Side) -> str:
    facts = [(name, side.trace.info[name]) for name in ("device", "dtype") if side.trace.info.get(name)]
    link = f"wb/trace/export?source={side.source}&amp;format="
    return (
        f'<p class="cmp-run"><b class="cmp-{side.name.lower()}">{side.name}</b> {escape(side.words)} '
        f"{chips(facts)}{show_button(side.source, side.title, 'Open in the timeline below')}"
        f'<a href="{link}chrome" download>Trace for Perfetto</a><a href="{link}csv" download>CSV</a></p>'
    )


def table(report: Report) -> str:
    """Every metric with both values and their difference, then the median step times."""
    rows = [
        _row(
            (row.metric.name, row.metric.unit, row.metric.formula),
            (row.a, row.b, row.difference),
            row.verdict or "",
        )
        for row in report.rows
    ]
    for phase, (a, b) in report.medians.items():
        change = None if a is None or b is None else b - a
        state = "" if not change else "better" if change < 0 else "worse"
        rows.append(_row((f"step {phase} p50", "ms", "median over decode steps"), (a, b, change), state))
    half = -(-len(rows) // 2)
    return f'<div class="cmp-tables">{_columns(rows[:half])}{_columns(rows[half:])}</div>'


def _columns(rows: Sequence[str]) -> str:
    head = "<th>Metric</th><th>A</th><th>B</th><th>B - A</th><th></th>"
    return (
        f'<div class="cmp-table"><table><thead><tr>{head}</tr></thead>'
        f"<tbody>{''.join(rows)}</tbody></table></div>"
    )


def _row(
    what: tuple[str, str, str], values: tuple[float | None, float | None, float | None], state: str
) -> str:
    name, unit, formula = map(escape, what)
    cells = "".join(f"<td>{number(value)}</td>" for value in values[:2])
    change = values[2]
    sign = "+" if change is not None and change > 0 else ""
    return (
        f'<tr data-verdict="{state}" title="{formula}"><th scope="row">{name} <small>{unit}</small></th>'
        f"{cells}<td>{sign}{number(change)}</td><td>{state}</td></tr>"
    )
