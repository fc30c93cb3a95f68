"""Pins what a workload is: checked values, seeded arrivals and stops, and one right answer at any depth."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from engines import EOS, build, picture

from photon import Engine
from photon.config import EngineConfig
from photon.device.deferred import DeferredDevice
from photon.errors import InvalidRequestError
from photon.skills.base import Mask
from photon.workload import MAX_COPIES, FixedLengthSkill, Workload, WorkloadRun, run

LONG = Workload(None, "query", "tell me more", copies=3, num_tokens=12)


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    """On the deferred device, which finds missing waits, with a thread of its own."""
    config = EngineConfig(max_batch_size=4, page_size=4, prefill_token_budget=128)
    with build(config, device=DeferredDevice(3), threaded=True) as made:
        yield made


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"copies": 0}, "copies is 0"),
        ({"copies": MAX_COPIES + 1}, "from 1 to 32"),
        ({"copies": 2.5}, "whole number"),
        ({"rate_per_s": -1}, "rate_per_s is -1"),
        ({"rate_per_s": float("nan")}, "rate_per_s is nan"),
        ({"num_tokens": 0}, "num_tokens is 0"),
        ({"seed": "x"}, "seed is 'x'"),
        ({"early_stops_percent": 101}, "from 0 to 100"),
        ({"early_stops_percent": 50}, "fixed length"),
    ],
)
def test_a_bad_value_is_named_with_its_limits(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidRequestError, match=words):
        Workload(**changes)


def test_arrivals_are_all_at_once_or_seeded_and_ever_later() -> None:
    assert Workload(copies=3).arrivals_ns == (0, 0, 0)
    poisson = Workload(copies=20, rate_per_s=50, seed=4)
    times = poisson.arrivals_ns
    assert times == replace(poisson).arrivals_ns != replace(poisson, seed=5).arrivals_ns
    assert times[0] == 0
    assert list(times) == sorted(times)
    assert 0.1e9 < times[-1] < 1.2e9


def test_stops_are_seeded_and_lie_where_one_more_step_would_have_been_launched() -> None:
    workload = Workload(copies=8, num_tokens=20, early_stops_percent=50)
    assert workload.stops == replace(workload).stops
    early = [stop for stop in workload.stops if stop is not None]
    assert len(early) == 4
    assert all(0 < stop < 19 for stop in early)


def test_every_row_has_the_length_that_was_asked_for(engine: Engine) -> None:
    result = run(engine, LONG)
    assert [len(tokens) for tokens in result.tokens] == [12, 12, 12]
    assert set(result.finish_reasons) == {"length"}
    assert result.num_tokens == 36
    assert result.start_ns < result.end_ns


def test_rows_that_stop_early_end_by_the_end_token_and_become_zombies(engine: Engine) -> None:
    workload = replace(LONG, early_stops_percent=100)
    before = engine.stats()["zombie_rows"]
    result = run(engine, workload)
    assert [len(tokens) for tokens in result.tokens] == list(workload.stops)
    assert set(result.finish_reasons) == {"stop"}
    assert engine.stats()["zombie_rows"] == before + 3


@pytest.mark.parametrize("task", ["query", "point", "detect", "caption"])
def test_both_depths_give_the_same_tokens(engine: Engine, task: str) -> None:
    workload = Workload(picture(1), task, "dog", copies=3, num_tokens=9, early_stops_percent=40)
    results = []
    for depth in (1, 2):
        engine.set_depth(depth)
        results.append(run(engine, workload).tokens)
    assert results[0] == results[1]


def test_without_a_length_the_model_answers_as_it_does_elsewhere(engine: Engine) -> None:
    result = run(engine, Workload(picture(2), "point", "cat", copies=2))
    alone = engine.point(picture(2), "cat", settings={"temperature": 0})
    assert result.finish_reasons == (alone["finish_reason"],) * 2
    assert len({result.tokens[0], result.tokens[1]}) == 1


def test_poisson_arrivals_change_no_token(engine: Engine) -> None:
    burst = run(engine, LONG)
    assert run(engine, replace(LONG, rate_per_s=200)).tokens == burst.tokens


def test_a_burst_arrives_before_the_first_step(engine: Engine) -> None:
    first = engine.stats()["steps"]
    run(engine, replace(LONG, copies=4))
    assert engine.stats()["steps"] == first + 1 + 11, "one prefill of all rows, then one decode per token"


def test_a_stopped_run_ends_with_what_there_is(engine: Engine) -> None:
    playing = WorkloadRun(engine, replace(LONG, copies=32, rate_per_s=0.5))
    stopper = threading.Timer(0, playing.cancel)
    stopper.start()
    result = playing.finish()
    stopper.join()
    assert result.is_stopped
    assert len(result.tokens) < 32
    assert engine.stats()["resident"] == 0


def test_a_workload_the_model_cannot_take_is_refused_and_leaves_nothing(engine: Engine) -> None:
    with pytest.raises(InvalidRequestError, match="needs an image"):
        run(engine, Workload(None, "detect", "dog"))
    assert engine.stats()["waiting"] == engine.stats()["resident"] == 0


def test_only_the_end_is_taken_out_of_the_models_hands() -> None:
    class Inner:
        is_spatial, finished = True, False
        masks = iter((Mask.OBJECT_OR_END, Mask.SIZE, Mask.FIRST_TEXT, Mask.TEXT))

        def mask(self) -> Mask:
            return next(self.masks)

        def consume(self, token: Any) -> str:
            return "x"

    skill = FixedLengthSkill(Inner(), 10, stop=3)  # type: ignore[arg-type]
    seen = []
    for _ in range(4):
        seen.append(skill.mask())
        skill.consume(EOS)
    assert seen == [Mask.COORD, Mask.SIZE, Mask.UNENDING, Mask.END]
