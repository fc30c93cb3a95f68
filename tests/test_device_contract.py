"""Pins the device protocol of photon/device/base.py, the same on every device.

cuda runs only with `-m gpu` on a machine that has one. The toy runner below is built on the device's
side, so this file must be importable there (the cpu device hands its worker this process' sys.path).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
import torch

from photon.device import open_device
from photon.device.base import Device, Work
from photon.device.cuda import is_available
from photon.errors import DeviceError

NUM_SLOTS = 2
NO_CUDA = pytest.mark.skipif(not is_available(), reason="no CUDA device")
NAMES = ["cpu", "deferred", "sim:b200", pytest.param("cuda", marks=[pytest.mark.gpu, NO_CUDA])]


class ToyRunner:
    """Per slot one number on the device; every program's effect depends on the order it ran in."""

    def __init__(self, spec: ToySpec, torch_device: str) -> None:
        self.host_in = spec.host_in.view(torch.int64)
        self.host_out = spec.host_out.view(torch.int64)
        self.dev_in = torch.zeros(NUM_SLOTS, dtype=torch.int64, device=torch_device)
        self.state = torch.zeros(NUM_SLOTS, dtype=torch.int64, device=torch_device)

    def reset(self) -> None:
        self.dev_in.zero_()
        self.state.zero_()

    def upload(self, slot: int) -> None:
        self.dev_in[slot].copy_(self.host_in[slot], non_blocking=True)

    def take(self, slot: int) -> None:
        self.state[slot].copy_(self.dev_in[slot])

    def mix(self, slot: int, number: int) -> None:
        self.state[slot].mul_(31).add_(number)

    def fetch(self, slot: int) -> None:
        self.host_out[slot].copy_(self.state[slot], non_blocking=True)

    def fail(self, text: str) -> None:
        raise ValueError(text)

    def read(self, slot: int) -> dict[str, int]:
        return {"value": int(self.state[slot])}

    def echo(self, *args: Any) -> Any:
        return args


@dataclass
class ToySpec:
    host_in: torch.Tensor
    host_out: torch.Tensor

    def build(self, torch_device: str) -> ToyRunner:
        return ToyRunner(self, torch_device)


@dataclass
class BadSpec:
    def build(self, torch_device: str) -> None:
        raise FileNotFoundError("no weights\nin /nowhere")


@dataclass
class Rig:
    """A device with a loaded toy, and the host's view of its buffers."""

    device: Device
    host_in: Any
    host_out: Any

    def run(self, program: str, *args: Any) -> None:
        self.device.compute.enqueue(Work(program, args), label="test")

    def fetch(self, slot: int) -> None:
        self.device.copy.enqueue(Work("fetch", (slot,)), label="d2h")

    def fetched(self, slot: int) -> int:
        """Fetch behind all compute work enqueued so far, wait, read."""
        done, copied = self.device.event(), self.device.event()
        self.device.compute.record_event(done)
        self.device.copy.wait_event(done)
        self.fetch(slot)
        self.device.copy.record_event(copied)
        copied.synchronize()
        return int(self.host_out[slot])


def make_rig(device: Device) -> Rig:
    host_in, host_out = device.host_buffer(8 * NUM_SLOTS), device.host_buffer(8 * NUM_SLOTS)
    device.load(ToySpec(host_in, host_out))
    return Rig(device, host_in.view(torch.int64).numpy(), host_out.view(torch.int64).numpy())


@pytest.fixture(params=NAMES)
def device(request: pytest.FixtureRequest) -> Iterator[Device]:
    device = open_device(request.param)
    yield device
    device.close()


@pytest.fixture
def fresh(device: Device) -> Rig:
    """For the tests that break or close their device."""
    return make_rig(device)


@pytest.fixture(scope="module", params=NAMES)
def shared(request: pytest.FixtureRequest) -> Iterator[Rig]:
    device = open_device(request.param)
    yield make_rig(device)
    device.close()


@pytest.fixture
def rig(shared: Rig) -> Rig:
    """One device for all healthy tests, as it was when new: a worker takes seconds to start."""
    shared.host_in[:] = shared.host_out[:] = 0
    shared.device.call(Work("reset"))
    return shared


def mixed(*numbers: int, start: int = 0) -> int:
    for number in numbers:
        start = start * 31 + number
    return start


def test_host_buffers_start_at_zero_and_survive_the_round_trip(rig: Rig) -> None:
    assert rig.host_in.tolist() == rig.host_out.tolist() == [0, 0]
    rig.host_in[1] = 2**40 + 7
    rig.run("upload", 1)
    rig.run("take", 1)
    assert rig.fetched(1) == 2**40 + 7


def test_work_of_one_stream_runs_in_the_order_it_was_enqueued(rig: Rig) -> None:
    for number in range(1, 8):
        rig.run("mix", 0, number)
    assert rig.fetched(0) == mixed(*range(1, 8))


def test_wait_event_orders_one_stream_behind_the_other(rig: Rig) -> None:
    device, done = rig.device, rig.device.event()
    for number in range(1, 6):
        rig.run("mix", 0, number)
        device.compute.record_event(done)
        device.copy.wait_event(done)
        rig.fetch(0)
        copied = device.event()
        device.copy.record_event(copied)
        device.compute.wait_event(copied)
    copied.synchronize()
    assert rig.host_out[0] == mixed(1, 2, 3, 4, 5)


def test_a_wait_refers_to_the_record_before_it_and_not_to_a_later_one(rig: Rig) -> None:
    device, event = rig.device, rig.device.event()
    rig.run("mix", 0, 1)
    device.compute.record_event(event)
    device.copy.wait_event(event)
    fetched = device.event()
    rig.fetch(0)
    device.copy.record_event(fetched)
    device.compute.wait_event(fetched)  # would deadlock if the copy waited for the record below
    rig.run("mix", 0, 2)
    device.compute.record_event(event)
    event.synchronize()
    assert rig.host_out[0] == mixed(1)
    assert rig.fetched(0) == mixed(1, 2)


def test_a_recorded_again_event_counts_for_its_last_record_only(rig: Rig) -> None:
    device, event = rig.device, rig.device.event()
    device.compute.record_event(event)
    event.synchronize()
    assert event.query()
    rig.run("mix", 0, 1)
    rig.fetch(1)
    device.copy.record_event(event)  # on the other stream this time
    rig.run("mix", 0, 2)
    device.compute.record_event(event)
    event.synchronize()
    assert device.call(Work("read", (0,))) == {"value": mixed(1, 2)}


def test_an_event_that_was_never_recorded(rig: Rig) -> None:
    """pipeline_bugs 69."""
    event = rig.device.event(timing=True)
    assert not event.query()
    with pytest.raises(RuntimeError, match="never recorded"):
        event.synchronize()
    with pytest.raises(RuntimeError, match="reached"):
        rig.device.time_ns(event)
    rig.device.copy.wait_event(event)  # as in CUDA, there is nothing to wait for
    assert rig.fetched(0) == 0


def test_time_needs_a_timing_event(rig: Rig) -> None:
    """pipeline_bugs 69."""
    event = rig.device.event()
    rig.device.compute.record_event(event)
    event.synchronize()
    with pytest.raises(RuntimeError, match="timing=True"):
        rig.device.time_ns(event)


def test_stream_synchronize_waits_for_all_work_of_the_stream(rig: Rig) -> None:
    rig.run("mix", 0, 5)
    rig.device.compute.synchronize()
    rig.fetch(0)
    rig.device.copy.synchronize()
    assert rig.host_out[0] == 5


def test_call_runs_behind_all_work_and_returns_the_result(rig: Rig) -> None:
    rig.run("mix", 0, 3)
    rig.fetch(0)
    assert rig.device.call(Work("read", (0,))) == {"value": 3}
    arguments = (1, -(2**40), True, "ü", ("a", (2, 3)), 0.5, None)
    assert rig.device.call(Work("echo", arguments)) == arguments


def test_a_listener_hears_of_every_wait_of_the_host(rig: Rig) -> None:
    device, event, heard = rig.device, rig.device.event(), []
    device.waits.on_wait = lambda call, start_ns: heard.append((call, start_ns))
    begin = device.now_ns()
    rig.run("mix", 0, 1)
    device.compute.record_event(event)
    device.copy.wait_event(event)
    event.synchronize()
    device.copy.synchronize()
    assert [call for call, _ in heard] == ["Event.synchronize", "Stream.synchronize"]
    device.call(Work("echo"))
    device.waits.on_wait = None
    assert heard[-1][0] == "Device.call"
    assert all(begin <= start_ns <= device.now_ns() for _, start_ns in heard)


def test_a_wait_that_fails_is_heard_of_as_well(fresh: Rig) -> None:
    heard: list[str] = []
    fresh.device.waits.on_wait = lambda call, start_ns: heard.append(call)
    fresh.run("fail", "broken")
    with pytest.raises(DeviceError, match="broken"):
        fresh.device.compute.synchronize()
    assert heard == ["Stream.synchronize"]


def test_event_times_follow_the_order_of_the_stream_and_lie_on_the_host_clock(rig: Rig) -> None:
    events = [rig.device.event(timing=True) for _ in range(4)]
    before = rig.device.now_ns()
    for number, event in enumerate(events):
        rig.device.compute.record_event(event)
        rig.run("mix", 0, number)
    events[-1].synchronize()
    assert all(event.query() for event in events)
    times = [rig.device.time_ns(event) for event in events]
    slack = rig.device.clock_uncertainty_ns
    assert times == sorted(times)
    assert before - slack <= times[0]
    assert times[-1] <= rig.device.now_ns() + slack


def test_the_time_of_a_recorded_again_event_is_that_of_its_last_record(rig: Rig) -> None:
    event, between = rig.device.event(timing=True), rig.device.event(timing=True)
    for stream in (rig.device.compute, rig.device.copy):
        rig.device.compute.record_event(between)
        rig.device.copy.wait_event(between)
        stream.record_event(event)
    event.synchronize()
    assert rig.device.time_ns(event) >= rig.device.time_ns(between)


def test_a_failing_program_surfaces_at_the_wait_with_its_name_and_cause(fresh: Rig) -> None:
    fresh.run("fail", "first line\nsecond line")
    fresh.run("mix", 0, 1)
    with pytest.raises(DeviceError, match=r"'fail' failed.*ValueError: first line second line"):
        fresh.fetched(0)


def test_a_failure_is_sticky_and_nothing_runs_behind_it_on_any_stream(fresh: Rig) -> None:
    device, event = fresh.device, fresh.device.event()
    fresh.host_out[0] = 77
    fresh.run("fail", "broken")
    device.compute.record_event(event)
    with pytest.raises(DeviceError, match="broken"):
        event.synchronize()
    fresh.fetch(0)
    for wait in (event.synchronize, device.copy.synchronize, device.compute.synchronize):
        with pytest.raises(DeviceError, match="broken"):
            wait()
    with pytest.raises(DeviceError, match="broken"):
        device.call(Work("echo"))
    assert not event.query()
    assert fresh.host_out[0] == 77


def test_a_program_that_does_not_exist_is_a_failure_like_any_other(fresh: Rig) -> None:
    fresh.run("no_such_program")
    with pytest.raises(DeviceError, match="no_such_program"):
        fresh.device.compute.synchronize()


def test_a_failing_call_is_the_callers_alone(rig: Rig) -> None:
    with pytest.raises(DeviceError, match=r"'fail' failed.*not here"):
        rig.device.call(Work("fail", ("not here",)))
    rig.run("mix", 0, 4)
    assert rig.fetched(0) == 4


def test_a_builder_that_fails_is_a_device_error_with_its_message(device: Device) -> None:
    with pytest.raises(DeviceError, match="FileNotFoundError: no weights in /nowhere"):
        device.load(BadSpec())


def test_captured_work_runs_when_it_is_enqueued(rig: Rig) -> None:
    work = Work("mix", (1, 6))
    rig.device.capture(work)
    before = rig.fetched(1)
    rig.device.compute.enqueue(work, label="test")
    rig.device.compute.enqueue(work, label="test")
    assert rig.fetched(1) == mixed(6, 6, start=before)


@pytest.mark.parametrize("is_captured", [False, True])
def test_work_begins_behind_what_was_enqueued_before_it_and_no_sooner_than_the_host_asked(
    rig: Rig, is_captured: bool
) -> None:
    """Each time anew: a graph records the same event at every replay."""
    device, work = rig.device, Work("mix", (0, 3))
    before, begun, done = (device.event(timing=True) for _ in range(3))
    if is_captured:
        device.capture(work, begun=begun)
    for _ in range(3):
        device.compute.record_event(before)
        before.synchronize()
        asked_ns = device.now_ns()
        device.compute.enqueue(work, label="test", begun=begun)
        device.compute.record_event(done)
        done.synchronize()
        times = [device.time_ns(event) for event in (before, begun, done)]
        assert times == sorted(times)
        assert times[1] >= asked_ns - device.clock_uncertainty_ns


def test_close_may_be_called_again_and_refuses_work_afterwards(fresh: Rig) -> None:
    fresh.run("mix", 0, 1)
    fresh.device.close()
    fresh.device.close()
    with pytest.raises(DeviceError, match="closed"):
        fresh.run("mix", 0, 1)
    with pytest.raises(DeviceError, match="closed"):
        fresh.device.call(Work("echo"))
    fresh.host_in[0] = 1  # the host's view outlives the device


def test_a_device_that_was_never_loaded_closes_too(device: Device) -> None:
    device.host_buffer(64)
    device.close()
