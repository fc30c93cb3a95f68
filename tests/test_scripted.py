"""Pins the scripted model: answers are as long as the prompt says, whatever the task, depth or batch."""

from __future__ import annotations

import pytest

from photon import Engine, EngineConfig, Request
from photon.device.cost import preset
from photon.device.simulated import SimulatedDevice
from photon.handle import Handle
from photon.model.scripted import WORD, ScriptedTokenizer, build_scripted, lengths, scripted_model
from photon.simulation import Scenario


def play(requests: list[Request], **config: int) -> tuple[list[Handle], Engine]:
    device = SimulatedDevice(preset("b200"), build_scripted)
    engine = Engine(scripted_model(), device, EngineConfig(**config), dtype="bfloat16", threaded=False)
    with engine:
        handles = [engine.submit(request) for request in requests]
        while engine.run_until_idle(max_ticks=1):
            engine.check()
        return handles, engine


def query(length: int) -> Request:
    return Request("query", None, str(length), settings={"max_tokens": 1300})


@pytest.mark.parametrize("depth", [1, 2])
def test_the_end_token_comes_as_the_token_that_the_prompt_says(depth: int) -> None:
    handles, _ = play([query(length) for length in (1, 2, 7, 30, 12)], depth=depth, max_batch_size=3)
    assert [handle.num_tokens for handle in handles] == [0, 1, 6, 29, 11]
    assert {token.id for handle in handles for token in handle.tokens} == {WORD}
    assert {handle.result(0)["finish_reason"] for handle in handles} == {"stop"}
    assert handles[2].result(0)["answer"] == " word" * 6


def test_an_end_that_the_scheduler_cannot_foresee_leaves_a_zombie_at_depth_2_only() -> None:
    assert play([query(9)], depth=1)[1].stats()["zombie_rows"] == 0
    assert play([query(9)], depth=2)[1].stats()["zombie_rows"] == 1


def test_a_preempted_answer_is_as_long_as_any_other() -> None:
    handles, engine = play([query(60) for _ in range(4)], max_batch_size=4, num_pages=10)
    assert [handle.num_tokens for handle in handles] == [59] * 4
    assert any(handle.metrics and handle.metrics.preemptions for handle in handles)
    assert engine.stats()["free_pages"] == 10


@pytest.mark.parametrize(("task", "width"), [("point", 2), ("detect", 3)])
def test_points_and_boxes_keep_their_grammar_and_end_after_whole_ones(task: str, width: int) -> None:
    (handle,), _ = play(Scenario(preset("b200"), 1, 8 * width + 1, task, answers=1).requests())
    found = next(iter(handle.result(0).values()))
    assert len(found) == 8
    values = [value for item in found for value in item.values()]
    assert all(0 < value < 1 for value in values)


def test_captions_end_where_the_script_says() -> None:
    (handle,), _ = play(Scenario(preset("b200"), 1, 20, "caption", answers=1).requests())
    assert handle.num_tokens == 19


def test_lengths_are_the_seeds_spread_evenly_and_mean_what_was_asked() -> None:
    drawn = lengths(100, 104, seed=3)
    assert sum(drawn) / 100 == pytest.approx(104, abs=0.1)
    assert (min(drawn), max(drawn)) == (78, 130)
    assert drawn == lengths(100, 104, seed=3) != lengths(100, 104, seed=4)
    assert lengths(3, 1, seed=0) == [1, 1, 1]


def test_the_tokenizer_reads_numbers_and_writes_words() -> None:
    tokenizer = ScriptedTokenizer()
    assert tokenizer.decode([WORD, *tokenizer.encode(" 12"), WORD]) == " word word"
    with pytest.raises(ValueError, match="how many"):
        tokenizer.encode("how many dogs?")
