"""Buckets: the few shapes a step may have on a device that replays recorded work (`Device.fixed_shapes`).

A graph is recorded for one shape, so steps are padded to the next larger one that is: rows of a decode and
pages of a row to powers of two, prompts of one or two rows as well. What is beyond them, like a prefill of
many rows, runs as it is: it has work enough to hide that the host enqueues its kernels one by one.

Pure. Elsewhere shapes are free, and every count is its own bucket.
"""

from __future__ import annotations

from collections.abc import Iterator

from photon.config import EngineConfig
from photon.device.base import Work
from photon.memory import pages_of
from photon.model.config import ModelConfig

PREFILL_ROWS = (1, 2)
MIN_PROMPT, MAX_PROMPT = 8, 64
"""Prompt tokens behind the prefix; a template around a short question has about twenty."""


class Buckets:
    """Counts -> padded counts, and all works whose shape is one of these."""

    def __init__(self, config: EngineConfig, model: ModelConfig, *, is_fixed: bool) -> None:
        self._config, self._model, self._is_fixed = config, model, is_fixed
        self._most_pages = pages_of(model.text, config.page_size)

    def rows(self, count: int) -> int:
        """Rows the device runs for a decode of `count` rows."""
        return min(_power_of_two(count), self._config.max_batch_size) if self._is_fixed else count

    def pages(self, count: int) -> int:
        """Pages of each row that a step attends to; at least those of an image."""
        if not self._is_fixed:
            return count
        prefix = -(-self._model.text.prefix_attn // self._config.page_size)
        return min(_power_of_two(max(count, prefix)), self._most_pages)

    def prompt(self, count: int, rows: int) -> int:
        """Prompt tokens that each of `rows` rows of a prefill is padded to."""
        padded = max(_power_of_two(count), MIN_PROMPT)
        is_padded = self._is_fixed and rows in PREFILL_ROWS and padded in self._prompts()
        return padded if is_padded else count

    def prompt_pages(self, length: int) -> int:
        """Pages that `length` prompt tokens behind an image attend to."""
        return self.pages(-(-(self._model.text.prefix_attn + length) // self._config.page_size))

    def works(self, slot: int) -> Iterator[Work]:
        """All that is recorded for a slot: what most steps without adapters run on the compute stream."""
        most = range(1, self._config.max_batch_size + 1)
        rows = sorted({self.rows(count) for count in most})
        pages = sorted({self.pages(count) for count in range(1, self._most_pages + 1)})
        yield from (Work("upload", (slot, is_prefill)) for is_prefill in (False, True))
        for count in rows:
            for is_spatial in (False, True):
                yield from (Work("decode", (slot, count, size, is_spatial, False)) for size in pages)
                yield Work("sample", (slot, count, True, is_spatial))
        yield from (Work("vision", (slot, count)) for count in range(1, 2 + self._model.vision.max_crops))
        for length in self._prompts():
            yield from self._prefills(slot, length)

    def _prefills(self, slot: int, length: int) -> Iterator[Work]:
        pages = self.prompt_pages(length)
        for rows in (count for count in PREFILL_ROWS if count <= self._config.max_batch_size):
            yield Work("prefill", (slot, rows, length, True, False))
            yield Work("prefill", (slot, rows, length, False, False))
            yield Work("prefill_cached", (slot, rows, length, pages, False))

    def _prompts(self) -> list[int]:
        """Padded prompts: a context has room for one behind an image, and the prompt block for all rows."""
        room = self._model.text.max_context - self._model.text.prefix_attn
        sizes = [MIN_PROMPT << i for i in range((MAX_PROMPT // MIN_PROMPT).bit_length())]
        most = min(room, self._model.text.max_context // max(PREFILL_ROWS))
        return [size for size in sizes if size <= most]


def _power_of_two(count: int) -> int:
    """The next one that is not smaller."""
    return 1 << (count - 1).bit_length()
