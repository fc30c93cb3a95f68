"""Pins what of the cuda device needs no card: its clock, and the sentence that says there is none."""

from __future__ import annotations

import random
import struct
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from photon.device.cuda import CudaDevice, is_available
from photon.device.event_clock import EventClock
from photon.errors import DeviceError

SECOND = 1_000_000_000


@dataclass
class FakeEvent:
    device_ns: float

    def elapsed_time(self, end: FakeEvent) -> float:
        """As CUDA: float32 milliseconds; and nothing sensible when `end` is the earlier one."""
        ms = max(end.device_ns - self.device_ns, 0) / 1e6
        return struct.unpack("f", struct.pack("f", ms))[0]


@dataclass
class FakeCard:
    """A card whose clock drifts against the host's, and whose records take some microseconds each."""

    drift: float
    host_ns: int = 77 * SECOND
    rng: random.Random = field(default_factory=lambda: random.Random(1))

    def now_ns(self) -> int:
        return self.host_ns

    def event(self) -> FakeEvent:
        return FakeEvent(self.host_ns * (1 + self.drift) - 5e12)

    def record(self) -> FakeEvent:
        self.host_ns += self.rng.randint(2_000, 10_000)
        event = self.event()
        self.host_ns += self.rng.randint(2_000, 10_000)
        return event


@pytest.mark.parametrize("drift", [0.0, 1e-4, -1e-4])
def test_event_times_stay_within_microseconds_of_the_host_clock_over_minutes(drift: float) -> None:
    """pipeline_bugs 72."""
    card = FakeCard(drift)
    clock = EventClock(card.record, card.now_ns)
    errors = []
    for step in range(3000):
        event, truth = card.event(), card.host_ns
        card.host_ns += 40_000_000
        clock.refresh()
        if step > 50:
            errors.append(abs(clock.host_ns(event, 0) - truth))
    assert max(errors) < 15_000
    assert clock.uncertainty_ns < 8_000


def test_an_hour_without_steps_costs_no_precision() -> None:
    card = FakeCard(drift=1e-4)
    clock = EventClock(card.record, card.now_ns)
    card.host_ns += 3600 * SECOND
    event, truth = card.event(), card.host_ns
    clock.refresh()
    assert abs(clock.host_ns(event, 0) - truth) < 10_000


def test_the_clock_is_anchored_again_once_a_second_only() -> None:
    card = FakeCard(drift=0.0)
    clock = EventClock(card.record, card.now_ns)
    start = card.host_ns
    clock.refresh()
    assert card.host_ns == start
    card.host_ns += SECOND
    clock.refresh()
    assert card.host_ns > start + SECOND


@dataclass
class ExactCard(FakeCard):
    """Its records take no time: anchors have no error of their own."""

    def record(self) -> FakeEvent:
        return self.event()


@pytest.mark.parametrize("drift", [5e-4, -5e-4])
def test_times_between_the_last_two_anchors_are_interpolated(drift: float) -> None:
    """A plain offset from the last anchor would be off by half a millisecond at the far end."""
    card = ExactCard(drift)
    clock = EventClock(card.record, card.now_ns)
    events = []
    for _ in range(11):
        events.append((card.event(), card.host_ns))
        card.host_ns += SECOND // 10
    clock.refresh()
    assert [clock.host_ns(event, 0) for event, _ in events] == pytest.approx([t for _, t in events], abs=500)
    assert clock.num_clamped == 0


def test_an_event_is_never_reached_before_its_record_nor_after_now() -> None:
    card = ExactCard(drift=0.0)
    clock = EventClock(card.record, card.now_ns)
    card.host_ns += SECOND // 4
    event, truth = card.event(), card.host_ns
    assert clock.host_ns(FakeEvent(event.device_ns + 5_000), truth) == truth
    card.host_ns += 10_000
    assert clock.host_ns(event, truth + 3_000) == truth + 3_000
    assert clock.num_clamped == 2
    assert clock.host_ns(event, truth - 50_000) == pytest.approx(truth, abs=500)
    assert clock.num_clamped == 2


@given(st.lists(st.tuples(st.integers(0, 20_000), st.integers(-4_000, 4_000)), min_size=2, max_size=30))
def test_clamping_keeps_the_order_of_a_chain_of_events(steps: list[tuple[int, int]]) -> None:
    """upload, forward, sample, copy: each is recorded, and mapped, no earlier than what it waits for."""
    card = ExactCard(drift=0.0)
    clock = EventClock(card.record, card.now_ns)
    chain, device_ns = [], card.event().device_ns
    for gap, _ in steps:
        card.host_ns += gap
        chain.append(card.host_ns)
    times = []
    for (_, error), recorded_ns in zip(steps, chain, strict=True):
        device_ns = max(device_ns, recorded_ns - 5e12 + error)  # the card's clock is off by up to 4 us
        times.append(clock.host_ns(FakeEvent(device_ns), recorded_ns))
    assert times == sorted(times)
    assert all(recorded <= time <= card.host_ns for recorded, time in zip(chain, times, strict=True))


@pytest.mark.skipif(is_available(), reason="there is a card")
def test_without_cuda_opening_says_what_to_do() -> None:
    with pytest.raises(DeviceError, match=r"has no CUDA; install .* or use --device cpu|sees no CUDA card"):
        CudaDevice()


@pytest.mark.gpu
@pytest.mark.skipif(not is_available(), reason="no CUDA device")
@pytest.mark.parametrize("name", ["cuda:99", "cuda:x", "cuda:-1"])
def test_a_card_that_is_not_there_is_named(name: str) -> None:
    with pytest.raises(DeviceError, match="There is no device"):
        CudaDevice(name)
