"""What if: the same engine on a simulated GPU, beside the published figures.

    python -m photon.whatif --gpu b200 --streams 32 --tokens 104 [--json] [--trace run.json.gz]
    python -m photon.whatif --gpu custom --forward-ms 3 --host-ms 1.5 --host-row-ms 0.03
    python -m photon.whatif --from-trace depth1.json.gz     what depth 2 would gain on the recorded machine

Prints period, gain, bubble and zombie tax at depth 1 and depth 2, and where they were published the
difference. Files are read and written by the workbench, which photon does not know: it is loaded by name,
here and when it is asked for.
"""

from __future__ import annotations

import argparse
import importlib
import sys
from pathlib import Path
from typing import Any

from photon.calibrate import Fit, fit
from photon.device.cost import GPUS, CostModel, custom, preset
from photon.errors import InvalidRequestError
from photon.measure.command import Answer, run_command
from photon.simulation import TASKS, Comparison, Scenario, compare
from photon.workload import check_range

FILES, RECORDER = "tracing.files", "tracing.recorder"
CUSTOM = {
    "forward_ms": "device time of a decode step's forward",
    "row_ms": "what each row adds to it",
    "sample_ms": "device time of sampling",
    "host_ms": "host time of a step that pipelining can hide",
    "host_row_ms": "what each row adds to it",
}
Row = tuple[str, float | None, float | None, str]


def rows(found: Comparison) -> list[Row]:
    """The figures that were published, or measured, for some machines: name, theirs, ours, unit."""
    theirs: tuple[float | None, ...] = (None,) * 4
    if known := found.published:
        theirs = known.blocking_ms, known.pipelined_ms, known.predicted_percent, known.observed_percent
    ours = found.blocking.period_ms, found.pipelined.period_ms, found.gain_percent, found.gain_percent
    names = "blocking period", "pipelined period", "gain, as predicted", "gain, as observed"
    return list(zip(names, theirs, ours, ("ms", "ms", "%", "%"), strict=True))


def more(found: Comparison) -> dict[str, float]:
    """The figures that nobody published."""
    return {
        "zombie_tax_percent": found.pipelined.zombie_tax_percent,
        "run_gain_percent": found.run_gain_percent,
        "blocking_bubble_percent": found.blocking.bubble_percent,
        "pipelined_bubble_percent": found.pipelined.bubble_percent,
        "blocking_tokens_per_s": found.blocking.tokens_per_s,
        "pipelined_tokens_per_s": found.pipelined.tokens_per_s,
    }


def document(found: Comparison) -> dict[str, Any]:
    """Everything, as plain JSON values."""
    scenario = found.scenario
    asked = {name: getattr(scenario, name) for name in ("streams", "tokens", "task", "crops", "sync_masks")}
    return {
        "gpu": scenario.cost.name,
        "label": scenario.cost.label,
        "source": scenario.cost.source,
        **asked,
        "blocking_ms": found.blocking.period_ms,
        "pipelined_ms": found.pipelined.period_ms,
        "gain_percent": found.gain_percent,
        **more(found),
        "published": vars(found.published) if found.published else None,
    }


def show(found: Comparison) -> str:
    """The figures as a table for people."""
    scenario, known = found.scenario, found.published
    cost = scenario.cost
    lines = [
        f"{cost.name} ({cost.label}), {scenario.streams} streams, {scenario.task}, "
        f"answers of {scenario.tokens} tokens on average",
        f"{cost.source}",
        "",
    ]
    if known:
        lines.append(f"{'':<22}{'published':>10}{'simulated':>11}{'difference':>12}")
        lines += [_line(*row) for row in rows(found)]
    else:
        lines.append(f"{'':<22}{'simulated':>11}")
        shown = [(name.partition(",")[0], ours, unit) for name, _, ours, unit in rows(found)[:3]]
        lines += [f"{name:<22}{_number(ours):>11} {unit}" for name, ours, unit in shown]
    lines.append("")
    lines += [f"{name.replace('_', ' '):<26}{value:>10,.2f}" for name, value in more(found).items()]
    return "\n".join(lines)


def _line(name: str, theirs: float | None, ours: float | None, unit: str) -> str:
    if theirs is None or ours is None:
        return f"{name:<22}{_number(theirs):>10}{_number(ours):>11} {unit}"
    off = f"{100 * (ours / theirs - 1):+.1f} %" if unit == "ms" else f"{ours - theirs:+.1f} points"
    return f"{name:<22}{_number(theirs):>10}{_number(ours):>11} {unit:<2}{off:>14}"


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:.2f}"


# The command ---------------------------------------------------------------------------------------


def machine(args: argparse.Namespace) -> CostModel:
    """The cost model that the flags name. Raises PhotonError."""
    given = {name: getattr(args, name) for name in CUSTOM if getattr(args, name) is not None}
    for name, value in given.items():
        check_range(name, value, 0.001 if name == "forward_ms" else 0.0, 10_000.0)
    if args.gpu != "custom":
        if given:
            raise InvalidRequestError(
                f"{', '.join(given)}: these describe --gpu custom; say so, or leave them out."
            )
        return preset(args.gpu)
    if not {"forward_ms", "host_ms"} <= set(given):
        raise InvalidRequestError("--gpu custom needs --forward-ms and --host-ms.")
    return custom(**given)


def recorded(path: str) -> Fit:
    """The machine that recorded a trace file. Raises InvalidRequestError."""
    files = importlib.import_module(FILES)
    try:
        trace = files.load(path)
    except files.TraceFileError as error:
        raise InvalidRequestError(f"{path}: {error}") from error
    return fit(trace.spans, trace.info.get("device", "the recorded machine"))


def asked(args: argparse.Namespace) -> Scenario:
    """The scenario that the flags describe. Raises PhotonError."""
    if not args.from_trace:
        cost, streams = machine(args), 32 if args.streams is None else args.streams
    elif args.streams is not None:
        raise InvalidRequestError(
            "--from-trace predicts for the batch that was recorded; leave --streams out."
        )
    else:
        fitted = recorded(args.from_trace)
        cost, streams = fitted.cost, fitted.rows
    return Scenario(
        cost, streams, args.tokens, args.task, args.answers, args.crops, args.sync_masks, args.seed
    )


def watched(scenario: Scenario, path: str, depth: int) -> Comparison:
    """Compare, and save the trace of one of the two runs. Raises InvalidRequestError."""
    info = {"device": f"simulated {scenario.cost.name}", "model": "scripted", "depth": str(depth)}
    recorder = importlib.import_module(RECORDER).Recorder(info=lambda: info)
    found = compare(scenario, (([recorder], []) if depth == 1 else ([], [recorder])))
    try:
        importlib.import_module(FILES).save(recorder.snapshot(), path)
    except OSError as error:
        raise InvalidRequestError(f"{path} cannot be written: {error.strerror}; check its folder.") from error
    return found


def main(argv: list[str] | None = None) -> int:
    """Returns the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m photon.whatif", description="What pipelining gains on a GPU, simulated."
    )
    add = parser.add_argument
    add("--gpu", default="b200", help=f"{', '.join(GPUS)} or custom (default: b200)")
    add(
        "--from-trace", metavar="FILE", help="fit the machine to a trace that was recorded at depth 1 instead"
    )
    add("--streams", type=int, help="callers at once, 1 to 1024 (default: 32)")
    add("--tokens", type=int, default=100, help="mean length of an answer, 1 to 1024 (default: 100)")
    add("--task", default="query", help=f"{', '.join(TASKS)} (default: query)")
    add("--answers", type=int, help="of each stream; without it, enough for a steady state")
    add("--crops", type=int, default=2, help="of each picture, 0 to 13 (default: 2, a small picture)")
    add("--sync-masks", action="store_true", help="make the host wait before it samples: a sync leak")
    add("--seed", type=int, default=0, help="of the order of long and short answers")
    for name, what in CUSTOM.items():
        add(f"--{name.replace('_', '-')}", type=float, metavar="MS", help=f"--gpu custom: {what}")
    add("--trace", metavar="FILE", help="save the pipelined run for Perfetto and the workbench")
    add("--depth", type=int, choices=(1, 2), default=2, help="which run --trace saves; 1 is the blocking one")
    return run_command(parser, run, argv)


def run(args: argparse.Namespace) -> Answer:
    """The comparison that was asked for, and that for people."""
    scenario = asked(args)
    if not args.trace:
        found = compare(scenario)
        return document(found), show(found)
    found = watched(scenario, args.trace, args.depth)
    saved = f"Trace of depth {args.depth}: {Path(args.trace).resolve()}; open it in Perfetto."
    return document(found), f"{show(found)}\n\n{saved}"


if __name__ == "__main__":
    sys.exit(main())
