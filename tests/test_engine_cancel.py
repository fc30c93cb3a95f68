"""Pins cancellation: at once for the caller, whatever the stage; everything held comes back when the last
step in flight is done; whoever waits is admitted then. pipeline_bugs 11, 14, 16, 17, 19, 61, 63.
"""

from __future__ import annotations

import random
import threading

import pytest
from engines import (
    assert_answer,
    audit,
    build,
    counters,
    finish,
    oracle,
    outcome,
    picture,
    query,
    requests,
    run,
    small,
    tick,
)

from photon import Engine, Handle
from photon.observe import Mark, Span, StepRecord

LONG = query("tell me more", picture(1), max_tokens=40, temperature=1.0, seed=2)


def cancelled_at(engine: Engine, age: int) -> Handle:
    """LONG, cancelled after `age` ticks, with the tick done in which the engine hears of it."""
    handle = engine.submit(LONG)
    for _ in range(age):
        tick(engine)
    handle.cancel()
    tick(engine)
    return handle


@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("age", range(9))
def test_a_cancelled_request_ends_at_once_and_gives_everything_back(age: int, depth: int) -> None:
    with build(small(depth=depth, max_batch_size=1)) as engine:
        start = counters(engine)
        handle = cancelled_at(engine, age)
        assert handle.result(timeout=0)["finish_reason"] == "cancelled"
        assert finish(engine) <= 2, "cancelled within two steps"
        assert counters(engine) == start


def test_a_request_cancelled_while_it_waits_never_runs() -> None:
    with build() as engine:
        handle = cancelled_at(engine, 0)
        assert engine.stats()["steps"] == 0
        assert handle.tokens == ()
        assert handle.metrics.first_step_id == -1


def test_a_request_cancelled_in_prefill_has_no_token() -> None:
    with build() as engine:
        handle = engine.submit(LONG)
        tick(engine)
        assert handle.stage == "prefill"
        handle.cancel()
        finish(engine)
        assert handle.tokens == ()
        assert handle.metrics.zombie_rows == 1


def test_the_partial_answer_is_a_beginning_of_the_whole() -> None:
    with build() as engine:
        whole = run(engine, [LONG])[0]
        for age in range(3, 12, 2):
            got = outcome(cancelled_at(engine, age))
            assert 0 < len(got.tokens) < len(whole.tokens)
            assert got.tokens == whole.tokens[: len(got.tokens)]


def test_a_partial_result_can_be_read_while_the_request_runs() -> None:
    with build() as engine:
        handle = engine.submit(requests()[18])
        seen = []
        while tick(engine):
            seen.append(len(handle.partial()["points"]))
        assert seen == sorted(seen)
        assert len(set(seen)) > 3


def test_cancelling_twice_or_after_the_end_changes_nothing() -> None:
    """pipeline_bugs 11."""
    with build() as engine:
        start = counters(engine)
        handle = engine.submit(requests()[1])
        tick(engine)
        handle.cancel()
        handle.cancel()
        finish(engine)
        first = outcome(handle)
        handle.cancel()
        finish(engine)
        assert outcome(handle) == first
        assert counters(engine) == start


class CancelInCommit:
    """An observer that cancels a request, alone in its engine, just before token number `count` goes out."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.handle: Handle | None = None

    def on_span(self, span: Span) -> None:
        self.count -= span.name == "wait"
        if self.count == 0 and span.name == "wait" and self.handle is not None:
            self.handle.cancel()

    def on_mark(self, mark: Mark) -> None: ...

    def on_step(self, record: StepRecord) -> None: ...


@pytest.mark.parametrize("index", [4, 5, 10, 18])
def test_a_cancel_in_the_commit_that_ends_the_answer_comes_too_late(index: int) -> None:
    """pipeline_bugs 11: one end, the answer's own."""
    ends_by_eos = oracle(index).result["finish_reason"] == "stop"
    observer = CancelInCommit(len(oracle(index).tokens) + ends_by_eos)
    with build(observers=[observer]) as engine:
        start = counters(engine)
        handle = observer.handle = engine.submit(requests()[index])
        finish(engine)
        assert observer.count <= 0
        assert outcome(handle) == oracle(index)
        assert counters(engine) == start


def test_the_next_request_takes_the_seat_while_the_zombie_still_has_its_row() -> None:
    """pipeline_bugs 19: a zombie counts as resident, not as schedulable."""
    with build(small(max_batch_size=1)) as engine:
        cancelled_at(engine, 4)
        handle = engine.submit(requests()[0])
        tick(engine)
        stats = engine.stats()
        assert (stats["schedulable"], stats["resident"]) in {(1, 2), (1, 1)}
        finish(engine)
        assert outcome(handle) == oracle(0)


def test_neighbours_do_not_notice() -> None:
    with build(small(max_batch_size=3)) as engine:
        others = [engine.submit(requests()[index]) for index in (0, 18)]
        cancelled_at(engine, 3)
        finish(engine)
        assert [outcome(handle) for handle in others] == [oracle(0), oracle(18)]


def test_a_cancel_may_come_from_another_thread() -> None:
    with build() as engine:
        handle = engine.submit(LONG)
        for _ in range(4):
            tick(engine)
        thread = threading.Thread(target=handle.cancel)
        thread.start()
        thread.join()
        finish(engine)
        assert handle.result(timeout=0)["finish_reason"] == "cancelled"


def test_a_preempted_request_can_be_cancelled_while_it_waits_again() -> None:
    """pipeline_bugs 14."""
    with build(small(num_pages=10, page_size=4, max_batch_size=2)) as engine:
        start = counters(engine)
        handles = [engine.submit(requests()[0]), engine.submit(requests()[1])]
        while not any(sequence.num_preemptions for sequence in engine._roster.waiting):
            assert tick(engine)
        handles[1].cancel()
        finish(engine)
        assert_answer(handles[0], 0)
        assert_answer(handles[1], 1)
        assert handles[1].result()["finish_reason"] == "cancelled"
        assert handles[1].num_tokens > 0
        assert counters(engine) == start


def test_three_hundred_cancels_at_random_ages_leak_nothing() -> None:
    """pipeline_bugs 16: a request that needs the whole pool is admitted afterwards."""
    rng = random.Random(1)
    with build(small(max_batch_size=3, num_pages=24)) as engine:
        start = counters(engine)
        for _ in range(100):
            handles = [engine.submit(requests()[rng.randrange(24)]) for _ in range(3)]
            for _ in range(rng.randrange(7)):
                tick(engine)
            for handle in handles:
                handle.cancel()
        finish(engine)
        assert counters(engine) == start
        assert run(engine, [requests()[1]]) == [oracle(1)]


@pytest.mark.parametrize("how", ["close", "drop", "unread"])
def test_a_consumer_that_goes_away_cancels_its_request(how: str) -> None:
    """pipeline_bugs 63: closed or dropped after some pieces, or before the first."""
    with build(small(max_batch_size=1)) as engine:
        handle = engine.submit(LONG)
        waiting = engine.submit(requests()[0])
        stream = handle.stream()
        while how != "unread" and handle.num_tokens < 6:
            tick(engine)
        if how == "close":
            next(stream)
            stream.close()
            assert list(stream) == []
        elif how == "drop":
            next(stream)
        del stream
        finish(engine)
        assert handle.result(timeout=0)["finish_reason"] == "cancelled"
        assert handle.num_tokens < 9
        assert outcome(waiting) == oracle(0)


def test_a_stream_read_to_its_end_cancels_nothing() -> None:
    with build() as engine:
        handle = engine.submit(requests()[1])
        finish(engine)
        stream = handle.stream()
        assert "".join(stream) == oracle(1).result["answer"]
        del stream
        finish(engine)
        assert outcome(handle) == oracle(1)


def test_all_rows_cancelled_in_one_tick_make_room_for_as_many() -> None:
    """pipeline_bugs 18: a full batch of zombies beside a full batch of successors."""
    with build(small(max_batch_size=4)) as engine:
        start = counters(engine)
        for _ in range(5):
            handles = [engine.submit(LONG) for _ in range(4)]
            for _ in range(5):
                tick(engine)
            for handle in handles:
                handle.cancel()
        finish(engine)
        audit(engine)
        assert counters(engine) == start
