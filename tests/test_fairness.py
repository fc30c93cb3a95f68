"""Pins how long one waits for others: a running row for newcomers, a newcomer for running rows, a tick for
commands; the bounds are those of scheduler.py. And that a long line costs a tick no more than a short one.

pipeline_bugs 64, 65.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from engines import build, counters, finish, oracle, outcome, query, requests, sequential, small, tick
from hypothesis import given
from hypothesis import strategies as st
from test_scheduler import Plain, sequence

from photon import EngineConfig, Handle
from photon.errors import InvalidRequestError
from photon.scheduler import Capacity, Scheduler, StepPlan
from photon.sequence import FinishReason, SamplingParams, Sequence
from photon.worker import Worker

PAGES = 1000
LENGTHS = st.lists(st.integers(1, 200), max_size=3)


class Plans:
    """A scheduler whose plans are carried out and committed at once; pages are plenty."""

    def __init__(self, rows: int, max_prefills: int) -> None:
        config = EngineConfig(
            max_batch_size=rows, max_consecutive_prefills=max_prefills, prefill_token_budget=64
        )
        self.planner = Scheduler(config, num_pages=PAGES, max_context=PAGES, crop_budget=1)
        self.waiting: list[Sequence] = []
        self.running: list[Sequence] = []
        self.launches: list[StepPlan] = []

    def launch(self) -> StepPlan | None:
        """One plan, all its tokens delivered."""
        plan = self.planner.plan(self.waiting, self.running, Capacity(PAGES, 64, 0))
        if plan is None:
            return None
        self.planner.launched(plan)
        self.launches.append(plan)
        for row in plan.rows:
            self._advance(row)
        return plan

    def _advance(self, row: Sequence) -> None:
        if row in self.waiting:
            self.waiting.remove(row)
            self.running.append(row)
        row.num_launched += 1
        row.pages = [1] * self.planner.pages_for(row.num_prefill_positions + row.num_launched + 1)
        if row.num_launched == row.max_tokens:
            row.finish_reason = FinishReason.LENGTH
            self.running.remove(row)


@given(st.integers(1, 4), st.lists(LENGTHS, min_size=1, max_size=40), st.integers(2, 4))
def test_long_prompts_without_end_hold_up_a_running_row_for_so_many_launches_and_no_more(
    max_prefills: int, arrivals: list[list[int]], rows: int
) -> None:
    """pipeline_bugs 64: each running row is in one of any max_consecutive_prefills + 1 launches."""
    plans = Plans(rows, max_prefills)
    plans.waiting.append(oldest := sequence(3, max_tokens=500))
    plans.launch()
    for lengths in arrivals * 3:
        plans.waiting += [sequence(length, max_tokens=2) for length in lengths]
        plans.launch()
    after = plans.launches[1:]
    for i in range(len(after) - max_prefills):
        assert any(oldest in plan.rows for plan in after[i : i + max_prefills + 1])


@given(st.lists(st.integers(2, 30), min_size=4, max_size=4), st.integers(1, 3))
def test_a_full_batch_keeps_a_waiter_out_until_a_row_ends_and_one_launch_more(
    lives: list[int], max_prefills: int
) -> None:
    """pipeline_bugs 64: the seat is the waiter's, whatever comes behind it."""
    plans = Plans(4, max_prefills)
    plans.waiting = [sequence(3, max_tokens=life) for life in lives]
    plans.launch()
    waiter = sequence(100, max_tokens=5)
    plans.waiting.append(waiter)
    launches_with_a_seat = 0
    for _ in range(sum(lives)):
        if waiter in plans.running:
            break
        plans.waiting.append(sequence(1, max_tokens=1))
        launches_with_a_seat += len(plans.running) < 4
        plans.launch()
    assert launches_with_a_seat <= 2
    assert not any(plan.kind == "prefill" for plan in plans.launches[1:-1])


def test_the_members_of_a_full_batch_do_not_take_turns() -> None:
    """pipeline_bugs 65: one more than fits waits, and every decode has the same rows until one ends."""
    plans = Plans(3, 1)
    plans.waiting = [sequence(2, max_tokens=20 + i) for i in range(4)]
    while plans.launch():
        pass
    decodes = [plan.rows for plan in plans.launches if plan.kind == "decode"]
    assert len(set(decodes[:19])) == 1


def test_admission_answers_now_later_or_never() -> None:
    """pipeline_bugs 15, 64: now where there is room, later when there will be, never at submit."""
    with build(small(num_pages=8, page_size=4, max_batch_size=4)) as engine:
        start = counters(engine)
        now = engine.submit(query("x" * 12, max_tokens=8))
        later = engine.submit(query("y" * 12, max_tokens=8))
        with pytest.raises(InvalidRequestError, match="KV pages, but the pool has 8"):
            engine.submit(query("z" * 40, max_tokens=8))
        tick(engine)
        assert (now.stage, later.stage) == ("prefill", "queued")
        finish(engine)
        answers = [sequential(query(letter * 12, max_tokens=8)) for letter in "xy"]
        assert [outcome(now), outcome(later)] == answers
        assert counters(engine) == start


class Counted(list[Sequence]):
    """A line that counts how many of those in it are looked at."""

    num_looks = 0

    def __iter__(self) -> Iterator[Sequence]:
        for waiting in super().__iter__():
            self.num_looks += 1
            yield waiting


@pytest.mark.parametrize("num_waiting", [10, 10_000])
def test_a_plan_looks_at_the_head_of_the_line_however_long_it_is(num_waiting: int) -> None:
    planner = Scheduler(EngineConfig(), num_pages=PAGES, max_context=PAGES, crop_budget=1)
    line = Counted([sequence()] * num_waiting)
    assert planner.plan(line, [], Capacity(PAGES, 64, 0)) is not None
    assert 0 < line.num_looks <= 10


class Compared(Sequence):
    """A sequence that counts how often one like it is compared with another."""

    num_comparisons = 0

    def __eq__(self, other: object) -> bool:
        Compared.num_comparisons += 1
        return self is other

    __hash__ = object.__hash__


@pytest.mark.parametrize("place", [0, 500, 999])
def test_who_leaves_a_long_line_is_not_searched_for(place: int) -> None:
    """Or a thousand callers that give up at once would hold up the running rows."""
    with build() as engine:
        line = [Compared(i + 1, Plain(3, 5), SamplingParams(), 1) for i in range(1000)]
        for waiting in line:
            engine._roster.accept([waiting], [Handle(waiting, 0, 0, lambda: None)])
        Compared.num_comparisons = 0
        engine._roster.cancel(line[place])
        assert Compared.num_comparisons < 10
        assert engine.stats()["waiting"] == 999


def test_commands_that_lead_to_commands_do_not_keep_ticks_out() -> None:
    """A caller that asks again as soon as it is answered, faster than the engine can answer."""
    log: list[str] = []

    def ask_again() -> None:
        log.append("command")
        if len(log) < 100:
            worker.post(ask_again)

    def tick_once() -> bool:
        log.append("tick")
        return True

    worker = Worker(tick_once, lambda error: None, threaded=False)
    worker.post(ask_again)
    assert worker.run_until_idle(max_ticks=3) == 3
    assert log == ["command", "tick"] * 3


def test_a_flood_of_cancelled_requests_delays_nobody() -> None:
    """pipeline_bugs 16, 64: two hundred come and give up while one is answered; it takes no tick longer."""
    with build(small(max_batch_size=2, max_waiting=1000)) as engine:
        start = counters(engine)
        alone = engine.submit(requests()[0])
        ticks_alone = finish(engine)
        busy = engine.submit(requests()[0])
        tick(engine)
        crowd = [engine.submit(requests()[0]) for _ in range(200)]
        for handle in crowd:
            handle.cancel()
        assert 1 + finish(engine) == ticks_alone
        assert outcome(alone) == outcome(busy) == oracle(0)
        assert counters(engine) == start
