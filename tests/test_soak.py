"""Pins that requests leave nothing behind: the soak of soak.py, shorter, on the cpu device; and what the
other scripts, load.py and tick_cost.py, work out."""

from __future__ import annotations

import random

import pytest
from engines import requests, small, tiny_model
from load import quantile_ms, questions
from soak import RECORDER_BYTES, Soak, num_objects, tables
from tick_cost import Line, ended

from photon import Engine, Request, open_device
from photon.api import Meter
from tracing.recorder import Recorder

WARM_UP, MEASURED = 150, 600


def some_request(dice: random.Random) -> Request:
    """Of every kind but those with adapters, which this engine has not."""
    return dice.choice([request for request in requests() if "adapter" not in request.settings])


def test_hundreds_of_short_requests_leave_memory_and_tables_as_they_were() -> None:
    """pipeline_bugs 74, user_reports 51: a fifth cancelled at a random age; both processes."""
    meter, recorder = Meter(), Recorder(max_bytes=RECORDER_BYTES)
    with Engine(
        tiny_model(), open_device("cpu"), small(max_batch_size=8), observers=[recorder, meter]
    ) as engine:
        start = tables(engine)
        Soak(engine, some_request, WARM_UP).run()
        soak = Soak(engine, some_request, MEASURED)
        before, objects = soak.memory(), num_objects()
        soak.run()
        grown = [after / had - 1 for had, after in zip(before, soak.memory(), strict=True)]
        assert tables(engine) == start
        assert num_objects() - objects < MEASURED / 10
        assert engine.stats()["alive"]
    assert set(soak.ends) == {"stop", "length", "cancelled"}
    assert soak.ends["cancelled"] > MEASURED / 20
    assert max(grown) < 0.05, f"memory grew by {grown}"
    assert not meter._arrival_ns
    assert len(meter._last_token_ns) <= 1  # of the request whose end is told with the next step


def test_a_full_batch_is_ticked_with_a_line_behind_it() -> None:
    line = Line(20)
    for prepare in (line.decode, line.leave, line.replace):
        assert line.tick_us(prepare, 5) > 0
    stats = line.engine.stats()
    assert (stats["schedulable"], stats["waiting"] + line.engine._worker.num_pending) == (8, 20)
    assert not ended(line.running)
    line.engine.close()


def test_quantiles_are_of_what_was_counted_in_between() -> None:
    """Ten before; then four of 0 to 10 ms and six of 10 to 20 ms."""
    before, after = {0.01: 10.0, 0.02: 10.0, float("inf"): 10.0}, {0.01: 14.0, 0.02: 20.0, float("inf"): 20.0}
    assert quantile_ms(before, after, 0.2) == pytest.approx(5)
    assert quantile_ms(before, after, 0.7) == pytest.approx(15)
    assert quantile_ms(before, before, 0.5) != quantile_ms(before, after, 0.5)


def test_the_load_is_of_all_four_tasks_about_more_pictures_than_are_kept() -> None:
    asked = questions()
    assert {question.route for question in asked} == {
        f"/v1/{task}" for task in ("query", "caption", "point", "detect")
    }
    assert len({question.body["image_url"] for question in asked}) > 64
