"""DecodeSlot: one of the two ping-pong buffer sets, as the host sees it.

A DeviceSlot is the same set as the runner sees it. A slot owns the host twins of everything a step sends or
receives, and the step's events. All of it is allocated once. Each group of fields is one block of bytes, so a
step uploads one block per group:

    step     which rows, where they write, how they sample     host -> device, at launch
    prompt   token ids and values of a prefill                 host -> device, at a prefill's launch
    crops    image pixels of a prefill                         host -> device, at a prefill's launch
    masks    the mask index of each row                        host -> device, at sample
    results  sampled ids, coordinates, sizes                   device -> host, read at commit

I5 and I15: the host writes a slot's blocks only while no step in flight uses the slot. Results are
poisoned at launch, so that a read before the copy has landed is caught (-1, NaN), never believed.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from photon.device.base import Device, Event
from photon.model.config import ModelConfig
from photon.skills.base import Mask

GROUPS = ("step", "prompt", "crops", "masks", "results")
_ALIGN = 16


class Field(NamedTuple):
    """One array of a group; `dtype` is a name that numpy and torch share."""

    name: str
    shape: tuple[int, ...]
    dtype: str

    @property
    def num_bytes(self) -> int:
        return math.prod(self.shape) * np.dtype(self.dtype).itemsize


@dataclass(frozen=True)
class SlotShapes:
    """Sizes of a slot's blocks; picklable, so that both sides lay them out alike."""

    rows: int
    pages_per_row: int
    prompt_tokens: int
    crops: int
    crop_size: int

    def fields(self, group: str) -> tuple[Field, ...]:
        """The arrays of one group, in memory order."""
        rows = self.rows
        return {
            "step": (
                Field("batch_idx", (rows,), "int64"),
                Field("position", (rows,), "int64"),
                Field("last_index", (rows,), "int64"),
                Field("tail_page", (rows,), "int64"),
                Field("lora_slot", (rows,), "int64"),
                Field("image_row", (rows,), "int64"),
                Field("page_table", (rows, self.pages_per_row), "int64"),
                Field("temperature", (rows,), "float32"),
                Field("top_p", (rows,), "float32"),
                Field("uniform", (rows,), "float32"),
            ),
            "prompt": (
                Field("token", (self.prompt_tokens,), "int64"),
                Field("x", (self.prompt_tokens,), "float32"),
                Field("y", (self.prompt_tokens,), "float32"),
            ),
            "crops": (Field("pixels", (self.crops, self.crop_size, self.crop_size, 3), "uint8"),),
            "masks": (Field("mask", (rows,), "int64"),),
            "results": (
                Field("token", (rows,), "int64"),
                Field("coord", (rows, 1), "float32"),
                Field("size", (rows, 2), "float32"),
            ),
        }[group]

    def num_bytes(self, group: str) -> int:
        return sum(_aligned(field.num_bytes) for field in self.fields(group))

    def views(self, group: str, block: Tensor) -> SimpleNamespace:
        """The group's fields as tensors over one uint8 block."""
        views, offset = {}, 0
        for field in self.fields(group):
            taken = block[offset : offset + field.num_bytes]
            views[field.name] = taken.view(getattr(torch, field.dtype)).view(field.shape)
            offset += _aligned(field.num_bytes)
        return SimpleNamespace(**views)


def _aligned(num_bytes: int) -> int:
    return -(-num_bytes // _ALIGN) * _ALIGN


class DecodeSlot:
    """Host twins (numpy views of the device's host buffers) and events of one slot."""

    def __init__(self, index: int, shapes: SlotShapes, device: Device) -> None:
        self.index = index
        self.shapes = shapes
        self.blocks: dict[str, Any] = {group: device.host_buffer(shapes.num_bytes(group)) for group in GROUPS}
        for group in GROUPS:
            views = vars(shapes.views(group, self.blocks[group]))
            setattr(self, group, SimpleNamespace(**{name: view.numpy() for name, view in views.items()}))
        self._poison = self.blocks["results"].numpy()
        self.started: Event = device.event(timing=True)
        self.uploaded: Event = device.event(timing=True)
        self.vision_started: Event = device.event(timing=True)
        self.vision_done: Event = device.event(timing=True)
        self.forward_started: Event = device.event(timing=True)
        self.forward_done: Event = device.event(timing=True)
        self.sample_started: Event = device.event(timing=True)
        self.sampled: Event = device.event(timing=True)
        self.copy_started: Event = device.event(timing=True)
        self.copied: Event = device.event(timing=True)
        self.masks_started: Event = device.event(timing=True)
        self.masks_ready: Event = device.event(timing=True)
        self.uploaded_masks: list[Mask] = []
        """What the device's masks block holds in its first rows: what the step is sampled under."""
        self.has_new_masks = False
        """The step had to upload its masks."""
        self.is_synced = False
        """The host waited for the compute stream before it sampled: `Runtime.sync_masks`."""
        self.tables: list[list[int]] = []
        """Whom the step block's rows stand for: the very page lists, of which a sequence has a new one
        whenever it becomes resident, and which only grow while it is."""
        self.request_ids: list[int] = []
        self.lora_slots: list[int] = []
        """Of each, as the step's record names it."""
        self.num_pages: list[int] = []
        """Of each, how many pages the block holds."""
        self.padded_rows = 0
        """Rows of the block, those that stand for nothing included."""
        self.is_greedy = self.has_spatial = self.has_lora = False
        """Of the step's rows: all are sampled greedily; some may read or write coordinates, so that the
        region heads run; some have an adapter."""

    step: Any
    prompt: Any
    crops: Any
    masks: Any
    results: Any

    def begun(self, program: str) -> Event:
        """The event of a program that is the first of its span on the compute stream."""
        events = {"upload": self.started, "vision": self.vision_started, "sample": self.sample_started}
        return events.get(program, self.forward_started)

    @property
    def waits(self) -> str:
        """Who waited for which event in the slot's step, by verb."""
        host = "host for the compute stream, " if self.is_synced else ""
        masks = "compute for masks_ready, " if self.has_new_masks else ""
        return f"launch: nothing | sample: {host}{masks}copy for sampled | commit: host for copied"

    def poison_results(self) -> None:
        """Fill the result block with 0xFF: -1 as int64, NaN as float32."""
        self._poison.fill(0xFF)


class DeviceSlot:
    """The same on the device: twins of the blocks, and the step's logits and hidden states."""

    def __init__(
        self,
        config: ModelConfig,
        shapes: SlotShapes,
        host: dict[str, Tensor],
        *,
        dtype: torch.dtype,
        torch_device: str,
    ) -> None:
        text, rows = config.text, shapes.rows
        self.host = host
        self.blocks = {g: torch.zeros(len(host[g]), dtype=torch.uint8, device=torch_device) for g in GROUPS}
        views = {group: shapes.views(group, self.blocks[group]) for group in GROUPS}
        self.step, self.prompt, self.crops = views["step"], views["prompt"], views["crops"]
        self.masks, self.results = views["masks"], views["results"]
        self.hidden = torch.zeros(rows, text.dim, dtype=dtype, device=torch_device)
        self.logits = torch.zeros(rows, text.vocab_size, dtype=dtype, device=torch_device)
        num_patches, image_rows = config.vision.num_patches, min(rows, shapes.crops)
        self.images = torch.zeros(image_rows, num_patches, text.dim, dtype=dtype, device=torch_device)
