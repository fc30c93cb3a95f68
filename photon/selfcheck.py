"""Self-check: one fixed workload at depth 1 and depth 2 on a device, side by side in one run.

    python -m photon.selfcheck --device cpu [--json]
    python -m photon.selfcheck --trace-truth        is what the trace says true? see `trace_truth.py`
    python -m photon.selfcheck --full               a card at Moondream 2's size; see `full_check.py`
    python -m photon.selfcheck --overhead           what does observing cost? see `overhead.py`
    python -m photon.selfcheck --prefix-cache       what does asking again save? see `asked_again.py`

Prints, for 1 and for 8 rows, the step's period, the device's and the host's share of it, how much of the
time the device was busy, and the gain of depth 2; and checks that both depths gave the same tokens, that
two steps really were in flight, and that the host waited in commit alone. Exit status 1 if a check failed.
The rounds alternate between the depths, so that both meet the same machine; figures are medians over the
rounds, with the lowest and the highest. On the deferred device times are those of its virtual clock and
mean nothing; the checks do.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from photon.config import EngineConfig
from photon.device import open_device
from photon.engine import Engine
from photon.measure import asked_again, full_check, overhead, trace_truth
from photon.measure.command import Answer, run_command
from photon.measure.rounds import EMBEDDED_MODEL, Listener, Rounds, summary, table
from photon.model.weights import load_model

RECORDER = "tracing.recorder:Recorder"
ROWS = (1, 8)


def check(
    device_name: str, *, num_tokens: int, num_rounds: int, model: Path = EMBEDDED_MODEL
) -> dict[str, Any]:
    """Run the workload and return everything measured, as plain JSON values."""
    listener, device = Listener(), open_device(device_name)
    config = EngineConfig(max_batch_size=max(ROWS), max_cached_images=0)
    is_threaded = device.name != "deferred"
    with Engine(load_model(model), device, config, observers=[listener], threaded=is_threaded) as engine:
        rounds = Rounds(engine, listener, num_tokens, num_rounds, is_threaded)
        return summary(engine, {rows: rounds.alternate(rows) for rows in ROWS})


def show(result: dict[str, Any]) -> str:
    """The figures as a table for people."""
    lines = [f"{result['model']} on {result['device']}, {result['dtype']}", *table(result["rows"])]
    lines.append(f"tokens equal at depth 1 and 2: {'yes' if result['tokens_equal'] else 'NO'}")
    lines.append(f"most steps in flight, by depth: {result['max_in_flight']}")
    lines.append(f"waits for the device inside launch or sample: {result['sync_leaks']}")
    return "\n".join(lines)


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m photon.selfcheck", description=__doc__.split("\n")[0])
    parser.add_argument("--device", default="cpu", help="cpu, deferred, cuda or cuda:N (default: cpu)")
    parser.add_argument(
        "--model", type=Path, default=EMBEDDED_MODEL, help="model folder (default: the embedded one)"
    )
    parser.add_argument("--tokens", type=int, default=200, help="tokens of each row (default: 200)")
    parser.add_argument("--rounds", type=int, default=5, help="rounds at each depth (default: 5)")
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--trace-truth", action="store_true", help="hold the trace against other clocks")
    which.add_argument("--full", action="store_true", help="at Moondream 2's size (on a CPU, a small one's)")
    which.add_argument("--overhead", action="store_true", help="throughput with an observer and without")
    which.add_argument("--prefix-cache", action="store_true", help="a second question about a picture")
    parser.add_argument(
        "--observer",
        default=RECORDER,
        metavar="MODULE:CLASS",
        help=f"the observer of --overhead (default: {RECORDER})",
    )
    return run_command(parser, run, argv)


def run(args: argparse.Namespace) -> Answer:
    """The check that was asked for: its result, and that for people."""
    options = {"num_tokens": args.tokens, "num_rounds": args.rounds, "model": args.model}
    if args.trace_truth:
        result = trace_truth.check(args.device, **options)
        return result, trace_truth.show(result)
    if args.full:
        size = full_check.size_for(args.device, num_tokens=args.tokens, num_rounds=args.rounds)
        result = full_check.check(args.device, size)
        return result, full_check.show(result)
    if args.overhead:
        result = overhead.check(args.device, args.observer, **options)
        return result, overhead.show(result)
    if args.prefix_cache:
        result = asked_again.check(args.device, **options)
        return result, asked_again.show(result)
    result = check(args.device, **options)
    return result, show(result)


if __name__ == "__main__":
    sys.exit(main())
