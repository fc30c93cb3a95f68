"""The device that does nothing answers every row at once, and misuse is named as on any other."""

from __future__ import annotations

import numpy as np
import pytest

from photon import Engine, EngineConfig, Request
from photon.admission import EncodedImage
from photon.device.base import Work
from photon.device.idle import IdleDevice
from photon.errors import DeviceError
from photon.model.scripted import WORD, scripted_model


def test_an_event_is_reached_when_it_is_recorded() -> None:
    device = IdleDevice(WORD)
    event, later = device.event(timing=True), device.event(timing=True)
    assert not event.query()
    with pytest.raises(RuntimeError, match="never recorded"):
        event.synchronize()
    with pytest.raises(RuntimeError, match="timing=True"):
        device.time_ns(event)
    start_ns = device.now_ns()
    device.compute.record_event(event)
    device.copy.record_event(later)
    event.synchronize()
    assert event.query()
    assert start_ns <= device.time_ns(event) <= device.time_ns(later) <= device.now_ns()


def test_a_closed_device_answers_nothing() -> None:
    device = IdleDevice(WORD)
    device.close()
    with pytest.raises(DeviceError, match="closed"):
        device.copy.enqueue(Work("fetch", (0,)), label="d2h")


def test_the_engine_gets_the_one_token_for_every_row_until_its_cap() -> None:
    image = EncodedImage(np.zeros((2, 27, 27, 3), np.uint8), (1, 1), 378, 378)
    config = EngineConfig(max_batch_size=2)
    with Engine(scripted_model(), IdleDevice(WORD), config, threaded=False) as engine:
        handles = [engine.submit(Request("query", image, "1", settings={"max_tokens": n})) for n in (3, 5)]
        engine.run_until_idle()
        engine.check()
        assert [handle.result()["answer"] for handle in handles] == [" word" * 3, " word" * 5]
