"""Pins the sync-leak spans: waits of the host inside launch and sample, whoever makes them, and no others."""

from __future__ import annotations

from typing import Any

import pytest
from engines import FlakyDevice, build, finish, oracle, outcome, requests, run, small
from test_observe import Recording

from photon import open_device
from photon.device.base import Stream, Work
from photon.device.deferred import DeferredDevice
from photon.observe import Span

ALL = range(len(requests()))
INJECTED = "sync: Stream.synchronize in Runtime.sample"


def leaks(observer: Recording) -> list[Span]:
    return [span for span in observer.spans if span.name.startswith("sync: ")]


def assert_inside(observer: Recording, leak: Span, verb: str) -> None:
    """Nested in the verb's span of the same step, and like it in all but name and time."""
    outer = observer.of_step()[leak.step_id]["host", verb]
    assert outer.start_ns <= leak.start_ns <= leak.end_ns <= outer.end_ns
    assert leak[4:] == outer[4:]


@pytest.mark.parametrize("num_requests", [1, 3, len(ALL)])
@pytest.mark.parametrize("depth", [1, 2])
def test_a_synchronous_mask_upload_is_one_leak_in_every_sample(depth: int, num_requests: int) -> None:
    """Also in steps whose masks have not changed; the tokens stay."""
    observer = Recording()
    with build(small(depth=depth), observers=[observer]) as engine:
        engine._runtime.sync_masks = True
        assert run(engine, requests()[:num_requests]) == [oracle(index) for index in range(num_requests)]
    found = leaks(observer)
    assert [leak.step_id for leak in found] == [record.step_id for record in observer.steps]
    assert {leak.name for leak in found} == {INJECTED}
    for leak in found:
        assert_inside(observer, leak, "sample")
    assert all("sample: host for the compute stream, " in record.waits for record in observer.steps)


def test_the_leak_makes_the_host_wait_for_the_forward_of_its_own_step() -> None:
    observer = Recording()
    with build(small(depth=2), observers=[observer]) as engine:
        engine._runtime.sync_masks = True
        run(engine, requests())
    for leak in leaks(observer):
        spans = observer.of_step()[leak.step_id]
        forward = spans.get(("compute", "forward")) or spans["compute", "prefill"]
        assert forward.end_ns <= leak.end_ns


def test_the_knob_may_be_turned_between_two_steps() -> None:
    observer = Recording()
    with build(observers=[observer]) as engine:
        run(engine, requests()[:2])
        assert leaks(observer) == []
        engine._runtime.sync_masks = True
        run(engine, requests()[:2])
        num_leaks = len(leaks(observer))
        engine._runtime.sync_masks = False
        run(engine, requests()[:2])
    assert len(leaks(observer)) == num_leaks > 0


class LeakyStream:
    """The compute stream of a careless device: enqueueing a decode waits in the way `leak` says."""

    def __init__(self, inner: Stream, leak: Any) -> None:
        self.inner, self.leak = inner, leak

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def enqueue(self, work: Work, **how: Any) -> None:
        if work.program == "decode":
            self.leak()
        self.inner.enqueue(work, **how)


@pytest.mark.parametrize(
    ("call", "leak"),
    [
        ("Stream.synchronize", lambda device: device.copy.synchronize()),
        ("Device.call", lambda device: device.call(Work("upload_masks", (0,)))),
    ],
)
def test_a_leak_is_named_by_its_call_and_by_the_function_that_waits(call: str, leak: Any) -> None:
    """A call waits for both streams on its way, and is one leak."""
    device, observer = DeferredDevice(), Recording()
    device.compute = LeakyStream(device.compute, lambda: leak(device))
    with build(small(depth=2), device=device, observers=[observer]) as engine:
        assert run(engine, requests()) == [oracle(index) for index in ALL]
    decodes = [record.step_id for record in observer.steps if record.kind == "decode"]
    assert [found.step_id for found in leaks(observer)] == decodes
    for found in leaks(observer):
        assert found.name == f"sync: {call} in Runtime.launch"
        assert_inside(observer, found, "launch")


@pytest.mark.parametrize("fault", ["decode", "sample"])
def test_the_fence_after_a_failure_is_no_leak(fault: str) -> None:
    """The step it belongs to has no launch or sample span to hold it."""
    observer = Recording()
    with build(device=FlakyDevice(fault, 3), observers=[observer]) as engine:
        handles = [engine.submit(request) for request in requests()]
        finish(engine)
        assert any(handle.error for handle in handles)
    assert leaks(observer) == []


@pytest.mark.parametrize("depth", [1, 2])
def test_on_the_cpu_device_the_leak_lasts_as_long_as_the_forward(depth: int) -> None:
    observer = Recording()
    with build(small(depth=depth), device=open_device("cpu"), observers=[observer], threaded=True) as engine:
        engine._runtime.sync_masks = True
        handles = [engine.submit(request) for request in requests()[:6]]
        for index, handle in enumerate(handles):
            handle.result(timeout=120)
            assert outcome(handle) == oracle(index)
        engine.stats()
    assert {leak.name for leak in leaks(observer)} == {INJECTED}
    for leak in leaks(observer):
        assert_inside(observer, leak, "sample")
        spans = observer.of_step()[leak.step_id]
        forward = spans.get(("compute", "forward")) or spans["compute", "prefill"]
        assert forward.end_ns <= leak.end_ns
