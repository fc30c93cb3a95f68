"""What the engine's tests share: a minuscule model with random weights, requests of every kind, the oracle.

The oracle SEQ of a request is the same engine at depth 1 with nothing else in it. Weights are random but
not arbitrary: the head's bias makes answers end at irregular lengths and objects come in varying numbers.
"""

from __future__ import annotations

import functools
import json
import shutil
import tempfile
from collections.abc import Sequence as Items
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save_file

from photon import Engine, EngineConfig, Handle, Request, load_model
from photon.device.base import Device, Stream, Work
from photon.device.deferred import DeferredDevice
from photon.model.config import ModelConfig
from photon.model.moondream import Moondream
from photon.model.weights import Model

GOLDEN = Path(__file__).parent / "data" / "golden"
CONTEXT = 96
MAX_TICKS = 20_000
EOS, ANSWER, COORD, SIZE = 0, 3, 5, 6

torch.set_num_threads(1)  # the tensors are tiny; the other cores belong to other tests


@functools.cache
def _folder() -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory(prefix="photon-tests-")


@functools.cache
def tiny_model(max_context: int = CONTEXT) -> Model:
    """2 layers of width 32 and the golden tokenizer's 512 tokens; an image is 4 positions."""
    folder = Path(_folder().name) / f"model-{max_context}"
    folder.mkdir()
    raw = _raw_config(max_context)
    (folder / "config.json").write_text(json.dumps(raw))
    shutil.copy(GOLDEN / "tokenizer.json", folder)
    with torch.device("meta"):
        module = Moondream(ModelConfig.from_dict(raw))
    save_file(_weights(module), folder / "model.safetensors")
    return load_model(folder)


def _raw_config(max_context: int) -> dict[str, Any]:
    golden = json.loads((GOLDEN / "expected.json").read_text())["config"]
    text = {"dim": 32, "ff_dim": 64, "n_layers": 2, "vocab_size": 512, "max_context": max_context}
    vision = {"enc_dim": 16, "enc_patch_size": 14, "enc_n_layers": 1, "enc_ff_dim": 24, "enc_n_heads": 2}
    vision |= {"proj_out_dim": 32, "crop_size": 28, "in_channels": 3, "max_crops": 4, "overlap_margin": 0}
    region = {"dim": 32, "coord_feat_dim": 8, "coord_out_dim": 64, "size_feat_dim": 8, "size_out_dim": 128}
    return {
        "text": {**text, "n_heads": 2, "n_kv_heads": 2, "prefix_attn": 5},
        "vision": {**vision, "proj_inner_dim": 24},
        "region": {**region, "inner_dim": 24},
        "tokenizer": golden["tokenizer"],
    }


def _weights(module: torch.nn.Module) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(7)
    weights = {}
    for name, parameter in module.state_dict().items():
        value = torch.randn(parameter.shape, generator=generator)
        if name.endswith("ln.weight") or (".ln" in name and name.endswith("weight")):
            value = 1 + 0.1 * value
        elif name.endswith("bias"):
            value = 0.1 * value
        elif name != "text.wte" and value.ndim == 2:
            value = 1.6 * value / parameter.shape[-1] ** 0.5
        weights[name] = value
    bias = weights["text.lm_head.bias"]
    for token_id, extra in ((EOS, 3.6), (COORD, 4.0), (ANSWER, 3.4), (7, 2.0), (9, 2.5)):
        bias[token_id] += extra
    return weights


@functools.cache
def adapter_path(name: str, *, rank: int = 4, targets: tuple[str, ...] = ("attn.qkv", "mlp.fc2")) -> Path:
    """A random adapter; the same name means the same weights."""
    sizes = {"attn.qkv": (96, 32), "attn.proj": (32, 32), "mlp.fc1": (64, 32), "mlp.fc2": (32, 64)}
    generator = torch.Generator().manual_seed(sum(name.encode()))
    tensors = {}
    for layer in range(2):
        for target in targets:
            width_out, width_in = sizes[target]
            key = f"text.blocks.{layer}.{target}"
            tensors[f"{key}.A"] = torch.randn(rank, width_in, generator=generator) / width_in**0.5
            tensors[f"{key}.B"] = torch.randn(width_out, rank, generator=generator) * 0.7
    path = Path(_folder().name) / f"{name}-{rank}-{len(targets)}.safetensors"
    save_file(tensors, path)
    return path


@functools.cache
def picture(seed: int, width: int = 24, height: int = 24) -> Any:
    """Random pixels; up to 28 x 28 is one crop, 56 x 56 five."""
    return np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)


def query(prompt: str = "how many dogs?", image: Any = None, **settings: Any) -> Request:
    return Request("query", image, prompt, settings=settings)


@functools.cache
def requests() -> tuple[Request, ...]:
    """One of every kind that the engine tells apart; short, because they are run thousands of times."""
    a, b, large = picture(1), picture(2), picture(3, 56, 40)
    point = ((0.25, 0.75),)
    box = ((0.1, 0.2, 0.6, 0.9),)
    return (
        query("what is it?", max_tokens=20),
        query("is there a dog in the picture?", a, max_tokens=24),
        query("colour", large, max_tokens=3),
        query("name it", b, max_tokens=16, adapter="a"),
        query("name it", b, max_tokens=16, adapter="b"),
        query("name it", b, max_tokens=16),
        query("tell me more", max_tokens=12, temperature=0.8, seed=5),
        query("tell me more", a, max_tokens=14, temperature=1.3, top_p=0.7, seed=6, adapter="b"),
        query("go on", large, max_tokens=18, temperature=0.6, seed=9, stop=["e", "qu"]),
        query("stop there", b, max_tokens=25, stop="th"),
        query("one", max_tokens=1),
        Request("query", a, "where?", spatial_refs=point + box, settings={"max_tokens": 10}),
        Request("query", b, "think about it", reasoning=True, settings={"max_tokens": 9}),
        Request("query", None, "think", reasoning=True, settings={"max_tokens": 6, "adapter": "a"}),
        Request("query", a, "why", reasoning=True, settings={"max_tokens": 8, "temperature": 1.0, "seed": 3}),
        Request("caption", a, length="short", settings={"max_tokens": 12}),
        Request("caption", large, length="long", settings={"max_tokens": 22, "temperature": 0.5, "seed": 1}),
        Request("caption", b, settings={"max_tokens": 15, "adapter": "b"}),
        Request("point", a, "dog", settings={"max_objects": 6}),
        Request("point", large, "cat", settings={"max_objects": 3}),
        Request("point", b, "bird", settings={"max_objects": 5, "temperature": 1.0, "seed": 11}),
        Request("detect", a, "dog", settings={"max_objects": 4}),
        Request("detect", b, "tree", settings={"max_objects": 5, "adapter": "a"}),
        Request("detect", large, "house", settings={"max_tokens": 8}),
    )


@dataclass(frozen=True)
class Outcome:
    """All that a caller learns of an answer, times left out."""

    tokens: tuple[Any, ...]
    result: dict[str, Any]


def outcome(handle: Handle) -> Outcome:
    """Of a finished request; raises what it failed with."""
    return Outcome(handle.tokens, handle.result(timeout=0))


def build(
    config: EngineConfig | None = None,
    *,
    seed: int = 0,
    device: Device | None = None,
    model: Model | None = None,
    **options: Any,
) -> Engine:
    """An engine that ticks when told to, on a deferred device, with adapters a and b loaded."""
    options.setdefault("threaded", False)
    engine = Engine(model or tiny_model(), device or DeferredDevice(seed), config or small(), **options)
    if engine.config.max_lora_slots:
        for name in ("a", "b"):
            engine.load_adapter(name, adapter_path(name))
    return engine


def small(**changes: Any) -> EngineConfig:
    """A config of the tiny model's scale."""
    return replace(EngineConfig(max_batch_size=4, page_size=4, prefill_token_budget=128), **changes)


def run(engine: Engine, items: Items[Request]) -> list[Outcome]:
    """Submit all at once, tick until idle with every invariant checked, collect."""
    handles = [engine.submit(request) for request in items]
    finish(engine)
    return [outcome(handle) for handle in handles]


def finish(engine: Engine) -> int:
    """Tick until nothing is left to do; returns the number of ticks."""
    ticks = 0
    while tick(engine):
        ticks += 1
        assert ticks < MAX_TICKS, "the engine makes no progress"
    return ticks


def tick(engine: Engine) -> bool:
    """One tick and all invariants after it; True while there is more to do."""
    engine.run_until_idle(max_ticks=1)
    stats = engine.stats()
    if stats["alive"]:
        audit(engine)
    return stats["alive"] and bool(stats["waiting"] or stats["resident"] or stats["in_flight_steps"])


def audit(engine: Engine) -> None:
    """The invariants that can be seen between two ticks."""
    engine.check()
    in_flight = engine._pipeline.in_flight
    assert len(in_flight) <= 2
    for step in in_flight:
        assert len({sequence.batch_idx for sequence in step.rows}) == len(step.rows), "one row twice"
        assert all(sequence.is_resident for sequence in step.rows), "I10: a step holds what is released"
    for sequence in engine._roster.resident:
        assert 0 <= sequence.inflight_refs <= 2, "I3"
        assert sequence.num_launched <= sequence.max_tokens, "I8"
        assert sequence.next_position <= engine.model.config.text.max_context, "I8"


BASELINE = (
    "waiting",
    "schedulable",
    "resident",
    "zombies",
    "free_lora_slots",
    "in_flight_steps",
)


def counters(engine: Engine) -> dict[str, int]:
    """Everything that must be as at the start when the engine is idle; cached pages are to be had."""
    stats = engine.stats()
    assert stats["cached_pages"] >= stats["cached_images"]
    tables = {"handles": len(engine._roster), "rows": engine._residency.capacity().rows}
    tables["pages"] = stats["free_pages"] + stats["cached_pages"]
    return {name: stats[name] for name in (*BASELINE, "in_flight_steps")} | tables


@functools.cache
def oracle(index: int) -> Outcome:
    """SEQ of `requests()[index]`."""
    return sequential(requests()[index])


def sequential(request: Request, **options: Any) -> Outcome:
    """SEQ: depth 1, alone, pages to spare, nothing cached."""
    with build(small(depth=1, max_cached_images=0), **options) as engine:
        return run(engine, [request])[0]


def text_of(result: dict[str, Any]) -> str:
    """The text an answer streams; nothing for points and boxes."""
    return result.get("answer", result.get("caption", ""))


def assert_answer(handle: Handle, index: int) -> None:
    """The finished request is SEQ, or a beginning of it where it was cancelled; so is what it streamed."""
    got, expected = outcome(handle), oracle(index)
    assert "".join(handle.stream()) == text_of(got.result), "the stream differs from the final text"
    if got.result["finish_reason"] == "cancelled":
        assert got.tokens == expected.tokens[: len(got.tokens)]
        assert text_of(expected.result).startswith(text_of(got.result).rstrip("\ufffd"))
    else:
        assert got == expected


class FlakyStream:
    """A stream that refuses the work named `fault` once, when it comes for the `countdown`-th time."""

    def __init__(self, inner: Stream, fault: str, countdown: int) -> None:
        self.inner, self.fault, self.countdown = inner, fault, countdown
        self.name = inner.name

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def enqueue(self, work: Work, **how: Any) -> None:
        if work.program == self.fault:
            self.countdown -= 1
            if self.countdown == 0:
                raise OSError(f"{self.fault} was refused")
        self.inner.enqueue(work, **how)


class FlakyDevice(DeferredDevice):
    """The host side of one launch or sample fails; the device itself lives on."""

    def __init__(self, fault: str, countdown: int, seed: int = 0) -> None:
        super().__init__(seed)
        self.compute = FlakyStream(self.compute, fault, countdown)
        self.copy = FlakyStream(self.copy, fault, countdown)
