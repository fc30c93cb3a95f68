"""ModelRunner: the programs that run on the device's side, over buffers whose addresses never change.

One step is a handful of programs, each enqueued by name (`device/base.py`):

    decode   upload -> decode  -> | upload_masks (copy stream) -> sample | -> fetch (copy stream)
    prefill  upload -> vision -> project -> prefill -> | ... the same tail ...
             upload -> prefill_cached ->    | ... the same tail, for images whose pages are there ...

The token never leaves the device on the critical path: `sample` scatters ids, coordinates and sizes
into the pending buffers, indexed by batch_idx, and the next `decode` gathers its inputs from there.

Owns: weights, KV pages, pending buffers, adapter buffers, the device halves of both slots.
Does not own: any decision. Arguments of programs are shapes and flags, never data of a request.
I14: nothing is allocated per step but what PyTorch's operators need inside.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from photon.decode_attention import GatherAttention, choose_attention
from photon.decode_forward import DecodeForward, typed_embeddings
from photon.kv_cache import PagedKVCache
from photon.lora import LoraBuffers
from photon.model.layers import rotary_table, rotate
from photon.model.text import Attend
from photon.model.weights import Adapter, Checkpoint
from photon.sampler import mask_table, sample_greedy, sample_top_p
from photon.skills.base import TokenMask
from photon.slot import DeviceSlot, SlotShapes


@dataclass(frozen=True)
class ModelRunnerSpec:
    """Everything the device's side needs to build the runner; picklable."""

    checkpoint: Checkpoint
    dtype: str
    shapes: SlotShapes
    host_blocks: tuple[dict[str, Any], ...]
    """Per slot and group, the host buffer shared with the engine."""
    num_rows: int
    num_pages: int
    page_size: int
    num_lora_slots: int
    max_lora_rank: int
    masks: tuple[TokenMask, ...]
    can_use_kernel: bool = True
    """False: decode copies KV pages even where its kernel works, to compare the two."""

    def build(self, torch_device: str) -> ModelRunner:
        with torch.inference_mode():
            return ModelRunner(self, torch_device)


class ModelRunner:
    """The programs. Rows beyond the real ones are padding: batch_idx 0, null page, lora_slot 0."""

    def __init__(self, spec: ModelRunnerSpec, torch_device: str) -> None:
        dtype = getattr(torch, spec.dtype)
        config = spec.checkpoint.config
        self.config = config
        self.model = spec.checkpoint.build(torch_device, dtype)
        self.cache = PagedKVCache(
            num_layers=config.text.n_layers,
            num_pages=spec.num_pages,
            page_size=spec.page_size,
            n_heads=config.text.n_heads,
            head_dim=config.text.head_dim,
            dtype=dtype,
            torch_device=torch_device,
        )
        self.lora = LoraBuffers(
            config.text,
            num_slots=spec.num_lora_slots,
            max_rank=spec.max_lora_rank,
            dtype=dtype,
            torch_device=torch_device,
        )
        self.adapters: dict[int, dict[str, Tensor]] = {}
        self.slots = [
            DeviceSlot(config, spec.shapes, host, dtype=dtype, torch_device=torch_device)
            for host in spec.host_blocks
        ]
        self.pending_token = torch.zeros(spec.num_rows, dtype=torch.int64, device=torch_device)
        self.pending_coord = torch.zeros(spec.num_rows, 1, device=torch_device)
        self.pending_size = torch.zeros(spec.num_rows, 2, device=torch_device)
        vision, num_crops = config.vision, spec.shapes.crops
        self.features = torch.zeros(
            num_crops, vision.num_patches, vision.enc_dim, dtype=dtype, device=torch_device
        )
        """Of the crops of one launch; one for both slots, as they share the compute stream (I1)."""
        self.disallowed = mask_table(spec.masks, config.text.vocab_size, torch_device)
        self.turns = rotary_table(config.text.rotary_dim, config.text.max_context).to(torch_device)
        self.positions = torch.arange(config.text.max_context, device=torch_device)
        self._pending = (self.pending_token, self.pending_coord, self.pending_size, *self.cache.layers)
        choose = choose_attention if spec.can_use_kernel else GatherAttention
        self._attention = choose(self.cache, self.turns)
        self._forwards = {
            has_spatial: DecodeForward(self.model, self._attention, has_spatial=has_spatial)
            for has_spatial in (False, True)
        }
        self._replays = {
            key: self._recorded(forward, torch_device) for key, forward in self._forwards.items()
        }

    def _recorded(self, forward: DecodeForward, torch_device: str) -> Callable[..., tuple[Tensor, Tensor]]:
        """Record a forward on a CPU; on CUDA the whole program is captured as a graph instead."""
        if torch_device != "cpu":
            return forward.run
        rows = torch.zeros(2, dtype=torch.int64)  # padding rows: they write to the null page
        return forward.recorded(rows, rows, torch.zeros(2, 2, dtype=torch.int64), *self._pending)

    # Copies -----------------------------------------------------------------------------------------

    @torch.inference_mode()
    def upload(self, slot: int, is_prefill: bool) -> None:
        """Host -> device: the step block, and the prompt block of a prefill."""
        for group in ("step", "prompt") if is_prefill else ("step",):
            self._to_device(slot, group)

    @torch.inference_mode()
    def upload_masks(self, slot: int) -> None:
        """Host -> device: each row's mask index, on the copy stream."""
        self._to_device(slot, "masks")

    @torch.inference_mode()
    def fetch(self, slot: int) -> None:
        """Device -> host: ids, coordinates and sizes of all rows in one copy."""
        mine = self.slots[slot]
        mine.host["results"].copy_(mine.blocks["results"], non_blocking=True)

    def _to_device(self, slot: int, group: str) -> None:
        mine = self.slots[slot]
        mine.blocks[group].copy_(mine.host[group], non_blocking=True)

    # Forwards ---------------------------------------------------------------------------------------

    @torch.inference_mode()
    def vision(self, slot: int, num_crops: int) -> None:
        """Encode the slot's crops, for `project`."""
        mine = self.slots[slot]
        pixels = mine.crops.pixels[:num_crops]
        pixels.copy_(mine.host["crops"][: pixels.numel()].view(pixels.shape), non_blocking=True)
        self.features[:num_crops] = self.model.vision.encode(pixels)

    @torch.inference_mode()
    def project(self, slot: int, tilings: tuple[tuple[int, int], ...]) -> None:
        """One embedding per image, of the crops that `vision` encoded; rows find theirs by `image_row`."""
        self.slots[slot].images[: len(tilings)] = self.model.vision.join(self.features, tilings)

    @torch.inference_mode()
    def prefill(self, slot: int, rows: int, length: int, has_image: bool, has_lora: bool) -> None:
        """Prefix and prompt of `rows` new sequences, padded to `length` prompt tokens.

        Right padding is harmless: causal attention keeps it from every real position, and its keys land
        in the row's own unwritten positions or in the null page.
        """
        mine = self.slots[slot]
        x = self._prompt_embeddings(slot, rows, length)  # (B, length, D)
        head = [self.model.text.embed(torch.full((rows, 1), self.config.tokenizer.bos_id, device=x.device))]
        if has_image:
            head.append(mine.images.index_select(0, mine.step.image_row[:rows]))
        x = torch.cat((*head, x), dim=1)
        total = x.shape[1]
        kv_slots = self.cache.slots(mine.step.page_table[:rows], self.positions[:total].expand(rows, -1))
        attend = self._prefill_attention(self.turns[:total], kv_slots, self._prefix_mask(total, has_image))
        self._finish_prefill(slot, x, attend, has_lora=has_lora)

    @torch.inference_mode()
    def prefill_cached(self, slot: int, rows: int, length: int, pages: int, has_lora: bool) -> None:
        """Prompts of `rows` sequences, padded to `length` tokens, behind image prefixes that others computed.

        Full pages of the prefix are in the row's table; of a page that it fills in part, a copy is made here.
        """
        mine, first = self.slots[slot], self.config.text.prefix_attn
        table = mine.step.page_table[:rows]
        if first % self.cache.page_size:
            self.cache.copy(mine.step.tail_page[:rows], table[:, first // self.cache.page_size])
        at = self.positions[first : first + length]
        kv_slots = self.cache.slots(table, at.expand(rows, -1))
        keys_at = torch.arange(pages * self.cache.page_size, device=at.device)
        allowed = keys_at[None, :] <= at[:, None]  # (length, L)
        turns = self.turns[first : first + length]
        attend = self._prefill_attention(turns, kv_slots, allowed, table[:, :pages])
        x = self._prompt_embeddings(slot, rows, length)
        self._finish_prefill(slot, x, attend, first=first, has_lora=has_lora)

    @torch.inference_mode()
    def decode(self, slot: int, rows: int, pages: int, has_spatial: bool, has_lora: bool) -> None:
        """One token of `rows` sequences, attending to the first `pages` pages of each."""
        mine = self.slots[slot]
        step = mine.step
        args = (step.batch_idx[:rows], step.position[:rows], step.page_table[:rows, :pages], *self._pending)
        if has_lora:
            forward = self._forwards[has_spatial].run
            hidden, logits = forward(*args, lora=self.lora, lora_slot=step.lora_slot[:rows])
        else:
            hidden, logits = self._replays[has_spatial](*args)
        mine.hidden[:rows] = hidden
        mine.logits[:rows] = logits

    def decode_attention(self) -> str:
        """The way in which `decode` attends: "kernel" or "gather"."""
        return self._attention.name

    @torch.inference_mode()
    def sample(self, slot: int, rows: int, is_greedy: bool, has_spatial: bool) -> None:
        """Mask, sample, decode coordinates and sizes, and leave all three pending for the next forward."""
        mine = self.slots[slot]
        step, results, hidden = mine.step, mine.results, mine.hidden[:rows]
        logits = mine.logits[:rows].masked_fill_(self.disallowed[mine.masks.mask[:rows]], -torch.inf)
        if is_greedy:
            ids = sample_greedy(logits)
        else:
            ids = sample_top_p(logits, step.temperature[:rows], step.top_p[:rows], step.uniform[:rows])
        results.token[:rows] = ids
        if has_spatial:
            results.coord[:rows] = self.model.region.decode_coord(hidden)
            results.size[:rows] = self.model.region.decode_size(hidden)
            self.pending_coord.index_copy_(0, step.batch_idx[:rows], results.coord[:rows])
            self.pending_size.index_copy_(0, step.batch_idx[:rows], results.size[:rows])
        self.pending_token.index_copy_(0, step.batch_idx[:rows], ids)

    # Adapters and pages -----------------------------------------------------------------------------

    @torch.inference_mode()
    def register_adapter(self, adapter_id: int, path: str, rank: int, names: tuple[str, ...]) -> None:
        """Bring an adapter's file onto the device once, so that `load_adapter` waits for nothing."""
        tensors = Adapter(Path(path), rank, names).tensors()
        self.adapters[adapter_id] = {
            name: tensor.to(self.positions.device) for name, tensor in tensors.items()
        }

    @torch.inference_mode()
    def load_adapter(self, lora_slot: int, adapter_id: int) -> None:
        self.lora.load(lora_slot, self.adapters[adapter_id])

    @torch.inference_mode()
    def poison_pages(self, pages: tuple[int, ...]) -> None:
        self.cache.poison(torch.tensor(pages))

    # Pieces -----------------------------------------------------------------------------------------

    def _prefill_attention(
        self, turns: Tensor, kv_slots: Tensor, allowed: Tensor, table: Tensor | None = None
    ) -> Callable[[int], Attend]:
        """By layer: write keys and values; attend to them or, with a table, to all that its pages hold."""

        def attend(layer: int) -> Attend:
            pages = self.cache.layers[layer]

            def attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
                q, k = rotate(torch.stack((q, k)), turns)
                self.cache.write(pages, kv_slots, k, v)
                if table is not None:
                    k, v = self.cache.read(pages, table)
                return F.scaled_dot_product_attention(q, k, v, attn_mask=allowed)

            return attention

        return attend

    def _prefix_mask(self, total: int, has_image: bool) -> Tensor:
        """(T, T) bool: causal, and both ways inside the image prefix (engine_facts 1.5)."""
        at = self.positions[:total]
        allowed = at[None, :] <= at[:, None]
        if has_image:
            in_prefix = at < self.config.text.prefix_attn
            allowed |= in_prefix[None, :] & in_prefix[:, None]
        return allowed

    def _prompt_embeddings(self, slot: int, rows: int, length: int) -> Tensor:
        prompt, count = self.slots[slot].prompt, rows * length
        ids = prompt.token[:count].view(rows, length)
        x, y = prompt.x[:count].view(rows, length, 1), prompt.y[:count].view(rows, length, 1)
        return typed_embeddings(self.model, ids, x, torch.cat((x, y), dim=-1))

    def _finish_prefill(
        self, slot: int, x: Tensor, attend: Callable[[int], Attend], *, first: int = 0, has_lora: bool
    ) -> None:
        """Run x (B, T, D) at positions `first`..; leave each row's last hidden and logits for `sample`."""
        mine, rows = self.slots[slot], x.shape[0]
        for layer, block in enumerate(self.model.text.blocks):
            delta = self.lora.delta(layer, mine.step.lora_slot[:rows]) if has_lora else None
            x = block(x, attend(layer), delta)
        at = (mine.step.last_index[:rows] - first).clamp(min=0)  # a capture runs on blank blocks
        last = at[:, None, None].expand(-1, 1, x.shape[-1])
        hidden = x.gather(1, last)[:, 0]
        mine.hidden[:rows] = hidden
        mine.logits[:rows] = self.model.text.logits(hidden)
