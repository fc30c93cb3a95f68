"""EngineConfig: every knob of the engine, frozen and checked once."""

from __future__ import annotations

from dataclasses import dataclass

from photon.errors import InvalidRequestError

MAX_ROWS = 32


@dataclass(frozen=True)
class EngineConfig:
    """How the engine runs; what it runs is the model, where is the device.

    Attributes:
        depth: steps in flight. 1 = blocking, 2 = pipelined; the same code path.
        max_batch_size: rows of one decode step, 1 to 32.
        page_size: KV positions per page.
        num_pages: KV pages that can be owned at once; None sizes the pool so that max_batch_size
            requests of full context fit.
        prefill_token_budget: KV positions (image and prompt) of one prefill launch; a longer single
            request still goes, alone.
        prefill_crop_budget: image crops of one prefill launch; None = one image of the most crops,
            or eight small images, whichever is more.
        max_consecutive_prefills: prefill launches in a row while some row waits to decode.
        max_waiting: requests that may wait for admission; one more is refused at submit.
        max_cached_images: images whose KV pages are kept for the next question about them, while no request
            needs those pages; 0 = none.
        max_lora_slots: adapters that can be resident at once.
        max_lora_rank: the largest adapter rank accepted.
    """

    depth: int = 2
    max_batch_size: int = 8
    page_size: int = 16
    num_pages: int | None = None
    prefill_token_budget: int = 2048
    prefill_crop_budget: int | None = None
    max_consecutive_prefills: int = 1
    max_waiting: int = 1024
    max_cached_images: int = 64
    max_lora_slots: int = 4
    max_lora_rank: int = 16

    def __post_init__(self) -> None:
        limits = {
            "depth": (1, 2),
            "max_batch_size": (1, MAX_ROWS),
            "page_size": (1, 1024),
            "prefill_token_budget": (1, 1 << 20),
            "max_consecutive_prefills": (1, 1000),
            "max_waiting": (1, 1 << 20),
            "max_cached_images": (0, 1 << 16),
            "max_lora_slots": (0, 64),
            "max_lora_rank": (1, 256),
        }
        automatic = {"num_pages": (1, 1 << 24), "prefill_crop_budget": (1, 1 << 16)}
        limits |= {name: limit for name, limit in automatic.items() if getattr(self, name) is not None}
        for name, (low, high) in limits.items():
            value = getattr(self, name)
            if type(value) is not int or not low <= value <= high:
                raise InvalidRequestError(
                    f"{name} is {value!r}; it must be a whole number from {low} to {high}."
                )
