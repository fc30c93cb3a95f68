"""How fast a device's memory is, measured by copying; and what a decode step must read at the least.

    floor of a step = bytes it reads / bandwidth      weights of the blocks and the head, keys and values

Bandwidth is bytes read plus bytes written over the time of a copy, so it is what the card gives, not what its
data sheet says.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from photon.device.base import Device, Work
from photon.model.config import ModelConfig
from photon.model.random_weights import shapes_of

NUM_COPIES = 10
_READ_BY_A_STEP = ("text.blocks.", "text.post_ln.", "text.lm_head.")


@dataclass(frozen=True)
class CopySpec:
    """A runner with two buffers of so many bytes."""

    num_bytes: int

    def build(self, torch_device: str) -> CopyRunner:
        return CopyRunner(self.num_bytes, torch_device)


class CopyRunner:
    """Copies one buffer to the other."""

    def __init__(self, num_bytes: int, torch_device: str) -> None:
        self._source = torch.zeros(num_bytes, dtype=torch.uint8, device=torch_device)
        self._target = torch.zeros_like(self._source)

    def copy(self) -> None:
        self._target.copy_(self._source)


def measure(device: Device, num_bytes: int) -> float:
    """Bytes per second of a copy; the best of some. Blocks; loads a runner of its own onto the device."""
    device.load(CopySpec(num_bytes))
    best_ns = 0
    for _ in range(NUM_COPIES):
        start, end = device.event(timing=True), device.event(timing=True)
        device.compute.record_event(start)
        device.compute.enqueue(Work("copy"), label="copy")
        device.compute.record_event(end)
        end.synchronize()
        taken_ns = device.time_ns(end) - device.time_ns(start)
        best_ns = min(best_ns or taken_ns, taken_ns)
    return 2 * num_bytes * 1e9 / best_ns


def step_bytes(config: ModelConfig, dtype: str, rows: int, positions: int) -> int:
    """Bytes that one decode step reads: weights once, and `positions` keys and values of each row.

    Spatial rows read the region heads' weights besides.
    """
    item = getattr(torch, dtype).itemsize
    weights = sum(
        math.prod(shape) for name, shape in shapes_of(config).items() if name.startswith(_READ_BY_A_STEP)
    )
    return item * (weights + rows * positions * config.text.n_layers * 2 * config.text.dim)
