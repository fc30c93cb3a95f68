"""Pins what a consumer sees: pieces that add up to the final text, nothing taken back, one end, last.

pipeline_bugs 4, 5, 6, 62, 75.
"""

from __future__ import annotations

import queue
import threading

import pytest
from engines import (
    build,
    finish,
    oracle,
    outcome,
    picture,
    query,
    requests,
    run,
    sequential,
    small,
    text_of,
    tick,
)

from photon import Engine, Request, open_device

TALK = query("tell me more", picture(1), max_tokens=30, temperature=2.5, seed=8)


def streamed(engine: Engine, request: Request) -> tuple[str, dict]:
    """Joined pieces and result; the engine ticks between reads, so that pieces come one by one."""
    handle = engine.submit(request)
    finish(engine)
    return "".join(handle.stream()), handle.result(timeout=0)


@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("max_tokens", range(1, 31))
def test_text_cut_anywhere_streams_as_it_ends(max_tokens: int, depth: int) -> None:
    """pipeline_bugs 75: bytes of one character lie in several tokens, and any of them may be the last."""
    request = query("tell me more", picture(1), max_tokens=max_tokens, temperature=2.5, seed=8)
    with build(small(depth=depth)) as engine:
        pieces, result = streamed(engine, request)
    assert pieces == result["answer"]
    whole = sequential(TALK).result["answer"]
    assert whole.startswith(result["answer"].rstrip("\ufffd"))


@pytest.mark.parametrize("width", [1, 2, 5])
def test_a_stop_string_and_all_behind_it_are_never_shown(width: int) -> None:
    """pipeline_bugs 4, 5: wherever it begins, and however many tokens it spans."""
    whole = sequential(TALK).result["answer"]
    assert len(whole) > 20
    with build() as engine:
        for start in range(0, len(whole) - width, 5):
            stop = whole[start : start + width]
            request = query(
                "tell me more", picture(1), max_tokens=30, temperature=2.5, seed=8, stop=[stop, "never there"]
            )
            pieces, result = streamed(engine, request)
            assert pieces == result["answer"] == whole[: whole.index(stop)]
            assert result["finish_reason"] == "stop"


def test_a_stop_string_that_does_not_come_holds_nothing_back_at_the_end() -> None:
    """pipeline_bugs 5: its beginning was held, and is shown when it turns out to be none."""
    whole = sequential(TALK).result["answer"]
    request = query(
        "tell me more", picture(1), max_tokens=30, temperature=2.5, seed=8, stop=whole[-3:] + "~~~"
    )
    with build() as engine:
        assert streamed(engine, request)[0] == whole


def test_pieces_come_while_the_request_runs_and_are_never_taken_back() -> None:
    with build() as engine:
        handle = engine.submit(TALK)
        seen = [""]
        while tick(engine):
            partial = handle.partial()["answer"]
            assert partial.startswith(seen[-1])
            seen.append(partial)
        assert len(set(seen)) > 10
        assert "".join(handle.stream()) == outcome(handle).result["answer"]


def test_a_stream_read_twice_ends_at_once() -> None:
    with build() as engine:
        handle = engine.submit(TALK)
        finish(engine)
        stream = handle.stream()
        assert "".join(stream) != ""
        assert list(stream) == list(handle.stream()) == []


def test_the_client_streams_and_answers_alike() -> None:
    with build(threaded=True) as engine:
        settings = dict(TALK.settings)
        whole = engine.query(TALK.image, TALK.prompt, settings=settings)
        pieces = engine.query(TALK.image, TALK.prompt, settings=settings, stream=True)["answer"]
        assert "".join(pieces) == whole["answer"] == sequential(TALK).result["answer"]
        caption = engine.caption(picture(1), "short", settings={"max_tokens": 12})
        assert caption == oracle(15).result
        assert engine.point(picture(1), "dog", settings={"max_objects": 6}) == oracle(18).result
        assert engine.detect(picture(1), "dog", settings={"max_objects": 4}) == oracle(21).result


def test_counts_are_of_delivered_tokens() -> None:
    """pipeline_bugs 6, 66: the end token and zombies' tokens are in no count."""
    with build() as engine:
        handles = [engine.submit(request) for request in requests()]
        finish(engine)
        counts = [handle.metrics.output_tokens for handle in handles]
        assert counts == [len(oracle(index).tokens) for index in range(len(handles))]
        assert engine.stats()["tokens"] == sum(counts)


def test_five_hundred_concurrent_streams_each_end_once_and_last() -> None:
    """pipeline_bugs 62, 4: eight threads, none loses a piece, none waits for ever."""
    indices: queue.SimpleQueue[int] = queue.SimpleQueue()
    for number in range(500):
        indices.put(number % 11)  # the short text requests
    wrong: list[object] = []

    def client(engine: Engine) -> None:
        try:
            while True:
                index = indices.get_nowait()
                handle = engine.submit(requests()[index])
                text = "".join(handle.stream())
                if (text, handle.result(timeout=0)) != (text_of(oracle(index).result), oracle(index).result):
                    wrong.append((index, text))
        except queue.Empty:
            return
        except BaseException as error:
            wrong.append(error)

    for index in range(11):
        oracle(index)
    with build(small(max_batch_size=8, page_size=16), threaded=True) as engine:
        threads = [threading.Thread(target=client, args=(engine,)) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        stats = engine.stats()
    assert wrong == []
    assert (stats["waiting"], stats["resident"], stats["alive"]) == (0, 0, True)


def test_clients_on_threads_share_the_cpu_device() -> None:
    """A worker process, eight clients, cancels and depth changes among them."""
    ends: list[object] = []

    def client(engine: Engine, number: int) -> None:
        for index in range(number, len(requests()), 8):
            handle = engine.submit(requests()[index])
            if number == 3:
                next(handle.stream(), None)  # dropped at once: cancels what is left
            ends.append((index, handle.result(timeout=60), handle.tokens))

    for index in range(len(requests())):
        oracle(index)
    with build(device=open_device("cpu"), threaded=True) as engine:
        threads = [threading.Thread(target=client, args=(engine, number)) for number in range(8)]
        for thread in threads:
            thread.start()
        for depth in (1, 2, 1, 2):
            engine.set_depth(depth)
        for thread in threads:
            thread.join()
    assert len(ends) == len(requests())
    for index, result, tokens in ends:
        expected = oracle(index)
        assert tokens == expected.tokens[: len(tokens)]
        assert result == expected.result or result["finish_reason"] == "cancelled"


def test_a_wait_that_times_out_leaves_the_request_alone() -> None:
    with build() as engine:
        handle = engine.submit(requests()[0])
        with pytest.raises(TimeoutError, match="has not finished after 0 s"):
            handle.result(timeout=0)
        assert run(engine, [requests()[18]]) == [oracle(18)]
        assert outcome(handle) == oracle(0)
