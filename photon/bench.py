"""Benchmark: what pipelining gains on a device, and what the host costs; one table and one JSON line.

    python -m photon.bench [--device cpu] [--model PATH] [--tokens 200] [--repeats 5] [--json]
    python -m photon.bench --host        the host's own cost of a tick; see `host_cost.py`

At 1, 8 and 32 rows, at depth 1 and 2 in turn within one run: the period of a step, the device's and the
host's part, bubble and gain; and what callers feel: time to the first token, gaps between tokens, goodput.
Figures are medians over the repeats, with the lowest and the highest of the period. Rounds and figures are
those of the self-check (`rounds.py`).
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from photon.config import EngineConfig
from photon.device import open_device
from photon.engine import Engine
from photon.measure import host_cost, machine
from photon.measure.command import Answer, run_command
from photon.measure.rounds import DEPTHS, EMBEDDED_MODEL, Listener, Rounds, batch_figures, table
from photon.model.weights import load_model
from photon.selfcheck import RECORDER

ROWS = (1, 8, 32)


def check(
    device_name: str, *, model: str | Path, dtype: str, num_tokens: int, num_repeats: int
) -> dict[str, Any]:
    """Play all rounds and return everything measured, as plain JSON values.

    Raises:
        PhotonError: no such device or model, or fewer tokens than a full batch needs.
    """
    opened = load_model(model)
    device, listener = open_device(device_name), Listener()
    facts, config = machine.facts(device), EngineConfig(max_batch_size=max(ROWS), max_cached_images=0)
    is_threaded = device.name != "deferred"
    with Engine(opened, device, config, observers=[listener], dtype=dtype, threaded=is_threaded) as engine:
        rounds = Rounds(engine, listener, num_tokens, num_repeats, is_threaded)
        played = {rows: rounds.alternate(rows) for rows in ROWS}
    return {
        "machine": {**facts, "load_after": machine.facts(device)["load"]},
        "model": opened.config.name,
        "dtype": engine.dtype,
        "tokens": num_tokens,
        "repeats": num_repeats,
        "rows": {str(rows): batch_figures(reports) for rows, (reports, _) in played.items()},
        "ok": all(is_equal for _, is_equal in played.values()),
    }


def show(result: dict[str, Any]) -> str:
    """The figures as two tables for people."""
    lines = [
        f"{machine.describe(result['machine'])} to {result['machine']['load_after']:.2f}",
        f"{result['model']}, {result['dtype']}, {result['tokens']} tokens a row, {result['repeats']} repeats",
        *table(result["rows"]),
        "",
        "rows depth  bubble   TTFT ms   ITL p50 ms   ITL p99 ms   goodput tokens/s",
    ]
    for rows, batch in result["rows"].items():
        for depth in DEPTHS:
            f = batch[f"depth_{depth}"]
            gaps = f"{f['itl_p50_ms']:>12.3f} {f['itl_p99_ms']:>12.3f}"
            head = f"{rows:>4} {depth:>5} {f['bubble_percent']:>6.1f} %"
            lines.append(f"{head} {f['ttft_ms']:>9.2f} {gaps} {f['goodput']:>18.0f}")
    lines.append(f"tokens equal at depth 1 and 2: {'yes' if result['ok'] else 'NO'}")
    return "\n".join(lines)


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m photon.bench", description=__doc__.split("\n")[0])
    parser.add_argument("--device", default="cpu", help="cpu, cuda, cuda:N or sim:b200 (default: cpu)")
    parser.add_argument("--model", default=str(EMBEDDED_MODEL), help="folder (default: the embedded model)")
    parser.add_argument("--dtype", default="auto", help="float32 or bfloat16 (default: the device's own)")
    parser.add_argument("--tokens", type=int, default=200, help="tokens of each row (default: 200)")
    parser.add_argument("--repeats", type=int, default=5, help="rounds at each depth (default: 5)")
    parser.add_argument("--host", action="store_true", help="only the host's own cost of a tick")
    parser.add_argument("--observer", default=RECORDER, help=f"who listens in --host (default: {RECORDER})")
    return run_command(parser, run, argv)


def run(args: argparse.Namespace) -> Answer:
    """The benchmark that was asked for: its result, and that for people."""
    if args.host:
        result = host_cost.check(args.observer, num_repeats=args.repeats)
        return result, host_cost.show(result)
    options = {"dtype": args.dtype, "num_tokens": args.tokens, "num_repeats": args.repeats}
    result = check(args.device, model=args.model, **options)
    return result, show(result)


if __name__ == "__main__":
    sys.exit(main())
