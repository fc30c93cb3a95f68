"""Roster: every request between submit and release, and all the ways one ends.

    accept -> waiting -> admit -> running -> finish -> (zombie) -> release
                 ^                   |
                 +----- preempt -----+

`finish` delivers the result at once. What the sequence holds goes back in `release_if_drained`, when no
step in flight holds it any more; in between it is a zombie. Engine's thread only, but for arrivals.

Invariants: I9 a finished sequence is never finished, fed or streamed again. I10 see `residency.py`.
"""

from __future__ import annotations

import contextlib
from collections import OrderedDict
from collections.abc import Callable, Iterator
from collections.abc import Sequence as Items
from typing import Any

from photon.errors import EngineDeadError, RequestFailedError
from photon.handle import Handle
from photon.pipeline import Step
from photon.prefix_cache import PrefixKey
from photon.residency import Residency
from photon.scheduler import Scheduler, StepPlan
from photon.sequence import FinishReason, Sequence
from photon.skills.base import Mask, Token
from photon.tracer import Tracer


class Roster:
    """Who waits, who runs, who is a zombie. Two counts: `running` can be scheduled, `resident` holds
    rows and pages; admission looks at the first, idleness at the second.
    """

    def __init__(
        self,
        residency: Residency,
        scheduler: Scheduler,
        tracer: Tracer,
        *,
        eos_id: int,
        now_ns: Callable[[], int],
    ) -> None:
        self.waiting: OrderedDict[Sequence, None] = OrderedDict()  # any of them leaves without a search
        self.running: list[Sequence] = []
        self.zombies: set[Sequence] = set()
        self._arriving: set[Sequence] = set()  # submitted, on their way to the engine's thread
        self.num_tokens = self.num_prefix_hits = 0
        self._handles: dict[int, Handle] = {}
        self._residency = residency
        self._scheduler = scheduler
        self._eos_id = eos_id
        self._tracer = tracer
        self._now_ns = now_ns

    def __len__(self) -> int:
        """Requests whose caller has no result yet."""
        return len(self._handles)

    @property
    def resident(self) -> list[Sequence]:
        return [*self.running, *self.zombies]

    @property
    def has_work(self) -> bool:
        return bool(self.waiting or self.running or self.zombies)

    # Beginnings ------------------------------------------------------------------------------------

    @property
    def num_ahead(self) -> int:
        """Requests that wait for admission, or will from the next tick on. From any thread."""
        return len(self.waiting) + len(self._arriving)

    @contextlib.contextmanager
    def arrival(self, sequences: Items[Sequence]) -> Iterator[None]:
        """These are to be accepted by what the block posts; if that fails, they never were. Any thread."""
        self._arriving.update(sequences)
        try:
            yield
        except BaseException:
            self._arriving.difference_update(sequences)
            raise

    def accept(self, sequences: Items[Sequence], handles: Items[Handle]) -> None:
        """All that were submitted together."""
        self._arriving.difference_update(sequences)
        for sequence, handle in zip(sequences, handles, strict=True):
            self._handles[sequence.request_id] = handle
            self.waiting[sequence] = None
            handle.lined_up(self.waiting)
            self._tracer.mark("arrival", sequence.request_id, -1, handle.arrival_ns)

    def hold(self, step: Step) -> None:
        """Take the step's refs: of all its rows or, when the plan is wrong, of none."""
        for sequence in step.rows:
            assert sequence.finish_reason is None, "I9: a finished sequence was planned"
            assert sequence.inflight_refs < 2, "I3: more than two steps would hold one sequence"
            assert sequence.num_launched < sequence.skill.max_tokens, "I8: launched past max_tokens"
        for sequence in step.rows:
            sequence.inflight_refs += 1

    def equip(self, step: Step, plan: StepPlan) -> None:
        """What the rows need to run: a seat for new ones, pages for the others. May fail half-way."""
        for sequence, num_pages in plan.growth:
            self._residency.grow(sequence, num_pages)
        if plan.kind == "prefill":
            hits = {key for s in step.rows if (key := s.prefix_key)} if plan.is_cached else set()
            for sequence in step.rows:
                self._admit(sequence, step.step_id, hits)

    def launched(self, step: Step) -> None:
        """The step's forward is enqueued: each row's next token is on its way."""
        for sequence in step.rows:
            sequence.num_launched += 1
            sequence.last_step_id = step.step_id
            if sequence.first_step_id < 0:
                sequence.first_step_id = step.step_id

    def _admit(self, sequence: Sequence, step_id: int, hits: set[PrefixKey]) -> None:
        """From waiting to running, with all it needs to be prefilled."""
        del self.waiting[sequence]
        self.running.append(sequence)
        self._residency.admit(sequence, hits)
        now = self._now_ns()
        if self._handles[sequence.request_id].admitted(now):
            self._tracer.mark("admitted", sequence.request_id, step_id, now)
        if sequence.num_cached:
            self._tracer.mark("prefix_hit", sequence.request_id, step_id, now)
            self.num_prefix_hits += 1

    def drop(self, step: Step, error: BaseException) -> None:
        """A step that will not be committed: give back exactly its refs, and end its requests."""
        for sequence in step.rows:
            sequence.inflight_refs -= 1
        for sequence in step.rows:
            if not sequence.finished:
                self.fail(sequence, error)
            self.release_if_drained(sequence)

    def preempt_youngest(self) -> None:
        """Back to the head of the line; the next prefill repeats what was generated. Nothing in flight."""
        sequence = self.running.pop()
        sequence.num_preemptions += 1
        sequence.num_launched = len(sequence.tokens)
        self._release(sequence)
        self.waiting[sequence] = None
        self.waiting.move_to_end(sequence, last=False)

    # Tokens ----------------------------------------------------------------------------------------

    def masks(self, step: Step) -> list[Mask]:
        """What each row's grammar allows next. A zombie's token will be dropped: it is not asked (I9)."""
        return [Mask.ANY if s.finish_reason is not None else self._mask_of(s) for s in step.rows]

    def _mask_of(self, sequence: Sequence) -> Mask:
        try:
            return sequence.skill.mask()
        except Exception as error:
            self.fail(sequence, error)
            return Mask.ANY

    def deliver(self, step: Step, tokens: Items[Token], now_ns: int) -> list[bool]:
        """A committed step's tokens, one per row; True where the request took it.

        A zombie's is dropped (I9), and what no step holds any more is released.
        """
        taken = []
        for sequence, token in zip(step.rows, tokens, strict=True):
            sequence.inflight_refs -= 1
            assert sequence.inflight_refs >= 0, "I3: committed more often than launched"
            is_zombie = sequence.finish_reason is not None
            taken.append(not is_zombie and self._take(sequence, token, step.step_id, now_ns))
            if is_zombie:
                self.release_if_drained(sequence)
        return taken

    def _take(self, sequence: Sequence, token: Token, step_id: int, now_ns: int) -> bool:
        """One committed token: to the grammar, to the caller, and the question whether it was the last.

        The end token is consumed like any other, but is no part of the answer. False: the grammar failed.
        """
        skill = sequence.skill
        try:
            delta, is_last = skill.consume(token), skill.finished
        except Exception as error:
            self.fail(sequence, error)
            return False
        if not (is_last and token.id == self._eos_id):
            sequence.tokens.append(token)
            self.num_tokens += 1
        if self._handles[sequence.request_id].token(delta, now_ns):
            self._tracer.mark("first_token", sequence.request_id, step_id, now_ns)
        if is_last:
            self.finish(sequence, FinishReason.STOP, step_id=step_id, now_ns=now_ns)
        elif self._scheduler.is_at_limit(sequence):
            self.finish(sequence, FinishReason.LENGTH, step_id=step_id, now_ns=now_ns)
        return True

    # Ends ------------------------------------------------------------------------------------------

    def finish(
        self,
        sequence: Sequence,
        reason: FinishReason,
        error: BaseException | None = None,
        *,
        step_id: int = -1,
        now_ns: int | None = None,
    ) -> None:
        """The result goes out now; pages, row and adapter follow when the last step in flight is done.

        now_ns: when that is, if some commit has said so already.
        """
        assert not sequence.finished, "I9: finished twice"
        sequence.finish_reason = reason
        if sequence in self.waiting:
            del self.waiting[sequence]
        else:
            self.running.remove(sequence)
        handle = self._handles.pop(sequence.request_id)
        now = self._now_ns() if now_ns is None else now_ns
        try:
            handle.finish(sequence.skill.close(), now, error)
        except Exception as cause:  # the skill could not build its result: this request's failure alone
            sequence.finish_reason = FinishReason.ERROR
            handle.finish("", now, error or _failure("The result could not be built", cause))
        name = "cancel" if reason is FinishReason.CANCELLED else "finish"
        self._tracer.mark(name, sequence.request_id, step_id, now)
        if sequence.inflight_refs:
            self.zombies.add(sequence)
        self.release_if_drained(sequence)

    def fail(self, sequence: Sequence, error: BaseException) -> None:
        """End one request with an error; the others go on."""
        self.finish(sequence, FinishReason.ERROR, _failure("The request failed", error))

    def cancel(self, sequence: Sequence) -> None:
        """Wherever it is: waiting, in prefill or decoding. Nothing happens when it has ended."""
        if not sequence.finished:
            self.finish(sequence, FinishReason.CANCELLED)

    def fail_all(self, error: BaseException) -> None:
        """The engine has ended: every open request hears why, at once, and nobody holds anything."""
        for handle in self._handles.values():
            handle.finish("", self._now_ns(), EngineDeadError.of(error))
        self._handles.clear()
        for sequence in [*self.waiting, *self.resident]:
            sequence.finish_reason = sequence.finish_reason or FinishReason.ERROR
            sequence.inflight_refs, sequence.pixels = 0, None
        self.waiting.clear()
        self.running.clear()
        self.zombies.clear()
        self._residency.reset()

    def release_if_drained(self, sequence: Sequence) -> None:
        """A finished sequence that no step holds gives everything back."""
        if sequence.finished and sequence.inflight_refs == 0:
            self.zombies.discard(sequence)
            self._release(sequence)
            sequence.pixels = None

    def _release(self, sequence: Sequence) -> None:
        if self._residency.release(sequence):
            self._tracer.mark("release", sequence.request_id, -1, self._now_ns())

    def stats(self) -> dict[str, Any]:
        pool, lora = self._residency.pool, self._residency.lora
        return {
            "waiting": len(self.waiting),
            "schedulable": len(self.running),
            "resident": len(self.running) + len(self.zombies),
            "zombies": len(self.zombies),
            "free_pages": pool.num_free,
            "cached_pages": pool.num_cached,
            "total_pages": pool.num_pages,
            "free_lora_slots": lora.num_free,
            "tokens": self.num_tokens,
            "cached_images": len(self._residency.prefixes),
            "prefix_hits": self.num_prefix_hits,
        }


def _failure(what: str, cause: BaseException) -> RequestFailedError:
    failure = RequestFailedError(f"{what}: {cause}")
    failure.__cause__ = cause
    return failure
