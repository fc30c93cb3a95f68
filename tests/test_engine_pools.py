"""Pins what is taken and given back: pages, rows, lora_slots, seats; and that nobody starves or overtakes.

pipeline_bugs 2, 9, 10, 15, 18, 19, 20, 21, 24, 42, 55, 64, 65, 74.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from engines import (
    MAX_TICKS,
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
    sequential,
    small,
    tick,
)

from photon import Engine, Handle
from photon.device.deferred import DeferredDevice
from photon.observe import Mark, Span, StepRecord

ONE = query("one", max_tokens=1)


def long_query(seed: int, max_tokens: int = 40) -> Any:
    """Hot enough to end at its limit for most seeds."""
    return query("go", max_tokens=max_tokens, temperature=4.0, seed=seed)


class Steps:
    """An observer that keeps every launch, as (kind, rows, zombies)."""

    def __init__(self) -> None:
        self.launches: list[Span] = []
        self.marks: list[Mark] = []

    def on_span(self, span: Span) -> None:
        if span.name == "launch":
            self.launches.append(span)

    def on_mark(self, mark: Mark) -> None:
        self.marks.append(mark)

    def on_step(self, record: StepRecord) -> None: ...


# Seats and rows ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("batch", [1, 2, 4])
def test_a_full_batch_ends_in_one_tick_while_as_many_wait(batch: int, depth: int) -> None:
    """pipeline_bugs 18, 21: every request has one token, so whole batches end together."""
    with build(small(max_batch_size=batch, depth=depth, page_size=16)) as engine:
        start = counters(engine)
        handles = [engine.submit(ONE) for _ in range(3 * batch + 1)]
        finish(engine)
        assert [outcome(handle) for handle in handles] == [oracle(10)] * len(handles)
        assert run(engine, [ONE]) == [oracle(10)]
        assert counters(engine) == start


@pytest.mark.parametrize("seed", range(3))
def test_a_full_batch_of_zombies_leaves_room_for_a_full_batch(seed: int) -> None:
    """pipeline_bugs 18, 19: the same answer ends by EOS in every row at once, with a step in flight."""
    with build(small(max_batch_size=4), seed=seed) as engine:
        handles = [engine.submit(requests()[15]) for _ in range(12)]
        most = 0
        while tick(engine):
            most = max(most, engine.stats()["zombies"])
        assert most == 4
        assert [outcome(handle) for handle in handles] == [oracle(15)] * 12


def test_one_token_requests_keep_the_batch_full() -> None:
    """pipeline_bugs 19: a request on its way out takes no seat from one on its way in."""
    steps = Steps()
    with build(small(max_batch_size=4), observers=[steps]) as engine:
        run(engine, [ONE] * 20)
    assert [span.rows for span in steps.launches] == [4] * 5


def test_the_last_zombie_is_released_without_a_new_request() -> None:
    """pipeline_bugs 20: an engine with a zombie in flight is not idle."""
    with build() as engine:
        start = counters(engine)
        handle = engine.submit(requests()[15])
        while handle.stage != "finished":
            tick(engine)
        assert engine.stats()["zombies"] == 1
        assert finish(engine) <= 2
        assert counters(engine) == start


def test_a_row_is_launched_at_most_once_after_its_answer_has_ended() -> None:
    """pipeline_bugs 24: EOS makes at most one zombie row, an end by length none."""
    with build() as engine:
        handles = [engine.submit(request) for request in requests()]
        finish(engine)
        zombies = [handle.metrics.zombie_rows for handle in handles]
        ends = [handle.result()["finish_reason"] for handle in handles]
        assert max(zombies) == 1
        assert all(count == 0 for count, end in zip(zombies, ends, strict=True) if end == "length")
        assert engine.stats()["zombie_rows"] == sum(zombies)


@pytest.mark.parametrize("seed", range(3))
def test_a_row_is_reused_at_once_and_shows_nothing_of_its_last_tenant(seed: int) -> None:
    """pipeline_bugs 9, 10: two rows, one of a zombie, for all requests in turn."""
    with build(small(max_batch_size=1, page_size=16), seed=seed) as engine:
        assert run(engine, requests()) == [oracle(index) for index in range(len(requests()))]


# Pages ---------------------------------------------------------------------------------------------------


def test_a_request_that_outgrows_the_pool_ends_with_what_it_has() -> None:
    """pipeline_bugs 15: alone in the pool, it ends by length; the engine serves the next."""
    request = long_query(1)
    whole = sequential(request)
    with build(small(num_pages=4, page_size=4)) as engine:
        start = counters(engine)
        answer = run(engine, [request])[0]
        assert answer.result["finish_reason"] == "length"
        assert 0 < len(answer.tokens) < len(whole.tokens)
        assert answer.tokens == whole.tokens[: len(answer.tokens)]
        assert counters(engine) == start
        assert run(engine, [ONE]) == [oracle(10)]


def test_a_pool_for_one_and_a_half_requests_serves_six() -> None:
    """pipeline_bugs 55: preemptions are bounded, and no tick without progress follows another."""
    six = [long_query(seed, max_tokens=30) for seed in range(6)]
    worst = -(-(7 + 30) // 4)
    with build(small(num_pages=int(1.5 * worst), max_batch_size=6)) as engine:
        handles = [engine.submit(request) for request in six]
        idle_ticks, steps = 0, -1
        while tick(engine):
            idle_ticks = idle_ticks + 1 if engine.stats()["steps"] == steps else 0
            steps = engine.stats()["steps"]
            assert idle_ticks < 4 + 6, "no step for as many ticks as it takes to preempt all"
        assert [outcome(handle) for handle in handles] == [sequential(request) for request in six]
        assert max(handle.metrics.preemptions for handle in handles) <= 3


def test_a_prompt_larger_than_the_pool_is_refused_and_one_of_its_size_is_not() -> None:
    with build(small(num_pages=4, page_size=4)) as engine:
        engine.submit(query("x" * 9, max_tokens=1))
        finish(engine)
        with pytest.raises(ValueError, match="needs 5 KV pages, but the pool has 4"):
            engine.submit(query("x" * 10, max_tokens=2))


def test_a_running_row_that_needs_a_page_goes_before_new_requests() -> None:
    """pipeline_bugs 64: short requests without end never take the page that a long one waits for."""
    long_one = long_query(1)
    with build(small(num_pages=12, page_size=4, max_batch_size=4)) as engine:
        handle = engine.submit(long_one)
        for _ in range(MAX_TICKS):
            if handle.stage == "finished":
                break
            if engine.stats()["waiting"] < 3:
                engine.submit(query("colour", max_tokens=2))
            tick(engine)
        assert outcome(handle) == sequential(long_one)
        assert handle.metrics.preemptions <= 2


class FixedShapes(DeferredDevice):
    """Steps are padded to the next power of two, as on cuda."""

    fixed_shapes = True

    def pages(self) -> list[torch.Tensor]:
        """A copy of the KV cache, one tensor a layer."""
        return [layer.clone() for layer in self._runner.cache.layers]


@pytest.mark.parametrize("seed", range(3))
def test_padding_rows_do_not_show(seed: int) -> None:
    """pipeline_bugs 42, 43: 1 to 7 real rows in shapes of 1, 2, 4 and 7."""
    with build(small(max_batch_size=7, page_size=4), device=FixedShapes(seed)) as engine:
        assert run(engine, requests()) == [oracle(index) for index in range(len(requests()))]


def test_padding_rows_write_to_no_page_but_the_null_page() -> None:
    """pipeline_bugs 42: three rows in a shape of four; pages that nobody owns stay as they are."""
    device = FixedShapes()
    with build(small(max_batch_size=4, page_size=4), device=device) as engine:
        for seed in range(3):
            engine.submit(long_query(seed))
        for _ in range(8):
            tick(engine)
        owned = {page for sequence in engine._roster.resident for page in sequence.pages}
        before = device.pages()
        for _ in range(3):
            tick(engine)
        owned |= {page for sequence in engine._roster.resident for page in sequence.pages}
        free = [page for page in range(1, engine.stats()["total_pages"] + 1) if page not in owned]
        assert free
        for old, new in zip(before, device.pages(), strict=True):
            assert torch.equal(old[free], new[free])


# Fairness ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("limit", [1, 3])
def test_arrivals_without_end_do_not_starve_a_running_row(limit: int) -> None:
    """pipeline_bugs 64: at least one decode in limit + 1 launches."""
    steps = Steps()
    with build(small(max_consecutive_prefills=limit, max_batch_size=4), observers=[steps]) as engine:
        handle = engine.submit(long_query(1))
        while handle.stage != "finished":
            if engine.stats()["waiting"] < 4:
                engine.submit(ONE)
            tick(engine)
    kinds = "".join(span.kind[0] for span in steps.launches[1:]).rstrip("p")  # all its tokens are launched
    assert "p" * (limit + 1) not in kinds
    assert "p" * limit in kinds


def test_a_waiting_request_is_admitted_as_soon_as_there_is_a_seat() -> None:
    """pipeline_bugs 64: decoding rows do not keep it out."""
    with build(small(max_batch_size=4)) as engine:
        for seed in range(3):
            engine.submit(long_query(seed))
        for _ in range(6):
            tick(engine)
        late = engine.submit(requests()[0])
        for _ in range(2):
            tick(engine)
        assert late.stage == "prefill"


def test_requests_are_admitted_in_the_order_in_which_they_came() -> None:
    """A large one at the head is not overtaken for ever by small ones behind it."""
    steps = Steps()
    with build(small(num_pages=16, max_batch_size=4), observers=[steps]) as engine:
        handles = [
            engine.submit(request) for request in [*requests()[:6], query("x" * 50, max_tokens=2), ONE, ONE]
        ]
        finish(engine)
    admitted = [mark.request_id for mark in steps.marks if mark.name == "admitted"]
    assert admitted == [handle.request_id for handle in handles]


def test_one_request_too_many_waits_and_the_batch_keeps_its_members() -> None:
    """pipeline_bugs 65: no rotation among the rows of a full batch."""
    with build(small(max_batch_size=3)) as engine:
        handles = [engine.submit(long_query(seed)) for seed in range(4)]
        members: list[tuple[int, ...]] = []
        while not any(handle.stage == "finished" for handle in handles):
            tick(engine)
            members += [tuple(s.request_id for s in step.rows) for step in engine._pipeline.in_flight[-1:]]
        first = tuple(handle.request_id for handle in handles[:3])
        assert set(members) <= {first, (handles[3].request_id,)}
        finish(engine)


def test_rows_of_different_ages_decode_together() -> None:
    steps = Steps()
    with build(small(max_batch_size=4, max_consecutive_prefills=2), observers=[steps]) as engine:
        for seed in range(4):
            engine.submit(long_query(seed, max_tokens=20))
            tick(engine)
            tick(engine)
        finish(engine)
    assert max(span.rows for span in steps.launches if span.kind == "decode") == 4


# Soak ----------------------------------------------------------------------------------------------------


def tables(engine: Engine) -> dict[str, int]:
    """Sizes of everything in the engine that could grow."""
    roster, device = engine._roster, engine.device
    assert isinstance(device, DeferredDevice)
    return counters(engine) | {
        "adapters": len(engine._admission.adapter_ids),
        "holders": len(engine._residency.lora._holders),
        "zombies": len(roster.zombies),
        "inbox": engine._worker.num_pending,
        "ahead": roster.num_ahead,
    }


def test_a_thousand_short_requests_leave_every_table_as_it_was() -> None:
    """pipeline_bugs 74: a fifth of them cancelled."""
    with build(small(max_batch_size=8, page_size=16)) as engine:
        start = tables(engine)
        for burst in range(40):
            handles: list[Handle] = [engine.submit(requests()[(burst + i) % 6 + 5]) for i in range(25)]
            for handle in handles[::5]:
                handle.cancel()
            finish(engine)
            assert all(handle.stage == "finished" for handle in handles)
        audit(engine)
        assert tables(engine) == start


def test_an_image_is_not_kept_after_its_request() -> None:
    with build() as engine:
        handle = engine.submit(query("x", picture(3, 56, 40), max_tokens=2))
        finish(engine)
        assert handle._sequence.pixels is None
