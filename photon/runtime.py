"""Runtime: what each verb of a tick enqueues on the device's two streams.

    launch   compute: upload, forward (or vision, project, prefill; or prefill_cached) -> forward_done
    sample   copy:    masks, if new            compute: (masks_ready) sample     -> sampled
             copy:    (sampled) fetch                                            -> copied
    wait     host:    copied                   the only place where the host waits (I13)

Owns the slots and their events. I1: both slots use one compute stream. Decides nothing.
"""

from __future__ import annotations

from photon.buckets import Buckets
from photon.config import EngineConfig
from photon.device.base import Device, Work, enqueue_span
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
        self.buckets = Buckets(config, model.config, is_fixed=device.fixed_shapes)
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
        slot, is_prefill = self.slots[step.slot], step.kind == "prefill"
        self.device.host_phase("launch", len(step.rows))
        slot.poison_results()
        stage_rows(slot, step)
        forward = (self._prefill if is_prefill else self._decode)(slot, step)
        vision = self._vision(slot, step) if is_prefill and step.rows[0].computes_image else ()
        compute, upload = self.device.compute, Work("upload", (slot.index, is_prefill))
        enqueue_span(compute, "h2d", slot.started, slot.uploaded, upload)
        if vision:
            enqueue_span(compute, "vision", slot.vision_started, slot.vision_done, *vision)
        label = "prefill" if is_prefill else "forward"
        enqueue_span(compute, label, slot.forward_started, slot.forward_done, forward)

    def _decode(self, slot: DecodeSlot, step: Step) -> Work:
        pages = self.buckets.pages(max(slot.num_pages))
        return Work("decode", (slot.index, step.padded_rows, pages, slot.has_spatial, slot.has_lora))

    def _prefill(self, slot: DecodeSlot, step: Step) -> Work:
        count, first = len(step.rows), step.rows[0]  # all rows are alike
        length = stage_prefill(slot, step, self.buckets)
        if first.num_cached:
            pages = self.buckets.prompt_pages(length)
            return Work("prefill_cached", (slot.index, count, length, pages, slot.has_lora))
        return Work("prefill", (slot.index, count, length, first.has_image, slot.has_lora))

    def _vision(self, slot: DecodeSlot, step: Step) -> tuple[Work, ...]:
        images = stage_images(slot, step)
        tilings = tuple(sequence.tiling for sequence in images)
        num_crops = sum(len(sequence.pixels) for sequence in images)
        return Work("vision", (slot.index, num_crops)), Work("project", (slot.index, tilings))

    def sample(self, step: Step, masks: list[Mask]) -> None:
        """Upload the masks beside the forward, sample behind it, and copy the results to the host."""
        slot, compute, copy = self.slots[step.slot], self.device.compute, self.device.copy
        slot.is_synced = self.sync_masks
        if slot.is_synced:
            compute.synchronize()
        self.device.host_phase("sample", len(step.rows))
        self._upload_masks(slot, [*masks, *[Mask.ANY] * step.padding])
        args = (slot.index, step.padded_rows, slot.is_greedy, slot.has_spatial)
        enqueue_span(compute, "sample", slot.sample_started, slot.sampled, Work("sample", args))
        copy.wait_event(slot.sampled)
        enqueue_span(copy, "d2h", slot.copy_started, slot.copied, Work("fetch", (slot.index,)))

    def _upload_masks(self, slot: DecodeSlot, masks: list[Mask]) -> None:
        """On the copy stream, beside the forward; not at all when the device holds them already."""
        slot.has_new_masks = slot.uploaded_masks[: len(masks)] != masks
        if not slot.has_new_masks:
            return
        slot.uploaded_masks = []  # unknown, should the next lines fail
        stage_masks(slot, masks)
        upload = Work("upload_masks", (slot.index,))
        enqueue_span(self.device.copy, "h2d", slot.masks_started, slot.masks_ready, upload)
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

    # Before serving --------------------------------------------------------------------------------

    def _capture_all(self) -> None:
        """Capture every shape a step without adapters often has, so that serving allocates nothing (I14)."""
        for slot in self.slots:
            for work in self.buckets.works(slot.index):
                self.device.capture(work, begun=slot.begun(work.program))

    def _warm_up(self) -> None:
        """Run what is not captured once at its largest, so that serving finds its memory and kernels (I14).

        Behind the captures, which give unused memory back. All rows are padding: they write the null page.
        """
        text, num_crops = self.model.config.text, self.model.config.vision.max_crops
        num_tokens = max(1, min(self.config.prefill_token_budget, text.max_context) - text.prefix_attn)
        works = [
            Work("project", (0, ((1, num_crops),))),
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
