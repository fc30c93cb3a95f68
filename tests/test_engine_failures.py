"""Pins the failure domains: a request's own code ends that request, a launch or sample ends its step, a
device that fails ends the engine and says why. Nobody waits for ever, nothing is held afterwards.
pipeline_bugs 17, 23, 30, 56, 57, 61.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from dataclasses import replace
from typing import Any

import pytest
from engines import (
    CONTEXT,
    FlakyDevice,
    adapter_path,
    audit,
    build,
    counters,
    finish,
    oracle,
    outcome,
    picture,
    query,
    requests,
    run,
    small,
    tick,
)

from photon import Engine, Handle, Request, open_device
from photon.device.base import Work
from photon.device.deferred import DeferredDevice
from photon.errors import EngineDeadError, InvalidRequestError, QueueFullError, RequestFailedError
from photon.model.config import TokenizerConfig
from photon.sequence import SamplingParams
from photon.skills.base import Mask, Skill, TextEncoder, Token
from photon.skills.text import TextSkill

# One request's own code --------------------------------------------------------------------------------


class FaultySkill(TextSkill):
    """Plain text whose method `fault` raises when `after` tokens have been consumed."""

    fault = ""
    after = 0
    consumed = 0

    def strike(self, place: str) -> None:
        if place == self.fault and self.consumed >= self.after:
            raise ValueError(f"no {place} today")

    def mask(self) -> Mask:
        self.strike("mask")
        return super().mask()

    def consume(self, token: Token) -> str:
        self.strike("consume")
        self.consumed += 1
        return super().consume(token)

    def close(self) -> str:
        self.strike("close")
        return super().close()

    def result(self) -> dict[str, Any]:
        self.strike("result")
        return super().result()


def faulty(fault: str, after: int = 0) -> Request:
    """A request that fails in `fault`."""

    def factory(params: SamplingParams, encoder: TextEncoder, ids: TokenizerConfig) -> Skill:
        prompt = [Token(i) for i in (1, 305, 2, 40, 41, 3)]
        skill = FaultySkill(encoder, ids, prompt, key="answer", max_tokens=params.max_tokens)
        skill.fault, skill.after = fault, after
        return skill

    return Request(factory, settings={"max_tokens": 12})


@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("after", [0, 1, 3])
@pytest.mark.parametrize("fault", ["mask", "consume", "close", "result"])
def test_a_skill_that_raises_ends_its_own_request_only(fault: str, after: int, depth: int) -> None:
    """pipeline_bugs 30, 61."""
    with build(small(depth=depth)) as engine:
        start = counters(engine)
        handles = [
            engine.submit(request) for request in (requests()[0], faulty(fault, after), requests()[18])
        ]
        finish(engine)
        assert counters(engine) == start
        assert [outcome(handles[0]), outcome(handles[2])] == [oracle(0), oracle(18)]
        with pytest.raises(RequestFailedError, match=f"no {fault} today"):
            handles[1].result(timeout=0)
        assert handles[1].stage == "finished"
        assert engine.stats()["alive"]


def test_a_skill_that_cannot_be_built_fails_at_submit() -> None:
    """pipeline_bugs 30: nothing is queued."""

    def factory(*_: Any) -> Skill:
        raise InvalidRequestError("This grammar is wrong.")

    with build() as engine:
        with pytest.raises(InvalidRequestError, match="grammar"):
            engine.submit(Request(factory))
        assert run(engine, [requests()[0]]) == [oracle(0)]


@pytest.mark.parametrize(
    ("prompt", "max_tokens", "sentence"),
    [([512], 5, "vocabulary of 512"), ([-1], 5, "vocabulary"), ([], 5, "a prompt"), ([1, 2], 0, "one token")],
)
def test_a_skill_that_asks_for_the_impossible_is_refused(
    prompt: list[int], max_tokens: int, sentence: str
) -> None:
    """An id outside the vocabulary would be an index error on the device, the end of every request."""

    def factory(params: SamplingParams, encoder: TextEncoder, ids: TokenizerConfig) -> Skill:
        return TextSkill(encoder, ids, [Token(i) for i in prompt], key="answer", max_tokens=max_tokens)

    with build() as engine:
        with pytest.raises(InvalidRequestError, match=sentence):
            engine.submit(Request(factory))
        assert run(engine, [requests()[0]]) == [oracle(0)]


def test_a_failing_stream_gives_its_text_and_then_the_error() -> None:
    with build() as engine:
        handle = engine.submit(faulty("consume", after=4))
        finish(engine)
        pieces = []
        with pytest.raises(RequestFailedError):
            pieces.extend(handle.stream())
        assert handle.num_tokens == 4


def test_the_first_failure_is_the_one_reported() -> None:
    """The skill raises in `consume`, and then, asked for its withheld text, in `close`."""

    class Twice(FaultySkill):
        def consume(self, token: Token) -> str:
            self.fault = "close"
            raise ValueError("the first")

    with build() as engine:
        prompt = [Token(i) for i in (1, 305, 2, 40, 3)]
        handle = engine.submit(
            Request(lambda params, encoder, ids: Twice(encoder, ids, prompt, key="answer", max_tokens=9))
        )
        finish(engine)
        with pytest.raises(RequestFailedError, match="the first"):
            handle.result(timeout=0)


# One step ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("countdown", [1, 3])
@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize(
    "fault",
    ["upload", "vision", "project", "prefill", "decode", "upload_masks", "sample", "fetch", "load_adapter"],
)
def test_a_launch_or_sample_that_fails_ends_the_requests_of_its_step(
    fault: str, depth: int, countdown: int
) -> None:
    """pipeline_bugs 23: exactly that launch's refs are given back."""
    config = small(depth=depth, max_batch_size=2, max_lora_slots=1)
    with build(config, device=FlakyDevice(fault, countdown, seed=countdown)) as engine:
        start = counters(engine)
        handles = [engine.submit(request) for request in requests()]
        finish(engine)
        assert counters(engine) == start
        failed = [handle for handle in handles if handle.error is not None]
        assert 1 <= len(failed) <= 2
        assert all("was refused" in str(handle.error) for handle in failed)
        for index, handle in enumerate(handles):
            assert handle.error is not None or outcome(handle) == oracle(index)
        assert run(engine, requests()[:4]) == [oracle(index) for index in range(4)]


# The device ------------------------------------------------------------------------------------------------


class DyingDevice(DeferredDevice):
    """Program `fault` raises on the device, when it runs for the `countdown`-th time."""

    def __init__(self, fault: str, countdown: int, seed: int = 0) -> None:
        super().__init__(seed)
        self.fault, self.countdown = fault, countdown

    def _run(self, work: Work) -> Any:
        if work.program == self.fault:
            self.countdown -= 1
            if self.countdown == 0:
                raise MemoryError("the device is out of memory")
        return super()._run(work)


@pytest.mark.parametrize("countdown", [1, 4])
@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("fault", ["upload", "prefill", "decode", "sample", "fetch"])
def test_a_device_that_fails_ends_every_request_with_the_cause(
    fault: str, depth: int, countdown: int
) -> None:
    engine = build(small(depth=depth), device=DyingDevice(fault, countdown))
    start = counters(engine)
    handles = [engine.submit(request) for request in requests()]
    finish(engine)
    assert not engine.stats()["alive"]
    assert counters(engine) == start
    audit(engine)
    done = [index for index, handle in enumerate(handles) if handle.error is None]
    assert [outcome(handles[index]) for index in done] == [oracle(index) for index in done]
    errors = [str(handle.error) for handle in handles if isinstance(handle.error, EngineDeadError)]
    assert len(errors) == len(handles) - len(done) > 0
    assert all("out of memory" in error for error in errors)
    with pytest.raises(EngineDeadError, match="out of memory"):
        engine.submit(requests()[0])
    with pytest.raises(EngineDeadError, match="out of memory"):
        engine.set_depth(1)
    engine.close()


def test_a_stream_of_a_dead_engine_ends_with_the_cause() -> None:
    engine = build(device=DyingDevice("decode", 5))
    handle = engine.submit(requests()[1])
    finish(engine)
    with pytest.raises(EngineDeadError, match="out of memory"):
        "".join(handle.stream())
    handle.cancel()
    engine.close()


class HastyDevice(DeferredDevice):
    """Its tenth wait returns before anything has run, as a wait on a wrong event would."""

    num_waits = 0

    def run_until(self, targets: list[Any]) -> None:
        self.num_waits += 1
        if self.num_waits != 10:
            super().run_until(targets)


@pytest.mark.parametrize("depth", [1, 2])
def test_results_read_before_they_have_landed_are_never_believed(depth: int) -> None:
    """pipeline_bugs 38: they are poisoned at launch, so nothing of an older step is there to be read."""
    engine = build(small(depth=depth), device=HastyDevice())
    handles = [engine.submit(request) for request in requests()]
    finish(engine)
    assert not engine.stats()["alive"]
    for index, handle in enumerate(handles):
        assert handle.tokens == oracle(index).tokens[: handle.num_tokens]
    assert any("before their copy had landed" in str(handle.error) for handle in handles)
    engine.close()


def test_an_adapter_that_cannot_be_read_is_the_callers_problem_alone() -> None:
    with build(device=DyingDevice("register_adapter", 3)) as engine:
        with pytest.raises(Exception, match="out of memory"):
            engine.load_adapter("c", adapter_path("c"))
        with pytest.raises(InvalidRequestError, match="no adapter 'c'"):
            engine.submit(query(adapter="c"))
        assert run(engine, requests()[:4]) == [oracle(index) for index in range(4)]


def end_of(handle: Handle) -> dict[str, Any] | str:
    """How a request of a threaded engine ended: its result, or the words of the engine's death."""
    try:
        return handle.result(timeout=60)
    except EngineDeadError as error:
        return str(error)


def test_a_killed_worker_process_ends_every_request() -> None:
    device = open_device("cpu")
    engine = build(small(max_batch_size=2), device=device, threaded=True)
    endless = query("tell me more", max_tokens=60, temperature=1.5, seed=1)
    assert engine.submit(requests()[0]).result(timeout=60) == oracle(0).result
    handles = [engine.submit(endless) for _ in range(200)]
    os.kill(device.pid, signal.SIGKILL)
    errors = [end for handle in handles if isinstance(end := end_of(handle), str)]
    assert errors
    assert all("died" in error for error in errors)
    assert not engine.stats()["alive"]
    with pytest.raises(EngineDeadError, match="died"):
        engine.submit(requests()[0])
    engine.close()


# The end ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("ticks", [0, 1, 3, 8])
def test_closing_with_requests_open_fails_them_and_gives_everything_back(ticks: int) -> None:
    """pipeline_bugs 17, shutdown: those that the engine has not even looked at are told as well."""
    engine = build(small(max_batch_size=2))
    start = counters(engine)
    handles = [engine.submit(request) for request in requests()[:6]]
    for _ in range(ticks):
        tick(engine)
    engine.close()
    engine.close()
    open_ones = [handle for handle in handles if handle.error is not None]
    assert len(open_ones) >= 4
    assert all(handle.stage == "finished" for handle in handles)
    assert all("closed" in str(handle.error) for handle in open_ones)
    assert counters(engine) == start
    assert list(open_ones[0].partial()) == ["answer"]


def test_no_request_is_lost_between_submit_and_close() -> None:
    """Eight threads submit while the engine closes: each request is refused or ends."""
    for seed in range(5):
        engine = build(seed=seed, threaded=True)
        handles: list[Handle] = []
        barrier = threading.Barrier(9)

        def submit(engine: Engine = engine, handles: list[Handle] = handles, barrier: Any = barrier) -> None:
            barrier.wait()
            with contextlib.suppress(EngineDeadError, InvalidRequestError):
                while True:
                    handles.append(engine.submit(requests()[0]))

        threads = [threading.Thread(target=submit) for _ in range(8)]
        for thread in threads:
            thread.start()
        barrier.wait()
        engine.close()
        for thread in threads:
            thread.join()
        ends = [end_of(handle) for handle in handles]
        assert all(end == oracle(0).result or "closed" in end for end in ends)


def test_a_command_behind_the_death_is_answered_too() -> None:
    """stats, cancel and set_depth from many threads while the engine closes: nobody blocks for ever."""
    engine = build(threaded=True)
    handle = engine.submit(query("tell me more", max_tokens=60, temperature=1.5, seed=1))
    done = []

    def ask() -> None:
        while engine.stats()["alive"]:
            handle.cancel()
        done.append(True)

    threads = [threading.Thread(target=ask) for _ in range(4)]
    for thread in threads:
        thread.start()
    engine.close()
    for thread in threads:
        thread.join(timeout=10)
    assert len(done) == 4


# Refused before anything is queued ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("request_", "sentence"),
    [
        (Request("query", None, "x " * 200), "context is 96"),
        (query(max_tokens=0), "max_tokens is 0"),
        (query(max_tokens=-1), "max_tokens is -1"),
        (query(temprature=1), "no setting 'temprature'"),
        (query(adapter="nobody"), "no adapter 'nobody'"),
        (query(adapter=3), "adapter must be the name"),
        (query(" "), "prompt is empty"),
        (Request("query", None, None), "prompt must be text"),
        (Request("paint", None, "x"), "no task 'paint'"),
        (Request("caption", picture(1), length="epic"), "caption length 'epic'"),
        (Request("caption", picture(1), length=["short"]), "caption length"),
        (Request("point", None, "x"), "needs an image"),
        (Request("query", picture(1), "x", spatial_refs=((0.1, "a"),)), "spatial reference"),
        (Request("query", picture(1), "x", spatial_refs=((0.5, 0.5, 0.1, 0.9),)), "in that order"),
        (Request("query", picture(1), "x", spatial_refs=(0.5,)), "spatial reference"),
        (Request("query", None, "x", spatial_refs=((0.1, 0.2),)), "about an image"),
        (Request("query", b"no image", "x"), "not an image"),
        (Request("query", None, "x", settings=["seed"]), "settings must be"),
    ],
)
def test_a_wrong_request_is_refused_in_one_sentence(request_: Request, sentence: str) -> None:
    """pipeline_bugs 56, 57: synchronously, with nothing registered."""
    with build() as engine:
        start = counters(engine)
        with pytest.raises(InvalidRequestError, match=sentence) as caught:
            engine.submit(request_)
        assert str(caught.value).endswith((".", "!"))
        assert finish(engine) == 0
        assert counters(engine) == start


def test_more_waiting_requests_than_allowed_are_refused() -> None:
    with build(small(max_waiting=3, max_batch_size=1)) as engine:
        handles = [engine.submit(requests()[0]) for _ in range(3)]
        with pytest.raises(InvalidRequestError, match="3 requests are waiting"):
            engine.submit(requests()[0])
        tick(engine)
        handles.append(engine.submit(requests()[0]))  # one has left the line
        finish(engine)
        assert [outcome(handle) for handle in handles] == [oracle(0)] * 4


def test_who_has_arrived_since_the_last_tick_waits_like_everybody_else() -> None:
    """However many came at once: the worker has one command for all of them. The list is the caller's own."""
    with build(small(max_waiting=3)) as engine:
        handles = engine.submit_all(requests()[:2])
        with pytest.raises(QueueFullError, match="2 requests are waiting, and only 3 may; try again later"):
            engine.submit_all(requests()[2:4])
        handles += engine.submit_all(requests()[2:3])
        finish(engine)
        assert [outcome(handle) for handle in handles] == [oracle(index) for index in range(3)]


def test_more_at_once_than_may_ever_wait_are_told_so() -> None:
    with build(small(max_waiting=3)) as engine, pytest.raises(QueueFullError, match="submit fewer at once"):
        engine.submit_all(requests()[:4])


def test_what_a_dead_engine_refuses_waits_nowhere() -> None:
    engine = build(small(max_waiting=2))
    engine.close()
    for _ in range(4):
        with pytest.raises(EngineDeadError):
            engine.submit(requests()[0])


@pytest.mark.parametrize("bad", [requests()[0], query(max_tokens=-1)])
def test_of_several_at_once_all_are_queued_or_none(bad: Request) -> None:
    """The last is one too many, or wrong."""
    with build(small(max_waiting=3)) as engine:
        with pytest.raises(InvalidRequestError):
            engine.submit_all([*requests()[:3], bad])
        assert counters(engine)["waiting"] == 0
        handles = engine.submit_all(requests()[:3])
        tick(engine)
        finish(engine)
        assert [outcome(handle) for handle in handles] == [oracle(index) for index in range(3)]


def test_an_adapter_is_refused_where_there_is_no_slot_for_any() -> None:
    with build(small(max_lora_slots=0)) as engine:
        engine.load_adapter("a", adapter_path("a"))
        with pytest.raises(InvalidRequestError, match="max_lora_slots 0"):
            engine.submit(query(adapter="a"))
        assert run(engine, [requests()[0]]) == [oracle(0)]


def test_an_image_encoded_for_another_model_is_refused() -> None:
    with build() as engine:
        encoded = engine.encode_image(picture(1))
        foreign = replace(encoded, pixels=encoded.pixels[:, :14, :14])
        with pytest.raises(InvalidRequestError, match="another model"):
            engine.submit(query("x", foreign))


@pytest.mark.parametrize("room", [1, 2, 3])
def test_a_prompt_that_nearly_fills_the_context_ends_by_length(room: int) -> None:
    """pipeline_bugs 2, 56: `room` positions are left, so room + 1 tokens can be generated."""
    request = query("x" * (CONTEXT - room - 6), max_tokens=10**6, temperature=5.0, seed=4)
    with build() as engine:
        start = counters(engine)
        answer = run(engine, [request])[0]
        assert answer.result["finish_reason"] == "length"
        assert len(answer.tokens) == room + 1
        assert counters(engine) == start


@pytest.mark.parametrize("excess", [0, 1])
def test_a_prompt_that_fills_the_context_is_refused(excess: int) -> None:
    """pipeline_bugs 56: at submit, and the next request is fine."""
    with build() as engine:
        start = counters(engine)
        with pytest.raises(InvalidRequestError, match=f"takes {CONTEXT + excess} positions"):
            engine.submit(query("x" * (CONTEXT + excess - 6)))
        assert counters(engine) == start
        assert run(engine, [requests()[0]]) == [oracle(0)]
