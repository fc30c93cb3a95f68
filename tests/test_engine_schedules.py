"""Pins I12 under everything at once: random arrivals, cancels, depths, pools, adapters and device orders.

Every answer must be the sequential one (a beginning of it where it was cancelled), every invariant must
hold after every tick, and whatever a schedule took must be back at its end. Three pictures, asked about with
adapters a, b and none, come back throughout, so most prefills could read what the prefix cache holds.
pipeline_bugs 9-12, 16, 17, 20, 22, 35-38, 40, 41, 47, 49-53, 61 in one.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any

import pytest
from engines import MAX_TICKS, assert_answer, audit, build, counters, oracle, requests, small, tick

from photon import Engine, EngineConfig, Handle

SCHEDULES_PER_ENGINE = 10
WORST_POSITIONS = 64
"""No request of `requests()` needs more KV positions than this."""


@dataclass(frozen=True)
class Arrival:
    """Request `index` comes at `tick`; its caller gives up `patience` ticks later, if ever."""

    tick: int
    index: int
    patience: int | None


def random_config(rng: random.Random) -> EngineConfig:
    page_size = rng.choice((1, 4, 16))
    pages_for_one = -(-WORST_POSITIONS // page_size)
    return small(
        depth=rng.choice((1, 2, 2, 2)),
        max_batch_size=rng.choice((1, 2, 3, 4, 6)),
        page_size=page_size,
        num_pages=int(pages_for_one * rng.uniform(1, 2.5)),
        prefill_token_budget=rng.choice((16, 64, 256)),
        max_consecutive_prefills=rng.choice((1, 2)),
        max_lora_slots=rng.choice((1, 2)),
        max_cached_images=rng.choice((0, 1, 2, 64)),
    )


def random_arrivals(rng: random.Random) -> list[Arrival]:
    span = rng.choice((1, 10, 30))
    return [
        Arrival(
            rng.randrange(span),
            rng.randrange(len(requests())),
            rng.randrange(12) if rng.random() < 0.25 else None,
        )
        for _ in range(rng.randint(3, 8))
    ]


def play(engine: Engine, arrivals: list[Arrival], rng: random.Random) -> list[tuple[Handle, int]]:
    """Run one schedule to its end, all invariants checked after every tick."""
    played: list[tuple[Handle, int]] = []
    cancels: dict[int, list[Handle]] = {}
    last = max(arrival.tick for arrival in arrivals)
    for now in range(MAX_TICKS):
        for arrival in (arrival for arrival in arrivals if arrival.tick == now):
            handle = engine.submit(requests()[arrival.index])
            played.append((handle, arrival.index))
            if arrival.patience is not None:
                cancels.setdefault(now + arrival.patience, []).append(handle)
        for handle in cancels.pop(now, ()):
            handle.cancel()
        if rng.random() < 0.02:
            engine.set_depth(3 - engine.depth)
        if not tick(engine) and now >= last:
            return played
    raise AssertionError("the schedule does not end")


def assert_counted(before: dict[str, Any], after: dict[str, Any], handles: list[Handle]) -> None:
    """pipeline_bugs 6, 66: the engine's counts are the sums of what its requests were given."""
    measured = [handle.metrics for handle in handles if handle.metrics is not None]
    assert len(measured) == len(handles)
    assert after["tokens"] - before["tokens"] == sum(m.output_tokens for m in measured)
    assert after["zombie_rows"] - before["zombie_rows"] == sum(m.zombie_rows for m in measured)
    num_hits = after["prefix_hits"] - before["prefix_hits"]
    assert num_hits >= sum(m.cached_tokens > 0 for m in measured)
    assert num_hits <= sum((1 + m.preemptions) * (m.input_tokens > 1) for m in measured)


def check_schedules(first: int) -> None:
    """SCHEDULES_PER_ENGINE schedules, one after another, in one engine."""
    rng = random.Random(first)
    with build(random_config(rng), seed=first) as engine:
        start = counters(engine)
        for _ in range(SCHEDULES_PER_ENGINE):
            before = engine.stats()
            played = play(engine, random_arrivals(rng), rng)
            for handle, index in played:
                assert_answer(handle, index)
            audit(engine)
            assert counters(engine) == start
            assert_counted(before, engine.stats(), [handle for handle, _ in played])


@pytest.mark.parametrize("seed", range(100))
def test_a_thousand_random_schedules_give_every_request_its_sequential_answer(seed: int) -> None:
    """100 engines, 10 schedules in each."""
    check_schedules(seed)


def test_the_requests_of_the_schedules_end_in_every_way() -> None:
    reasons = [oracle(index).result["finish_reason"] for index in range(len(requests()))]
    assert min(reasons.count("stop"), reasons.count("length")) >= 6
    assert len({len(oracle(index).tokens) for index in range(len(requests()))}) >= 8
