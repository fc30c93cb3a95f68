"""Pins the caller's side of one request: stages, the one terminal event, errors, metrics."""

from __future__ import annotations

import threading

import pytest
from engines import build, finish, picture, query, requests, tick

from photon import Handle, RequestMetrics
from photon.model.config import TokenizerConfig
from photon.sequence import FinishReason, SamplingParams, Sequence
from photon.skills.base import Token
from photon.skills.text import TextSkill


def metrics(**changes: int) -> RequestMetrics:
    times = {"arrival_ns": 0, "queued_ns": 1, "admitted_ns": 3, "first_token_ns": 7, "finished_ns": 17}
    counts = {"input_tokens": 5, "output_tokens": 6, "cached_tokens": 0, "zombie_rows": 0, "preemptions": 0}
    scaled = {name: value * 1_000_000 for name, value in times.items()}
    return RequestMetrics(**{**scaled, **counts, "first_step_id": 1, "last_step_id": 6, **changes})


def test_phases_are_named_differences() -> None:
    m = metrics()
    assert (m.preprocess_ms, m.queue_ms, m.prefill_ms, m.decode_ms) == (1, 2, 4, 10)
    assert (m.ttft_ms, m.total_ms) == (7, 17)
    assert m.tokens_per_s == pytest.approx(500)


@pytest.mark.parametrize("changes", [{"output_tokens": 0}, {"output_tokens": 1}, {"finished_ns": 7_000_000}])
def test_no_rate_without_two_tokens_and_a_span(changes: dict[str, int]) -> None:
    assert metrics(**changes).tokens_per_s is None


def test_stages_follow_the_request_through_the_engine() -> None:
    with build() as engine:
        handle = engine.submit(requests()[0])
        stages = [handle.stage]
        while tick(engine):
            stages.append(handle.stage)
        stages.append(handle.stage)
        assert list(dict.fromkeys(stages)) == ["queued", "prefill", "decode", "finished"]
        assert handle.metrics is not None
        assert handle.metrics.input_tokens == 1 + len(handle._sequence.prompt)


def test_metrics_count_the_image_and_name_the_steps() -> None:
    with build() as engine:
        handle = engine.submit(query("name it", picture(2), max_tokens=3, temperature=3.0, seed=1))
        assert handle.metrics is None
        finish(engine)
        m = handle.metrics
        assert m is not None
        assert m.input_tokens == 5 + len(handle._sequence.prompt)
        assert (m.first_step_id, m.cached_tokens, m.preemptions) == (1, 0, 0)
        assert m.last_step_id >= m.output_tokens


def bare_handle() -> Handle:
    """A handle whose engine is this test."""

    class Encoder:
        def encode(self, text: str) -> list[int]:
            return list(text.encode())

        def decode(self, ids: list[int]) -> str:
            return bytes(ids).decode()

        def token_bytes(self, token_id: int) -> bytes:
            return bytes([token_id])

    skill = TextSkill(Encoder(), TokenizerConfig(), [Token(1)], key="answer", max_tokens=9)
    return Handle(Sequence(1, skill, SamplingParams(), 1), 0, 0, lambda: None)


def test_a_request_ends_exactly_once() -> None:
    handle = bare_handle()
    handle._sequence.finish_reason = FinishReason.STOP
    handle.finish("", 5)
    with pytest.raises(AssertionError, match="exactly once"):
        handle.finish("", 6)


def test_the_end_is_the_last_thing_in_the_stream_whoever_reads() -> None:
    """Two readers share the pieces; both end."""
    handle, got = bare_handle(), [[], []]
    threads = [threading.Thread(target=lambda mine=mine: mine.extend(handle.stream())) for mine in got]
    for thread in threads:
        thread.start()
    for number in range(100):
        handle.token(f"{number} ", number)
    handle._sequence.finish_reason = FinishReason.STOP
    handle.finish("end", 200)
    for thread in threads:
        thread.join(timeout=30)
    assert sorted(got[0] + got[1]) == sorted([*[f"{number} " for number in range(100)], "end"])


def test_result_and_stream_raise_the_same_error() -> None:
    handle = bare_handle()
    handle.finish("", 5, OSError("broken"))
    with pytest.raises(OSError, match="broken"):
        handle.result(timeout=0)
    with pytest.raises(OSError, match="broken"):
        list(handle.stream())
    assert handle.stage == "finished"
