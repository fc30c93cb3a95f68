"""Tracer: the engine's spans, marks and step records, at one branch per site when nobody listens.

Whatever a step's record says is read where the step keeps it (I15): positions and masks from its slot's
host blocks, which no later step has touched, and the rows' state on both sides of the commit.

Inside launch and sample the host must not wait for the device (I13). A wait there is a sync leak: a span of
its own, "sync: CALL in FUNCTION", inside that verb's span.
"""

from __future__ import annotations

import itertools
import math
import sys
from collections.abc import Callable
from collections.abc import Sequence as Items
from typing import NamedTuple

from photon.device.base import Device, Event
from photon.model.config import TokenizerConfig
from photon.observe import Mark, Observer, Observers, Span, StepRecord, StepRow
from photon.pipeline import Step
from photon.skills.base import Mask, Token
from photon.slot import DecodeSlot

_MASK_NAMES = tuple(mask.name for mask in Mask)


class Commit(NamedTuple):
    """A step about to be handed out, and its rows' state before that."""

    step: Step
    slot: DecodeSlot
    tokens: Items[Token]
    time_ns: int
    refs: list[int]
    zombies: list[bool]
    pages: list[int]


class Tracer:
    """Stamps records with the step they belong to. All calls come from the engine's thread."""

    def __init__(self, observers: Items[Observer], device: Device, ids: TokenizerConfig) -> None:
        self._device = device
        self._ids = ids
        self._may_wait = True
        self._leaks: list[tuple[str, int, int]] = []  # name, start and end of each
        self.listen(observers)

    def listen(self, observers: Items[Observer]) -> None:
        """These listen from now on, and no others; between two ticks."""
        self._observers = Observers(observers)
        self._device.waits.on_wait = self._waited if observers else None

    def __bool__(self) -> bool:
        return bool(self._observers.listening)

    def start(self, *, may_wait: bool = True) -> int:
        """The start of a host span, or 0 when nobody listens.

        may_wait: False in launch and sample: a wait for the device before the span's end is a leak.
        """
        if not self._observers.listening:
            return 0
        self._may_wait = may_wait
        return self._device.now_ns()

    def host(self, name: str, start_ns: int, step: Step, num_zombies: int = 0) -> None:
        """A host span from `start_ns` until now."""
        if not self._observers.listening:
            return
        end_ns, self._may_wait = self._device.now_ns(), True
        if self._leaks:
            self._report_leaks(start_ns, _tail(step, num_zombies))
        self._observers.span(Span("host", name, start_ns, end_ns, *_tail(step, num_zombies)))

    def _report_leaks(self, start_ns: int, tail: tuple[int, int, str, int, int, int]) -> None:
        """Those inside the span that began at `start_ns`; older ones are of a step that was abandoned."""
        for name, began_ns, ended_ns in self._leaks:
            if began_ns >= start_ns:
                self._observers.span(Span("host", name, began_ns, ended_ns, *tail))
        self._leaks.clear()

    def _waited(self, call: str, start_ns: int) -> None:
        """The host has waited for the device since `start_ns`; see `photon.device.waits`."""
        if self._may_wait:
            return
        while self._leaks and self._leaks[-1][1] >= start_ns:  # a part of this wait
            self._leaks.pop()
        self._leaks.append((f"sync: {call} in {_calling_function()}", start_ns, self._device.now_ns()))

    def mark(self, name: str, request_id: int, step_id: int, time_ns: int) -> None:
        if self._observers.listening:
            self._observers.mark(Mark(name, time_ns, request_id, step_id))

    def before_commit(
        self, step: Step, slot: DecodeSlot, tokens: Items[Token], time_ns: int
    ) -> Commit | None:
        """What the commit is about to change; None when nobody listens."""
        if not self._observers.listening:
            return None
        rows = step.rows
        return Commit(
            step,
            slot,
            tokens,
            time_ns,
            refs=[sequence.inflight_refs for sequence in rows],
            zombies=[sequence.finish_reason is not None for sequence in rows],
            pages=[len(sequence.pages) for sequence in rows],
        )

    def after_commit(self, commit: Commit, delivered: Items[bool]) -> None:
        """What the device did for the step, and what it brought each row."""
        for span in device_spans(commit, self._device.time_ns):
            self._observers.span(span)
        step, slot, rows = commit.step, commit.slot, step_rows(commit, delivered, self._ids)
        head = (step.step_id, step.slot, step.kind, commit.time_ns, step.padding)
        self._observers.step(StepRecord(*head, slot.waits, rows))


def _tail(step: Step, num_zombies: int) -> tuple[int, int, str, int, int, int]:
    """The fields that all spans of a step share."""
    count = len(step.rows)
    return step.step_id, step.slot, step.kind, count, num_zombies, step.padded_rows - count


def _calling_function() -> str:
    """The innermost function of photon that waits: not the devices' own and not this module's."""
    frame = sys._getframe(1)
    while frame.f_back is not None:
        module = frame.f_globals["__name__"]
        if module.startswith("photon.") and not module.startswith(("photon.device.", __name__)):
            break
        frame = frame.f_back
    return frame.f_code.co_qualname


def device_spans(commit: Commit, time_ns: Callable[[Event], int]) -> list[Span]:
    """What the device did for a step, from events that the commit's wait has seen reached."""
    slot, tail = commit.slot, _tail(commit.step, sum(commit.zombies))
    forward = "forward" if commit.step.kind == "decode" else "prefill"
    found = [("compute", "h2d", slot.started, slot.uploaded)]
    if commit.step.kind == "prefill" and commit.step.rows[0].computes_image:
        found.append(("compute", "vision", slot.vision_started, slot.vision_done))
    found.append(("compute", forward, slot.forward_started, slot.forward_done))
    found.append(("compute", "sample", slot.sample_started, slot.sampled))
    if slot.has_new_masks:
        found.append(("copy", "h2d", slot.masks_started, slot.masks_ready))
    found.append(("copy", "d2h", slot.copy_started, slot.copied))
    return [Span(track, name, time_ns(begun), time_ns(done), *tail) for track, name, begun, done in found]


def step_rows(commit: Commit, delivered: Items[bool], ids: TokenizerConfig) -> list[StepRow]:
    """Column by column: row by row costs twice as much."""
    slot, rows, tokens = commit.slot, commit.step.rows, commit.tokens
    count, coord_id, size_id = len(rows), ids.coord_id, ids.size_id
    positions = slot.step.position if commit.step.kind == "decode" else slot.step.last_index
    token_ids = [token.id for token in tokens]
    xs = ys = [math.nan] * count
    if coord_id in token_ids or size_id in token_ids:
        xs = [token.x if token.id == coord_id or token.id == size_id else math.nan for token in tokens]
        ys = [token.y if token.id == size_id else math.nan for token in tokens]
    columns = (
        slot.request_ids,
        positions[:count].tolist(),
        token_ids,
        xs,
        ys,
        [_MASK_NAMES[mask] for mask in slot.uploaded_masks[:count]],
        commit.zombies,
        delivered,
        commit.refs,
        [sequence.inflight_refs for sequence in rows],
        commit.pages,
        slot.lora_slots,
    )
    # StepRow._make, without a Python call for each row
    return list(map(tuple.__new__, itertools.repeat(StepRow), zip(*columns, strict=True)))
