"""What the prefix cache saves: the first question about a picture and the second, side by side in one run.

    python -m photon.selfcheck --prefix-cache [--json]

Each round draws a picture of its own, of several crops, and asks about it twice, one after the other, giving
the encoded file each time. The times to the first token have everything in them: decoding, hashing, cutting
crops, and the prefill.
"""

from __future__ import annotations

import io
import os
import statistics
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from photon.config import EngineConfig
from photon.device import open_device
from photon.engine import Engine
from photon.handle import RequestMetrics
from photon.model.weights import load_model
from photon.sequence import Request

MAX_RATIO = 0.2
"""The most that the second question's time to the first token may be of the first's."""
SIZE = (640, 480)


def draw(seed: int) -> bytes:
    """A PNG of coloured fields."""
    fields = np.random.default_rng(seed).integers(0, 256, (6, 8, 3), dtype=np.uint8)
    file = io.BytesIO()
    Image.fromarray(fields).resize(SIZE, Image.Resampling.NEAREST).save(file, "PNG")
    return file.getvalue()


def ask(engine: Engine, picture: bytes, *, num_tokens: int, is_threaded: bool) -> Any:
    """A caption of the picture: its metrics and its tokens."""
    handle = engine.submit(Request("caption", picture, settings={"max_tokens": num_tokens}))
    if not is_threaded:
        engine.run_until_idle()
    handle.result(timeout=600)
    assert handle.metrics is not None
    return handle.metrics, handle.tokens


def check(device_name: str, *, num_tokens: int, num_rounds: int, model: Path) -> dict[str, Any]:
    """Run all rounds and return everything measured, as plain JSON values; "ok" is the verdict."""
    device = open_device(device_name)
    is_threaded = device.name != "deferred"
    rounds: list[tuple[RequestMetrics, RequestMetrics]] = []
    is_equal, load = True, [os.getloadavg()[0]]
    with Engine(load_model(model), device, EngineConfig(), threaded=is_threaded) as engine:
        num_crops = len(engine.encode_image(draw(0)).pixels)
        for seed in range(num_rounds + 1):
            asked = [
                ask(engine, draw(seed), num_tokens=num_tokens, is_threaded=is_threaded) for _ in range(2)
            ]
            (first, tokens), (second, again) = asked
            is_equal = is_equal and tokens == again
            rounds += [(first, second)] if seed else []  # the first picture warms up
        prefix = engine.model.config.text.prefix_attn
    load.append(os.getloadavg()[0])
    ratios = [second.ttft_ms / first.ttft_ms for first, second in rounds]
    is_cached = all((first.cached_tokens, second.cached_tokens) == (0, prefix) for first, second in rounds)
    return {
        "device": device.name,
        "model": engine.model.config.name,
        "dtype": engine.dtype,
        "crops": num_crops,
        "load": load,
        "first": figures([first for first, _ in rounds]),
        "second": figures([second for _, second in rounds]),
        "ratio": statistics.median(ratios),
        "ratio_spread": [min(ratios), max(ratios)],
        "cached_tokens": prefix if is_cached else None,
        "tokens_equal": is_equal,
        "ok": is_equal and is_cached and statistics.median(ratios) <= MAX_RATIO,
    }


def figures(metrics: list[RequestMetrics]) -> dict[str, Any]:
    """Medians in milliseconds, and the spread of the time to the first token."""
    names = ("ttft_ms", "preprocess_ms", "prefill_ms")
    medians = {name: statistics.median(getattr(m, name) for m in metrics) for name in names}
    times = [m.ttft_ms for m in metrics]
    return {**medians, "ttft_spread_ms": [min(times), max(times)]}


def show(result: dict[str, Any]) -> str:
    """The figures for people."""
    load = " to ".join(f"{value:.2f}" for value in result["load"])
    lines = [
        f"{result['model']} on {result['device']}, {result['dtype']}; load {load}",
        f"{SIZE[0]} x {SIZE[1]} px in {result['crops']} crops",
        "question   TTFT ms (low..high)   preprocess ms  prefill ms",
    ]
    for name in ("first", "second"):
        f = result[name]
        low, high = f["ttft_spread_ms"]
        ttft = f"{f['ttft_ms']:>8.2f} ({low:.2f}..{high:.2f})"
        lines.append(f"{name:<8} {ttft:<24} {f['preprocess_ms']:>10.2f} {f['prefill_ms']:>11.2f}")
    low, high = result["ratio_spread"]
    lines.append(
        f"second / first {result['ratio']:.3f} ({low:.3f}..{high:.3f}), at most {MAX_RATIO:g} allowed; "
        f"tokens equal: {'yes' if result['tokens_equal'] else 'NO'}; cached: {result['cached_tokens']}"
    )
    return "\n".join(lines)
