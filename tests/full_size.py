"""The full-size check without the real weights: a random checkpoint of Moondream 2's 1.93 billion parameters.

    python tests/full_size.py                          both layouts, one after the other; 4 GB of disk
    python tests/full_size.py --layout old --threads 1

Writes the checkpoint to a temporary folder, opens it as a user would, loads it on this machine's CPU,
answers a point and a query through the pipelined engine, and prints memory and times. What it answers is
noise; that it answers, in how much memory and how fast, is what is checked.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import sys
import tempfile
from pathlib import Path
from typing import Any

import tokenizers
import torch
from PIL import Image

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))  # run by hand, from anywhere

from photon import Engine, EngineConfig, Request, load_model  # noqa: E402
from photon.device.cpu import CpuDevice  # noqa: E402
from photon.model.config import ModelConfig  # noqa: E402
from photon.model.random_weights import LAYOUTS, write_checkpoint  # noqa: E402

NUM_TOKENS = 16
HEAD_BIAS = {5: 20.0} | dict.fromkeys(range(300, 512), 10.0)
"""So that there are objects (5 is coord_id), and text that the stand-in can spell."""
GOLDEN = Path(__file__).parent / "data" / "golden"


def write_tokenizer(path: Path) -> None:
    """A stand-in with the token by which the real one is told apart."""
    tokenizer = tokenizers.Tokenizer.from_file(str(GOLDEN / "tokenizer.json"))
    tokenizer.add_special_tokens(["<|md_reserved_0|>"])
    tokenizer.save(str(path))


def peak_bytes(pid: int | str = "self") -> int:
    """The most memory that a process has had, mapped files included."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM:"))


def load_peak(folder: Path, dtype: str) -> float:
    """What building the model takes in a fresh process, as a multiple of the file."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(_build, (folder, dtype))


def _build(folder: Path, dtype: str) -> float:
    torch.set_num_threads(1)
    checkpoint = load_model(folder).checkpoint
    before = peak_bytes()
    model = checkpoint.build("cpu", getattr(torch, dtype))
    taken = peak_bytes() - before
    del model
    return taken / checkpoint.path.stat().st_size


def check(folder: Path, dtype: str, num_threads: int) -> dict[str, Any]:
    """Load, answer, and return the figures: bytes as multiples of the file, times in milliseconds."""
    file_bytes = (folder / "model.safetensors").stat().st_size
    host_before = peak_bytes()
    model = load_model(folder)
    device = CpuDevice(num_threads=num_threads)
    worker_before = peak_bytes(device.pid)
    start_ns = device.now_ns()
    with Engine(model, device, EngineConfig(max_batch_size=2), dtype=dtype) as engine:
        load_ms = (device.now_ns() - start_ns) / 1e6
        loaded = peak_bytes(device.pid)
        image = engine.encode_image(Image.new("RGB", (model.config.vision.crop_size,) * 2, "teal"))
        point = engine.submit(Request("point", image, "cat", settings={"max_objects": 2}))
        query = engine.submit(Request("query", image, "what?", settings={"max_tokens": NUM_TOKENS}))
        results = [handle.result(timeout=1800) for handle in (point, query)]
        alone = engine.submit(Request("query", None, "what?", settings={"max_tokens": NUM_TOKENS}))
        results.append(alone.result(timeout=1800))
        step_ms = alone.metrics.decode_ms / max(1, len(alone.tokens) - 1)
        return {
            "file_gb": file_bytes / 1e9,
            "parameters": model.checkpoint.num_parameters,
            "pages": engine.stats()["total_pages"],
            "load_s": load_ms / 1e3,
            "load_peak_over_file": load_peak(folder, dtype),
            "engine_peak_over_file": (loaded - worker_before) / file_bytes,
            "serving_peak_over_file": (peak_bytes(device.pid) - worker_before) / file_bytes,
            "host_peak_over_file": (peak_bytes() - host_before) / file_bytes,
            "max_in_flight": engine.stats()["max_in_flight"],
            "ttft_s": point.metrics.ttft_ms / 1e3,
            "step_ms": step_ms,
            "tokens": [[token.id for token in handle.tokens] for handle in (point, query, alone)],
            "results": results,
        }


def run(layout: str, dtype: str, num_threads: int) -> dict[str, Any]:
    """Write one layout to a temporary folder, check it, delete it."""
    with tempfile.TemporaryDirectory(prefix="full-size-") as name:
        folder = Path(name)
        write_checkpoint(folder / "model.safetensors", ModelConfig(), layout, HEAD_BIAS)
        write_tokenizer(folder / "tokenizer.json")
        return {"layout": layout, "dtype": dtype, **check(folder, dtype, num_threads)}


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="full_size.py", description=__doc__.split("\n")[0])
    parser.add_argument("--layout", choices=LAYOUTS, action="append", help="both without it")
    parser.add_argument("--dtype", choices=("bfloat16", "float32"), default="bfloat16")
    parser.add_argument("--threads", type=int, default=2, help="torch threads of the worker (default: 2)")
    args = parser.parse_args(argv)
    for layout in args.layout or LAYOUTS:
        print(json.dumps(run(layout, args.dtype, args.threads), indent=2), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
