"""Pins that requests leave nothing behind: the soak of soak.py, shorter, on the cpu device."""

from __future__ import annotations

import random

from engines import requests, small, tiny_model
from soak import RECORDER_BYTES, Soak, num_objects, tables

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
