"""Pins the two-slot state machine: commits are FIFO (I2), one launched-unsampled step (I4), a slot is free
only after its commit (I5), results are matched by identity (I16). A model of lists is the oracle.
"""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from photon.pipeline import NUM_SLOTS, Pipeline, Step


def make_step(step_id: int = 1, slot: int = 0) -> Step:
    return Step(step_id, slot, "decode", (), 0)


class PipelineMachine(RuleBasedStateMachine):
    """Every order of verbs that the engine could take."""

    @initialize()
    def start(self) -> None:
        self.pipeline = Pipeline()
        self.launched: list[Step] = []
        self.sampled: list[Step] = []
        self.committing: list[Step] = []
        self.count = 0

    @property
    def open(self) -> list[Step]:
        return self.committing + self.sampled + self.launched

    @precondition(lambda self: self.pipeline.can_launch())
    @rule()
    def launch(self) -> None:
        self.count += 1
        slot = self.pipeline.free_slot()
        assert slot is not None
        assert slot not in {step.slot for step in self.open}
        step = make_step(self.count, slot)
        self.pipeline.launch(step)
        self.launched.append(step)

    @precondition(lambda self: self.launched)
    @rule()
    def sample(self) -> None:
        step = self.launched.pop()
        self.pipeline.sample(step)
        self.sampled.append(step)

    @precondition(lambda self: self.launched)
    @rule()
    def abandon(self) -> None:
        self.pipeline.abandon(self.launched.pop())

    @precondition(lambda self: self.sampled and not self.committing)
    @rule()
    def begin_commit(self) -> None:
        assert self.pipeline.oldest_sampled is self.sampled[0]
        self.pipeline.begin_commit(self.sampled[0])
        self.committing.append(self.sampled.pop(0))

    @precondition(lambda self: self.committing)
    @rule()
    def end_commit(self) -> None:
        self.pipeline.end_commit(self.committing.pop())

    @invariant()
    def agrees_with_the_lists(self) -> None:
        assert self.pipeline.in_flight == tuple(self.open)
        assert self.pipeline.launched is (self.launched[0] if self.launched else None)
        assert self.pipeline.is_empty == (not self.open)

    @invariant()
    def holds_its_bounds(self) -> None:
        assert len(self.open) <= NUM_SLOTS
        assert len(self.launched) <= 1
        assert len({step.slot for step in self.open}) == len(self.open)
        assert [step.step_id for step in self.open] == sorted(step.step_id for step in self.open)


TestPipelineMachine = PipelineMachine.TestCase


def test_slots_alternate_when_two_steps_are_in_flight() -> None:
    pipeline, slots = Pipeline(), []
    for step_id in range(6):
        if step := pipeline.oldest_sampled:
            pipeline.begin_commit(step)
            pipeline.end_commit(step)
        if step := pipeline.launched:
            pipeline.sample(step)
        slot = pipeline.free_slot()
        assert slot is not None
        pipeline.launch(make_step(step_id, slot))
        slots.append(slot)
    assert slots == [0, 1, 0, 1, 0, 1]


def test_a_second_unsampled_launch_is_refused() -> None:
    pipeline = Pipeline()
    pipeline.launch(make_step(slot=0))
    with pytest.raises(AssertionError, match="I4"):
        pipeline.launch(make_step(slot=1))


def test_a_busy_slot_is_refused_until_its_commit_has_ended() -> None:
    pipeline, step = Pipeline(), make_step(slot=0)
    pipeline.launch(step)
    pipeline.sample(step)
    pipeline.begin_commit(step)
    with pytest.raises(AssertionError, match="I5"):
        pipeline.launch(make_step(2, slot=0))
    pipeline.end_commit(step)
    pipeline.launch(make_step(2, slot=0))


def test_commits_are_in_the_order_of_the_launches() -> None:
    pipeline, first, second = Pipeline(), make_step(1, 0), make_step(2, 1)
    for step in (first, second):
        pipeline.launch(step)
        pipeline.sample(step)
    with pytest.raises(AssertionError, match="I2"):
        pipeline.begin_commit(second)
    pipeline.begin_commit(first)
    with pytest.raises(AssertionError, match="I2"):
        pipeline.begin_commit(second)


def test_a_step_that_looks_the_same_is_not_the_same() -> None:
    """pipeline_bugs 41: I16: identity, never equality or counting."""
    pipeline = Pipeline()
    pipeline.launch(make_step())
    with pytest.raises(AssertionError, match="I16"):
        pipeline.sample(make_step())
    with pytest.raises(AssertionError, match="I16"):
        pipeline.abandon(make_step())
    with pytest.raises(AssertionError, match="I16"):
        pipeline.end_commit(make_step())


@given(st.integers(1, 32), st.integers(0, 8))
def test_padding_is_what_the_rows_leave(padded: int, missing: int) -> None:
    rows = tuple(object() for _ in range(max(0, padded - missing)))
    step = Step(1, 0, "decode", rows, padded)  # type: ignore[arg-type]
    assert step.padding == padded - len(rows)
