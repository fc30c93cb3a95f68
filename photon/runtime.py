"""Runtime: what each verb of a tick enqueues on the device's two streams.

    launch   compute: upload, forward (or vision, prefill; or prefill_cached)    -> forward_done
    sample   copy:    masks, if new            compute: (masks_ready) sample     -> sampled
             copy:    (sampled) fetch                                            -> copied
    wait     host:    copied                   the only place where the host waits (I13)

Owns the slots and their events. I1: both slots use one compute stream. Decides nothing.
"""

from __future__ import annotations

import itertools

from photon.config import EngineConfig
from photon.device.base import Device, Work
from photon.errors import DeviceError
from photon.memory import pages_of, pool_pages
from photon.model.weights import Adapter, Model
from photon.pipeline import NUM_SLOTS, Step
from photon.runner import ModelRunnerSpec
from photon.scheduler import MAX_PREFILL_ROWS
from photon.skills.base import Mask, Token, token_masks
from photon.slot import DecodeSlot, SlotShapes
from photon.staging import stage_images, stage_masks, stage_prefill, stage_rows


class _PlainTokens(dict[int, Token]):
    """One object per id without a value, made when it first comes: a step's tokens cost a look-up each."""

    def __missing__(self, token_id: int) -> Token:
        return self.setdefault(token_id, Token(token_id))


class Runtime:
    """The device half of the engine. Every method but `wait`, `fence` and the set-up returns at once.

    With `sync_masks` on, `sample` waits as well.
    """

    def __init__(self, model: Model, device: Device, config: EngineConfig, dtype: str) -> None:
        self.model, self.device, self.config = model, device, config
        self.sync_masks = False
        """Injected on purpose, to teach and to test the leak detector: True makes the host wait, before it
        samples a step, until the compute stream has run that step's forward. So does a pipeline that uploads
        its masks with a blocking copy on the compute stream; depth 2 then gains nothing. Same tokens."""
        text, vision = model.config.text, model.config.vision
        self.num_rows = 2 * config.max_batch_size
        """batch_idx 1..num_rows: a full batch of zombies and a full batch of successors."""
        self.crop_budget = config.prefill_crop_budget or max(1 + vision.max_crops, MAX_PREFILL_ROWS)
        self.num_pages = pool_pages(model, device, config, dtype)
        self.shapes = SlotShapes(
            rows=config.max_batch_size,
            pages_per_row=pages_of(text, config.page_size),
            prompt_tokens=max(config.prefill_token_budget, text.max_context),
            crops=max(self.crop_budget, 1 + 4 * vision.max_crops),  # a very long image exceeds max_crops
            crop_size=vision.crop_size,
        )
        self.slots = [DecodeSlot(index, self.shapes, device) for index in range(NUM_SLOTS)]
        device.load(self._spec(dtype))
        self._tokens = _PlainTokens()
        if device.fixed_shapes:
            self._capture_all()
            self._warm_up()

    def _spec(self, dtype: str) -> ModelRunnerSpec:
        return ModelRunnerSpec(
            checkpoint=self.model.checkpoint,
            dtype=dtype,
            shapes=self.shapes,
            host_blocks=tuple(slot.blocks for slot in self.slots),
            num_rows=self.num_rows + 1,
            num_pages=self.num_pages,
            page_size=self.config.page_size,
            num_lora_slots=self.config.max_lora_slots,
            max_lora_rank=self.config.max_lora_rank,
            masks=token_masks(self.model.config.tokenizer),
        )

    # The verbs -------------------------------------------------------------------------------------

    def launch(self, step: Step) -> None:
        """Write the slot's host blocks and enqueue the forward."""
        slot, compute = self.slots[step.slot], self.device.compute
        self.device.host_phase("launch", len(step.rows))
        slot.poison_results()
        stage_rows(slot, step)
        works = (self._prefill_works if step.kind == "prefill" else self._decode_works)(slot, step)
        compute.record_event(slot.started)
        compute.enqueue(Work("upload", (slot.index, step.kind == "prefill")), label="h2d")
        compute.record_event(slot.uploaded)
        for label, work in works:
            compute.enqueue(work, label=label)
            compute.record_event(slot.vision_done if label == "vision" else slot.forward_done)

    def _decode_works(self, slot: DecodeSlot, step: Step) -> list[tuple[str, Work]]:
        pages = self._page_bucket(max(slot.num_pages))
        args = (slot.index, step.padded_rows, pages, slot.has_spatial, slot.has_lora)
        return [("forward", Work("decode", args))]

    def _prefill_works(self, slot: DecodeSlot, step: Step) -> list[tuple[str, Work]]:
        works, count = [], len(step.rows)
        length, first = stage_prefill(slot, step), step.rows[0]  # all rows are alike
        if first.num_cached:
            cached = (slot.index, count, length, max(slot.num_pages), slot.has_lora)
            return [("prefill", Work("prefill_cached", cached))]
        if first.has_image:
            images = stage_images(slot, step)
            tilings = tuple(sequence.tiling for sequence in images)
            num_crops = sum(len(sequence.pixels) for sequence in images)
            works.append(("vision", Work("vision", (slot.index, tilings, num_crops))))
        args = (slot.index, count, length, first.has_image, slot.has_lora)
        works.append(("prefill", Work("prefill", args)))
        return works

    def sample(self, step: Step, masks: list[Mask]) -> None:
        """Upload the masks beside the forward, sample behind it, and copy the results to the host."""
        slot, compute, copy = self.slots[step.slot], self.device.compute, self.device.copy
        slot.is_synced = self.sync_masks
        if slot.is_synced:
            compute.synchronize()
        self.device.host_phase("sample", len(step.rows))
        self._upload_masks(slot, [*masks, *[Mask.ANY] * step.padding])
        compute.record_event(slot.sample_started)
        args = (slot.index, step.padded_rows, slot.is_greedy, slot.has_spatial)
        compute.enqueue(Work("sample", args), label="sample")
        compute.record_event(slot.sampled)
        copy.wait_event(slot.sampled)
        copy.record_event(slot.copy_started)
        copy.enqueue(Work("fetch", (slot.index,)), label="d2h")
        copy.record_event(slot.copied)

    def _upload_masks(self, slot: DecodeSlot, masks: list[Mask]) -> None:
        """On the copy stream, beside the forward; not at all when the device holds them already."""
        slot.has_new_masks = slot.uploaded_masks[: len(masks)] != masks
        if not slot.has_new_masks:
            return
        slot.uploaded_masks = []  # unknown, should the next lines fail
        stage_masks(slot, masks)
        self.device.copy.record_event(slot.masks_started)
        self.device.copy.enqueue(Work("upload_masks", (slot.index,)), label="h2d")
        self.device.copy.record_event(slot.masks_ready)
        self.device.compute.wait_event(slot.masks_ready)
        slot.uploaded_masks = masks

    def wait(self, step: Step) -> None:
        """Block until the step's results are on the host. Raises DeviceError."""
        self.slots[step.slot].copied.synchronize()

    def results(self, step: Step) -> list[Token]:
        """The step's tokens, one per row, in row order; after `wait`."""
        results, count = self.slots[step.slot].results, len(step.rows)
        self.device.host_phase("commit", count)
        ids = results.token[:count].tolist()
        if min(ids) < 0:
            raise DeviceError("Results were read before their copy had landed.")
        tokens, ids_of = list(map(self._tokens.__getitem__, ids)), self.model.config.tokenizer
        if ids_of.coord_id in ids or ids_of.size_id in ids:
            for row, token_id in enumerate(ids):
                if token_id == ids_of.coord_id:
                    tokens[row] = Token(token_id, float(results.coord[row, 0]))
                elif token_id == ids_of.size_id:
                    tokens[row] = Token(token_id, *results.size[row].tolist())
        return tokens

    def fence(self) -> None:
        """Block until the compute stream has run dry: after a failure, before its rows are reused."""
        self.device.compute.synchronize()

    # Shapes ----------------------------------------------------------------------------------------

    def row_bucket(self, count: int) -> int:
        """Rows the device runs for `count` rows: a captured shape where shapes must be fixed."""
        if not self.device.fixed_shapes:
            return count
        return min(1 << (count - 1).bit_length(), self.config.max_batch_size)

    def _page_bucket(self, count: int) -> int:
        if not self.device.fixed_shapes:
            return count
        prefix = -(-self.model.config.text.prefix_attn // self.config.page_size)
        return min(1 << (max(count, prefix) - 1).bit_length(), self.shapes.pages_per_row)

    def _capture_all(self) -> None:
        """Capture every shape a step without adapters can have, so that serving allocates nothing (I14)."""
        most = self.config.max_batch_size
        rows = sorted({self.row_bucket(count) for count in range(1, most + 1)})
        pages = sorted({self._page_bucket(count) for count in range(1, self.shapes.pages_per_row + 1)})
        for slot, count, is_spatial in itertools.product(range(NUM_SLOTS), rows, (False, True)):
            for num_pages in pages:
                self.device.capture(Work("decode", (slot, count, num_pages, is_spatial, False)))
            self.device.capture(Work("sample", (slot, count, True, is_spatial)))

    def _warm_up(self) -> None:
        """Run what is not captured once at its largest, so that serving finds its memory and kernels (I14).

        Behind the captures, which give unused memory back. All rows are padding: they write the null page.
        """
        text, num_crops = self.model.config.text, self.model.config.vision.max_crops
        num_tokens = max(1, min(self.config.prefill_token_budget, text.max_context) - text.prefix_attn)
        works = [
            Work("vision", (0, ((1, num_crops),), 1 + num_crops)),
            Work("prefill", (0, 1, num_tokens, True, False)),
            Work("sample", (0, self.config.max_batch_size, False, True)),
        ]
        for work in works:
            self.device.call(work)

    # Adapters and pages ----------------------------------------------------------------------------

    def register_adapter(self, adapter_id: int, adapter: Adapter) -> None:
        """Read the adapter on the device's side; blocks. Raises DeviceError."""
        self.device.call(
            Work("register_adapter", (adapter_id, str(adapter.path), adapter.rank, adapter.names))
        )

    def load_adapter(self, lora_slot: int, adapter_id: int) -> None:
        """Copy a registered adapter into its slot, ordered before the forward that uses it."""
        self.device.compute.enqueue(Work("load_adapter", (lora_slot, adapter_id)), label="adapter")

    def freed(self, pages: list[int]) -> None:
        """These pages have no owner any more."""
        if self.device.poisons and pages:
            self.device.compute.enqueue(Work("poison_pages", (tuple(pages),)), label="poison")
