"""Pins that the deferred device catches a driver that lacks a wait, and never blames one that has all.

The driver below is a two-slot pipeline in a dozen lines: a running sum over inputs, with the host one
step ahead. Each bug is one wait or one precaution left out.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch

from photon.device.base import Work
from photon.device.deferred import DeferredDevice

SEEDS = range(12)
POISON = -1
INPUTS = [3, 1, 4, 1, 5, 9, 2, 6]
RIGHT = [3, 4, 8, 9, 14, 23, 25, 31]


class Adder:
    """sum += input, per step; `total` is shared by the slots, `result` is the slot's own."""

    def __init__(self, inputs: torch.Tensor, outputs: torch.Tensor) -> None:
        self.inputs, self.outputs = inputs.view(torch.int64), outputs.view(torch.int64)
        self.staged, self.result = torch.zeros(2, dtype=torch.int64), torch.zeros(2, dtype=torch.int64)
        self.total = torch.zeros((), dtype=torch.int64)

    def build(self, torch_device: str) -> Adder:
        return self

    def upload(self, slot: int) -> None:
        self.staged[slot] = self.inputs[slot]

    def forward(self, slot: int) -> None:
        self.total += self.staged[slot]
        self.result[slot] = self.total

    def fetch(self, slot: int) -> None:
        self.outputs[slot] = self.result[slot]


class Driver:
    """Launches step t+1 before it commits step t. `bug` names what it forgets."""

    def __init__(self, device: DeferredDevice, bug: str = "") -> None:
        self.device, self.bug = device, bug
        buffers = device.host_buffer(16), device.host_buffer(16)
        device.load(Adder(*buffers))
        self.inputs, self.outputs = (buffer.view(torch.int64).numpy() for buffer in buffers)
        self.done = [device.event() for _ in range(2)]
        self.copied = [device.event() for _ in range(2)]

    def run(self, numbers: list[int]) -> list[int]:
        results = []
        for step, number in enumerate(numbers):
            self.launch(step % 2, number)
            if step:
                results.append(self.commit((step - 1) % 2))
        return [*results, self.commit((len(numbers) - 1) % 2)]

    def launch(self, slot: int, number: int) -> None:
        staging = 0 if self.bug == "one host buffer for both slots" else slot
        self.inputs[staging] = number
        self.outputs[slot] = POISON
        self.device.compute.enqueue(Work("upload", (staging,)), label="h2d")
        self.device.compute.enqueue(Work("forward", (slot,)), label="forward")
        self.device.compute.record_event(self.done[slot])
        if self.bug != "copy does not wait for compute":
            self.device.copy.wait_event(self.done[slot])
        self.device.copy.enqueue(Work("fetch", (slot,)), label="d2h")
        self.device.copy.record_event(self.copied[slot])

    def commit(self, slot: int) -> int:
        if self.bug == "host waits for compute only":
            self.done[slot].synchronize()
        elif self.bug != "host does not wait":
            self.copied[slot].synchronize()
        return int(self.outputs[slot])


BUGS = {
    "one host buffer for both slots": "the upload reads the next step's input: it was rewritten first",
    "host does not wait": "the result is still poison",
    "host waits for compute only": "the copy has not run",
    "copy does not wait for compute": "the copy runs before the forward that it copies",
}


@pytest.mark.parametrize("seed", SEEDS)
def test_a_driver_with_all_its_waits_is_right_in_every_order(seed: int) -> None:
    assert Driver(DeferredDevice(seed)).run(INPUTS) == RIGHT


@pytest.mark.parametrize("bug", BUGS)
def test_a_driver_that_lacks_a_wait_gets_wrong_results(bug: str) -> None:
    results = [Driver(DeferredDevice(seed), bug).run(INPUTS) for seed in SEEDS]
    wrong = sum(result != RIGHT for result in results)
    assert wrong >= len(SEEDS) // 2, BUGS[bug]


def test_poison_is_what_a_driver_that_never_waits_reads() -> None:
    assert Driver(DeferredDevice(), "host does not wait").run(INPUTS) == [POISON] * len(INPUTS)


def test_an_event_recorded_again_before_its_harvest_means_the_later_record() -> None:
    """One event for both slots gives right bytes (it waits for too much) but the wrong step's time."""
    own = harvest(shared=False)
    assert own[0] < own[1]
    shared = harvest(shared=True)
    assert shared[0] == shared[1]


def harvest(shared: bool) -> list[int]:
    """Launch two steps, wait for the second, return the times of both steps' copies."""
    device = DeferredDevice()
    driver = Driver(device)
    events = [device.event(timing=True) for _ in range(2)]
    driver.copied = [events[0], events[0 if shared else 1]]
    driver.launch(0, 1)
    driver.launch(1, 2)
    driver.copied[1].synchronize()
    return [device.time_ns(event) for event in driver.copied]


def test_an_event_recorded_again_is_not_reached_by_its_earlier_record() -> None:
    device = DeferredDevice()
    driver = Driver(device)
    driver.launch(0, 1)
    driver.copied[0].synchronize()
    assert driver.copied[0].query()
    device.copy.record_event(driver.copied[0])
    assert not driver.copied[0].query()


class Journal:
    """Remembers which programs ran, in order."""

    def __init__(self) -> None:
        self.ran: list[Any] = []

    def build(self, torch_device: str) -> Journal:
        return self

    def note(self, name: str) -> None:
        self.ran.append(name)


def journal_of(seed: int) -> list[str]:
    """What a wait for "b" runs, where "b" waits for "a", and "c", "x", "y" are not needed."""
    device, journal = DeferredDevice(seed), Journal()
    device.load(journal)
    first, second = device.event(), device.event()
    device.compute.enqueue(Work("note", ("a",)), label="")
    device.compute.record_event(first)
    device.compute.enqueue(Work("note", ("c",)), label="")
    device.copy.wait_event(first)
    device.copy.enqueue(Work("note", ("b",)), label="")
    device.copy.record_event(second)
    device.copy.enqueue(Work("note", ("x",)), label="")
    device.copy.enqueue(Work("note", ("y",)), label="")
    assert journal.ran == []
    assert not second.query()
    second.synchronize()
    return journal.ran


def test_a_wait_runs_what_it_needs_and_all_orders_that_events_permit_occur() -> None:
    orders = {tuple(journal_of(seed)) for seed in range(200)}
    for order in orders:
        assert order.index("a") < order.index("b")
        assert "y" not in order or order.index("b") < order.index("x") < order.index("y")
    assert {("a", "b"), ("a", "c", "b"), ("a", "b", "c"), ("a", "b", "x")} <= orders
    assert len({len(order) for order in orders}) == 4


def test_the_same_seed_runs_the_same_way() -> None:
    assert [journal_of(seed) for seed in SEEDS] == [journal_of(seed) for seed in SEEDS]


def test_close_runs_nothing() -> None:
    device, journal = DeferredDevice(), Journal()
    device.load(journal)
    device.compute.enqueue(Work("note", ("a",)), label="")
    device.close()
    assert journal.ran == []


def test_the_clock_is_virtual() -> None:
    device = DeferredDevice()
    event = device.event(timing=True)
    device.compute.record_event(event)
    assert device.now_ns() == 1000
    event.synchronize()
    assert device.time_ns(event) == 2000
    assert device.now_ns() == 3000
