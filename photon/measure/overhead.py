"""What observing costs: throughput with an observer and without one, in one run.

    python -m photon.selfcheck --overhead --observer tracing.recorder:Recorder [--json]

The rounds alternate between listening and not, in the order on, off, off, on, so that both meet the same
machine; each pair gives one difference. The observer is named, as the engine knows of no recorder.
"""

from __future__ import annotations

import importlib
import os
import statistics
from collections.abc import Sequence as Items
from pathlib import Path
from typing import Any

from photon.config import EngineConfig
from photon.device import open_device
from photon.engine import Engine
from photon.errors import InvalidRequestError
from photon.measure.rounds import play
from photon.model.weights import load_model
from photon.observe import Observer

ROWS = 8
MAX_PERCENT = 1.0
"""The most that throughput may fall, in percent."""


class ListenedEngine(Engine):
    """The engine, with observers that come and go."""

    def listen(self, observers: Items[Observer]) -> None:
        """Between two ticks; blocks until then."""
        self._worker.call(lambda: self._tracer.listen(observers))


def make_observer(name: str) -> Observer:
    """An instance of the class named "package.module:Class".

    Raises:
        InvalidRequestError: there is none, or it cannot be made without arguments.
    """
    module, _, attribute = name.partition(":")
    try:
        observer: Observer = getattr(importlib.import_module(module), attribute)()
    except (ImportError, AttributeError, TypeError, ValueError) as error:
        raise InvalidRequestError(
            f"There is no observer {name!r} ({error}); name a class as in tracing.recorder:Recorder."
        ) from error
    return observer


def check(
    device_name: str, observer_name: str, *, num_tokens: int, num_rounds: int, model: Path
) -> dict[str, Any]:
    """Run the workload and return everything measured, as plain JSON values."""
    observer = make_observer(observer_name)
    device = open_device(device_name)
    is_threaded = device.name != "deferred"
    config = EngineConfig(max_batch_size=ROWS, max_cached_images=0)
    rates: dict[bool, list[float]] = {True: [], False: []}
    load = [os.getloadavg()[0]]
    with ListenedEngine(load_model(model), device, config, threaded=is_threaded) as engine:
        play(engine, ROWS, num_tokens, is_threaded=is_threaded)  # warm-up
        for round_number in range(num_rounds):
            for is_on in (True, False) if round_number % 2 == 0 else (False, True):
                engine.listen([observer] if is_on else [])
                start_ns = device.now_ns()
                handles = play(engine, ROWS, num_tokens, is_threaded=is_threaded)
                rates[is_on].append(
                    sum(handle.num_tokens for handle in handles) * 1e9 / (device.now_ns() - start_ns)
                )
        load.append(os.getloadavg()[0])
    lost = sorted((off - on) / off * 100 for on, off in zip(rates[True], rates[False], strict=True))
    return {
        "device": device.name,
        "observer": observer_name,
        "dtype": engine.dtype,
        "rows": ROWS,
        "load": load,
        "tokens_per_s": {
            "on": statistics.median(rates[True]),
            "off": statistics.median(rates[False]),
        },
        "lost_percent": statistics.median(lost),
        "lost_quartiles": statistics.quantiles(lost, n=4)[::2] if len(lost) > 1 else lost * 2,
        "lost_spread": [lost[0], lost[-1]],
        "ok": statistics.median(lost) <= MAX_PERCENT,
    }


def show(result: dict[str, Any]) -> str:
    """The figures for people."""
    load = " to ".join(f"{value:.2f}" for value in result["load"])
    low, high = result["lost_quartiles"]
    rates = result["tokens_per_s"]
    return (
        f"{result['observer']} on {result['device']}, {result['dtype']}, {result['rows']} rows; load {load}\n"
        f"tokens/s with it {rates['on']:.0f}, without {rates['off']:.0f}\n"
        f"throughput lost {result['lost_percent']:+.2f} % (quartiles {low:+.2f}..{high:+.2f}), "
        f"at most {MAX_PERCENT:g} % allowed: {'ok' if result['ok'] else 'NO'}"
    )
