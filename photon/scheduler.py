"""Scheduler: which sequences go into the next step. Pure decisions; the engine carries them out.

Rules
- Prefill goes first, but at most `max_consecutive_prefills` times in a row while a row waits to decode,
  so neither starves the other.
- Waiting requests are admitted in order. The first that does not fit stops the line: nothing overtakes
  a large request for ever. An answer is *now* (in the plan), *later* (not in it), or *never*
  (`never_fits`, asked at submit).
- So a running row that has a page for its next position is in one of any `max_consecutive_prefills` + 1
  launches, however many long prompts arrive. A prefill launch takes at most `prefill_token_budget` positions
  and `prefill_crop_budget` crops, or one request that is longer. A free seat is the first waiter's within
  two launches; a full batch keeps it out until a row ends, which max_tokens and the context bound.
- A prefill batch is alike in kind: images to compute, images whose pages are cached, or no image.
- What the prefix cache alone holds counts as free, but for the entries that the same step reads.
- A row is decoded when it is unfinished, has fewer than two steps in flight, its next token is within
  max_tokens, and the page for its next position is there (I3, I8). All rows of a step are taken in
  admission order, so membership changes only when one retires or arrives.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from collections.abc import Sequence as Items
from dataclasses import dataclass, field

from photon.config import EngineConfig
from photon.pipeline import StepKind
from photon.prefix_cache import PrefixKey
from photon.sequence import Sequence

MAX_PREFILL_ROWS = 8


@dataclass(frozen=True)
class StepPlan:
    """The rows of the next step, in batch order."""

    kind: StepKind
    rows: tuple[Sequence, ...]
    is_cached: bool = False
    """A prefill of rows that take their image prefix from the cache."""
    growth: tuple[tuple[Sequence, int], ...] = ()
    """Rows of a decode that lack pages for their next position, and how many."""


@dataclass(frozen=True)
class Capacity:
    """What is free at this moment; pages that the prefix cache would give up included."""

    pages: int
    rows: int
    lora_slots: int
    resident_adapters: frozenset[int] = frozenset()
    prefixes: Mapping[PrefixKey, int] = field(default_factory=dict)
    """Cached image prefixes, each with the part of `pages` that a sequence takes by reading it."""


class Scheduler:
    """Plans steps. Its only state is how many prefills came in a row."""

    def __init__(self, config: EngineConfig, *, num_pages: int, max_context: int, crop_budget: int) -> None:
        self.config = config
        self.num_pages = num_pages
        self.max_context = max_context
        self.crop_budget = crop_budget
        self._prefills_in_row = 0

    def plan(
        self, waiting: Collection[Sequence], running: Items[Sequence], free: Capacity
    ) -> StepPlan | None:
        """The next step, or None when no row can go now. Mutates nothing; see `launched`."""
        decode = self._plan_decode(running, free.pages)
        held_back = decode and self._prefills_in_row >= self.config.max_consecutive_prefills
        if not held_back:
            prefill = self._plan_prefill(waiting, running, free)
            if prefill:
                return prefill
        return decode

    def launched(self, plan: StepPlan) -> None:
        """This plan has become a step."""
        self._prefills_in_row = self._prefills_in_row + 1 if plan.kind == "prefill" else 0

    def pages_for(self, num_positions: int) -> int:
        return -(-num_positions // self.config.page_size)

    def missing_pages(self, sequence: Sequence) -> int:
        """Pages to allocate before the next decode of this sequence."""
        missing = sequence.next_position // self.config.page_size + 1 - len(sequence.pages)
        return missing if missing > 0 else 0

    def is_at_limit(self, sequence: Sequence) -> bool:
        """After a commit: no further token may be launched, by max_tokens or by context (I8)."""
        count = len(sequence.tokens)
        is_full = sequence.last_prompt_position + count >= self.max_context
        return is_full or count >= sequence.skill.max_tokens

    def never_fits(self, sequence: Sequence) -> str | None:
        """Why this request can't ever run, as a sentence, or None."""
        if sequence.adapter_id is not None and not self.config.max_lora_slots:
            return "The engine was started with max_lora_slots 0; leave the adapter out or start with more."
        length = sequence.num_prefill_positions
        if length + 1 > self.max_context:
            return (
                f"The prompt takes {length} positions with its image, but the model's context is "
                f"{self.max_context}; shorten the prompt."
            )
        if self.pages_for(length + 1) > self.num_pages:
            return (
                f"The prompt needs {self.pages_for(length + 1)} KV pages, but the pool has {self.num_pages}; "
                "shorten the prompt or start with a larger num_pages."
            )
        return None

    def _plan_decode(self, running: Items[Sequence], free_pages: int) -> StepPlan | None:
        rows, growth, page_size = [], [], self.config.page_size
        for sequence in running:
            if not self._can_decode(sequence):
                continue
            if sequence.next_position >= len(sequence.pages) * page_size:
                missing = self.missing_pages(sequence)
                if missing > free_pages:
                    continue  # later: pages come back when another row retires, or by preemption
                free_pages -= missing
                growth.append((sequence, missing))
            rows.append(sequence)
        return StepPlan("decode", tuple(rows), growth=tuple(growth)) if rows else None

    def _can_decode(self, sequence: Sequence) -> bool:
        return (
            sequence.finish_reason is None
            and sequence.inflight_refs < 2
            and sequence.num_launched < sequence.skill.max_tokens
            and sequence.next_position < self.max_context
        )

    def _plan_prefill(
        self, waiting: Collection[Sequence], running: Items[Sequence], free: Capacity
    ) -> StepPlan | None:
        """The head of the line and those behind it that are of its kind.

        Reading a cached prefix takes one page more than computing it, while its last page is copied. In a
        pool that is just large enough, one that is alone computes it again instead.
        """
        if not waiting:
            return None
        head = next(iter(waiting))
        is_cached = head.prefix_key in free.prefixes
        rows = self._prefill_rows(waiting, running, free, is_cached)
        if is_cached and not rows and not running:
            is_cached = False
            rows = self._prefill_rows([head], running, free, is_cached)
        return StepPlan("prefill", rows, is_cached) if rows else None

    def _prefill_rows(
        self, waiting: Collection[Sequence], running: Items[Sequence], free: Capacity, is_cached: bool
    ) -> tuple[Sequence, ...]:
        """The longest admissible run at the head of the line."""
        seats = min(self.config.max_batch_size - len(running), free.rows, MAX_PREFILL_ROWS)
        if seats < 1:  # a full batch: nothing below can change that
            return ()
        rows: list[Sequence] = []
        # A running row's next page is set aside, or newcomers would take it again and again.
        pages = free.pages - sum(self.missing_pages(other) for other in running if self._can_decode(other))
        new_adapters: set[int] = set()
        read: set[PrefixKey] = set()
        for sequence in waiting:
            key = sequence.prefix_key
            if rows and (key in free.prefixes) != is_cached:
                break
            pages -= self._admission_pages(sequence, alone=not running and not rows)
            if key is not None and is_cached:
                pages += sequence.prefix // self.config.page_size  # full ones are shared
                pages -= 0 if key in read else free.prefixes[key]  # and none of the entry is given up
                read.add(key)
            new_adapters |= _new_adapter(sequence, free)
            if len(rows) >= seats or pages < 0 or len(new_adapters) > free.lora_slots:
                break
            if rows and not self._fits_launch([*rows, sequence], is_cached):
                break
            rows.append(sequence)
        return tuple(rows)

    def _admission_pages(self, sequence: Sequence, *, alone: bool) -> int:
        """Pages that must be free to admit: the prompt and one step, or all for a preempted sequence.

        A sequence that was preempted once waits until it can run to its end, so that it is not
        preempted again and again; alone it may try with what there is.
        """
        worst = min(sequence.max_positions, self.max_context)
        first = sequence.num_prefill_positions + 1
        needed = worst if sequence.num_preemptions and not alone else min(first, worst)
        return self.pages_for(max(needed, sequence.num_prefill_positions))

    def _fits_launch(self, rows: list[Sequence], is_cached: bool) -> bool:
        """Whether these rows may share one prefill: alike in kind, within the token and crop budgets."""
        lengths = [s.num_prefill_positions - (s.prefix if is_cached else 0) for s in rows]
        tokens = len(rows) * max(lengths)  # with padding
        images = {id(sequence.pixels): sequence.pixels for sequence in rows if sequence.pixels is not None}
        crops = 0 if is_cached else sum(map(len, images.values()))
        is_alike = len({sequence.has_image for sequence in rows}) == 1
        return is_alike and tokens <= self.config.prefill_token_budget and crops <= self.crop_budget


def _new_adapter(sequence: Sequence, free: Capacity) -> set[int]:
    """The adapter this sequence would have to load, if it is not resident already."""
    adapter = sequence.adapter_id
    return set() if adapter is None or adapter in free.resident_adapters else {adapter}
