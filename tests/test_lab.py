"""Pins the lab: what is injected costs what it says, shows under its own name, and changes no token."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
from engines import picture, tiny_model

from photon.errors import DeviceError, InvalidRequestError
from photon.lab import MAX_INJECTED_US, Injected, Lab, LabEngine, Setting
from photon.measure.trace_truth import Spans
from photon.observe import Span
from photon.workload import Workload, WorkloadResult

BOXES = Workload(picture(1), "detect", "dog", copies=3, num_tokens=9)
NOTHING = Setting()


class Listener(Spans):
    """The spans of one run, by name."""

    def named(self, name: str) -> list[Span]:
        return [span for span in self.spans if span.name == name]


class Bench:
    """A lab on the deferred device, whose clock is virtual, and what it told."""

    def __init__(self) -> None:
        self.listener = Listener()
        self.lab = Lab(tiny_model(), "deferred", "float32")
        self.lab.observers.append(self.listener)

    def play(self, setting: Setting, workload: Workload = BOXES) -> WorkloadResult:
        self.listener.spans.clear()
        return self.lab.run(workload, setting).finish()


@pytest.fixture(scope="module")
def bench() -> Iterator[Bench]:
    bench = Bench()
    yield bench
    bench.lab.close()


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Injected(host_us=-1), "host_us is -1"),
        (lambda: Injected(commit_us=MAX_INJECTED_US + 1), "from 0 to 50000"),
        (lambda: Setting(depth=3), "depth is 3"),
    ],
)
def test_a_bad_value_is_named_with_its_limits(make: Any, words: str) -> None:
    with pytest.raises(InvalidRequestError, match=words):
        make()


def test_what_is_injected_is_said_in_words() -> None:
    assert str(Injected()) == ""
    everything = Injected(300, 50, True)
    assert str(everything) == ("host time +300 us a step, slow commit +50 us a step, synchronous mask upload")
    assert str(Setting(1, 8, everything)).startswith("depth 1, 8 copies, injected: host time")


@pytest.mark.parametrize("depth", [1, 2])
def test_injected_host_time_is_spent_once_before_every_launch(bench: Bench, depth: int) -> None:
    bench.play(Setting(depth, injected=Injected(host_us=40)))
    spent, launches = bench.listener.named("injected: host time"), bench.listener.named("launch")
    assert [span.step_id for span in spent] == [span.step_id for span in launches]
    assert all(span.end_ns - span.start_ns >= 40_000 for span in spent)
    assert all(a.end_ns <= b.start_ns for a, b in zip(spent, launches, strict=True))


@pytest.mark.parametrize("depth", [1, 2])
def test_a_slow_commit_follows_every_commit(bench: Bench, depth: int) -> None:
    bench.play(Setting(depth, injected=Injected(commit_us=25)))
    spent, commits = bench.listener.named("injected: slow commit"), bench.listener.named("commit")
    assert [span.step_id for span in spent] == [span.step_id for span in commits]
    assert all(a.end_ns <= b.start_ns for a, b in zip(commits, spent, strict=True))


def test_synchronous_masks_make_the_host_wait_inside_sample(bench: Bench) -> None:
    bench.play(Setting(2, injected=Injected(sync_masks=True)))
    waits = [span for span in bench.listener.spans if span.name.startswith("sync: ")]
    samples = {span.step_id: span for span in bench.listener.named("sample") if span.track == "host"}
    assert waits
    assert all(
        samples[w.step_id].start_ns <= w.start_ns <= w.end_ns <= samples[w.step_id].end_ns for w in waits
    )


def test_nothing_is_injected_unless_asked_for(bench: Bench) -> None:
    bench.play(Setting(2, injected=Injected(100, 100, True)))
    bench.play(NOTHING)
    names = Counter(span.name.partition(":")[0] for span in bench.listener.spans)
    assert names["injected"] == names["sync"] == 0


def test_no_knob_changes_a_token(bench: Bench) -> None:
    expected = bench.play(Setting(1)).tokens
    for depth in (1, 2):
        assert bench.play(Setting(depth, injected=Injected(30, 30, True))).tokens == expected


def test_a_setting_may_have_copies_of_its_own(bench: Bench) -> None:
    assert len(bench.play(Setting(2, copies=5)).tokens) == 5


def test_facts_say_what_runs_and_what_is_injected(bench: Bench) -> None:
    bench.play(Setting(1, injected=Injected(host_us=10)))
    facts = bench.lab.facts()
    assert (facts["device"], facts["depth"]) == ("deferred", "1")
    assert facts["injected"] == "host time +10 us a step"


def test_a_warm_up_is_short_and_has_nothing_injected(bench: Bench) -> None:
    bench.listener.spans.clear()
    result = bench.lab.warm_up(BOXES, Setting(2, injected=Injected(host_us=1000))).finish()
    assert {len(tokens) for tokens in result.tokens} == {9}
    assert bench.listener.named("injected: host time") == []


def test_the_engine_is_opened_at_the_first_run_and_kept() -> None:
    lab = Lab(tiny_model(), "deferred", "float32")
    assert not lab.is_open
    assert lab.facts() == {}
    assert lab.memory_bytes > 100_000
    lab.run(BOXES, NOTHING).finish()
    engine = lab.open()
    assert lab.is_open
    assert lab.open() is engine
    lab.close()
    lab.close()
    with pytest.raises(DeviceError, match="closed"):
        lab.open()


def test_an_engine_that_died_is_replaced() -> None:
    lab = Lab(tiny_model(), "deferred", "float32")
    dead = lab.open()
    dead.close()
    assert isinstance(lab.open(), LabEngine)
    assert lab.open() is not dead
    assert lab.run(BOXES, NOTHING).finish().num_tokens == 27
    lab.close()


def test_a_device_that_is_not_there_is_one_sentence() -> None:
    with pytest.raises(DeviceError, match="no device 'abacus'"):
        Lab(tiny_model(), "abacus", "float32").open()
