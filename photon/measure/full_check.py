"""The full check of a card: Moondream 2's size with random weights, held against the CPU and its own limits.

    python -m photon.selfcheck --device cuda --full [--json]       within five minutes
    python -m photon.selfcheck --device cpu --full                 the same at the embedded model's size

- tokens: greedy answers about images, held against one plain float32 pass on the CPU (`dense_forward.py`);
  a token may differ from the CPU's choice only where that one's logit is ahead by less than MARGINS
- the self-check's rounds at 1, 8 and 32 rows: periods, bubble, gain, equal tokens, steps in flight
- the decode step against its floor: bytes it must read / bandwidth measured on this device (`bandwidth.py`)
- sync leaks: a run in which a program that makes the host wait fails, on CUDA, and waits counted everywhere
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence as Items
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from photon.admission import EncodedImage
from photon.config import EngineConfig
from photon.device import open_device
from photon.device.base import Work
from photon.engine import Engine
from photon.errors import PhotonError
from photon.handle import Handle
from photon.measure import bandwidth, machine
from photon.measure.dense_forward import answer_logits
from photon.measure.rounds import DEPTHS, EMBEDDED_MODEL, Listener, Rounds, endless, summary, table
from photon.model.config import ModelConfig
from photon.model.random_weights import write_checkpoint
from photon.model.tokenizer import Tokenizer
from photon.model.weights import Checkpoint, Model, load_model
from photon.sequence import Request
from photon.skills.base import Mask, Token, token_masks

ROWS = (1, 8, 32)
NUM_ANSWERS = 4
ANSWER_TOKENS = 24
MARGINS = {"float32": 0.01, "bfloat16": 0.15, "float16": 0.05}
"""How far the CPU's choice may be ahead of a token, by the device's dtype. The logits have deviation 1; what
bfloat16 rounding turned over in 24 layers of width 512 was ahead by 0.03 at most."""


@dataclass(frozen=True)
class Size:
    """How large the check is. `copy_bytes`: of the buffer whose copy measures bandwidth."""

    config: ModelConfig
    num_tokens: int
    num_rounds: int
    copy_bytes: int
    rows: tuple[int, ...] = ROWS
    dtype: str = "auto"


def size_for(device_name: str, *, num_tokens: int, num_rounds: int) -> Size:
    """Moondream 2 on a card, the embedded model elsewhere."""
    is_card = device_name.startswith("cuda")
    config = ModelConfig() if is_card else load_model(EMBEDDED_MODEL).config
    return Size(config, num_tokens, num_rounds, copy_bytes=1 << 30 if is_card else 1 << 26)


def check(device_name: str, size: Size) -> dict[str, Any]:
    """Run everything and return what was found, as plain JSON values; "ok" is the verdict.

    Raises:
        DeviceError: no such device; said before anything is written.
    """
    device = open_device(device_name)
    facts = machine.facts(device)
    try:
        bytes_per_s = bandwidth.measure(device, size.copy_bytes)
    finally:
        device.close()
    with tempfile.TemporaryDirectory(prefix="photon-full-check-") as folder:
        model = random_model(Path(folder), size.config)
        listener, config = Listener(), EngineConfig(max_batch_size=max(size.rows), max_cached_images=0)
        with Engine(
            model, open_device(device_name), config, observers=[listener], dtype=size.dtype
        ) as engine:
            attention = engine.device.call(Work("decode_attention"))
            rounds = Rounds(engine, listener, size.num_tokens, size.num_rounds)
            found = summary(engine, {rows: rounds.alternate(rows) for rows in size.rows})
            leak = sync_leak(engine)
            asked = pictures(size.config)
            answers = [handle.tokens for handle in ask(engine, asked)] if leak is None else []
        tokens = compare(model, asked, answers, MARGINS[engine.dtype])
    return {
        **found,
        "machine": facts,
        "decode_attention": attention,
        "bandwidth_gb_s": bytes_per_s / 1e9,
        "floors": floors(found, size, engine.dtype, bytes_per_s),
        "sync_leak": leak,
        "tokens": tokens,
        "ok": found["ok"] and leak is None and tokens["ok"],
    }


def random_model(folder: Path, config: ModelConfig) -> Model:
    """Random weights in a file, and the embedded model's tokenizer, of which only encoding is needed."""
    path = folder / "model.safetensors"
    write_checkpoint(path, config)
    tokenizer = Tokenizer(EMBEDDED_MODEL / "tokenizer.json")
    return Model(config, tokenizer, Checkpoint.open(path, config), folder)


def pictures(config: ModelConfig) -> list[EncodedImage]:
    """Random pixels, one crop each."""
    side, generator = config.vision.crop_size, np.random.default_rng(0)
    shape = (1, side, side, 3)
    return [
        EncodedImage(generator.integers(0, 256, shape, dtype=np.uint8), (1, 1), side, side)
        for _ in range(NUM_ANSWERS)
    ]


def ask(engine: Engine, images: Items[EncodedImage], **settings: Any) -> list[Handle]:
    """An answer of ANSWER_TOKENS about each image, all at once."""
    settings = {"max_tokens": ANSWER_TOKENS, **settings}
    handles = engine.submit_all([Request(endless, image, settings=settings) for image in images])
    for handle in handles:
        handle.result(timeout=600)
    return handles


def sync_leak(engine: Engine) -> str | None:
    """What fails when programs must not make the host wait: greedy, sampled, spatial rows; None: nothing."""
    images = pictures(engine.model.config)
    engine.device.forbid_syncs(True)
    try:
        ask(engine, images)
        ask(engine, images, temperature=0.7, seed=1)
        point = Request("point", images[0], "red circle", settings={"max_objects": 3})
        engine.submit(point).result(timeout=600)
    except PhotonError as error:
        return str(error)
    finally:
        engine.device.forbid_syncs(False)
    return None


# What was found -------------------------------------------------------------------------------------


def compare(
    model: Model, images: Items[EncodedImage], answers: Items[Items[Token]], margin: float
) -> dict[str, Any]:
    """Each token against the choice of a float32 pass on the CPU over the same answer."""
    module = model.checkpoint.build("cpu", torch.float32)
    ids = model.config.tokenizer
    prompt = [Token(i) for i in ids.templates["caption"]["short"]]
    barred = torch.tensor(token_masks(ids)[Mask.UNENDING].suppressed)
    ahead: list[float] = []
    for image, answer in zip(images, answers, strict=False):
        logits = answer_logits(module, image, prompt, answer).index_fill(1, barred, -torch.inf)
        said = logits.gather(1, torch.tensor([[token.id] for token in answer]))[:, 0]
        ahead += (logits.amax(-1) - said).tolist()
    return {
        "compared": len(ahead),
        "different": sum(value > 0 for value in ahead),
        "largest_margin": max(ahead, default=0.0),
        "allowed_margin": margin,
        "ok": bool(ahead) and max(ahead) <= margin,
    }


def floors(found: dict[str, Any], size: Size, dtype: str, bytes_per_s: float) -> dict[str, Any]:
    """By batch size: what a decode step must take by bandwidth alone, and what it took as a multiple."""
    text = size.config.text
    positions = text.prefix_attn + len(size.config.tokenizer.templates["caption"]["short"])
    positions += size.num_tokens // 2  # half of the answer, on average
    by_rows = {}
    for rows in size.rows:
        num_bytes = bandwidth.step_bytes(size.config, dtype, rows, positions)
        floor_ms, device_ms = num_bytes / bytes_per_s * 1e3, found["rows"][str(rows)]["depth_2"]["device_ms"]
        by_rows[str(rows)] = {"floor_ms": floor_ms, "over_floor": device_ms / floor_ms}
    return by_rows


def show(result: dict[str, Any]) -> str:
    """The findings for people."""
    tokens = result["tokens"]
    lines = [
        machine.describe(result["machine"]),
        f"random weights in the shapes of {result['model']}, {result['dtype']}",
        *table(result["rows"]),
        f"attention of a decode step: {result['decode_attention']}",
        f"bandwidth of a copy: {result['bandwidth_gb_s']:.1f} GB/s",
    ]
    for rows, floor in result["floors"].items():
        bubbles = [f"{result['rows'][rows][f'depth_{depth}']['bubble_percent']:.1f} %" for depth in DEPTHS]
        lines.append(
            f"{rows:>4} rows: floor of a step {floor['floor_ms']:.3f} ms, it took {floor['over_floor']:.2f} "
            f"times that; bubble {bubbles[0]} at depth 1, {bubbles[1]} at depth 2"
        )
    lines += [
        f"tokens unlike the CPU's: {tokens['different']} of {tokens['compared']}, behind by at most "
        f"{tokens['largest_margin']:.4f} ({tokens['allowed_margin']:g} allowed)",
        f"tokens equal at depth 1 and 2: {'yes' if result['tokens_equal'] else 'NO'}",
        f"most steps in flight, by depth: {result['max_in_flight']}",
        f"waits for the device inside launch or sample: {result['sync_leaks']}; "
        f"programs that make the host wait: {result['sync_leak'] or 'none'}",
        f"full check: {'ok' if result['ok'] else 'FAILED'}",
    ]
    return "\n".join(lines)
