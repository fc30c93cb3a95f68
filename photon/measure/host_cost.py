"""The host's own cost of a tick: plan, launch, sample and commit in Python, on a device that does nothing.

    python -m photon.bench --host [--json]

Text answers about images of Moondream 2's shapes, two steps in flight, every row in use, observers off and
on. What is judged is the CPU time of the host's thread, which other programs on the machine can slow but not
lengthen by taking its core; wall time stands beside it. The device's few calls are counted as well: any
device has them, and a real one's cost more.
"""

from __future__ import annotations

import statistics
from typing import Any

import numpy as np

from photon.admission import EncodedImage
from photon.config import EngineConfig
from photon.device.idle import IdleDevice
from photon.engine import Engine
from photon.measure import machine
from photon.measure.overhead import ListenedEngine, make_observer
from photon.model.scripted import WORD, scripted_model
from photon.observe import Observer
from photon.sequence import Request

BARS_MS = {1: 0.10, 8: 0.12, 32: 0.16}
"""The most CPU time that a tick may take, by rows, with observers and without."""
NUM_TICKS = 100


def check(observer_name: str, *, num_repeats: int) -> dict[str, Any]:
    """Measure and return everything, as plain JSON values; "ok" says that all ticks are within their bars.

    Raises:
        InvalidRequestError: there is no such observer.
    """
    facts = machine.facts(IdleDevice(WORD))
    observers = {"off": [], "on": [make_observer(observer_name)]}
    rows = {count: measure(count, num_repeats, observers) for count in BARS_MS}
    is_ok = all(f["cpu_ms"] <= BARS_MS[count] for count, found in rows.items() for f in found.values())
    host = {str(count): {**found, "bar_ms": BARS_MS[count]} for count, found in rows.items()}
    return {"machine": facts, "observer": observer_name, "host": host, "ok": is_ok}


def measure(rows: int, num_repeats: int, observers: dict[str, list[Observer]]) -> dict[str, Any]:
    """By name of the observers, milliseconds a tick: medians over repeats in turn, and the CPU's spread."""
    device = IdleDevice(WORD)
    config = EngineConfig(max_batch_size=rows, max_cached_images=0)
    cpu_ms: dict[str, list[float]] = {name: [] for name in observers}
    wall_ms: dict[str, list[float]] = {name: [] for name in observers}
    with ListenedEngine(scripted_model(), device, config, dtype="bfloat16", threaded=False) as engine:
        for _ in range(num_repeats):
            for name, listening in observers.items():
                engine.listen(listening)
                fill(engine, rows)
                cpu_ns, start_ns = device.cpu_ns(), device.now_ns()
                engine.run_until_idle(max_ticks=NUM_TICKS)
                cpu_ms[name].append((device.cpu_ns() - cpu_ns) / 1e6 / NUM_TICKS)
                wall_ms[name].append((device.now_ns() - start_ns) / 1e6 / NUM_TICKS)
                assert engine.stats()["schedulable"] == rows, "some row ended too soon"
                engine.run_until_idle()
    return {
        name: {
            "cpu_ms": statistics.median(cpu_ms[name]),
            "cpu_spread_ms": [min(cpu_ms[name]), max(cpu_ms[name])],
            "wall_ms": statistics.median(wall_ms[name]),
        }
        for name in observers
    }


def fill(engine: Engine, rows: int) -> None:
    """Questions about an image each, until all of them decode, with tokens left for NUM_TICKS."""
    image = EncodedImage(np.zeros((2, 27, 27, 3), np.uint8), (1, 1), 378, 378)
    settings = {"max_tokens": NUM_TICKS + 8 * rows + 20}
    for _ in range(rows):
        engine.submit(Request("query", image, "1", settings=settings))
    while engine.stats()["schedulable"] < rows:
        engine.run_until_idle(max_ticks=1)
    engine.run_until_idle(max_ticks=5)  # behind the last prefill


def show(result: dict[str, Any]) -> str:
    """The figures as a table for people."""
    lines = [
        machine.describe(result["machine"]),
        "the host's cost of a tick; observer: " + result["observer"],
        "rows  observers   CPU ms (low..high)     wall ms    bar ms",
    ]
    for rows, found in result["host"].items():
        for name in ("off", "on"):
            f, bar_ms = found[name], found["bar_ms"]
            low, high = f["cpu_spread_ms"]
            cpu = f"{f['cpu_ms']:.3f} ({low:.3f}..{high:.3f})"
            verdict = "" if f["cpu_ms"] <= bar_ms else "  OVER"
            lines.append(f"{rows:>4}  {name:<9}   {cpu:<22} {f['wall_ms']:.3f}      {bar_ms:.2f}{verdict}")
    return "\n".join(lines)
