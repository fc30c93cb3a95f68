"""Pins the rows of the public pipeline bugs that no module's own tests hold; see data/requirements.csv."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable
from typing import Any

import pytest
from engines import (
    build,
    counters,
    finish,
    oracle,
    outcome,
    picture,
    query,
    requests,
    run,
    sequential,
    small,
    tick,
)
from test_engine_failures import faulty
from test_observe import Recording

from photon import Engine, Handle
from photon.device.base import Stream, Work
from photon.device.deferred import DeferredDevice

LONG = query("tell me more", picture(1), max_tokens=40, temperature=1.0, seed=2, adapter="a")
ALL = range(len(requests()))


# Exits ---------------------------------------------------------------------------------------------------


def by_answer(index: int) -> Callable[[Engine], Handle]:
    """The request ends as its answer does."""

    def leave(engine: Engine) -> Handle:
        return engine.submit(requests()[index])

    return leave


def by_cancel(age: int) -> Callable[[Engine], Handle]:
    """It is cancelled after so many ticks."""

    def leave(engine: Engine) -> Handle:
        handle = engine.submit(LONG)
        for _ in range(age):
            tick(engine)
        handle.cancel()
        return handle

    return leave


def by_error(engine: Engine) -> Handle:
    return engine.submit(faulty("consume", after=2))


def by_shutdown(engine: Engine) -> Handle:
    handle = engine.submit(LONG)
    for _ in range(3):
        tick(engine)
    engine.close()
    return handle


EXITS = {
    "stop": by_answer(22),
    "length": by_answer(17),
    "cancel-waiting": by_cancel(0),
    "cancel-prefilling": by_cancel(1),
    "cancel-in-flight": by_cancel(5),
    "error": by_error,
    "shutdown": by_shutdown,
}


@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("name", EXITS)
def test_every_exit_gives_back_everything(name: str, depth: int) -> None:
    """pipeline_bugs 17, 22: rows, pages, adapters, handles; one end each, and it is terminal."""
    with build(small(depth=depth)) as engine:
        start = counters(engine)
        handle = EXITS[name](engine)
        finish(engine)
        assert handle.stage == "finished"
        assert counters(engine) == start
        assert engine.stats()["alive"] is (name != "shutdown")
        if name in ("stop", "length"):
            assert handle.result(timeout=0)["finish_reason"] == name
        elif name.startswith("cancel"):
            assert handle.result(timeout=0)["finish_reason"] == "cancelled"
        else:
            assert handle.error is not None


# Steps ---------------------------------------------------------------------------------------------------


def test_whoever_is_preempted_holds_nothing_and_no_step_holds_it() -> None:
    """pipeline_bugs 12, 14: so a late result of an earlier step can't be taken for one of the new life."""
    seen = 0
    with build(small(page_size=16, num_pages=4)) as engine:
        handles = [engine.submit(request) for request in requests()]
        while tick(engine):
            for sequence in engine._roster.waiting:
                seen += sequence.num_preemptions > 0
                assert (sequence.inflight_refs, sequence.batch_idx, sequence.pages) == (0, 0, [])
        assert [outcome(handle) for handle in handles] == [oracle(index) for index in ALL]
    assert seen > 0


@pytest.mark.parametrize("seed", range(3))
def test_batches_whose_size_changes_each_step_sample_from_their_own_rows(seed: int) -> None:
    """pipeline_bugs 34, 36: one, four, two, three rows; hot and cold, with adapters, masks and values."""
    recording = Recording()
    order = [*ALL, *ALL]
    with build(small(max_batch_size=4), seed=seed, observers=[recording]) as engine:
        handles = []
        for place, index in enumerate(order):
            handles.append(engine.submit(requests()[index]))
            for _ in range((0, 5, 1, 3)[place % 4]):
                tick(engine)
        finish(engine)
        assert [outcome(handle) for handle in handles] == [oracle(index) for index in order]
    sizes = [len(step.rows) for step in recording.steps]
    assert {1, 2, 3, 4} <= set(sizes)
    assert sum(a != b for a, b in itertools.pairwise(sizes)) > len(sizes) / 4


@pytest.mark.parametrize("seed", range(4))
def test_prefills_back_to_back_keep_their_inputs_apart(seed: int) -> None:
    """pipeline_bugs 37: six in a row, each alone in its launch, of different lengths and images."""
    recording = Recording()
    config = small(max_consecutive_prefills=6, prefill_token_budget=1, max_batch_size=6)
    indices = [1, 2, 3, 16, 18, 23]
    with build(config, seed=seed, observers=[recording]) as engine:
        assert run(engine, [requests()[index] for index in indices]) == [oracle(index) for index in indices]
    assert [step.kind for step in recording.steps[:6]] == ["prefill"] * 6


class Noted:
    """A stream that remembers the programs that were enqueued on it."""

    def __init__(self, inner: Stream) -> None:
        self.inner, self.programs = inner, set[str]()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def enqueue(self, work: Work, **how: Any) -> None:
        self.programs.add(work.program)
        self.inner.enqueue(work, **how)


class NotedDevice(DeferredDevice):
    def __init__(self) -> None:
        super().__init__(0)
        self.compute, self.copy = Noted(self.compute), Noted(self.copy)


def test_what_steps_share_on_the_device_is_written_by_the_compute_stream_alone() -> None:
    """pipeline_bugs 39: the copy stream carries only a slot's own masks and results."""
    device = NotedDevice()
    with build(device=device) as engine:
        run(engine, requests())
    assert device.copy.programs == {"upload_masks", "fetch"}
    assert {"upload", "vision", "prefill", "decode", "sample", "load_adapter"} <= device.compute.programs


def test_many_times_more_requests_than_slots_come_one_by_one_and_none_reads_anothers_token() -> None:
    """pipeline_bugs 40: two slots, seventy-two requests, padded prefills among them."""
    order = [*ALL] * 3
    with build(small(max_batch_size=3, max_consecutive_prefills=2), seed=5) as engine:
        handles = []
        for place, index in enumerate(order):
            handles.append(engine.submit(requests()[index]))
            for _ in range(place % 3):
                tick(engine)
        finish(engine)
        assert [outcome(handle) for handle in handles] == [oracle(index) for index in order]


def test_an_adapter_is_the_same_in_its_first_prefill_from_a_cached_prefix_and_when_resumed() -> None:
    """pipeline_bugs 45: on no path does the base model answer for it."""
    asked = [
        query("name it", picture(2), max_tokens=30, temperature=4.0, seed=seed, adapter="a")
        for seed in range(4)
    ]
    base = sequential(query("name it", picture(2), max_tokens=30, temperature=4.0, seed=0))
    alone = [sequential(request) for request in asked]
    with build(small(num_pages=20)) as engine:
        assert run(engine, [asked[0]]) == [alone[0]] != [base]
        handles = [engine.submit(request) for request in asked]
        finish(engine)
        assert [outcome(handle) for handle in handles] == alone
        assert engine.stats()["prefix_hits"] > 0
        assert sum(handle.metrics.preemptions for handle in handles if handle.metrics) > 0


# Names ---------------------------------------------------------------------------------------------------


def test_requests_of_many_threads_have_numbers_of_their_own() -> None:
    """pipeline_bugs 58: a caller can't choose an id, so none can stand for two requests."""
    handles: list[Handle] = []

    def ask(engine: Engine) -> None:
        handles.extend(engine.submit(query("one", max_tokens=1)) for _ in range(50))

    with build(threaded=True) as engine:
        threads = [threading.Thread(target=ask, args=(engine,)) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        answers = {handle.result(timeout=60)["answer"] for handle in handles}
    assert len({handle.request_id for handle in handles}) == 400
    assert answers == {oracle(10).result["answer"]}
